"""Before torchrun: every node connects to node 0, at the address and port that torchrun will use.

Node 0 listens, answers with its clock, and keeps each guest until all have come; then it stops
listening, says `go`, and lets the guests hang up first. So no agent of torchrun's can meet this
listener in place of its store, and no connection of ours is left waiting at node 0's port. The port
itself stays bound, without listening, until the job ends: nobody is given it by chance meanwhile,
and torchrun can bind it since both sockets have SO_REUSEADDR.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import secrets
import selectors
import socket
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

CONNECT_S = 10.0  # a lost SYN is sent again after 1, 3 and 7 s
REFUSED_S = 3.0  # a refusal is an answer; it is asked again for this long
RETRY_S = 0.5
ANSWER_S = 10.0
LOOK_S = 0.25
PINGS = 3
MAX_BYTES = 256
ATTEMPTS = 8
WORDS = {
    errno.ECONNREFUSED: "connection refused (a firewall rejects it, or the address is another's)",
    errno.ETIMEDOUT: "no answer (a firewall drops it, or nothing routes there)",
    errno.EHOSTUNREACH: "no route to host",
    errno.ENETUNREACH: "network is unreachable",
}


class Unreachable(Exception):
    """Node 0 cannot be reached; the text says how it failed."""


@dataclass
class _Guest:
    connection: socket.socket
    text: bytes = b""
    rank: int | None = None
    ready: bool = False


@dataclass
class Door:
    """Node 0's port, on `address`: listening until all have come, held until it is closed."""

    address: str
    backlog: int
    token: str = field(default_factory=lambda: secrets.token_hex(8))

    def __post_init__(self) -> None:
        self.hold, self._listener = _bind(self.address, self.backlog)
        self.port = int(self.hold.getsockname()[1])

    def admit(
        self, others: Collection[int], deadline: float, given_up: Callable[[], Collection[int]]
    ) -> set[int]:
        """Wait for these nodes, but for those that have given up; returns those that are missing.

        Only where none is missing they are told to go on. `given_up` is asked several times a
        second, and may raise.
        """
        guests: dict[socket.socket, _Guest] = {}
        missing, next_look = set(others), 0.0
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            try:
                while missing and time.monotonic() < deadline:
                    if time.monotonic() >= next_look:
                        if missing <= set(given_up()):
                            break
                        next_look = time.monotonic() + LOOK_S
                    for key, _ in selector.select(LOOK_S):
                        self._serve(key.fileobj, guests, selector)
                    missing = set(others) - {one.rank for one in guests.values() if one.ready}
                self._listener.close()
                if not missing:
                    _send_on(guests)
            finally:
                self._listener.close()
                for guest in guests.values():
                    guest.connection.close()
        return missing

    def _serve(
        self,
        ready: object,
        guests: dict[socket.socket, _Guest],
        selector: selectors.BaseSelector,
    ) -> None:
        if ready is self._listener:
            with contextlib.suppress(OSError):  # it went away again
                connection, _ = self._listener.accept()
                connection.setblocking(False)
                guests[connection] = _Guest(connection)
                selector.register(connection, selectors.EVENT_READ)
            return
        assert isinstance(ready, socket.socket)
        guest = guests[ready]
        if not self._hear(guest):
            selector.unregister(ready)
            del guests[ready]
            ready.close()

    def _hear(self, guest: _Guest) -> bool:
        """Take what a guest says; False where it is gone, or none of ours."""
        try:
            said = guest.connection.recv(MAX_BYTES)
            guest.text += said
            while b"\n" in guest.text:
                line, _, guest.text = guest.text.partition(b"\n")
                if not self._answer(guest, line.split()):
                    return False
        except (BlockingIOError, InterruptedError):
            return True
        except (OSError, ValueError):
            return False
        return bool(said) and len(guest.text) < MAX_BYTES

    def _answer(self, guest: _Guest, words: list[bytes]) -> bool:
        match words:
            case [b"hello", token, rank] if secrets.compare_digest(token, self.token.encode()):
                guest.rank = int(rank)
            case [b"time"] if guest.rank is not None:
                guest.connection.sendall(f"{time.time()!r}\n".encode())
            case [b"ready"] if guest.rank is not None:
                guest.ready = True
            case _:
                return False
        return True


def _bind(address: str, backlog: int) -> tuple[socket.socket, socket.socket]:
    """A socket that holds a port, and another that listens there; another port where somebody
    else has begun to listen between the two."""
    for attempt in range(ATTEMPTS):
        hold, listener = socket.socket(), socket.socket()
        try:
            for one in (hold, listener):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            hold.bind((address, 0))
            listener.bind(hold.getsockname())
            listener.listen(backlog)
        except OSError as error:
            hold.close()
            listener.close()
            if error.errno != errno.EADDRINUSE or attempt == ATTEMPTS - 1:
                raise
            continue
        listener.setblocking(False)
        return hold, listener
    raise AssertionError("the last attempt raises or returns")


def _send_on(guests: dict[socket.socket, _Guest]) -> None:
    """Have each go on, and hang up first: then it is its port that has to wait, and not ours."""
    for guest in guests.values():
        with contextlib.suppress(OSError):
            guest.connection.sendall(b"go\n")
    deadline = time.monotonic() + 1.0
    for guest in guests.values():
        with contextlib.suppress(OSError):
            guest.connection.settimeout(max(0.001, deadline - time.monotonic()))
            while guest.connection.recv(MAX_BYTES):
                pass


class Visit:
    """A node's connection to node 0. Raises Unreachable where node 0 does not answer there."""

    def __init__(self, address: str, port: int, token: str, node_rank: int) -> None:
        self._connection = _connect(address, port)
        self._lines = self._connection.makefile("rb")
        try:
            self._connection.settimeout(ANSWER_S)
            self._connection.sendall(f"hello {token} {node_rank}\n".encode())
            self.offset_s, self.error_s = min(
                (self._ping() for _ in range(PINGS)), key=lambda pair: pair[1]
            )
        except (OSError, ValueError) as error:
            self.close()
            raise Unreachable(f"something else answers there, or broke off: {error}") from error

    def _ping(self) -> tuple[float, float]:
        """How far this node's clock is ahead of node 0's, and by how much that may be wrong:
        node 0 looked at its own at some moment between our two looks (as NTP does, RFC 5905)."""
        before, sent = time.time(), time.monotonic()
        self._connection.sendall(b"time\n")
        theirs = float(self._lines.readline(MAX_BYTES))
        if not math.isfinite(theirs):
            raise ValueError(f"a time of {theirs}")
        half = (time.monotonic() - sent) / 2
        return before + half - theirs, half

    def wait(self, deadline: float, look: Callable[[], None]) -> bool:
        """Stay until node 0 says to go on; False where it hung up or said nothing by then. `look`
        is called several times a second, and may raise."""
        try:
            self._connection.sendall(b"ready\n")
            self._connection.settimeout(LOOK_S)
            said = b""
            while time.monotonic() < deadline:
                try:
                    part = self._connection.recv(MAX_BYTES)
                except TimeoutError:
                    look()
                    continue
                said += part
                if not part or b"\n" in said:
                    return said == b"go\n"
        except OSError:
            pass
        finally:
            self.close()
        return False

    def close(self) -> None:
        self._lines.close()  # else the connection stays open behind it
        self._connection.close()


def _connect(address: str, port: int) -> socket.socket:
    began = time.monotonic()
    while True:
        left = began + CONNECT_S - time.monotonic()
        try:
            return socket.create_connection((address, port), timeout=max(0.1, left))
        except TimeoutError:
            waited = f"within {CONNECT_S:g} s"
            raise Unreachable(f"{WORDS[errno.ETIMEDOUT]} {waited}") from None
        except OSError as error:
            if time.monotonic() - began > REFUSED_S:
                raise Unreachable(words(error)) from error
        time.sleep(RETRY_S)


def words(error: OSError) -> str:
    """What came of a connection, in words."""
    if error.errno in WORDS:
        return WORDS[error.errno]
    return os.strerror(error.errno) if error.errno else str(error)
