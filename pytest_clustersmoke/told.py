"""What the scheduler said of a job that did not end well, read back from the phase's directory.

The file has Slurm's own words, each block under the command that was asked. Nothing in it is ours,
so that whatever is not of the known form counts as not told.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

HEAD = "$ "
JOB = ("scontrol", "-o", "show", "job")
NODES = ("sinfo", "-h", "-N", "-o", "%N|%T|%H|%u|%E")
RECORDS = ("sacct", "-n", "-P", "-X", "-D", "-o", "JobIDRaw,State,ExitCode,NodeList,End")
OTHERS = ("squeue", "-h", "-a", "-t", "running,completing", "-o", "%i|%u|%P|%q|%S|%N")
MAX_BYTES = 8 * 2**20
# Words of a node's state that keep jobs from it, as sinfo writes it (man sinfo, NODE STATE CODES).
DOWN = re.compile(r"down|fail|unk|not_responding|\*$")
DRAINED = re.compile(r"drain|maint")


@dataclass(frozen=True)
class NodeTold:
    """A node as sinfo shows it: its state, and since when, by whom and why it is so."""

    name: str
    state: str
    since: str
    by: str
    reason: str
    line: int
    text: str

    @property
    def down(self) -> bool:
        return bool(DOWN.search(self.state))

    @property
    def drained(self) -> bool:
        return bool(DRAINED.search(self.state))

    @property
    def why(self) -> str:
        """Its state with the administrators' words."""
        known = self.reason not in ("", "none", "(null)")
        said = f": {self.reason} [{self.by}@{self.since}]" if known else ""
        return f"{self.name} is {self.state}{said}"


@dataclass(frozen=True)
class OtherJob:
    """Another job on the same nodes."""

    job: str
    user: str
    partition: str
    qos: str
    started: str
    line: int
    text: str


@dataclass(frozen=True)
class Record:
    """One record of the job in the accounting database; a requeue begins another."""

    state: str
    line: int
    text: str


@dataclass(frozen=True)
class Told:
    """All that the scheduler told of one job."""

    path: Path
    job: str = ""
    job_line: int = 1
    nodes: tuple[NodeTold, ...] = ()
    records: tuple[Record, ...] = ()
    others: tuple[OtherJob, ...] = field(default=())

    def of_job(self, name: str) -> str:
        """A field of `scontrol show job`; empty where it is not told."""
        return field_of(self.job, name)

    @property
    def cancelled_by(self) -> int | None:
        """The user id that ended the job, where the accounting database says so."""
        found = [re.fullmatch(r"CANCELLED by (\d{1,10})", one.state) for one in self.records]
        ids = [int(match[1]) for match in found if match]
        return ids[-1] if ids else None


def field_of(shown: str, name: str) -> str:
    """A field of what `scontrol -o show` printed."""
    match = re.search(rf"(?:^|\s){re.escape(name)}=(\S*)", shown)
    value = match[1] if match else ""
    return "" if value in ("(null)", "N/A", "None", "Unknown") else value


def read(path: Path) -> Told:
    """What stands in the file; nothing where there is none."""
    try:
        with path.open("rb") as stream:
            text = stream.read(MAX_BYTES).decode(errors="replace")
    except OSError:
        return Told(path)
    blocks: dict[str, list[tuple[int, str]]] = {}
    asked = ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(HEAD):
            asked = line.split()[1] if len(line.split()) > 1 else ""
        else:
            blocks.setdefault(asked, []).append((number, line))
    shown = blocks.get(JOB[0], [])
    return Told(
        path,
        shown[0][1] if shown else "",
        shown[0][0] if shown else 1,
        tuple({one.name: one for one in _nodes(blocks.get(NODES[0], []))}.values()),
        tuple(_records(blocks.get(RECORDS[0], []))),
        tuple(_others(blocks.get(OTHERS[0], []))),
    )


def _nodes(lines: list[tuple[int, str]]) -> Iterator[NodeTold]:
    for number, line in lines:
        words = line.split("|", 4)
        if len(words) == 5:
            name, state, since, by, reason = words
            yield NodeTold(name, state, since, by, reason, number, line)


def _records(lines: list[tuple[int, str]]) -> Iterator[Record]:
    for number, line in lines:
        words = line.split("|")
        if len(words) == 5:
            yield Record(words[1], number, line)


def _others(lines: list[tuple[int, str]]) -> Iterator[OtherJob]:
    for number, line in lines:
        words = line.split("|", 5)
        if len(words) == 6:
            job, user, partition, qos, started, _ = words
            yield OtherJob(job, user, partition, qos, started, number, line)
