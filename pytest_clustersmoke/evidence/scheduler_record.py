"""The scheduler's view of a job: its state, and the record of a job that did not end well.

The backend parses the scheduler's answers once and writes the record: a header with the schema,
then one JSON object per line, so that a finding can cite a line. The user's jobs could write into
the file, so anything that does not have the known form counts as missing.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from .finding import MAX_TEXT, Evidence
from .run_directory import write_atomically
from .telemetry import parse_finite, read_start

SCHEMA = 2
MAX_BYTES = 8 * 2**20
# What a message of Slurm's says: a node or its prolog failed, the job lost its nodes to another
# one, was cancelled (also at its time limit), or was killed for lack of host memory.
NODE_FAILED, PROLOG_FAILED = "node_failed", "prolog_failed"
PREEMPTED, CANCELLED, OUT_OF_MEMORY = "preempted", "cancelled", "out_of_memory"
TASK_KILLED = "task_killed"  # by SIGKILL
CONTROLLER_SILENT = "controller_silent"  # slurmctld did not answer srun, which started no task
# slurmctld's own words for a node that it drained because that could not launch a job: the first
# after it lost its last seconds, and launched a job, or another of its id, where it still ran.
DUPLICATE_JOB = "Duplicate jobid"
LAUNCH_REFUSED = (DUPLICATE_JOB, "batch job complete failure")


@dataclass(frozen=True)
class JobState:
    """The state of a job.

    `kind` is ours: pending, running, ended, held (requeued after a failed launch; it does not start
    by itself) or unknown (the scheduler has forgotten the job).
    `raw` and `reason` are the scheduler's words; times are Unix seconds, None if not given;
    `expected_start` is its estimate for a pending job. `left` says where processes of a job that
    was to end may still run. `name` and `comment` are those of the job that the scheduler shows,
    empty if it shows none.
    """

    kind: str
    raw: str
    reason: str = ""
    nodes: str = ""
    submitted: float | None = None
    started: float | None = None
    expected_start: float | None = None
    left: str = ""
    name: str = ""
    comment: str = ""


def show_time(seconds: float | None) -> str:
    """A time as Slurm prints it, with the offset of local time, which Slurm leaves out; empty if it
    is unknown or no date."""
    try:
        local = None if seconds is None else datetime.fromtimestamp(int(seconds)).astimezone()
        return "" if local is None else local.isoformat()
    except (OverflowError, ValueError, OSError):
        return ""


@dataclass(frozen=True)
class ScheduledJob:
    """The job as the scheduler shows it; times are Unix seconds, None if not given. `text` holds
    the fields that findings use, `shown` all of them."""

    state: str = ""
    reason: str = ""
    partition: str = ""
    qos: str = ""
    nodes: str = ""
    started: float | None = None
    ended: float | None = None
    preempted: float | None = None
    time_limit: str = ""
    memory_per_node: str = ""
    memory_per_cpu: str = ""
    text: str = ""
    shown: str = ""
    line: int = 0


@dataclass(frozen=True)
class NodeStatus:
    """A node: its state, with the time (Unix seconds), user and reason; `unusable` if it takes no
    jobs. `features` only where they were asked for."""

    name: str = ""
    state: str = ""
    down: bool = False
    drained: bool = False
    unusable: bool = False
    prolog_failed: bool = False
    since: float | None = None
    by: str = ""
    reason: str = ""
    text: str = ""
    line: int = 0
    features: tuple[str, ...] = ()

    def refused_launch(self, since: float | None) -> bool:
        """Whether it was drained, at this time or later, because it could not launch a job."""
        is_recent = since is not None and self.since is not None and self.since >= since
        return self.drained and is_recent and self.reason in LAUNCH_REFUSED

    @property
    def ran_it_already(self) -> bool:
        """Of a node that refused a launch: whether a job of that id still ran there."""
        return self.reason == DUPLICATE_JOB

    @property
    def why(self) -> str:
        """The node's state with the administrator's reason."""
        reason = f": {self.reason} [{self.by}@{show_time(self.since)}]" if self.reason else ""
        return f"{self.name} is {self.state}{reason}"


@dataclass(frozen=True)
class AccountingEntry:
    """One entry of the job in the accounting database; a requeue adds another. `cancelled_by` is
    the id of the user who ended it, -1 if unknown."""

    state: str = ""
    cancelled_by: int = -1
    text: str = ""
    line: int = 0


@dataclass(frozen=True)
class OtherJob:
    """Another job on the same nodes; `started` in Unix seconds, None if it has not."""

    job: str = ""
    user: str = ""
    partition: str = ""
    qos: str = ""
    started: float | None = None
    text: str = ""
    line: int = 0


@dataclass(frozen=True)
class SlurmMessage:
    """A line of Slurm's in the job's own log, and its place there; `node` if it names one."""

    event: str = ""
    node: str = ""
    file: str = ""
    number: int = 0
    text: str = ""
    line: int = 0

    @property
    def evidence(self) -> Evidence:
        return Evidence(self.file, self.number, self.text)


Item = ScheduledJob | NodeStatus | AccountingEntry | OtherJob | SlurmMessage
KINDS: dict[str, Item] = {
    "job": ScheduledJob(),
    "node": NodeStatus(),
    "accounting": AccountingEntry(),
    "other": OtherJob(),
    "message": SlurmMessage(),
}


@dataclass(frozen=True)
class SchedulerRecord:
    """Everything the scheduler reported about one job and its nodes."""

    job: ScheduledJob = field(default_factory=ScheduledJob)
    nodes: tuple[NodeStatus, ...] = ()
    accounting: tuple[AccountingEntry, ...] = ()
    others: tuple[OtherJob, ...] = ()
    messages: tuple[SlurmMessage, ...] = ()
    path: Path = Path()

    @property
    def cancelled_by(self) -> int | None:
        """The id of the user who ended the job, if the accounting database has it."""
        ids = [entry.cancelled_by for entry in self.accounting if entry.cancelled_by >= 0]
        return ids[-1] if ids else None

    def logged(self, *events: str) -> list[SlurmMessage]:
        """Slurm's messages about these events."""
        return [message for message in self.messages if message.event in events]

    def evidence(self, *items: Item) -> tuple[Evidence, ...]:
        """The lines of the file with these items, if the scheduler gave any."""
        return tuple(
            Evidence(str(self.path), item.line, item.text[:MAX_TEXT]) for item in items if item.text
        )

    def write(self, path: Path) -> None:
        items: list[tuple[str, Item]] = [
            *([("job", self.job)] if self.job.text else []),
            *(("node", node) for node in self.nodes),
            *(("accounting", entry) for entry in self.accounting),
            *(("other", job) for job in self.others),
            *(("message", message) for message in self.messages),
        ]
        lines = [{"schema": SCHEMA}, *({"kind": kind, **_values(item)} for kind, item in items)]
        write_atomically(path, "".join(f"{json.dumps(line)}\n" for line in lines))


def read_scheduler_record(path: Path) -> SchedulerRecord:
    """The record in a file; an empty one if it is missing or has another schema."""
    try:
        lines = read_start(path, MAX_BYTES).split(b"\n")
    except OSError:
        return SchedulerRecord(path=path)
    if _parse_object(lines[0]).get("schema") != SCHEMA:
        return SchedulerRecord(path=path)
    items = [
        item for number, line in enumerate(lines[1:], 2) if (item := _parse_item(line, number))
    ]
    return SchedulerRecord(
        next((item for item in items if isinstance(item, ScheduledJob)), ScheduledJob()),
        tuple(item for item in items if isinstance(item, NodeStatus)),
        tuple(item for item in items if isinstance(item, AccountingEntry)),
        tuple(item for item in items if isinstance(item, OtherJob)),
        tuple(item for item in items if isinstance(item, SlurmMessage)),
        path,
    )


def _values(item: Item) -> dict[str, Any]:
    return {name: value for name, value in asdict(item).items() if name != "line"}


def _parse_item(line: bytes, number: int) -> Item | None:
    """The item of a line, with those of its values that have the field's type: where a field's
    default is None, that is a time."""
    values = _parse_object(line)
    empty = KINDS.get(str(values.pop("kind", "")))
    if empty is None:
        return None
    valid: dict[str, Any] = {}
    for name, default in asdict(empty).items():
        if default is None:
            valid[name] = parse_finite(values.get(name))
        elif type(values.get(name)) is type(default):
            valid[name] = values[name]
    return replace(empty, **{**valid, "line": number})


def _parse_object(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
