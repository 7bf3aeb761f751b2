"""Shows a run while pytest waits for it: as a live view on a terminal, as lines elsewhere.

An error here must never fail the run: it is reported once, and lines take the view's place.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Protocol

from ...evidence.history.usual_times import UsualTimes, read_usual_times
from ...evidence.run_directory import RunDir
from ...text import sanitize_line
from .board import Board, Progress
from .event_tail import EventTails
from .log_lines_view import StepLines
from .screen import Screen

# Lines of these phases are printed even while the view shows everything else.
SHARED_DIR = "shared_dir"  # and under -q
ALWAYS = {"preflight", "scheduler", SHARED_DIR}
# Rows of the terminal that the view leaves free: pytest's own line and a spare one.
FREE_ROWS = 2


class Terminal(Protocol):
    """Where a run is shown; `open_screen` returns None where nothing can be drawn."""

    @property
    def has_colour(self) -> bool: ...

    def open_screen(self) -> Screen | None: ...

    def say(self, line: str, always: bool = False) -> None: ...


class LiveView:
    """Shows one run: the phases on `board`, and the progress that their ranks write to `run`. Call
    all methods from the main thread."""

    def __init__(self, title: str, board: Board, run: RunDir, terminal: Terminal) -> None:
        self._title, self._board, self._terminal = title, board, terminal
        self._tails, self._run = EventTails(run), run
        self._usual: UsualTimes | None = None  # read once something is drawn
        self._lines: StepLines | None = StepLines()
        self._screen: Screen | None = None
        try:
            self._screen = terminal.open_screen()
        except Exception as error:
            self._warn("live view", error)

    def wait(self, phase: str) -> None:
        """Return when the phase's result is known. Raises WatchFailed as Board.wait does."""
        self._board.wait(phase, self._print, self._show_progress)

    def close(self) -> None:
        """Print the changes since pytest last waited, and end the view."""
        for progress in self._board.take_news():
            self._print(progress)
        self._drop_screen()

    def _drop_screen(self) -> None:
        if self._screen is not None:
            self._screen.close()
            self._screen = None

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Erase the view at the end."""
        try:
            yield
        finally:
            self._erase()

    def show_all(self) -> None:
        """Do for all phases what `wait` does while it waits for one."""
        for progress in self._board.take_news():
            self._print(progress)
        self._board.check()
        self._show_progress()

    def _print(self, progress: Progress) -> None:
        if self._screen is None or progress.phase in ALWAYS:
            self._erase()
            is_needed = progress.phase == SHARED_DIR
            self._terminal.say(f"  {progress.phase}: {progress.text}", is_needed)

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

        states, size = self._board.snapshot(), screen.size
        marks = self._tails.read_next(states)
        if self._usual is None:
            self._usual = read_usual_times(self._run)
        room = (size.columns - 1, size.lines - FREE_ROWS)
        lines = rows(self._title, states, marks, time.time(), *room, self._usual)
        screen.draw(ansi(lines, self._terminal.has_colour))

    def _print_steps(self, lines: StepLines) -> None:
        states = self._board.snapshot()
        for phase, text in lines.due(states, self._tails.read_next(states), time.monotonic()):
            self._terminal.say(f"  {phase}: {text}")

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
            self._terminal.say(warning)

    def _erase(self) -> None:
        if self._screen is not None:
            with contextlib.suppress(OSError, ValueError):  # a terminal that is gone
                self._screen.erase()
