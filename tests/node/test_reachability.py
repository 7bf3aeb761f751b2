"""Every node connects to node 0's port before torchrun does; who cannot says why. Real sockets."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from pytest_clustersmoke.node import reachability
from pytest_clustersmoke.node.reachability import Door, Unreachable, Visit

HOST = "127.0.0.1"


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


@pytest.fixture
def door() -> Iterator[Door]:
    opened = Door(HOST, backlog=8)
    yield opened
    opened.close(go=False)
    opened.hold.close()


def soon() -> float:
    return time.monotonic() + 30


def nothing() -> None:
    pass


def enter(pool: ThreadPoolExecutor, door: Door) -> Visit:
    """A guest that has been greeted."""
    coming = pool.submit(Visit, HOST, door.port, door.token)
    while not coming.done():
        door.greet(0.05)
    return coming.result()


def test_guests_wait_until_they_are_sent_on(pool: ThreadPoolExecutor, door: Door) -> None:
    """Each has measured node 0's clock, which is its own here, to within what the greeting took."""
    guests = [enter(pool, door) for _ in range(3)]
    for guest in guests:
        assert abs(guest.offset_s) <= guest.error_s + 0.001 and 0 < guest.error_s < 10
    looked = threading.Event()
    waits = [pool.submit(guest.wait, soon(), looked.set) for guest in guests]
    assert looked.wait(30) and not any(one.done() for one in waits)
    door.close(go=True)
    assert [one.result(30) for one in waits] == [True] * 3


def test_guests_that_are_not_sent_on_stay_behind(pool: ThreadPoolExecutor, door: Door) -> None:
    """Node 0 hangs up without a word where another node did not get through, or where it ends."""
    guest = enter(pool, door)
    waiting = pool.submit(guest.wait, soon(), nothing)
    door.close(go=False)
    assert waiting.result(30) is False


def test_the_wait_has_an_end(pool: ThreadPoolExecutor, door: Door) -> None:
    assert enter(pool, door).wait(time.monotonic() + 0.1, nothing) is False


def test_what_is_looked_at_meanwhile_may_raise(pool: ThreadPoolExecutor, door: Door) -> None:
    """The flag that ends the phase ends the wait."""

    def flag() -> None:
        raise InterruptedError("the flag is up")

    with pytest.raises(InterruptedError):
        enter(pool, door).wait(soon(), flag)


def test_the_port_is_torchruns_once_all_have_come(pool: ThreadPoolExecutor, door: Door) -> None:
    """Nobody listens there any more, and a socket of torchrun's kind can take it, while one
    without SO_REUSEADDR, as others', cannot."""
    guest = enter(pool, door)
    door.close(go=True)
    assert guest.wait(soon(), nothing)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, door.port), timeout=10)
    with socket.socket() as other, pytest.raises(OSError, match="in use") as refused:
        other.bind((HOST, door.port))
    assert refused.value.errno == errno.EADDRINUSE
    with socket.socket() as torchruns:
        torchruns.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        torchruns.bind(("", door.port))
        torchruns.listen()
        with socket.create_connection((HOST, door.port), timeout=10):
            torchruns.accept()[0].close()


def test_strangers_at_the_door_keep_nobody_out(pool: ThreadPoolExecutor, door: Door) -> None:
    """One that says something else, one that says nothing, and one that has gone already."""
    with (
        socket.create_connection((HOST, door.port), timeout=30) as browser,
        socket.create_connection((HOST, door.port), timeout=30),
    ):
        browser.sendall(b"GET / HTTP/1.0\r\n\r\n")
        socket.create_connection((HOST, door.port), timeout=30).close()
        guest = enter(pool, door)
        door.close(go=True)
        assert guest.wait(soon(), nothing)


def test_doors_that_open_at_once_have_ports_of_their_own(pool: ThreadPoolExecutor) -> None:
    """As those of several phases on one machine do."""
    doors = list(pool.map(lambda _: Door(HOST, backlog=1), range(200)))
    assert len({one.port for one in doors}) == 200
    for one in doors:
        one.close(go=False)
        one.hold.close()


def test_a_port_where_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal is told as that, after it was asked again for a while."""
    monkeypatch.setattr(reachability, "REFUSED_S", 0.2)
    monkeypatch.setattr(reachability, "RETRY_S", 0.05)
    with socket.socket() as closed:
        closed.bind((HOST, 0))
        with pytest.raises(Unreachable, match="connection refused"):
            Visit(HOST, closed.getsockname()[1], "t")


def test_a_port_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What drops our packets is told as no answer: a listener whose queue is full does that."""
    monkeypatch.setattr(reachability, "CONNECT_S", 0.5)
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
            Visit(HOST, full.getsockname()[1], "t")
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
    assert reachability.words(OSError(number, "x")).startswith(said)


@pytest.mark.parametrize(
    "answer",
    [b"", b"SSH-2.0-OpenSSH_9.2\n", b"x 1.5\n", b"t nan\n", b"t inf\n", b"\xff t\n", b"t" * 999],
)
def test_somebody_else_at_the_port(pool: ThreadPoolExecutor, answer: bytes) -> None:
    """Another service at node 0's port, or a proxy before it, is not node 0."""
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()

        def serve() -> None:
            connection, _ = other.accept()
            with connection:
                connection.sendall(answer)
                with contextlib.suppress(ConnectionResetError):  # the guest has heard enough
                    while answer and connection.recv(1000):
                        pass

        served = pool.submit(serve)
        with pytest.raises(Unreachable, match="got no greeting from node 0"):
            Visit(HOST, other.getsockname()[1], "t")
        served.result(30)
