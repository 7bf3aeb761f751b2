"""Findings, and how their evidence is read from logs.

Findings quote logs, which are hostile text. The text is sanitized and cut to length here and
nowhere else, so a finding can be shown anywhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ..text import FAILURE, sanitize_line, sanitize_lines, shorten, shorten_lines
from .telemetry import (
    open_regular,
    parse_int,
    parse_ints,
    parse_rows,
    parse_text,
    parse_texts,
    to_json_value,
)

if TYPE_CHECKING:  # the screen of a node has no time for it
    from .run_directory import PhaseDir

MAX_TEXT = 600
# A cause may join several texts.
MAX_CAUSE = 4 * MAX_TEXT
HEAD_LINES = 1000
MAX_ALSO, MAX_NAMES = 16, 4
END_LINES = 8
RANK = re.compile(r"\branks? \d")
JOB_LOGS = (".out", ".err")
SLURM_LOG = re.compile(r"(\d+(?:_\d+)?)_\d+_log\.")  # submitit's names: the job's id, and a task's
# In the detail of a finding: any of the nodes and ranks that it names may be right.
UNDECIDED = "undecided"
ISOLATION_FINDING = "isolated"  # the id of the finding of --cluster-isolate
# A log may be a single endless line: longer lines are read in pieces.
MAX_LINE_BYTES = 64 * 2**10
TAIL_BYTES, CHUNK_BYTES = 2**20, 2**20


@dataclass(frozen=True)
class Evidence:
    """A line of a file that supports a finding."""

    file: str
    line: int
    text: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "file", sanitize_line(self.file))
        object.__setattr__(self, "text", sanitize_lines(self.text[:MAX_TEXT]))


@dataclass(frozen=True)
class Finding:
    """A cause, its evidence and the next step.

    `severity` is "failure", or "warning" for a finding that does not decide the outcome: a job that
    passed may have one, a healthy cluster has none. A "note" only says what stands out.
    """

    id: str
    cause: str
    fix: str
    primary: bool = True
    evidence: tuple[Evidence, ...] = ()
    hosts: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    detail: dict[str, Any] = field(default_factory=dict)
    severity: str = FAILURE

    def __post_init__(self) -> None:
        for name in ("cause", "fix"):
            object.__setattr__(self, name, sanitize_line(getattr(self, name)[:MAX_CAUSE]))
        object.__setattr__(self, "hosts", tuple(sanitize_line(host) for host in self.hosts))

    def as_dict(self) -> dict[str, Any]:
        """Its record, of values that JSON has: `from_record` reads nothing else."""
        record: dict[str, Any] = to_json_value(asdict(self))
        return record

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Finding:
        """A finding of a job's record; anything in it of the wrong type counts as missing."""
        detail = record.get("detail")
        return cls(
            parse_text(record.get("id")) or "unknown",
            parse_text(record.get("cause")) or "",
            parse_text(record.get("fix")) or "",
            primary=record.get("primary") is True,
            evidence=tuple(map(_parse_evidence, parse_rows(record.get("evidence")))),
            hosts=tuple(parse_texts(record.get("hosts"))),
            ranks=tuple(parse_ints(record.get("ranks"))),
            detail=detail if isinstance(detail, dict) else {},
            severity=parse_text(record.get("severity")) or "failure",
        )


def _parse_evidence(record: Mapping[str, Any]) -> Evidence:
    return Evidence(
        parse_text(record.get("file")) or "",
        parse_int(record.get("line")) or 0,
        parse_text(record.get("text")) or "",
    )


def add_place(cause: str, hosts: Sequence[str], ranks: Sequence[int]) -> str:
    """A cause, followed by its hosts and ranks unless it names some itself."""
    names = [] if any(host in cause for host in hosts) else list(hosts)
    if not RANK.search(cause):
        names += [f"rank {rank}" for rank in ranks]
    return f"{cause} ({shorten(names, MAX_NAMES)})" if names else cause


def describe_findings(findings: Sequence[Finding], folder: Path) -> Iterator[str]:
    """Lines on a failed job: each cause with evidence, timeline and next step, then the rest.
    Relative paths are in `folder`."""
    for finding in findings:
        if finding.primary:
            yield ""
            yield from _describe_cause(finding, folder)
    also = [f"also {finding.id}: {finding.cause}" for finding in findings if not finding.primary]
    yield from shorten_lines(also, MAX_ALSO, " in report.json")


def _describe_cause(finding: Finding, folder: Path) -> Iterator[str]:
    yield f"finding {finding.id}: {finding.cause}"
    for shown in finding.evidence:
        yield f"  {folder / shown.file}:{shown.line}"
        yield from (f"    {text}" for text in shown.text.splitlines())
    timeline = parse_texts(finding.detail.get("timeline"))
    if len(timeline) > 1:
        yield "  timeline, in seconds from the finding:"
        yield from (f"  {sanitize_line(moment)}" for moment in timeline)
    yield f"  next: {finding.fix}"


def list_job_logs(directory: PhaseDir, job_id: str = "") -> list[Path]:
    """The output of the job's shell and launchers, by node: submitit's files under Slurm, the
    phase's own on this machine. With the id of a job of Slurm's, the logs of that job only:
    another, whose submission was lost, may have left its own."""
    try:
        paths = list(directory.submitit.iterdir())
    except OSError:
        return []
    logs = [path for path in paths if path.suffix in JOB_LOGS and path.is_file()]
    return sorted(log for log in logs if not job_id[:1].isdigit() or _may_be_of(job_id, log.name))


def _may_be_of(job_id: str, log: str) -> bool:
    named = SLURM_LOG.match(log)
    return named is None or named[1] == job_id


def read_head(path: Path, lines: int = HEAD_LINES) -> Iterator[tuple[int, str]]:
    """The first numbered lines of a log: enough to show why a program did not start."""
    return takewhile(lambda pair: pair[0] <= lines, _read_lines(path))


def find_last_line(path: Path) -> tuple[Evidence, ...]:
    """The last non-blank line in the last TAIL_BYTES of a log."""
    last = None
    for number, line in read_tail(path):
        if line.strip():
            last = number, line
    return (Evidence(str(path), last[0], last[1].strip()),) if last else ()


def find_end(path: Path) -> tuple[Evidence, ...]:
    """The last lines of a log, from its last non-blank one: as many as an evidence may have. Of a
    longer line, which a progress bar writes, its end."""
    kept: list[tuple[int, str]] = []
    room = MAX_TEXT
    for number, line in reversed([*read_tail(path)]):
        room -= len(line) + 1 if kept or line.strip() else 0
        if len(kept) == END_LINES or (kept and room < 0):
            break
        if kept or line.strip():
            kept.insert(0, (number, line[-MAX_TEXT:]))
    return (Evidence(str(path), kept[0][0], "\n".join(line for _, line in kept)),) if kept else ()


def read_tail(path: Path) -> Iterator[tuple[int, str]]:
    """The numbered lines in the last TAIL_BYTES of a log."""
    try:
        with open_regular(path) as stream:
            start = max(0, stream.seek(0, os.SEEK_END) - TAIL_BYTES)
            number = 1 + count_lines_before(stream, start)
            tail = stream.read(TAIL_BYTES)
    except OSError:
        return
    for raw in tail.split(b"\n"):
        yield number, raw[-MAX_LINE_BYTES:].decode(errors="replace").rstrip("\r")
        number += 1


def count_lines_before(stream: BinaryIO, end: int) -> int:
    """Count the lines that end before an offset, and leave the stream at that offset."""
    stream.seek(0)
    count, left = 0, end
    while left and (chunk := stream.read(min(left, CHUNK_BYTES))):
        count, left = count + chunk.count(b"\n"), left - len(chunk)
    return count


def read_around(path: Path, line: int, lines: int) -> list[str]:
    """At most so many lines of a log, with the numbered one in their middle."""
    first = first_around(line, lines)
    return [text for number, text in read_head(path, first + lines - 1) if number >= first]


def first_around(line: int, lines: int) -> int:
    """The number of the first line that `read_around` returns."""
    return max(1, line - lines // 2)


def _read_lines(path: Path) -> Iterator[tuple[int, str]]:
    number = 1
    try:
        with open_regular(path) as stream:
            while raw := stream.readline(MAX_LINE_BYTES):
                yield number, raw.decode(errors="replace").rstrip("\r\n")
                number += raw.endswith(b"\n")
    except OSError:
        return
