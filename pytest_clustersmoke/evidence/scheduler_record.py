"""What the scheduler said of a job: its state, and the record of a job that did not end well.

The backend parses the scheduler's answers once and writes the record: a header with the schema,
then one JSON object a line, so that a finding can name the line it rests on. A job of this user
could write into the file, so whatever is not of the known form counts as not said.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from .finding import MAX_TEXT, Evidence
from .run_directory import write_whole

SCHEMA = 1
MAX_BYTES = 8 * 2**20


@dataclass(frozen=True)
class JobState:
    """What the scheduler says of a job.

    `kind` is ours: pending, running, ended, held (put back after its launch failed, and it will not
    start by itself), or unknown (the scheduler has forgotten the job).
    `raw` and `reason` are the scheduler's words; times are Unix seconds, None where not given;
    `expected_start` is its estimate for a pending job.
    """

    kind: str
    raw: str
    reason: str = ""
    nodes: str = ""
    submitted: float | None = None
    started: float | None = None
    expected_start: float | None = None


@dataclass(frozen=True)
class ScheduledJob:
    """The job as the scheduler shows it. Times are the scheduler's text: local, and of one form, so
    that they compare as text. `text` has the fields that decide something, `shown` all of them."""

    state: str = ""
    reason: str = ""
    partition: str = ""
    qos: str = ""
    nodes: str = ""
    started: str = ""
    ended: str = ""
    preempted: str = ""
    time_limit: str = ""
    memory_per_node: str = ""
    memory_per_cpu: str = ""
    text: str = ""
    shown: str = ""
    line: int = 0


@dataclass(frozen=True)
class NodeStatus:
    """A node: its state, and since when, by whom and why it is so."""

    name: str = ""
    state: str = ""
    down: bool = False
    drained: bool = False
    prolog_failed: bool = False
    since: str = ""
    by: str = ""
    reason: str = ""
    text: str = ""
    line: int = 0

    @property
    def why(self) -> str:
        """Its state with the administrators' words."""
        said = f": {self.reason} [{self.by}@{self.since}]" if self.reason else ""
        return f"{self.name} is {self.state}{said}"


@dataclass(frozen=True)
class AccountingEntry:
    """One entry of the job in the accounting database; a requeue begins another. `cancelled_by` is
    the user id of whoever ended it, -1 where the entry does not say."""

    state: str = ""
    cancelled_by: int = -1
    text: str = ""
    line: int = 0


@dataclass(frozen=True)
class OtherJob:
    """Another job on the same nodes."""

    job: str = ""
    user: str = ""
    partition: str = ""
    qos: str = ""
    started: str = ""
    text: str = ""
    line: int = 0


Item = ScheduledJob | NodeStatus | AccountingEntry | OtherJob
KINDS: dict[str, Item] = {
    "job": ScheduledJob(),
    "node": NodeStatus(),
    "accounting": AccountingEntry(),
    "other": OtherJob(),
}


@dataclass(frozen=True)
class SchedulerRecord:
    """All that the scheduler said of one job and its nodes."""

    job: ScheduledJob = field(default_factory=ScheduledJob)
    nodes: tuple[NodeStatus, ...] = ()
    accounting: tuple[AccountingEntry, ...] = ()
    others: tuple[OtherJob, ...] = ()
    path: Path = Path()

    @property
    def cancelled_by(self) -> int | None:
        """The user id that ended the job, where the accounting database says so."""
        ids = [one.cancelled_by for one in self.accounting if one.cancelled_by >= 0]
        return ids[-1] if ids else None

    def evidence(self, *items: Item) -> tuple[Evidence, ...]:
        """The lines of the file in which these items stand, as far as the scheduler gave any."""
        return tuple(
            Evidence(str(self.path), one.line, one.text[:MAX_TEXT]) for one in items if one.text
        )

    def write(self, path: Path) -> None:
        items: list[tuple[str, Item]] = [
            *([("job", self.job)] if self.job.text else []),
            *(("node", one) for one in self.nodes),
            *(("accounting", one) for one in self.accounting),
            *(("other", one) for one in self.others),
        ]
        lines = [{"schema": SCHEMA}, *({"kind": kind, **_values(one)} for kind, one in items)]
        write_whole(path, "".join(f"{json.dumps(line)}\n" for line in lines))


def read_scheduler_record(path: Path) -> SchedulerRecord:
    """The record in a file; an empty one where there is none, or one of another schema."""
    try:
        with path.open("rb") as stream:
            lines = stream.read(MAX_BYTES).split(b"\n")
    except OSError:
        return SchedulerRecord(path=path)
    if _parsed(lines[0]).get("schema") != SCHEMA:
        return SchedulerRecord(path=path)
    items = [item for number, line in enumerate(lines[1:], 2) if (item := _item(line, number))]
    return SchedulerRecord(
        next((one for one in items if isinstance(one, ScheduledJob)), ScheduledJob()),
        tuple(one for one in items if isinstance(one, NodeStatus)),
        tuple(one for one in items if isinstance(one, AccountingEntry)),
        tuple(one for one in items if isinstance(one, OtherJob)),
        path,
    )


def _values(item: Item) -> dict[str, Any]:
    return {name: value for name, value in asdict(item).items() if name != "line"}


def _item(line: bytes, number: int) -> Item | None:
    """The item of a line, with those of its values that have the type that the field has."""
    values = _parsed(line)
    empty = KINDS.get(str(values.pop("kind", "")))
    if empty is None:
        return None
    known = {one.name: type(getattr(empty, one.name)) for one in fields(empty)}
    fit = {name: value for name, value in values.items() if type(value) is known.get(name)}
    return replace(empty, **{**fit, "line": number})


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
