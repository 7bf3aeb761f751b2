"""Events: what nodes and ranks write down, one JSON object a line, and the units of metrics.

A writer appends whole lines and flushes each, so that a killed process leaves all it had said. A
reader takes a file as hostile text: what is no JSON object with an `event` is counted, not raised,
and so is what a file holds beyond any measure. What a rank prints is never read here; its events
have a file of their own, whose `start` names the schema, the job and the rank.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# A line longer than this is no event of ours; reading it would only cost memory.
MAX_LINE_BYTES = 4 * 2**20
MAX_FILE_BYTES = 256 * 2**20
# Marks of progress (a run of weeks has millions): of each file the first and last are kept. All
# other events of a file are few.
MARK, MAX_MARKS, MAX_OTHER_BYTES = "step", 20_000, 64 * 2**20
# How EventWriter begins a mark; and of how many the last is looked for: a killed rank tears one.
MARK_BEGINS, LAST_MARKS = f'{{"event": "{MARK}", '.encode(), 8
# What a rank's `start` says it is written in; a file of another schema is not read.
SCHEMA = 1


class EventWriter:
    """Appends events to one file of JSON lines; every line is on its way before `write` returns."""

    def __init__(self, path: Path, **common: Any) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._common = common

    def write(self, event: str, **fields: Any) -> None:
        """Write one event with the wall clock (`time`, Unix s) and the monotonic (`mono`, s)."""
        record = {"event": event, "time": time.time(), "mono": time.monotonic()}
        record.update(self._common)
        record.update(fields)
        line = json.dumps(plain(record), allow_nan=False, default=str) + "\n"
        os.write(self._fd, line.encode())

    def close(self) -> None:
        os.close(self._fd)


@dataclass
class Events:
    """The events of one file, in the order written, and how many lines were none."""

    path: Path
    records: list[dict[str, Any]] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)  # of each record, numbered from 1
    unreadable_lines: int = 0
    foreign: bool = False

    def named(self, event: str) -> Iterator[dict[str, Any]]:
        return (record for record in self.records if record["event"] == event)

    def last(self, event: str) -> dict[str, Any] | None:
        return next((one for one in reversed(self.records) if one["event"] == event), None)

    def line_of(self, record: dict[str, Any]) -> int:
        """The line of one of `records`."""
        return next(
            line for one, line in zip(self.records, self.lines, strict=True) if one is record
        )


def read_events(path: Path, all_marks: bool = True) -> Events:
    """Read a file of events; a file that is absent, torn or no such file gives what can be read.

    Without `all_marks` the last mark of progress stands for all: the others, nearly all of a long
    job's lines, are passed over unread.
    """
    events = Events(path)
    kept: list[tuple[int, dict[str, Any]]] = []
    last: deque[tuple[int, dict[str, Any]]] = deque(maxlen=MAX_MARKS)
    unread: deque[tuple[int, bytes]] = deque(maxlen=LAST_MARKS)
    try:
        with path.open("rb") as stream:
            read_bytes = other_bytes = marks = line_number = 0
            while read_bytes < MAX_FILE_BYTES and (line := stream.readline(MAX_LINE_BYTES)):
                read_bytes += len(line)
                line_number += 1
                if not all_marks and line.startswith(MARK_BEGINS):
                    unread.append((line_number, line))
                    continue
                record = read_record(line)
                mark = record is not None and record["event"] == MARK
                marks += mark
                other_bytes += 0 if mark else len(line)
                if record is None or (not mark and other_bytes > MAX_OTHER_BYTES):
                    events.unreadable_lines += 1
                elif mark and marks > MAX_MARKS:
                    last.append((line_number, record))
                else:
                    kept.append((line_number, record))
    except OSError:
        pass
    kept = sorted([*kept, *last, *_last_mark(unread)], key=lambda pair: pair[0])
    events.records = [record for _, record in kept]
    events.lines = [line_number for line_number, _ in kept]
    return events


def _last_mark(lines: Iterable[tuple[int, bytes]]) -> list[tuple[int, dict[str, Any]]]:
    """The last of these lines that can be read, with its number."""
    for line_number, line in reversed(list(lines)):
        if (record := read_record(line)) is not None:
            return [(line_number, record)]
    return []


def of_job(events: Events, job: str, rank: int) -> Events:
    """The events, if they are this job's and this rank's: a file whose `start` names another one,
    that holds two, or says it is done without any, is foreign, and nothing in it counts."""
    starts = [(one.get("schema"), one.get("job"), one.get("rank")) for one in events.named("start")]
    is_ours = starts == [(SCHEMA, job, rank)] and type(starts[0][2]) is int
    if is_ours or not (starts or events.last("done")):
        return events
    return Events(events.path, unreadable_lines=events.unreadable_lines, foreign=True)


def read_record(line: bytes) -> dict[str, Any] | None:
    """The event on a line; None where it is none."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not isinstance(record.get("event"), str):
        return None
    clocks = [number(record.get(name)) for name in ("time", "mono")]
    return record if all(one is not None and math.isfinite(one) for one in clocks) else None


def plain(value: Any) -> Any:
    """JSON has no NaN: a number that is not finite is written as its name, and read as a string."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value


def number(value: Any) -> float | None:
    """A number as an event carries it ("nan" and "inf" are written as strings), else None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:  # an int without end is nothing that was measured
            return None
    return float(value) if value in ("nan", "inf", "-inf") else None
