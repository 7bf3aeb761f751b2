"""Before torchrun: every node connects to node 0, at the address and port that torchrun will use.

Node 0 greets each guest with its token and its clock, and keeps the connection. Once all have
said in the run directory that they got through, it stops listening and only then sends them on: so
no agent of torchrun's can meet this listener in place of its store. The port itself stays bound,
without listening, until the job ends: nobody is given it by chance meanwhile, and torchrun can bind
it since both sockets have SO_REUSEADDR.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import secrets
import socket
import time
from collections.abc import Callable

CONNECT_S = 10.0  # a lost SYN is sent again after 1, 3 and 7 s
REFUSED_S = 3.0  # a refusal is an answer; it is asked again for this long
RETRY_S = 0.5
ANSWER_S = 10.0
LOOK_S = 0.25
MAX_BYTES = 256
GO = b"go\n"
WORDS = {
    errno.ECONNREFUSED: (
        "connection refused (a firewall rejects it, or another machine has that address)"
    ),
    errno.ETIMEDOUT: "no answer (a firewall drops it, or there is no route)",
    errno.EHOSTUNREACH: "no route to host",
    errno.ENETUNREACH: "network is unreachable",
}


class Unreachable(Exception):
    """Node 0 cannot be reached; the text says how it failed."""


class Door:
    """Node 0's port: listening until it is closed, and held for as long as `hold` lives."""

    def __init__(self, address: str, backlog: int) -> None:
        self.hold, self._listener = _bind(address, backlog)
        self.port = int(self.hold.getsockname()[1])
        self.token = secrets.token_hex(8)
        self._guests: list[socket.socket] = []

    def greet(self, seconds: float) -> None:
        """Greet whoever comes within this time."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._listener.settimeout(left)
            with contextlib.suppress(OSError):  # nobody came, or went away again
                guest, _ = self._listener.accept()
                self._guests.append(guest)
                guest.setblocking(False)
                guest.sendall(f"{self.token} {time.time()!r}\n".encode())

    def close(self, go: bool) -> None:
        """Stop listening, and hang up on the guests; where they are to `go` on, say so first."""
        self._listener.close()
        for guest in self._guests:
            with contextlib.suppress(OSError), guest:
                guest.sendall(GO if go else b"")


def _bind(address: str, backlog: int) -> tuple[socket.socket, socket.socket]:
    """A socket that holds a port, and another that listens there."""
    hold, listener = socket.socket(), socket.socket()
    hold.bind((address, 0))  # not to be shared as yet: the port is nobody else's
    for one in (hold, listener):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(hold.getsockname())
    listener.listen(backlog)
    return hold, listener


class Visit:
    """A node's connection to node 0. Raises Unreachable where node 0 does not answer there.

    This node's clock is ahead of node 0's by `offset_s`, known to within `error_s`: node 0 looked
    at its own between our two looks.
    """

    def __init__(self, address: str, port: int, token: str) -> None:
        began = time.monotonic()
        while True:
            before, sent = time.time(), time.monotonic()
            try:
                left = max(0.1, began + CONNECT_S - sent)
                self._connection = socket.create_connection((address, port), timeout=left)
                break
            except TimeoutError:
                waited = f"within {CONNECT_S:g} s"
                raise Unreachable(f"{WORDS[errno.ETIMEDOUT]} {waited}") from None
            except OSError as error:
                if time.monotonic() - began > REFUSED_S:
                    raise Unreachable(words(error)) from error
            time.sleep(RETRY_S)
        theirs = self._greeting(token)
        self.error_s = (time.monotonic() - sent) / 2
        self.offset_s = before + self.error_s - theirs

    def _greeting(self, token: str) -> float:
        """The time that node 0 greets with."""
        said = b""
        try:
            self._connection.settimeout(ANSWER_S)
            while b"\n" not in said and len(said) < MAX_BYTES:
                part = self._connection.recv(MAX_BYTES)
                if not part:
                    break
                said += part
            named, their_time = said.split()
            if named.decode() == token and math.isfinite(time_s := float(their_time)):
                return time_s
            why = "the greeting is not node 0's"
        except (OSError, ValueError) as error:
            why = str(error)
        self._connection.close()
        raise Unreachable(f"connected, but got no greeting from node 0: {why}")

    def wait(self, deadline: float, look: Callable[[], None]) -> bool:
        """Stay until node 0 says to go on; False where it hung up or said nothing by then. `look`
        is called several times a second, and may raise."""
        said = b""
        with contextlib.suppress(ConnectionError), self._connection:
            self._connection.settimeout(LOOK_S)
            while time.monotonic() < deadline:
                try:
                    part = self._connection.recv(MAX_BYTES)
                except TimeoutError:
                    look()
                    continue
                said += part
                if not part or said == GO:
                    break
        return said == GO


def words(error: OSError) -> str:
    """What came of a connection, in words."""
    if error.errno in WORDS:
        return WORDS[error.errno]
    return os.strerror(error.errno) if error.errno else str(error)
