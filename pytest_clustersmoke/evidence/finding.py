"""What a finding is, and how its evidence is read out of logs.

Findings hold words of logs, which are hostile text: here, and nowhere else, they are cleaned and
cut to length, so that a finding may be shown anywhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO

from ..text import sanitize_line, sanitize_lines
from .run_directory import PhaseDir

MAX_TEXT = 600
# A cause may join several texts.
MAX_WORDS = 4 * MAX_TEXT
HEAD_LINES = 1000
JOB_LOGS = (".out", ".err")
# A longer line is read in pieces: a log may be one endless line.
MAX_LINE_BYTES = 64 * 2**10
TAIL_BYTES, CHUNK_BYTES = 2**20, 2**20


@dataclass(frozen=True)
class Evidence:
    """One line that shows it."""

    file: str
    line: int
    text: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "file", sanitize_line(self.file))
        object.__setattr__(self, "text", sanitize_lines(self.text[:MAX_TEXT]))


@dataclass(frozen=True)
class Finding:
    """A cause with its evidence and the next step.

    `severity` is "failure", or "warning" for what does not decide the outcome: a job that passed
    may have one, and a healthy cluster has none.
    """

    id: str
    cause: str
    fix: str
    primary: bool = True
    evidence: tuple[Evidence, ...] = ()
    hosts: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    detail: dict[str, Any] = field(default_factory=dict)
    severity: str = "failure"

    def __post_init__(self) -> None:
        for name in ("cause", "fix"):
            object.__setattr__(self, name, sanitize_line(getattr(self, name)[:MAX_WORDS]))
        object.__setattr__(self, "hosts", tuple(sanitize_line(host) for host in self.hosts))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def job_logs(directory: PhaseDir) -> list[Path]:
    """What the job's own shell and launchers printed, by node: under Slurm in files of submitit's
    names, on this machine in those of the phase."""
    try:
        found = list(directory.submitit.iterdir())
    except OSError:
        return []
    return sorted(path for path in found if path.suffix in JOB_LOGS and path.is_file())


def numbered_lines(path: Path, lines: int = HEAD_LINES) -> Iterator[tuple[int, str]]:
    """The first lines of a log; so many tell what did not even start."""
    return takewhile(lambda pair: pair[0] <= lines, _read(path))


def last_line(path: Path) -> tuple[Evidence, ...]:
    """The last line of a log that says something, among its last TAIL_BYTES."""
    last = None
    for number, line in tail_lines(path):
        if line.strip():
            last = number, line
    return (Evidence(str(path), last[0], last[1].strip()),) if last else ()


def tail_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines in the last TAIL_BYTES of a log, with their numbers."""
    try:
        with path.open("rb") as stream:
            start = max(0, stream.seek(0, os.SEEK_END) - TAIL_BYTES)
            number = 1 + lines_before(stream, start)
            tail = stream.read(TAIL_BYTES)
    except OSError:
        return
    for raw in tail.split(b"\n"):
        yield number, raw[-MAX_LINE_BYTES:].decode(errors="replace").rstrip("\r")
        number += 1


def lines_before(stream: BinaryIO, end: int) -> int:
    """How many lines end before a place of the file; the stream is there then."""
    stream.seek(0)
    count, left = 0, end
    while left and (chunk := stream.read(min(left, CHUNK_BYTES))):
        count, left = count + chunk.count(b"\n"), left - len(chunk)
    return count


def _read(path: Path) -> Iterator[tuple[int, str]]:
    number = 1
    try:
        with path.open("rb") as stream:
            while raw := stream.readline(MAX_LINE_BYTES):
                yield number, raw.decode(errors="replace").rstrip("\r\n")
                number += raw.endswith(b"\n")
    except OSError:
        return
