"""A pseudo-terminal for tests: runs a program, and shows what a person would see."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyte
from pyte.screens import HistoryScreen

from tests.support.waiting import PATIENCE_S

# Variables that make pytest or the plugin take the output for something else.
ELSEWHERE = ("CI", "BUILD_NUMBER", "NO_COLOR", "FORCE_COLOR", "PY_COLORS", "COLUMNS", "LINES")


class Terminal:
    """Runs a program; a thread reads what it writes, as a terminal does."""

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        columns: int = 100,
        lines: int = 30,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.raw = b""
        self._screen = HistoryScreen(columns, lines, history=2000, ratio=0.5)
        self._stream = pyte.ByteStream(self._screen)
        self._changed = threading.Condition()
        self._master, slave = pty.openpty()
        self._set_size(columns, lines)
        env = {name: value for name, value in os.environ.items() if name not in ELSEWHERE}
        env |= {"TERM": "xterm-256color", **(environ or {})}

        def take() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C is a signal

        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=env,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=take,
        )
        os.close(slave)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: object,
    ) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._thread.join(PATIENCE_S)
        os.close(self._master)

    def _read(self) -> None:
        while True:
            try:
                fresh = os.read(self._master, 65536)
            except OSError as error:  # Linux raises this when the other end is closed
                assert error.errno == errno.EIO
                fresh = b""
            with self._changed:
                if not fresh:
                    return
                self.raw += fresh
                self._stream.feed(fresh)
                self._changed.notify_all()

    def rows(self) -> list[str]:
        """The rows of the screen, without trailing spaces."""
        with self._changed:
            return [row.rstrip() for row in self._screen.display]

    def text(self) -> list[str]:
        """All rows, including those scrolled away, without empty rows at the end."""
        with self._changed:
            width = self._screen.columns
            above = ["".join(row[x].data for x in range(width)) for row in self._screen.history.top]
        rows = [row.rstrip() for row in above] + self.rows()
        while rows and not rows[-1]:
            rows.pop()
        return rows

    def style(self, row_of: str, word: str) -> tuple[str, bool]:
        """The colour of a word, and whether it is bold, in the view's row of a phase."""
        with self._changed:
            for y, row in enumerate(self._screen.display):
                if row.startswith(f"  {row_of} ") and word in row:
                    cell = self._screen.buffer[y][row.index(word)]
                    return cell.fg, cell.bold
        raise AssertionError(f"{word!r} is not on the screen:\n" + "\n".join(self.rows()))

    @property
    def cursor_hidden(self) -> bool:
        with self._changed:
            return bool(self._screen.cursor.hidden)

    def until(self, holds: Callable[[], object]) -> None:
        """Wait until the condition holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            with self._changed:
                self._changed.wait(0.1)
            screen_text = "\n".join(self.text())
            assert time.monotonic() < deadline, f"timed out; the terminal shows:\n{screen_text}"

    def shows(self, *texts: str) -> bool:
        screen_text = "\n".join(self.rows())
        return all(text in screen_text for text in texts)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def resize(self, columns: int, lines: int) -> None:
        with self._changed:
            self._screen.resize(lines, columns)
            self._set_size(columns, lines)

    def ended(self) -> int:
        """Wait for the program's end and all its output; returns its status."""
        status = self.process.wait(PATIENCE_S)
        self._thread.join(PATIENCE_S)
        return status

    def _set_size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
