"""Whether the nodes' names can be resolved here, without waiting for a name server that is not
there."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Iterable

THREADS = 8
# Names of a job of thousands of nodes need not all be asked for, on each of them.
MAX_NAMES = 256
LIMIT_S = 2.0


class Lookup:
    """Names that are being looked up, from now on, beside other work."""

    def __init__(self, names: Iterable[str]) -> None:
        self._left: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._found: dict[str, bool] = {}
        self._names = list(dict.fromkeys(names))[:MAX_NAMES]
        self._deadline = time.monotonic() + LIMIT_S
        for name in self._names:
            self._left.put(name)
        # A look-up cannot be broken off, so its thread must not be waited for.
        self._threads = [
            threading.Thread(target=self._work, name="clustersmoke-lookup", daemon=True)
            for _ in range(min(THREADS, len(self._names)))
        ]
        for thread in self._threads:
            thread.start()

    def found(self) -> dict[str, bool]:
        """Name -> whether it can be resolved; one whose answer is not there in time is missing."""
        for thread in self._threads:
            thread.join(max(0.0, self._deadline - time.monotonic()))
        return dict(self._found)

    def _work(self) -> None:
        while time.monotonic() < self._deadline:
            try:
                name = self._left.get_nowait()
            except queue.Empty:
                return
            self._found[name] = resolves(name)


def resolves(name: str) -> bool:
    try:
        return bool(socket.getaddrinfo(name, None))
    except (OSError, UnicodeError):
        return False
