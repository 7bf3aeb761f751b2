"""Places in a log: the line around a word, the lines around that, and what is shown of it."""

from __future__ import annotations

import re
from typing import NamedTuple

from . import place
from .model import Pattern, Signature

# Of a line without an end so much is looked at around a word.
BEFORE_BYTES, AFTER_BYTES = 2**11, 2**12
# What stays at hand before a chunk of a log.
BEHIND_BYTES = 2**13
MAX_TEXT = 600
ANSI = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


class Piece(NamedTuple):
    """A line, or as much of it as is looked at: its bounds in the buffer, and its text."""

    begin: int
    end: int
    text: bytes


def piece_at(buffer: bytes, start: int, end: int, looked: int) -> Piece:
    """The line around a word; of a long one what was not looked at yet. A progress bar ends its
    lines with a carriage return."""
    least, most = max(0, start - BEFORE_BYTES), min(len(buffer), end + AFTER_BYTES)
    begin = max(buffer.rfind(b"\n", least, start), buffer.rfind(b"\r", least, start)) + 1
    begin = max(begin, least, looked if looked <= start else 0)
    stops = [at for at in (buffer.find(b"\n", end, most), buffer.find(b"\r", end, most)) if at >= 0]
    stop = min(stops, default=most)
    return Piece(begin, stop, plain(buffer[begin:stop]))


def groups_at(
    signature: Signature, pattern: Pattern, buffer: bytes, piece: Piece, text: str
) -> dict[str, str | None] | None:
    """The groups of a pattern that matches there; None where it does not."""
    if pattern.regex is None:
        return {}
    if signature.lines > 1:
        text = _around(buffer, piece, signature.lines - 1)
    found = pattern.regex.search(text)
    return found.groupdict() if found else None


def _around(buffer: bytes, piece: Piece, lines: int) -> str:
    """The line and so many lines before and behind it."""
    begin, end = piece.begin, piece.end
    for _ in range(lines):
        begin = max(buffer.rfind(b"\n", max(0, begin - BEFORE_BYTES), max(0, begin - 1)) + 1, 0)
        stop = buffer.find(b"\n", end + 1, end + AFTER_BYTES)
        end = stop if stop >= 0 else min(len(buffer), end + AFTER_BYTES)
    return plain(buffer[max(begin, piece.begin - BEHIND_BYTES) : end]).decode(errors="replace")


def time_at(buffer: bytes, piece: Piece, text: str) -> place.Time | None:
    """The time that a line tells, else the last one told shortly before it."""
    told = place.time(text)
    if told is None:
        before = buffer[max(0, piece.begin - BEFORE_BYTES) : piece.begin]
        told = place.time(before.decode(errors="replace"))
    return told


def plain(raw: bytes) -> bytes:
    """Without colours and carriage returns."""
    return (ANSI.sub(b"", raw) if b"\x1b" in raw else raw).replace(b"\r", b"")


def cut(text: str, start: int = 0) -> str:
    """What fits of a line, around the place where its word stands."""
    text = text.rstrip()
    if len(text) <= MAX_TEXT:
        return text.strip()
    begin = max(0, min(start - MAX_TEXT // 3, len(text) - MAX_TEXT))
    return text[begin : begin + MAX_TEXT].strip()
