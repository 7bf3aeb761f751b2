"""Shows a run while pytest waits for it: as a live view on a terminal, as lines elsewhere.

An error here must never fail the run: it is reported once, and lines take the view's place.
"""

from __future__ import annotations

import contextlib
import os
import queue
import time
import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from ...text import sanitize_line
from .board import TICK_S, Progress, WatchFailed
from .event_tail import EventTails
from .log_lines_view import StepLines
from .screen import Screen

if TYPE_CHECKING:
    from ..job_session import Session

# Lines of these phases are printed even while the view shows everything else.
ALWAYS = {"preflight"}
# Rows of the terminal that the view leaves free: pytest's own line and a spare one.
FREE_ROWS = 2


class LiveView:
    """Shows one run. Call all methods from the main thread."""

    def __init__(self, config: pytest.Config, session: Session) -> None:
        self._config, self._session = config, session
        self._title = f"cluster {session.profile.name}"
        self._tails = EventTails(session.run)
        self._lines: StepLines | None = StepLines()
        self._screen: Screen | None = None
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        self._colour = bool(getattr(reporter, "hasmarkup", False))  # as --color says, and NO_COLOR
        try:
            self._screen = open_screen(config)
        except Exception as error:
            self._warn("live view", error)

    def wait(self, phase: str) -> None:
        """Return when the phase's result is known; end pytest if the watch thread has failed."""
        with self._waiting():
            self._session.board.wait(phase, self._print, self._show_progress)

    def wait_with_xdist(self) -> None:
        """Have xdist's controller show the run while it waits."""
        dsession = self._config.pluginmanager.get_plugin("dsession")
        if not show_in_queue(dsession, self._waiting, self._show_all):
            self._warn("progress", RuntimeError("this pytest-xdist has no event queue"))

    def close(self) -> None:
        """Print the changes since pytest last waited, and end the view."""
        for progress in self._session.board.take_news():
            self._print(progress)
        self._drop_screen()

    def _drop_screen(self) -> None:
        if self._screen is not None:
            self._screen.close()
            self._screen = None

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        """Erase the view at the end."""
        try:
            yield
        except WatchFailed as error:
            self._erase()
            traceback.print_exception(error.__cause__)
            pytest.exit(f"internal error: {error}; the run's jobs are cancelled", returncode=3)
        finally:
            self._erase()

    def _show_all(self) -> None:
        """Do for all phases what `board.wait` does while it waits for one."""
        for progress in self._session.board.take_news():
            self._print(progress)
        self._session.board.check()
        self._show_progress()

    def _print(self, progress: Progress) -> None:
        if self._screen is None or progress.phase in ALWAYS:
            self._erase()
            say(self._config, f"  {progress.phase}: {progress.text}")

    def _show_progress(self) -> None:
        try:
            if self._screen is not None:
                self._draw(self._screen)
            elif self._lines is not None:
                self._print_steps(self._lines)
        except Exception as error:
            self._give_up(error)

    def _draw(self, screen: Screen) -> None:
        from .rows import ansi, rows

        states, size = self._session.board.snapshot(), screen.size
        marks = self._tails.read_next(states)
        lines = rows(
            self._title, states, marks, time.time(), size.columns - 1, size.lines - FREE_ROWS
        )
        screen.draw(ansi(lines, self._colour))

    def _print_steps(self, lines: StepLines) -> None:
        states = self._session.board.snapshot()
        for phase, text in lines.due(states, self._tails.read_next(states), time.monotonic()):
            say(self._config, f"  {phase}: {text}")

    def _give_up(self, error: Exception) -> None:
        """Fall back from the view to lines, and from those to the scheduler's states only."""
        self._erase()
        part = "live view" if self._screen is not None else "steps"
        if self._screen is None:
            self._lines = None
        self._drop_screen()
        self._warn(part, error)

    def _warn(self, part: str, error: Exception) -> None:
        warning = f"  {part} not shown: {type(error).__name__}: {sanitize_line(str(error))}"
        with contextlib.suppress(OSError):  # pytest gets the same error, and reports it
            say(self._config, warning)

    def _erase(self) -> None:
        if self._screen is not None:
            with contextlib.suppress(OSError, ValueError):  # a terminal that is gone
                self._screen.erase()


def open_screen(config: pytest.Config) -> Screen | None:
    """The terminal that pytest writes to. None if its output is not a terminal, cannot move the
    cursor, or belongs to a CI system, which would keep everything drawn."""
    from .screen import Screen

    reporter = config.pluginmanager.get_plugin("terminalreporter")
    stream = getattr(getattr(reporter, "_tw", None), "_file", None)
    ci = bool(os.environ.get("CI") or os.environ.get("BUILD_NUMBER"))  # as pytest knows it
    if stream is None or ci or os.environ.get("TERM", "dumb") in ("dumb", "unknown", ""):
        return None
    if config.get_verbosity() < -1:
        return None
    with _uncaptured(config):
        return Screen(stream) if stream.isatty() else None


def say(config: pytest.Config, line: str) -> None:
    """Print a line between pytest's own while items run; nothing under -q."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and reporter.verbosity >= 0:
        with _uncaptured(config):
            reporter.ensure_newline()
            if reporter._tw.width_of_current_line:  # xdist's dots, which pytest does not count
                reporter.write_line("")
            reporter.write_line(line)


def _uncaptured(config: pytest.Config) -> contextlib.AbstractContextManager[None]:
    capture = config.pluginmanager.get_plugin("capturemanager")
    if capture is None:
        return contextlib.nullcontext()
    context: contextlib.AbstractContextManager[None] = capture.global_and_fixture_disabled()
    return context


class ShowingQueue:
    """Replaces DSession's queue: `get` shows the run while it waits, and erases the view before it
    returns an event, as xdist writes then.

    `waiting` is a context that erases at its end; `tick` is called a few times a second.
    """

    def __init__(
        self,
        events: Any,
        waiting: Callable[[], contextlib.AbstractContextManager[None]],
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
    waiting: Callable[[], contextlib.AbstractContextManager[None]],
    tick: Callable[[], None],
) -> bool:
    """Replace the queue of xdist's session (its plugin `dsession`). False if it has none."""
    events = getattr(session, "queue", None)
    if events is None:
        return False
    session.queue = ShowingQueue(events, waiting, tick)
    return True
