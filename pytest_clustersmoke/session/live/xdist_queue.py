"""Has xdist's controller show the run while it waits for its workers."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from .board import TICK_S


class ShowingQueue:
    """Replaces DSession's queue: `get` shows the run while it waits, and erases the view before it
    returns an event, as xdist writes then.

    `waiting` is a context that erases at its end; `tick` is called a few times a second.
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
                seconds = TICK_S if deadline is None else deadline - time.monotonic()
                try:
                    return self._events.get(timeout=max(0.0, min(TICK_S, seconds)))
                except queue.Empty:
                    if seconds <= TICK_S and deadline is not None:
                        raise
                self._tick()


def show_in_queue(
    session: Any,
    waiting: Callable[[], AbstractContextManager[None]],
    tick: Callable[[], None],
) -> bool:
    """Replace the queue of xdist's session (its plugin `dsession`). False if it has none."""
    events = getattr(session, "queue", None)
    if events is None:
        return False
    session.queue = ShowingQueue(events, waiting, tick)
    return True
