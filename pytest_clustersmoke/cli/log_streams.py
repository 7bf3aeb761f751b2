"""Opens the logs of a job, shows the progress of reading, and names what cannot be read."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TextIO, cast

from ..text import sanitize_line, shorten_lines

# At most this many unreadable files are named; a directory may hold thousands.
MAX_NAMED = 20
TICK_S = 1.0
CLEAR = "\r\x1b[K"
GIB = 2**30


class ReadProgress:
    """Shows once a second how much was read, on a terminal only. `total` is the size of all
    streams in bytes, if known."""

    def __init__(self, out: TextIO | None, total: int | None) -> None:
        self._out = out if out is not None and out.isatty() else None
        self._total = total
        self._read = 0
        self._next = time.monotonic() + TICK_S
        self._shown = False

    def __enter__(self) -> ReadProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown and self._out is not None:
            self._out.write(CLEAR)
            self._out.flush()

    def watch(self, stream: BinaryIO) -> BinaryIO:
        """The stream, for a reader that only calls `read`."""
        return stream if self._out is None else cast(BinaryIO, _WatchedStream(stream, self))

    def add(self, count: int) -> None:
        self._read += count
        if self._out is None or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + TICK_S
        total = self._total
        of = f" of {total / GIB:.2f} GiB ({self._read / total:.0%})" if total else " GiB"
        self._out.write(f"{CLEAR}read {self._read / GIB:.2f}{of}")
        self._out.flush()
        self._shown = True


class _WatchedStream:
    def __init__(self, stream: BinaryIO, progress: ReadProgress) -> None:
        self._stream, self._progress = stream, progress

    def read(self, size: int) -> bytes:
        chunk = self._stream.read(size)
        self._progress.add(len(chunk))
        return chunk


@contextmanager
def open_stream(path: Path | None, progress: ReadProgress) -> Iterator[BinaryIO]:
    """Open a file, or standard input if `path` is None. Raises OSError."""
    if path is not None:
        with path.open("rb") as stream:
            yield progress.watch(stream)
        return
    if sys.stdin is None:
        raise OSError("standard input is closed")
    if sys.stdin.isatty():
        print("clustersmoke: reading from the terminal; press Ctrl-D to end", file=sys.stderr)
    yield progress.watch(cast(BinaryIO, sys.stdin.buffer))


def name_refused(refused: Sequence[tuple[str, str]]) -> None:
    """Print to standard error what could not be read, and why."""
    lines = [f"{sanitize_line(name)} {sanitize_line(why)}" for name, why in refused]
    for line in shorten_lines(lines, MAX_NAMED, " inputs that cannot be read"):
        print(f"clustersmoke: {line}", file=sys.stderr)
