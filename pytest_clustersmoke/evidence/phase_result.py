"""The result of a phase: what its job wrote, as a criterion sees it.

Every file read here was written by a job, so its content is hostile text: a value of the wrong type
counts as missing, and a missing value is never a pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.hostlist import expand_hostlist
from ..config.marker import numbers_by_node
from ..config.metrics import METRICS, STEPS_LEFT
from .event_origin import Launch, keep_own_events
from .finding import Finding
from .job_results import NodeResult, RankResult, read_node_result
from .metric import Metric, fail
from .run_directory import PhaseDir, job_name, read_json, refresh_directories
from .scheduler_record import SchedulerRecord, read_scheduler_record
from .telemetry import (
    Events,
    parse_finite,
    parse_int,
    parse_numbers,
    parse_rows,
    parse_text,
    parse_texts,
    read_events,
)
from .whole_files import MAX_NODE_BYTES

if TYPE_CHECKING:  # pydantic is not loaded by a plain collection
    from ..config.expectations import Expectation, Reference
    from ..config.profile import Profile
    from .interfaces import Unmatched
    from .nccl.log_reader import NodeLogs

MAX_RANKS = 2**16  # of one phase
OUTCOMES = (
    "passed",
    "failed",
    "cluster_failed",
    "never_ran",
    "preempted",
    "cancelled",
    "lost",
)


@dataclass(frozen=True)
class PastRuns:
    """Where a phase's past runs are stored, and whether a regression fails or only warns."""

    cluster: str
    report_dir: Path
    fails: bool
    begun: float = math.inf  # of this run, Unix s: runs that began later are not its past
    # Runs the phase once more, to confirm a lasting loss, and waits for its result; None: never.
    run_again: Callable[[str, int], PhaseResult] | None = None


@dataclass(frozen=True, repr=False)
class PhaseResult:
    """A finished phase. Attributes hold what its job wrote; checks raise AssertionError."""

    directory: PhaseDir
    spec: Mapping[str, Any]
    job: Mapping[str, Any]
    nodes: tuple[NodeResult, ...]
    ranks: tuple[RankResult, ...]
    scheduler: SchedulerRecord = field(default_factory=SchedulerRecord)
    references: Mapping[str, Reference] = field(default_factory=dict)
    resized: tuple[str, ...] = ()  # why the references do not hold, as in `Phase.resized`
    expect: Expectation | None = None
    # The kinds that criteria judged, for the profile's `require`: a kind that is missing here was
    # not measured.
    judged: set[str] = field(default_factory=set)
    # What passing criteria could have seen, a sentence each: reported with the test that adds it.
    sensitivity: list[str] = field(default_factory=list)
    past: PastRuns | None = None
    earlier: tuple[PhaseResult, ...] = ()  # the attempts that stopped for this one to go on

    def __repr__(self) -> str:
        return f"<phase {self.name}: {self.outcome}>"  # printed by pytest above a failed check

    @property
    def name(self) -> str:
        return str(self.spec["phase"])

    @property
    def entry(self) -> str:
        """The name under which a profile has it: of all points of a sweep, the phase's."""
        return parse_text(self.spec.get("entry")) or self.name

    @property
    def outcome(self) -> str:
        return parse_text(self.job.get("outcome")) or "lost"

    @cached_property
    def on_gpus(self) -> bool:
        """Whether all ranks have a GPU."""
        return all(rank.device.startswith("cuda") for rank in self.ranks)

    @property
    def reason(self) -> str:
        """Why the job ended as it did, in a sentence."""
        return parse_text(self.job.get("reason")) or ""

    @property
    def job_id(self) -> str:
        return parse_text(self.job.get("job_id")) or ""

    @property
    def queue_s(self) -> float | None:
        """How long the job waited in the queue; None if it is not known."""
        return parse_finite(self.job.get("queue_s"))

    @property
    def run_s(self) -> float | None:
        """How long the job ran; None if it is not known."""
        return parse_finite(self.job.get("run_s"))

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """What was found about the job, the causes first."""
        return tuple(map(Finding.from_record, parse_rows(self.job.get("findings"))))

    @property
    def args(self) -> Mapping[str, Any]:
        """The rank program's arguments as the phase resolved them."""
        return dict(self.spec.get("args", {}))

    @property
    def world_size(self) -> int:
        return int(self.spec["nodes"]) * int(self.spec["ranks_per_node"])

    @property
    def ranks_done(self) -> int:
        return sum(rank.done for rank in self.ranks)

    @property
    def backend(self) -> str:
        """The process group's backend, nccl or gloo; fails if ranks differ."""
        return str(self._agreed("backend", {rank.rank: rank.backend for rank in self.ranks}))

    @property
    def backends(self) -> set[str]:
        """The backends that the ranks reported."""
        return {rank.backend for rank in self.ranks if rank.backend is not None}

    @property
    def losses(self) -> list[float]:
        """The loss of every step of all attempts, averaged over all ranks; fails if ranks
        differ."""
        per_rank = {rank.rank: rank.mean_losses for rank in self.ranks}
        before = [loss for attempt in self.earlier for loss in attempt.losses]
        return before + parse_numbers(self._agreed("losses", per_rank))

    def metric(self, name: str) -> Metric:
        """The worst value over all ranks: the lowest if higher is better, otherwise the highest."""
        if name not in METRICS:
            raise KeyError(f"unknown metric {name!r}; known: {', '.join(METRICS)}")
        values = [rank.metrics().get(name, math.nan) for rank in self.ranks]
        missing = [
            rank.rank for rank, value in zip(self.ranks, values, strict=True) if math.isnan(value)
        ]
        if missing or not values:
            worst = math.nan
        else:
            worst = min(values) if METRICS[name].higher_is_better else max(values)
        return Metric(name, worst, self.references.get(name), self.judged, self.resized)

    def metrics(self) -> dict[str, float]:
        """Every metric that all ranks reported."""
        names = [name for name in METRICS if any(name in rank.metrics() for rank in self.ranks)]
        values = {name: self.metric(name).value for name in names}
        return {name: value for name, value in values.items() if not math.isnan(value)}

    def fact(self, name: str) -> Any:
        """A fact that all ranks agree on; fails naming the ranks if they do not."""
        return self._agreed(f"fact {name!r}", self.facts(name))

    def facts(self, name: str) -> dict[int, Any]:
        """rank -> its value of the fact; None for a rank that reported none."""
        return {rank.rank: rank.facts().get(name) for rank in self.ranks}

    def events(self, event: str) -> dict[int, dict[str, Any]]:
        """rank -> its last event of this name; ranks without one are left out."""
        records = {rank.rank: rank.events.last(event) for rank in self.ranks}
        return {rank: record for rank, record in records.items() if record is not None}

    @cached_property
    def nccl(self) -> NodeLogs:
        """NCCL's logs of all nodes, read on first access."""
        from .nccl.log_reader import read_nodes

        folders = {node.node_rank: self.directory.nccl_logs(node.node_rank) for node in self.nodes}
        versions = {version for rank in self.ranks if (version := rank.version("nccl"))}
        version = versions.pop() if len(versions) == 1 else None
        return read_nodes(folders, self.directory.phase, version)

    def transport_summary(self) -> str:
        """The transports of the ranks in a few words: NCCL's kinds, `gloo`, or `unknown`."""
        if self.backends != {"nccl"}:
            return ", ".join(sorted(self.backends)) or "unknown"
        unknown = "none" if self.world_size == 1 else "unknown"
        return ", ".join(self.nccl.log.kinds()) or unknown

    def checkpoint_files(self) -> dict[str, int]:
        """File -> bytes, as rank 0 listed them after all ranks had written."""
        record = self.events("checkpoint").get(0, {})
        return {
            name: size
            for entry in parse_rows(record.get("files"))
            if (name := parse_text(entry.get("name"))) is not None
            and (size := parse_int(entry.get("bytes"))) is not None
        }

    def versions(self, name: str) -> dict[str, str | None]:
        """The version of `name` that each rank imported, or, if no rank says, on each node."""
        if any(name in rank.start for rank in self.ranks):
            return {str(rank): rank.version(name) for rank in self.ranks}
        return {node.name: node.version(name) for node in self.nodes}

    def stage_seconds(self) -> dict[str, float]:
        """Stage -> seconds on the slowest rank; compilation is a separate stage."""
        longest: dict[str, float] = {}
        for rank in self.ranks:
            for stage in rank.stages:
                if stage.ended and stage.seconds is not None:
                    longest[stage.name] = max(longest.get(stage.name, 0.0), stage.seconds)
        return longest

    def steps_done(self) -> dict[int, int]:
        """rank -> the number of steps it finished."""
        steps = {rank.rank: rank.steps_done for rank in self.ranks}
        return {rank: step for rank, step in steps.items() if step is not None}

    def _agreed(self, subject: str, per_rank: Mapping[int, Any]) -> Any:
        __tracebackhide__ = True
        if not per_rank:
            fail(f"no rank reported {subject}")
        first = next(iter(per_rank.values()))
        for rank, value in per_rank.items():
            if value is None:
                fail(f"rank {rank} did not report {subject}")
            if value != first:
                fail(f"ranks differ in {subject}: rank 0 {first!r}, rank {rank} {value!r}"[:1000])
        return first


def collect_phase(
    directory: PhaseDir, results: Mapping[int, NodeResult] | None = None
) -> PhaseResult:
    """Read everything that a phase's last job wrote into its directory: its last attempt, and those
    before as `earlier`. Of each rank's `step` events, which are nearly all of a long job's lines,
    only the last is read. `results` are the results of nodes, by node rank, that were read before
    in `directory`, which may be that of an attempt."""
    *before, last = directory.last_job.attempts()
    earlier = tuple(_collect_attempt(attempt) for attempt in before)
    known = results if last == directory else None
    return replace(_collect_attempt(last, known), earlier=earlier)


def _collect_attempt(
    directory: PhaseDir, results: Mapping[int, NodeResult] | None = None
) -> PhaseResult:
    spec = _read_spec(directory)
    refresh_directories(directory, int(spec["nodes"]))
    nodes = tuple(
        _read_node(directory, node, (results or {}).get(node)) for node in range(int(spec["nodes"]))
    )
    per_node = int(spec["ranks_per_node"])
    launches = [Launch.from_record(node.result) for node in nodes]
    result = PhaseResult(
        directory=directory,
        spec=spec,
        job=read_json(directory.result) or {},
        nodes=nodes,
        ranks=tuple(
            _read_rank(directory, rank, spec, launches) for rank in range(len(nodes) * per_node)
        ),
    )
    return add_scheduler_record(result)


def _read_spec(directory: PhaseDir) -> dict[str, Any]:
    """The job's spec; without a node if it cannot be read, or is none of ours: jobs can write it,
    too."""
    spec = read_json(directory.spec) or {}
    nodes, per_node = (parse_int(spec.get(key)) or 0 for key in ("nodes", "ranks_per_node"))
    is_ours = parse_text(spec.get("phase")) and isinstance(spec.get("args", {}), dict)
    if is_ours and min(nodes, per_node) >= 0 and max(nodes, nodes * per_node) <= MAX_RANKS:
        return {**spec, "nodes": nodes, "ranks_per_node": per_node}
    return {"phase": directory.name, "nodes": 0, "ranks_per_node": 0}


def _find_launch(
    rank: int, events: Events, launches: Sequence[Launch], spec: Mapping[str, Any]
) -> Launch:
    """The launch that started this rank: that of its node, or the one whose word it has."""
    by_number = launches[rank // int(spec["ranks_per_node"])]
    if numbers_by_node(spec):
        return by_number
    words = {parse_text(start.get("nonce")) for start in events.named("start")}
    return next((launch for launch in launches if launch.nonce in words), by_number)


def with_bounds(
    result: PhaseResult, profile: Profile, report_dir: Path | None = None
) -> PhaseResult:
    """The same result with the profile's bounds for the phase: references, expectations and, with
    `report_dir`, its past runs."""
    expect = profile.expect.get(result.entry)
    return replace(
        result,
        references=dict(profile.references.get(result.entry, {})),
        resized=(*parse_texts(result.spec.get("resized")), *_count_steps_left(result)),
        expect=expect,
        earlier=tuple(replace(attempt, expect=expect) for attempt in result.earlier),
        past=_make_past_runs(result.directory, profile, report_dir) if report_dir else None,
    )


def _count_steps_left(result: PhaseResult) -> Iterator[str]:
    """Of a phase that stopped and went on: how many steps its last attempt had, if it timed none
    but those that it proved, or if the scheduler chose where it stopped."""
    if not (result.earlier and result.ranks):
        return
    plan, times = map(result.ranks[0].events.last, ("proof_plan", "step_times"))
    count = len(parse_numbers(times.get("seconds"))) if times else 0
    if result.directory.restarts:
        yield f"{STEPS_LEFT}{count}"
    elif plan and times:
        steps, warmup = plan.get("steps"), parse_int(times.get("warmup")) or 0
        proven = {*map(parse_int, steps)} if isinstance(steps, list) else set()
        if not {*range(warmup + 1, count + 1)} - proven:
            yield f"{STEPS_LEFT}{count}"


def _make_past_runs(directory: PhaseDir, profile: Profile, report_dir: Path) -> PastRuns:
    about = read_json(directory.run.run) or {}
    begun = parse_finite(about.get("begun"))
    fails = profile.history_check != "warn"
    return PastRuns(profile.name, report_dir, fails, math.inf if begun is None else begun)


def _read_rank(
    directory: PhaseDir, rank: int, spec: Mapping[str, Any], launches: Sequence[Launch]
) -> RankResult:
    """A rank and its own events; events of another job, or of a process that its node did not
    start, are ignored."""
    events = read_events(directory.rank_events(rank), all_marks=False)
    if job := job_name(spec):
        launch = _find_launch(rank, events, launches, spec)
        events = keep_own_events(events, job, rank, launch)
    return RankResult(rank, events)


def _read_node(directory: PhaseDir, node_rank: int, result: NodeResult | None) -> NodeResult:
    result = result or read_node_result(directory, node_rank)
    facts = read_json(directory.node_facts(node_rank), MAX_NODE_BYTES)
    return replace(result, facts=facts or {})


def add_scheduler_record(result: PhaseResult) -> PhaseResult:
    """The same result with what the scheduler reported, and with names for nodes that wrote
    nothing: those names in its list of the job's nodes that no other node has."""
    result = replace(result, scheduler=read_scheduler_record(result.directory.scheduler))
    silent = [node for node in result.nodes if not node.facts and not node.result]
    if not silent:
        return result
    scheduled = expand_hostlist(result.scheduler.job.nodes)
    names = [name for name in scheduled if name not in {node.name for node in result.nodes}]
    if len(names) != len(silent):
        return result
    by_rank = dict(zip((node.node_rank for node in silent), names, strict=True))
    return replace(
        result,
        nodes=tuple(
            replace(node, scheduled=by_rank.get(node.node_rank, "")) for node in result.nodes
        ),
    )


def find_unmatched_interfaces(result: PhaseResult) -> list[Unmatched]:
    """Each node and variable that pins an interface which the node does not have.

    Nodes whose facts do not list interfaces are skipped.
    """
    from .interfaces import find_unmatched_on_node, have_separate_networks

    uses_nccl = result.spec.get("device") != "cpu" and not used_only_gloo(result)
    apart = have_separate_networks(node.facts for node in result.nodes)
    return [
        unmatched
        for node in result.nodes
        for unmatched in find_unmatched_on_node(node.name, node.facts, result.spec, apart)
        if uses_nccl or not unmatched.name.startswith("NCCL_")
    ]


def used_only_gloo(result: PhaseResult) -> bool:
    """Whether all ranks reported gloo as their backend, so that NCCL did not run."""
    return result.backends == {"gloo"}
