"""pytest-xdist's controller waits in one place, for its workers' events: there it shows the run."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from .board import TICK_S


class ShowingQueue:
    """In the place of DSession's queue: `get` looks around while it waits, and what it has drawn is
    erased before an event is handed out, for then xdist writes.

    `waiting`: a context that erases at its end; `tick`: called a few times a second.
    """

    def __init__(
        self,
        events: Any,
        waiting: Callable[[], AbstractContextManager[None]],
        tick: Callable[[], None],
    ) -> None:
        self._events, self._waiting, self._tick = events, waiting, tick

    def __getattr__(self, name: str) -> Any:
        return getattr(self._events, name)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """As queue.Queue.get; raises queue.Empty."""
        if not block:
            return self._events.get(block=False)
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._waiting():
            while True:
                left = TICK_S if deadline is None else deadline - time.monotonic()
                try:
                    return self._events.get(timeout=max(0.0, min(TICK_S, left)))
                except queue.Empty:
                    if left <= TICK_S and deadline is not None:
                        raise
                self._tick()


def attach(
    session: Any, waiting: Callable[[], AbstractContextManager[None]], tick: Callable[[], None]
) -> bool:
    """Give xdist's session (its plugin `dsession`) such a queue. False where it has none."""
    events = getattr(session, "queue", None)
    if events is None:
        return False
    session.queue = ShowingQueue(events, waiting, tick)
    return True
