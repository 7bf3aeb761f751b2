"""Events of nodes and ranks: files with one JSON object per line.

A writer appends whole lines at once, so that a killed process leaves everything it had written. A
reader treats a file as hostile text: lines that are not a JSON object with an `event`, and lines
beyond the limits, are counted and never raise. What a rank prints is not read here: its events have
their own file, whose `start` names the schema, the job and the rank.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

# A longer line is not one of our events; reading it would only cost memory.
MAX_LINE_BYTES = 4 * 2**20
MAX_FILE_BYTES = 256 * 2**20
# `step` events mark progress. A run of weeks has millions; the first and last of a file are kept.
# Other events are few.
MARK, MAX_MARKS, MAX_OTHER_BYTES = "step", 20_000, 64 * 2**20
# Steps may be shorter, so the last mark of a rank that was killed is not always its last step.
MARK_EVERY_S = 0.5
# In the place of a kernel's name: torch replaces some that add in any order without naming them.
UNNAMED_KERNELS = "passes of one step differ, and those with deterministic kernels do not"
# How EventWriter begins a mark, and how many of the last ones are tried: a killed rank may leave
# a torn one.
MARK_BEGINS, LAST_MARKS = f'{{"event": "{MARK}", '.encode(), 8
# Named by a rank's `start` event; a file of another schema is not read.
SCHEMA = 1
MAX_OFFSET_S = 24 * 3600


class EventWriter:
    """Appends events to a file of JSON lines; every line is written before `write` returns."""

    def __init__(self, path: Path, **common: Any) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(path, flags | os.O_NONBLOCK, 0o600)  # a FIFO blocks nobody
        info = os.fstat(self._fd)
        if not stat.S_ISREG(info.st_mode):
            os.close(self._fd)
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        self._common = common
        # A writer before may have been killed, or the disk full, in the midst of a line.
        last = os.pread(self._fd, 1, info.st_size - 1) if info.st_size else b"\n"
        self._is_torn = last != b"\n"

    def write(self, event: str, **fields: Any) -> None:
        """Write an event with the wall clock (`time`, Unix s) and the monotonic one (`mono`, s).
        Raises OSError; the line is lost then, and no other."""
        record = {"event": event, "time": time.time(), "mono": time.monotonic()}
        record.update(self._common)
        record.update(fields)
        text = json.dumps(to_json_value(record), allow_nan=False, default=str) + "\n"
        line = ("\n" * self._is_torn + text).encode()
        written = os.write(self._fd, line)
        self._is_torn = written < len(line)
        if self._is_torn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def sync(self) -> None:
        """Have what was written on the disk, which another host may ask. Raises OSError."""
        os.fsync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


@dataclass
class Events:
    """The events of one file in order, and the number of lines that are not events. `error`: why
    the file could not be read to its end."""

    path: Path
    records: list[dict[str, Any]] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)  # the line of each record, from 1
    unreadable_lines: int = 0
    foreign: str = ""  # why they are not the rank's own, which then has no events
    error: OSError | None = None

    def named(self, event: str) -> Iterator[dict[str, Any]]:
        return (record for record in self.records if record["event"] == event)

    def last(self, event: str) -> dict[str, Any] | None:
        return next((rec for rec in reversed(self.records) if rec["event"] == event), None)

    def line_of(self, record: dict[str, Any]) -> int:
        """The line number of one of `records`."""
        return next(
            line for other, line in zip(self.records, self.lines, strict=True) if other is record
        )


def open_regular(path: Path, most_bytes: float = math.inf) -> BinaryIO:
    """Open a file to be read that others may have put there: a FIFO blocks nobody, and what is no
    regular file, or too large, is refused. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    info = os.fstat(descriptor)
    if stat.S_ISREG(info.st_mode) and info.st_size <= most_bytes:
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise OSError(errno.EINVAL, "not a regular file, or too large", str(path))


def read_part(stream: BinaryIO, most_bytes: int) -> bytes:
    """At most so many bytes of a file from here on. A read allocates what it is asked for, so it is
    asked for no more than there is."""
    left = os.fstat(stream.fileno()).st_size - stream.tell()
    return stream.read(max(0, min(left, most_bytes)))


def read_start(path: Path, most_bytes: int) -> bytes:
    """At most so many bytes of a regular file, from its start. Raises OSError."""
    with open_regular(path) as stream:
        return read_part(stream, most_bytes)


def read_events(path: Path, all_marks: bool = True) -> Events:
    """Read the events of a file, which may be missing, torn or of another kind.

    Without `all_marks` only the last mark of progress is parsed: marks are nearly all of a long
    job's lines.
    """
    events = Events(path)
    kept: list[tuple[int, dict[str, Any]]] = []
    last: deque[tuple[int, dict[str, Any]]] = deque(maxlen=MAX_MARKS)
    unread: deque[tuple[int, bytes]] = deque(maxlen=LAST_MARKS)
    try:
        with open_regular(path) as stream:
            read_bytes = other_bytes = marks = line_number = 0
            while read_bytes < MAX_FILE_BYTES and (line := stream.readline(MAX_LINE_BYTES)):
                read_bytes += len(line)
                line_number += 1
                if not all_marks and line.startswith(MARK_BEGINS):
                    unread.append((line_number, line))
                    continue
                record = parse_event(line)
                mark = record is not None and record["event"] == MARK
                marks += mark
                other_bytes += 0 if mark else len(line)
                if record is None or (not mark and other_bytes > MAX_OTHER_BYTES):
                    events.unreadable_lines += 1
                elif mark and marks > MAX_MARKS:
                    last.append((line_number, record))
                else:
                    kept.append((line_number, record))
    except OSError as error:
        events.error = error
    kept = sorted([*kept, *last, *_find_last_mark(unread)], key=lambda pair: pair[0])
    events.records = [record for _, record in kept]
    events.lines = [line_number for line_number, _ in kept]
    return events


def _find_last_mark(lines: Iterable[tuple[int, bytes]]) -> list[tuple[int, dict[str, Any]]]:
    """The last of these lines that is an event, with its number."""
    for line_number, line in reversed(list(lines)):
        if (record := parse_event(line)) is not None:
            return [(line_number, record)]
    return []


def parse_event(line: bytes) -> dict[str, Any] | None:
    """The event on a line; None if it is not one."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not isinstance(record.get("event"), str):
        return None
    clocks = [parse_number(record.get(name)) for name in ("time", "mono")]
    return record if all(s is not None and math.isfinite(s) for s in clocks) else None


def to_json_value(value: Any) -> Any:
    """A value for strict JSON, which has no NaN: non-finite numbers become their names."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): to_json_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(inner) for inner in value]
    return value


def parse_number(value: Any) -> float | None:
    """The number in an event ("nan" and "inf" are written as strings); None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:  # an int this large was never measured
            return None
    return float(value) if value in ("nan", "inf", "-inf") else None


def parse_finite(value: Any) -> float | None:
    """The finite number in an event; None for anything else."""
    number = parse_number(value)
    return number if number is not None and math.isfinite(number) else None


def parse_numbers(value: Any) -> list[float]:
    """The numbers of a list, NaN for each item that is none; empty if it is not a list."""
    # A large job has hundreds of thousands of them, nearly all plain floats.
    parsed = (
        item if type(item) is float else parse_number(item)
        for item in (value if isinstance(value, list) else ())
    )
    return [math.nan if number is None else number for number in parsed]


def typical_s(times_s: Sequence[float]) -> float:
    """The mean of the middle three fifths: nearly as exact as the mean, and a pass that was
    disturbed does not count. Infinite if the times are too long to add."""
    cut = len(times_s) // 5
    middle = sorted(times_s)[cut : len(times_s) - cut]
    try:
        return math.fsum(middle) / len(middle)
    except OverflowError:
        return math.inf


def parse_int(value: Any) -> int | None:
    return value if type(value) is int else None


def parse_offset(value: Any) -> int | None:
    """A UTC offset in seconds; one of a day or more counts as missing."""
    offset = parse_int(value)
    return offset if offset is not None and abs(offset) < MAX_OFFSET_S else None


def parse_text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def parse_ints(value: Any) -> list[int]:
    """The integers in a list; anything else counts as missing."""
    return [item for item in value if type(item) is int] if isinstance(value, list) else []


def parse_texts(value: Any) -> list[str]:
    """The texts in a list; anything else counts as missing."""
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def parse_rows(value: Any) -> list[dict[str, Any]]:
    """The mappings in a list; anything else counts as missing."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
