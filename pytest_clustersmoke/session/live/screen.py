"""Draws rows on a terminal below the cursor, and leaves the cursor where it was, so that pytest
continues to write there as if nothing had been drawn.

rich's Live keeps the cursor below its rows, and moves it up by their number to erase them; after a
resize the terminal has reflowed them, and that number is wrong. With the cursor above the rows,
everything below it is ours, and "erase to the end of the screen" removes it, however it was
reflowed. The cursor is never hidden, so that a kill leaves nothing to repair.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from typing import Any, TextIO

# ECMA-48 and VT100: move down one row keeping the column, and scroll at the last one; save and
# restore the cursor; erase to the end of the line, of the screen; cancel a half-sent sequence.
DOWN, SAVE, RESTORE, REST_OF_LINE, REST, CANCEL = (
    "\x1bD",
    "\x1b7",
    "\x1b8",
    "\x1b[K",
    "\x1b[J",
    "\x18",
)
# Used if a terminal does not report its size.
SIZE = os.terminal_size((80, 24))


class Screen:
    """A terminal, by a descriptor of our own, since pytest's capture may redirect its stream."""

    def __init__(self, stream: TextIO) -> None:
        self._encoding = stream.encoding or "utf-8"
        self._fd = os.dup(stream.fileno())
        self._drawn: Sequence[str] = ()
        self._size: os.terminal_size | None = None  # at the last drawing; None if nothing is drawn
        self._half = False
        self._is_drawing = self._stops_later = False
        self._on_stop: Any = None

    @property
    def size(self) -> os.terminal_size:
        size = os.get_terminal_size(self._fd)
        return os.terminal_size((size.columns or SIZE.columns, size.lines or SIZE.lines))

    def draw(self, lines: Sequence[str]) -> None:
        """Draw these lines in place of the last ones, unless they are the same, or pytest runs in
        the background of this terminal. Each line must be shorter than a row."""
        size = self.size
        if (lines == self._drawn and size == self._size) or not self._in_foreground():
            return
        if not lines:
            self.erase()
            return
        self._is_drawing = True
        try:
            self._draw(lines, size)
        finally:
            self._is_drawing = False
            if self._stops_later:
                self._stops_later = False
                self._stop(signal.SIGTSTP, None)

    def _draw(self, lines: Sequence[str], size: os.terminal_size) -> None:
        if self._size is None:
            self._write(SAVE)
            self._size = size
            self._watch_stops()
        back = RESTORE if size == self._size else ""  # after a resize the saved place is wrong
        room = DOWN * len(lines) + f"\x1b[{len(lines)}A"
        body = "".join(f"\r\n{line}{REST_OF_LINE}" for line in lines)
        self._half = True
        # Saved again: what a user types moves the cursor, and the next drawing must start here.
        self._write(f"{back}{room}{SAVE}{body}{REST}{RESTORE}{SAVE}")
        self._half = False
        self._drawn, self._size = lines, size

    def erase(self) -> None:
        """Leave the terminal as it was, even after an interrupt during drawing."""
        if self._size is None:
            return
        back = RESTORE if self._half or self.size == self._size else ""
        self._write(f"{CANCEL if self._half else ''}{back}{REST}")
        self._drawn, self._size, self._half = (), None, False
        self._forget_stops()

    def close(self) -> None:
        """Close the descriptor; nothing may be drawn afterwards."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, text: str) -> None:
        rest = text.encode(self._encoding, errors="replace")
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def _in_foreground(self) -> bool:
        try:
            return os.tcgetpgrp(self._fd) == os.getpgrp()
        except OSError:  # not our controlling terminal, so it has no background
            return True

    # Ctrl-Z: the shell's prompt must not appear among the rows.

    def _watch_stops(self) -> None:
        with contextlib.suppress(ValueError):  # not in the main thread
            if signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL:
                self._on_stop = signal.signal(signal.SIGTSTP, self._stop)

    def _forget_stops(self) -> None:
        if self._on_stop is not None:
            signal.signal(signal.SIGTSTP, self._on_stop)
            self._on_stop = None

    def _stop(self, number: int, frame: Any) -> None:
        if self._is_drawing:  # afterwards the rest would be drawn over what the shell has printed
            self._stops_later = True
            return
        with contextlib.suppress(OSError):
            self.erase()
        os.kill(os.getpid(), signal.SIGTSTP)  # with the default handler, so the process stops here
