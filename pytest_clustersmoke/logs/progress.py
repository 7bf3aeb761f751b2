"""How much was read so far, on a terminal, once a second; nothing in a pipe."""

from __future__ import annotations

import time
from typing import BinaryIO, TextIO, cast

TICK_S = 1.0
CLEAR = "\r\x1b[K"
GIB = 2**30


class ReadProgress:
    """Watches streams while they are read. `total` is their size in bytes, where that is known."""

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
        return stream if self._out is None else cast(BinaryIO, _Watched(stream, self))

    def add(self, count: int) -> None:
        self._read += count
        if self._out is None or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + TICK_S
        told = f"read {self._read / GIB:.2f}"
        if self._total:
            told += f" of {self._total / GIB:.2f} GiB ({self._read / self._total:.0%})"
        else:
            told += " GiB"
        self._out.write(f"{CLEAR}{told}")
        self._out.flush()
        self._shown = True


class _Watched:
    def __init__(self, stream: BinaryIO, progress: ReadProgress) -> None:
        self._stream, self._progress = stream, progress

    def read(self, size: int) -> bytes:
        chunk = self._stream.read(size)
        self._progress.add(len(chunk))
        return chunk
