"""Before the launcher starts, every node connects to node 0 at the address and port it will use.

Node 0 sends each node its token and its clock, and keeps the connection open. Once all nodes have
reported in the run directory that they connected, it stops listening and only then lets them go on,
so that no agent or rank connects to this listener instead of the job's store. The port stays bound,
without listening, until the job ends: the system gives it to no other process meanwhile, and the
launcher or rank 0 can bind it because both sockets have SO_REUSEADDR.
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
REFUSED_S = 3.0  # after a refusal, retry for this long
RETRY_S = 0.5
ANSWER_S = 10.0
LOOK_S = 0.25
MAX_BYTES = 256
GO = b"go\n"
DESCRIPTIONS = {
    errno.ECONNREFUSED: (
        "connection refused (a firewall rejects it, or another machine has that address)"
    ),
    errno.ETIMEDOUT: "no answer (a firewall drops it, or there is no route)",
    errno.EHOSTUNREACH: "no route to host",
    errno.ENETUNREACH: "network is unreachable",
}


class Unreachable(Exception):
    """Node 0 cannot be reached; the text says why."""


class NodeListener:
    """Node 0's port: listening until `close`, and reserved as long as `hold` lives."""

    def __init__(self, address: str, backlog: int) -> None:
        self.hold, self._listener = _bind(address, backlog)
        self.port = int(self.hold.getsockname()[1])
        self.token = secrets.token_hex(8)
        self._connections: list[socket.socket] = []

    def greet(self, seconds: float) -> None:
        """Greet every node that connects within this time."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._listener.settimeout(left)
            with contextlib.suppress(OSError):  # no node connected, or it closed the connection
                connection, _ = self._listener.accept()
                self._connections.append(connection)
                connection.setblocking(False)
                connection.sendall(f"{self.token} {time.time()!r}\n".encode())

    def close(self, go: bool) -> None:
        """Stop listening and close the connections; with `go`, first signal the nodes to go on."""
        self._listener.close()
        for connection in self._connections:
            with contextlib.suppress(OSError), connection:
                connection.sendall(GO if go else b"")


def _bind(address: str, backlog: int) -> tuple[socket.socket, socket.socket]:
    """A socket that reserves a port, and another that listens on it."""
    hold, listener = socket.socket(), socket.socket()
    hold.bind((address, 0))  # before SO_REUSEADDR, so that no other process has this port
    for sock in (hold, listener):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(hold.getsockname())
    listener.listen(backlog)
    return hold, listener


class NodeConnection:
    """A node's connection to node 0. Raises Unreachable if node 0 does not answer there.

    This node's clock is ahead of node 0's by `offset_s`, known to within `error_s`: node 0 read its
    clock between our two readings.
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
                raise Unreachable(f"{DESCRIPTIONS[errno.ETIMEDOUT]} {waited}") from None
            except OSError as error:
                if time.monotonic() - began > REFUSED_S:
                    raise Unreachable(describe_error(error)) from error
            time.sleep(RETRY_S)
        node_zero_time = self._read_greeting(token)
        self.error_s = (time.monotonic() - sent) / 2
        self.offset_s = before + self.error_s - node_zero_time

    def _read_greeting(self, token: str) -> float:
        """The time in node 0's greeting."""
        greeting = b""
        try:
            self._connection.settimeout(ANSWER_S)
            while b"\n" not in greeting and len(greeting) < MAX_BYTES:
                part = self._connection.recv(MAX_BYTES)
                if not part:
                    break
                greeting += part
            sent_token, sent_time = greeting.split()
            if sent_token.decode() == token and math.isfinite(time_s := float(sent_time)):
                return time_s
            why = "the greeting is not node 0's"
        except (OSError, ValueError) as error:
            why = str(error)
        self._connection.close()
        raise Unreachable(f"connected, but got no greeting from node 0: {why}")

    def wait(self, deadline: float, check: Callable[[], None]) -> bool:
        """Wait for node 0's signal to go on; False if it closed the connection, or sent nothing by
        the deadline. `check` is called several times a second, and may raise."""
        answer = b""
        with contextlib.suppress(ConnectionError), self._connection:
            self._connection.settimeout(LOOK_S)
            while time.monotonic() < deadline:
                try:
                    part = self._connection.recv(MAX_BYTES)
                except TimeoutError:
                    check()
                    continue
                answer += part
                if not part or answer == GO:
                    break
        return answer == GO


def describe_error(error: OSError) -> str:
    """Why a connection failed, as readable text."""
    if error.errno in DESCRIPTIONS:
        return DESCRIPTIONS[error.errno]
    return os.strerror(error.errno) if error.errno else str(error)
