"""Lines of a log: the line around a word and its neighbours, who wrote them, and when.

Writer and time are recorded only if the line states them for certain. torch's `[rank3]:` names a
rank; torchrun's `[default0]:` counts within a node, and srun's labels count tasks. NCCL's header,
syslog and torchrun's summary name a host.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from .signature_file import Pattern, Signature
from .time_stamps import Time, last_time_in

# How much of an endless line is examined before and after a word.
BEFORE_BYTES, AFTER_BYTES = 2**11, 2**12
# How much is kept before a chunk of a log.
BEHIND_BYTES = 2**13
MAX_TEXT = 600
ANSI = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
PREFIX_CHARS = 200
RANK = re.compile(r"\[rank(\d{1,6})\]:|\(default_pg\) Rank (\d{1,6})\]")
NCCL_HEADER = re.compile(r"([A-Za-z0-9][\w.-]{0,254}):\d{1,9}:\d{1,9} \[-?\d{1,9}\] (?=\S)")
SYSLOG = re.compile(r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d ([\w.-]{1,255}) kernel:")


class LogLine(NamedTuple):
    """One line of a log as evidence. `source` counts the inputs, in the order they were read."""

    source: int
    number: int
    file: str
    text: str
    time: Time | None
    rank: int | None = None  # its writer's, if that is certain
    caught: bool = False  # the text around it says that the program caught the error
    ends_rank: bool = False  # torch labels it as what ended its rank


class Piece(NamedTuple):
    """A line, or the part of it that is examined: its bounds in the buffer, and its text."""

    begin: int
    end: int
    text: bytes


def piece_at(buffer: bytes, start: int, end: int, looked: int) -> Piece:
    """The line around a word; if it is long, the part not yet examined. A progress bar ends its
    lines with a carriage return."""
    least, most = max(0, start - BEFORE_BYTES), min(len(buffer), end + AFTER_BYTES)
    begin = max(buffer.rfind(b"\n", least, start), buffer.rfind(b"\r", least, start)) + 1
    begin = max(begin, least, looked if looked <= start else 0)
    stops = [at for at in (buffer.find(b"\n", end, most), buffer.find(b"\r", end, most)) if at >= 0]
    stop = min(stops, default=most)
    return Piece(begin, stop, strip_colors(buffer[begin:stop]))


def groups_at(
    signature: Signature, pattern: Pattern, buffer: bytes, piece: Piece, text: str
) -> dict[str, str | None] | None:
    """The groups of the pattern if it matches there, else None."""
    if pattern.regex is None:
        return {}
    if signature.lines > 1 and pattern.spans_lines:
        text = _around(buffer, piece, signature.lines - 1)
    match = pattern.regex.search(text)
    return match.groupdict() if match else None


def _around(buffer: bytes, piece: Piece, lines: int) -> str:
    """The line with this many lines before and after it."""
    begin, end = piece.begin, piece.end
    for _ in range(lines):
        begin = max(buffer.rfind(b"\n", max(0, begin - BEFORE_BYTES), max(0, begin - 1)) + 1, 0)
        stop = buffer.find(b"\n", end + 1, end + AFTER_BYTES)
        end = stop if stop >= 0 else min(len(buffer), end + AFTER_BYTES)
    return strip_colors(buffer[max(begin, piece.begin - BEHIND_BYTES) : end]).decode(
        errors="replace"
    )


def time_at(buffer: bytes, piece: Piece, text: str) -> Time | None:
    """The time stamp of a line; without one, the last stamp shortly before it."""
    time = last_time_in(text)
    if time is None:
        before = buffer[max(0, piece.begin - BEFORE_BYTES) : piece.begin]
        time = last_time_in(before.decode(errors="replace"))
    return time


def strip_colors(raw: bytes) -> bytes:
    """Without colours and carriage returns."""
    return (ANSI.sub(b"", raw) if b"\x1b" in raw else raw).replace(b"\r", b"")


def cut(text: str, start: int = 0) -> str:
    """The part of a line that fits, around its word."""
    text = text.rstrip()
    if len(text) <= MAX_TEXT:
        return text.strip()
    begin = max(0, min(start - MAX_TEXT // 3, len(text) - MAX_TEXT))
    return text[begin : begin + MAX_TEXT].strip()


def rank_of_line(line: str) -> int | None:
    match = RANK.search(line, 0, PREFIX_CHARS)
    return int(match.group(1) or match.group(2)) if match else None


def host_of_line(line: str) -> str | None:
    nccl = NCCL_HEADER.search(line, 0, PREFIX_CHARS) if "NCCL" in line else None
    match = nccl or SYSLOG.search(line, 0, PREFIX_CHARS)
    return match.group(1) if match else None


def named_places(groups: Mapping[str, str | None]) -> tuple[list[str], list[int]]:
    """Hosts and ranks that a signature's groups name."""
    hosts = [groups["host"]] if groups.get("host") else []
    ranks = [int(word) for word in re.findall(r"\d{1,6}", groups.get("rank") or "")]
    return [host for host in hosts if host], ranks
