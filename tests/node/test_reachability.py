"""Every node connects to node 0's port before torchrun does, or reports why not. Real sockets."""

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
from pytest_clustersmoke.node.reachability import NodeConnection, NodeListener, Unreachable

HOST = "127.0.0.1"


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


@pytest.fixture
def listener() -> Iterator[NodeListener]:
    opened = NodeListener(HOST, backlog=8)
    yield opened
    opened.close(go=False)
    opened.hold.close()


def soon() -> float:
    return time.monotonic() + 30


def nothing() -> None:
    pass


def connect(pool: ThreadPoolExecutor, listener: NodeListener) -> NodeConnection:
    """A node that has been greeted."""
    coming = pool.submit(NodeConnection, HOST, listener.port, listener.token)
    while not coming.done():
        listener.greet(0.05)
    return coming.result()


def test_nodes_wait_for_the_signal_to_go_on(
    pool: ThreadPoolExecutor, listener: NodeListener
) -> None:
    """Each has measured node 0's clock, here the same clock, to within the measurement error."""
    nodes = [connect(pool, listener) for _ in range(3)]
    for node in nodes:
        assert abs(node.offset_s) <= node.error_s + 0.001 and 0 < node.error_s < 10
    looked = threading.Event()
    waits = [pool.submit(node.wait, soon(), looked.set) for node in nodes]
    assert looked.wait(30) and not any(wait.done() for wait in waits)
    listener.close(go=True)
    assert [wait.result(30) for wait in waits] == [True] * 3


def test_nodes_without_the_signal_do_not_go_on(
    pool: ThreadPoolExecutor, listener: NodeListener
) -> None:
    """Node 0 closes the connection without it if another node cannot connect or node 0 fails."""
    node = connect(pool, listener)
    waiting = pool.submit(node.wait, soon(), nothing)
    listener.close(go=False)
    assert waiting.result(30) is False


def test_wait_ends_at_its_deadline(pool: ThreadPoolExecutor, listener: NodeListener) -> None:
    assert connect(pool, listener).wait(time.monotonic() + 0.1, nothing) is False


def test_check_during_the_wait_may_raise(pool: ThreadPoolExecutor, listener: NodeListener) -> None:
    """The flag that ends the phase also ends the wait."""

    def flag() -> None:
        raise InterruptedError("the flag is up")

    with pytest.raises(InterruptedError):
        connect(pool, listener).wait(soon(), flag)


def test_torchrun_can_bind_the_port_afterwards(
    pool: ThreadPoolExecutor, listener: NodeListener
) -> None:
    """Nothing listens there any more. A socket with SO_REUSEADDR, as torchrun's, can bind the port;
    one without, as of other processes, cannot."""
    node = connect(pool, listener)
    listener.close(go=True)
    assert node.wait(soon(), nothing)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, listener.port), timeout=10)
    with socket.socket() as other, pytest.raises(OSError, match="in use") as refused:
        other.bind((HOST, listener.port))
    assert refused.value.errno == errno.EADDRINUSE
    with socket.socket() as torchruns:
        torchruns.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        torchruns.bind(("", listener.port))
        torchruns.listen()
        with socket.create_connection((HOST, listener.port), timeout=10):
            torchruns.accept()[0].close()


def test_other_clients_do_not_block_nodes(pool: ThreadPoolExecutor, listener: NodeListener) -> None:
    """One sends something else, one sends nothing, and one has already disconnected."""
    with (
        socket.create_connection((HOST, listener.port), timeout=30) as browser,
        socket.create_connection((HOST, listener.port), timeout=30),
    ):
        browser.sendall(b"GET / HTTP/1.0\r\n\r\n")
        socket.create_connection((HOST, listener.port), timeout=30).close()
        node = connect(pool, listener)
        listener.close(go=True)
        assert node.wait(soon(), nothing)


def test_simultaneous_listeners_have_different_ports(pool: ThreadPoolExecutor) -> None:
    """Several phases may run on one machine."""
    listeners = list(pool.map(lambda _: NodeListener(HOST, backlog=1), range(200)))
    assert len({listener.port for listener in listeners}) == 200
    for listener in listeners:
        listener.close(go=False)
        listener.hold.close()


def test_refused_connection_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """After some retries the refusal is reported."""
    monkeypatch.setattr(reachability, "REFUSED_S", 0.2)
    monkeypatch.setattr(reachability, "RETRY_S", 0.05)
    with socket.socket() as closed:
        closed.bind((HOST, 0))
        with pytest.raises(Unreachable, match="connection refused"):
            NodeConnection(HOST, closed.getsockname()[1], "t")


def test_port_that_never_answers_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropped packets are reported as no answer; a listener with a full queue drops them."""
    monkeypatch.setattr(reachability, "CONNECT_S", 0.5)
    with socket.socket() as full:
        full.bind((HOST, 0))
        full.listen(0)
        waiting = []
        for _ in range(4):
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(full.getsockname())
            waiting.append(client)
        with pytest.raises(Unreachable, match=r"no answer .* within 0\.5 s"):
            NodeConnection(HOST, full.getsockname()[1], "t")
        for client in waiting:
            client.close()


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ECONNREFUSED, "connection refused"),
        (errno.EHOSTUNREACH, "no route to host"),
        (errno.ENETUNREACH, "network is unreachable"),
        (errno.ETIMEDOUT, "no answer"),
        (errno.EACCES, "Permission denied"),
    ],
)
def test_error_number_is_described(number: int, words: str) -> None:
    """The description is readable, and never just the number."""
    assert reachability.describe_error(OSError(number, "x")).startswith(words)


@pytest.mark.parametrize(
    "answer",
    [b"", b"SSH-2.0-OpenSSH_9.2\n", b"x 1.5\n", b"t nan\n", b"t inf\n", b"\xff t\n", b"t" * 999],
)
def test_other_service_at_the_port_is_reported(pool: ThreadPoolExecutor, answer: bytes) -> None:
    """Another service at node 0's port, or a proxy in front of it, is not node 0."""
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()

        def serve() -> None:
            connection, _ = other.accept()
            with connection:
                connection.sendall(answer)
                with contextlib.suppress(ConnectionResetError):  # the node has hung up
                    while answer and connection.recv(1000):
                        pass

        served = pool.submit(serve)
        with pytest.raises(Unreachable, match="got no greeting from node 0"):
            NodeConnection(HOST, other.getsockname()[1], "t")
        served.result(30)
