"""What a finding is, and how its evidence is read out of logs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from .rundir import PhaseDir

MAX_TEXT = 600
HEAD_LINES = 1000
# A longer line is read in pieces: a log may be one endless line.
MAX_LINE_BYTES = 64 * 2**10


@dataclass(frozen=True)
class Evidence:
    """One line that shows it."""

    file: str
    line: int
    text: str


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

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def job_logs(directory: PhaseDir) -> list[Path]:
    """What the job's own shell and launchers printed, by node."""
    return sorted(path for path in directory.submitit.glob("*_log.*") if path.is_file())


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The first lines of a log, which tell what did not even start."""
    return takewhile(lambda pair: pair[0] <= HEAD_LINES, _read(path))


def last_line(path: Path) -> tuple[Evidence, ...]:
    """The last line of a log that says something."""
    last = None
    for number, line in _read(path):
        if line.strip():
            last = Evidence(str(path), number, line.rstrip()[:MAX_TEXT])
    return (last,) if last else ()


def _read(path: Path) -> Iterator[tuple[int, str]]:
    number = 1
    try:
        with path.open("rb") as stream:
            while raw := stream.readline(MAX_LINE_BYTES):
                yield number, raw.decode(errors="replace").rstrip("\r\n")
                number += raw.endswith(b"\n")
    except OSError:
        return
