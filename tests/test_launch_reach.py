"""Every node comes to node 0's port before torchrun does; who cannot says why. Real sockets."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from pytest_clustersmoke.launch import reach
from pytest_clustersmoke.launch.reach import Door, Unreachable, Visit

HOST = "127.0.0.1"


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


@pytest.fixture
def door() -> Iterator[Door]:
    opened = Door(HOST, backlog=8)
    yield opened
    opened.hold.close()


def soon() -> float:
    return time.monotonic() + 30


def nothing() -> None:
    pass


def call_on(door: Door, node: int) -> tuple[bool, Visit]:
    visit = Visit(door.address, door.port, door.token, node)
    return visit.wait(soon(), nothing), visit


def test_all_go_on_once_all_have_come(pool: ThreadPoolExecutor, door: Door) -> None:
    """Nobody is sent on before the last has come; each has measured node 0's clock, which is its
    own here, to within the time that its question took."""
    calls = [pool.submit(call_on, door, node) for node in (1, 2)]
    admitted = pool.submit(door.admit, {1, 2, 3}, soon(), set)
    assert not any(call.done() for call in calls)
    calls.append(pool.submit(call_on, door, 3))
    assert admitted.result(30) == set()
    for call in calls:
        went_on, visit = call.result(30)
        assert went_on and abs(visit.offset_s) <= visit.error_s + 0.001
        assert 0 < visit.error_s < 10


def test_the_port_is_torchruns_once_all_have_come(pool: ThreadPoolExecutor, door: Door) -> None:
    """Nobody listens there any more, no connection of ours waits there, and a socket of torchrun's
    kind can take it, while one without SO_REUSEADDR, as others', cannot."""
    call = pool.submit(call_on, door, 1)
    assert door.admit({1}, soon(), set) == set() and call.result(30)[0]
    with socket.socket() as other, pytest.raises(OSError, match="in use") as refused:
        other.bind((HOST, door.port))
    assert refused.value.errno == errno.EADDRINUSE
    with socket.socket() as torchruns:
        torchruns.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        torchruns.bind(("", door.port))
        torchruns.listen()
        with socket.create_connection((HOST, door.port), timeout=10):
            torchruns.accept()[0].close()


def test_a_port_that_somebody_took_between_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another listens on the first port before we do: the door is at another one."""
    thieves: list[socket.socket] = []
    real = socket.socket

    class Robbed(real):  # type: ignore[misc, valid-type]
        def bind(self, address: tuple[str, int]) -> None:
            if address[1] and not thieves:
                thief = real()
                thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                thief.bind(address)
                thief.listen()
                thieves.append(thief)
            super().bind(address)

    monkeypatch.setattr(socket, "socket", Robbed)
    door = Door(HOST, backlog=1)
    (thief,) = thieves
    with thief, door.hold:
        assert door.port != thief.getsockname()[1]
        assert door.admit((), soon(), set) == set()


def test_who_gives_up_ends_the_wait(pool: ThreadPoolExecutor, door: Door) -> None:
    """Where the missing have given up, node 0 waits no longer, and those that came are not sent
    on."""
    call = pool.submit(call_on, door, 1)
    assert door.admit({1, 2}, soon(), lambda: {2}) == {2}
    went_on, _ = call.result(30)
    assert went_on is False


def test_the_wait_has_an_end(door: Door) -> None:
    """Past its time the missing are told."""
    assert door.admit({1, 2}, time.monotonic() + 0.1, set) == {1, 2}


def test_what_is_asked_meanwhile_may_raise(door: Door) -> None:
    """The flag that ends the phase ends the wait, and nobody listens after it."""

    def flag() -> set[int]:
        raise InterruptedError("the flag is up")

    with pytest.raises(InterruptedError):
        door.admit({1}, soon(), flag)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, door.port), timeout=10)


@pytest.mark.parametrize(
    "said",
    [b"GET / HTTP/1.0\r\n\r\n", b"hello wrong 1\n", b"ready\n", b"\xff" * 1000, b"hello\n", b""],
)
def test_strangers_are_shown_out(pool: ThreadPoolExecutor, door: Door, said: bytes) -> None:
    """Whoever does not know the token is none of ours, and the others come as ever."""
    admitted = pool.submit(door.admit, {1}, soon(), set)
    with socket.create_connection((HOST, door.port), timeout=30) as stranger:
        stranger.sendall(said)
        if said:
            stranger.settimeout(30)
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(10) == b""
        call: Future[tuple[bool, Visit]] = pool.submit(call_on, door, 1)
        assert admitted.result(30) == set() and call.result(30)[0]


def test_a_port_where_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal is told as that, after it was asked again for a while."""
    monkeypatch.setattr(reach, "REFUSED_S", 0.2)
    monkeypatch.setattr(reach, "RETRY_S", 0.05)
    with socket.socket() as closed:
        closed.bind((HOST, 0))
        with pytest.raises(Unreachable, match="connection refused"):
            Visit(HOST, closed.getsockname()[1], "t", 1)


def test_a_port_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What drops our packets is told as no answer: a listener whose queue is full does that."""
    monkeypatch.setattr(reach, "CONNECT_S", 0.5)
    with socket.socket() as full:
        full.bind((HOST, 0))
        full.listen(0)
        waiting = []
        for _ in range(4):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(full.getsockname())
            waiting.append(one)
        with pytest.raises(Unreachable, match=r"no answer .* within 0\.5 s"):
            Visit(HOST, full.getsockname()[1], "t", 1)
        for one in waiting:
            one.close()


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ECONNREFUSED, "connection refused"),
        (errno.EHOSTUNREACH, "no route to host"),
        (errno.ENETUNREACH, "network is unreachable"),
        (errno.ETIMEDOUT, "no answer"),
        (errno.EACCES, "Permission denied"),
    ],
)
def test_the_systems_number_is_told_in_words(number: int, said: str) -> None:
    """People read words."""
    assert reach.words(OSError(number, "x")).startswith(said)


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-OpenSSH_9.2\n", b"nan\n", b"inf\n", b"\xff\n"])
def test_somebody_else_at_the_port(pool: ThreadPoolExecutor, answer: bytes) -> None:
    """Another service at node 0's port, or a proxy before it, is not node 0."""
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()

        def serve() -> None:
            connection, _ = other.accept()
            with connection:
                connection.sendall(answer)
                if answer:
                    connection.recv(1000)

        served = pool.submit(serve)
        with pytest.raises(Unreachable, match="something else answers there"):
            Visit(HOST, other.getsockname()[1], "t", 1)
        served.result(30)


def test_node_0_that_ends_is_noticed(pool: ThreadPoolExecutor, door: Door) -> None:
    """A guest whose connection breaks before `go` does not go on; its own look may raise."""
    raised = threading.Event()

    def look() -> None:
        raised.set()

    visit = pool.submit(Visit, door.address, door.port, door.token, 1)
    admitted = pool.submit(door.admit, {1, 2}, time.monotonic() + 2, set)
    waiting = pool.submit(visit.result(30).wait, soon(), look)
    assert admitted.result(30) == {2}
    assert waiting.result(30) is False and raised.is_set()
