"""Shows a run while pytest waits for it: as a view on a terminal, as lines elsewhere.

To show is never worth a run: what goes wrong here is told once, and lines take over.
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
from .event_tail import Tails
from .log_lines_view import StepLines
from .screen import Screen

if TYPE_CHECKING:
    from ..job_session import Session

# These are told wherever a run is shown; on a terminal the view has all else.
ALWAYS = {"preflight"}
# Rows of the terminal that are not for the view: pytest's own line, and one more for calm.
OWN_ROWS = 2


class Show:
    """What is shown of one run. Every method is for the main thread."""

    def __init__(self, config: pytest.Config, session: Session) -> None:
        self._config, self._session = config, session
        self._title = f"cluster {session.profile.name}"
        self._tails = Tails(session.run)
        self._lines: StepLines | None = StepLines()
        self._screen: Screen | None = None
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        self._colour = bool(getattr(reporter, "hasmarkup", False))  # as --color says, and NO_COLOR
        try:
            self._screen = open_screen(config)
        except Exception as error:
            self._warn("live view", error)

    def wait(self, phase: str) -> None:
        """Return when the phase's result is known; ends pytest where the watch has failed."""
        with self._waiting():
            self._session.board.wait(phase, self._tell, self._look)

    def wait_with_xdist(self) -> None:
        """Have xdist's controller show the run wherever it waits."""
        dsession = self._config.pluginmanager.get_plugin("dsession")
        if not show_in_queue(dsession, self._waiting, self._look_around):
            self._warn("progress", RuntimeError("this pytest-xdist has no event queue"))

    def close(self) -> None:
        """Tell what the watch said since pytest last waited, and end the view."""
        for progress in self._session.board.fresh():
            self._tell(progress)
        self._drop_screen()

    def _drop_screen(self) -> None:
        if self._screen is not None:
            self._screen.close()
            self._screen = None

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        """At its end nothing of the view is left."""
        try:
            yield
        except WatchFailed as error:
            self._erase()
            traceback.print_exception(error.__cause__)
            pytest.exit(f"internal error: {error}; the run's jobs are cancelled", returncode=3)
        finally:
            self._erase()

    def _look_around(self) -> None:
        """What `board.wait` does while it waits for a phase, for all of them."""
        for progress in self._session.board.fresh():
            self._tell(progress)
        self._session.board.check()
        self._look()

    def _tell(self, progress: Progress) -> None:
        if self._screen is None or progress.phase in ALWAYS:
            self._erase()
            say(self._config, f"  {progress.phase}: {progress.text}")

    def _look(self) -> None:
        try:
            if self._screen is not None:
                self._draw(self._screen)
            elif self._lines is not None:
                self._tell_steps(self._lines)
        except Exception as error:
            self._give_up(error)

    def _draw(self, screen: Screen) -> None:
        from .rows import ansi, rows

        states, size = self._session.board.snapshot(), screen.size
        marks = self._tails.look(states)
        told = rows(
            self._title, states, marks, time.time(), size.columns - 1, size.lines - OWN_ROWS
        )
        screen.draw(ansi(told, self._colour))

    def _tell_steps(self, lines: StepLines) -> None:
        states = self._session.board.snapshot()
        for phase, text in lines.due(states, self._tails.look(states), time.monotonic()):
            say(self._config, f"  {phase}: {text}")

    def _give_up(self, error: Exception) -> None:
        """From the view to lines; from those to what the scheduler says alone."""
        self._erase()
        what = "live view" if self._screen is not None else "steps"
        if self._screen is None:
            self._lines = None
        self._drop_screen()
        self._warn(what, error)

    def _warn(self, what: str, error: Exception) -> None:
        words = f"  {what} not shown: {type(error).__name__}: {sanitize_line(str(error))}"
        with contextlib.suppress(OSError):  # pytest meets the same, and tells it better
            say(self._config, words)

    def _erase(self) -> None:
        if self._screen is not None:
            with contextlib.suppress(OSError, ValueError):  # a terminal that is gone
                self._screen.erase()


def open_screen(config: pytest.Config) -> Screen | None:
    """The terminal that pytest writes to; None where it is none, cannot move its cursor, or is a CI
    system's, which keeps all that is drawn."""
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
    """A line between pytest's own, while items run; none with -q."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and reporter.verbosity >= 0:
        with _uncaptured(config):
            reporter.ensure_newline()
            if reporter._tw.width_of_current_line:  # xdist's dots, of which pytest does not know
                reporter.write_line("")
            reporter.write_line(line)


def _uncaptured(config: pytest.Config) -> contextlib.AbstractContextManager[None]:
    capture = config.pluginmanager.get_plugin("capturemanager")
    if capture is None:
        return contextlib.nullcontext()
    context: contextlib.AbstractContextManager[None] = capture.global_and_fixture_disabled()
    return context


class ShowingQueue:
    """In the place of DSession's queue: `get` looks around while it waits, and what it has drawn is
    erased before an event is handed out, for then xdist writes.

    `waiting`: a context that erases at its end; `tick`: called a few times a second.
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
                left = TICK_S if deadline is None else deadline - time.monotonic()
                try:
                    return self._events.get(timeout=max(0.0, min(TICK_S, left)))
                except queue.Empty:
                    if left <= TICK_S and deadline is not None:
                        raise
                self._tick()


def show_in_queue(
    session: Any,
    waiting: Callable[[], contextlib.AbstractContextManager[None]],
    tick: Callable[[], None],
) -> bool:
    """Give xdist's session (its plugin `dsession`) such a queue. False where it has none."""
    events = getattr(session, "queue", None)
    if events is None:
        return False
    session.queue = ShowingQueue(events, waiting, tick)
    return True
