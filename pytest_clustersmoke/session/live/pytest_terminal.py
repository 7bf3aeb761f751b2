"""What the view of a run needs of pytest: its terminal, and the queue of xdist's controller."""

from __future__ import annotations

import contextlib
import os
import queue
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from .board import TICK_S
from .screen import Screen


class PytestTerminal:
    """The terminal of one session."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @property
    def _reporter(self) -> Any:
        """pytest's terminal reporter; None without one."""
        return self._config.pluginmanager.get_plugin("terminalreporter")

    @property
    def has_colour(self) -> bool:
        return bool(getattr(self._reporter, "hasmarkup", False))  # as --color says, and NO_COLOR

    def open_screen(self) -> Screen | None:
        """The terminal that pytest writes to. None if its output is not a terminal, cannot move the
        cursor, or belongs to a CI system, which would keep everything drawn."""
        stream = getattr(getattr(self._reporter, "_tw", None), "_file", None)
        ci = bool(os.environ.get("CI") or os.environ.get("BUILD_NUMBER"))  # as pytest knows it
        if stream is None or ci or os.environ.get("TERM", "dumb") in ("dumb", "unknown", ""):
            return None
        if self._config.get_verbosity() < -1:
            return None
        with self._uncaptured():
            return Screen(stream) if stream.isatty() else None

    def say(self, line: str, always: bool = False) -> None:
        """Print a line between pytest's own while items run; under -q only with `always`."""
        reporter = self._reporter
        if reporter is not None and (always or reporter.verbosity >= 0):
            with self._uncaptured():
                reporter.ensure_newline()
                if reporter._tw.width_of_current_line:  # xdist's dots, which pytest does not count
                    reporter.write_line("")
                reporter.write_line(line)

    def _uncaptured(self) -> AbstractContextManager[None]:
        capture = self._config.pluginmanager.get_plugin("capturemanager")
        if capture is None:
            return contextlib.nullcontext()
        context: AbstractContextManager[None] = capture.global_and_fixture_disabled()
        return context


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
