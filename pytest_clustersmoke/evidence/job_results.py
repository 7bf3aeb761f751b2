"""The results of one node and of one rank, each value parsed here and nowhere else.

Every file read here was written by a job, so its content is hostile text: a value of the wrong type
counts as missing, and a missing value is never a pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..text import abridge_values, plural
from .run_directory import PhaseDir, list_directory, read_json
from .telemetry import (
    MARK_EVERY_S,
    Events,
    parse_finite,
    parse_int,
    parse_number,
    parse_numbers,
    parse_rows,
    parse_text,
)
from .whole_files import MAX_NODE_BYTES

# Outcomes in which the cluster was not measured: it neither failed nor passed.
NOT_MEASURED = {"never_ran", "preempted", "cancelled", "lost"}
STEP_DAEMON = "slurmstepd"  # a node's reason: it lost the daemon that had started it


@dataclass(frozen=True)
class NodeResult:
    """One node: its facts, and how its part of the job ended (empty if it reported nothing).

    `scheduled` is the scheduler's name of a node that wrote nothing, if known.
    """

    node_rank: int
    facts: Mapping[str, Any]
    result: Mapping[str, Any]
    scheduled: str = ""

    @property
    def name(self) -> str:
        name = self.facts.get("node") or self.result.get("node") or self.scheduled
        return str(name or f"node {self.node_rank}")

    @property
    def host(self) -> str:
        return str(self.facts.get("host") or self.result.get("host") or "unknown")

    @property
    def ok(self) -> bool:
        return self.result.get("ok") is True

    @property
    def stopped(self) -> bool:
        """Whether its ranks stopped to go on in another attempt."""
        return self.result.get("stopped") is True

    @property
    def requeues(self) -> bool:
        """Whether they stopped because the scheduler will end the job, which requeues itself."""
        return self.stopped and self.result.get("requeue") is True

    @property
    def nonce(self) -> str:
        """The word that it gave the ranks that it started; empty if it reported no result."""
        return parse_text(self.result.get("nonce")) or ""

    @property
    def reason(self) -> str:
        """Why its part of the job ended, in one word; empty if it is not known."""
        return parse_text(self.result.get("reason")) or ""

    @property
    def why(self) -> str:
        """The reason in a sentence; empty if it is not known."""
        return parse_text(self.result.get("why")) or ""

    @property
    def facts_time(self) -> float | None:
        """When it wrote its facts, in Unix seconds by its own clock."""
        return parse_finite(self.facts.get("time"))

    @property
    def started(self) -> float | None:
        """When its part of the job started, in Unix seconds by its own clock."""
        return parse_finite(self.result.get("started"))

    @property
    def ended(self) -> float | None:
        """When its part of the job ended, in Unix seconds by its own clock."""
        return parse_finite(self.result.get("ended"))

    @property
    def launcher_s(self) -> float | None:
        """How long the launcher ran."""
        return parse_finite(self.result.get("launcher_s"))

    @property
    def torchrun_s(self) -> float | None:
        """`launcher_s` by its former name, on which suites rely."""
        return self.launcher_s

    @property
    def paused_s(self) -> float:
        """How long the job was suspended on this node."""
        return parse_finite(self.result.get("paused_s")) or 0.0

    def version(self, name: str) -> str | None:
        """The version of a package, or of the GPUs' `driver`, on this node."""
        if name == "driver":
            gpus = parse_rows(self.facts.get("gpus"))
            return parse_text(gpus[0].get("driver_version")) if gpus else None
        versions = self.facts.get("packages")
        return parse_text(versions.get(name)) if isinstance(versions, dict) else None


def read_node_result(directory: PhaseDir, node_rank: int) -> NodeResult:
    """How a node's part of the job ended, without its facts; `result` is empty if it reported
    nothing yet."""
    written = read_json(directory.node_result(node_rank), MAX_NODE_BYTES)
    return NodeResult(node_rank, {}, written or {})


@dataclass(frozen=True)
class StartClaim:
    """The start of a job that runs an attempt: the token of its submission, its job id, `start`
    (which differs after a requeue), and the process of its node 0."""

    token: str
    job_id: str
    start: str
    node: str
    host: str
    pid: int | None
    time: float | None

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> StartClaim:
        token, job_id, start, node, host = (
            parse_text(record.get(name)) or ""
            for name in ("token", "job_id", "start", "node", "host")
        )
        pid, at = parse_int(record.get("pid")), parse_finite(record.get("time"))
        return cls(token, job_id, start, node, host, pid, at)


def read_claim(directory: PhaseDir) -> StartClaim | None:
    """The claim of an attempt; None while there is none, or it is not whole."""
    record = read_json(directory.claim, MAX_NODE_BYTES) if list_directory(directory.start) else None
    return None if record is None else StartClaim.from_record(record)


@dataclass(frozen=True)
class AbortFlag:
    """The flag by which a node ended the phase on all nodes, with the time in Unix seconds by its
    own clock; without a reason if none did."""

    node_rank: int | None
    node: str
    time: float | None
    reason: str
    why: str

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> AbortFlag:
        return cls(
            parse_int(record.get("node_rank")),
            parse_text(record.get("node")) or "unknown",
            parse_finite(record.get("time")),
            parse_text(record.get("reason")) or "",
            parse_text(record.get("why")) or "",
        )


@dataclass(frozen=True)
class RankError:
    """The exception that ended a rank: when it was raised, in Unix seconds by the clock of the
    rank's node, and the line of its event, which has it in full. As a text, a tensor in its message
    has few values."""

    type: str
    message: str
    traceback: str
    time: float
    line: int

    def __str__(self) -> str:
        return f"{self.type}: {abridge_values(self.message)}"


FASTER_LATER = 4  # a loop's steps against its average rate, at most


@dataclass(frozen=True)
class StageMark:
    """The beginning of a stage, or its end, with the seconds that it took, and when that was, in
    Unix seconds by its node's clock."""

    name: str
    ended: bool
    seconds: float | None
    time: float


@dataclass(frozen=True)
class RankRole:
    """What ranks must have in common to be compared: the model of their GPU, their stage of a
    pipeline, and the number of parameters and the parts of their own step, where they recorded
    these."""

    device_name: str | None
    pipeline_stage: int | None
    parameters: int | None
    parts: tuple[str, ...]

    def __str__(self) -> str:
        words = [self.device_name or "unknown device"]
        if self.pipeline_stage is not None:
            words.append(f"stage {self.pipeline_stage}")
        if self.parameters is not None:
            words.append(plural(self.parameters, "parameter"))
        return ", ".join([*words, *self.parts])


@dataclass(frozen=True)
class RankResult:
    """One rank and the events it wrote."""

    rank: int
    events: Events

    @cached_property
    def start(self) -> dict[str, Any]:
        return self.events.last("start") or {}

    @property
    def done(self) -> bool:
        return self.events.last("done") is not None

    @property
    def node(self) -> str:
        return parse_text(self.start.get("node")) or "unknown"

    @property
    def host(self) -> str:
        return parse_text(self.start.get("host")) or "unknown"

    @property
    def node_rank(self) -> int | None:
        return parse_int(self.start.get("node_rank"))

    @property
    def local_rank(self) -> int | None:
        return parse_int(self.start.get("local_rank"))

    @property
    def pid(self) -> int | None:
        return parse_int(self.start.get("pid"))

    @property
    def device(self) -> str:
        """Its torch device, `cuda:1` or `cpu`."""
        return parse_text(self.start.get("device")) or "unknown"

    @property
    def device_name(self) -> str | None:
        """The driver's name of its GPU."""
        return parse_text(self.start.get("device_name"))

    @property
    def gpu_uuid(self) -> str | None:
        """The UUID of its GPU, `GPU-5b1c...`."""
        return parse_text(self.start.get("gpu_uuid"))

    @property
    def mean_losses(self) -> list[Any] | None:
        """The loss of each step of this attempt, averaged over all ranks; None without them, or if
        one of the lines of a long loop is missing."""
        last, means = self.events.last("losses"), list[Any]()
        if last is None:
            return None
        for part in (*self.events.named("earlier_losses"), last):
            values = part.get("mean")
            if not isinstance(values, list) or part.get("first", len(means)) != len(means):
                return None
            means += values
        return means

    @cached_property
    def role(self) -> RankRole:
        """Which other ranks it may be compared with."""
        parameters = (self.events.last("own_steps") or {}).get("parameters")
        return RankRole(
            self.device_name,
            parse_int(self.facts().get("pipeline_stage")),
            parse_int(parameters),
            tuple(self.own_passes_s(cpu=True)),
        )

    def version(self, name: str) -> str | None:
        """The version that it imported of torch, NCCL and the like."""
        return parse_text(self.start.get(name))

    def __str__(self) -> str:
        kind, _, index = self.device.partition(":")
        gpu = f", GPU {index}" if kind == "cuda" and index.isdigit() else ""
        return f"rank {self.rank} ({self.node}{gpu})"

    @property
    def backend(self) -> str | None:
        """The backend of its process group; None if it did not join one."""
        return parse_text((self.events.last("group") or {}).get("backend"))

    @cached_property
    def stages(self) -> tuple[StageMark, ...]:
        """Where its stages began and ended, in order."""
        return tuple(
            StageMark(
                parse_text(record.get("name")) or "unknown",
                record["state"] == "end",
                parse_finite(record.get("seconds")),
                float(record["time"]),
            )
            for record in self.events.named("stage")
            if record.get("state") in ("begin", "end")
        )

    @property
    def steps_done(self) -> int | None:
        """The number of steps that it had finished at its last mark; None if it marked none. A
        rank that was killed may have done more: marks are MARK_EVERY_S apart."""
        return parse_int((self.events.last("step") or {}).get("step"))

    @property
    def steps_since_mark(self) -> int:
        """How many steps more than it marked it may have done, since marks are MARK_EVERY_S
        apart. The rate is that since the loop began, which a slow first step lowers."""
        rate = parse_finite((self.events.last("step") or {}).get("steps_per_s")) or 0.0
        return 1 + math.ceil(max(0.0, rate) * MARK_EVERY_S * FASTER_LATER)

    @property
    def steps_planned(self) -> int | None:
        """The number of steps that it was to do; None if it recorded none."""
        return parse_int((self.events.last("step") or {}).get("steps"))

    @cached_property
    def step_times_s(self) -> tuple[float, ...]:
        """Seconds of each step after warm-up that was not proven or traced, which takes time; empty
        if anything recorded is not a time."""
        return self._times_s("seconds", "proven", "traced")

    @cached_property
    def own_times_s(self) -> tuple[float, ...]:
        """Seconds of its own part of each step after warm-up (`Step.local_done`), which a trace
        makes longer, and a proof, which comes later, does not."""
        return self._times_s("local_seconds", "traced")

    def own_passes_s(self, cpu: bool) -> dict[str, tuple[float, ...]]:
        """Part of the rank's own step (`forward`, `backward`, `optimizer`) -> its seconds in each
        pass, by the process's CPU time or by the device's clock; empty if it measured none, or if
        anything recorded is not a time."""
        parts = (self.events.last("own_steps") or {}).get("parts")
        passes: dict[str, tuple[float, ...]] = {}
        for name, record in parts.items() if isinstance(parts, dict) else ():
            times = record.get("cpu_seconds" if cpu else "seconds") if type(record) is dict else ()
            passes[str(name)] = tuple(parse_numbers(times))
        counts = {len(times) for times in passes.values()}
        times_only = all(0 <= time < math.inf for times in passes.values() for time in times)
        return passes if len(counts) == 1 and counts != {0} and times_only else {}

    def _times_s(self, name: str, *leaves_out: str) -> tuple[float, ...]:
        record = self.events.last("step_times") or {}
        left_out = {step for key in leaves_out for step in parse_numbers(record.get(key))}
        times = parse_numbers(record.get(name))
        if not all(0 <= time < math.inf for time in times):
            return ()
        warmup = max(0, parse_int(record.get("warmup")) or 0)
        return tuple(time for at, time in enumerate(times) if at >= warmup and at not in left_out)

    @cached_property
    def error(self) -> RankError | None:
        """The exception that ended it."""
        record = self.events.last("error")
        if record is None:
            return None
        kind, message, traceback = (
            parse_text(record.get(name)) or "" for name in ("type", "message", "traceback")
        )
        line = self.events.line_of(record)
        return RankError(kind or "unknown", message, traceback, float(record["time"]), line)

    def measured(self, what: str) -> list[dict[str, Any]]:
        """What it recorded with `Rank.measured`."""
        return [r for r in self.events.named("measured") if r.get("what") == what]

    def facts(self) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for record in self.events.named("fact"):
            values = record.get("values")
            merged |= values if isinstance(values, dict) else {}
        return merged

    def metrics(self) -> dict[str, float]:
        record = self.events.last("metrics") or {}
        values = record.get("values")
        pairs = values.items() if isinstance(values, dict) else ()
        return {name: value for name, raw in pairs if (value := parse_number(raw)) is not None}
