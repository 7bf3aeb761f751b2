"""Ranks that fall behind the others, judged by their own work in a step.

Synchronous training makes all ranks equally slow, so the time of a step does not show which rank is
slow. What a rank does without waiting for the others shows it, measured in two ways. Ranks are
compared only with those of their role: the same GPU, and the same part of the model.

From the step's beginning, where all ranks have just synchronised, to `Step.local_done`: its batch
and its forward pass, in every step; where the forward pass gathers parameters, to its beginning. In
a pipeline that is not measured: until there a stage waits for the one before it. A rank falls
behind if all of this holds after warm-up:

- its performance score, the others' median time divided by its own, is below 0.75: the bound of
  NVIDIA's resiliency extension (`Report.identify_stragglers`);
- it costs the job more than a tenth of its step time, the bound for a straggling job in
  "Understanding Stragglers in Large Model Training Using What-if Analysis" (arXiv:2505.05713);
- it is late by more than the scheduling of cores or kernel launches can explain;
- this holds in three of four steps, not only now and then.

And in passes of its own step, forward, backward and optimizer, if the program gave a `Proof`; of a
model that is sharded over ranks, one block stands for all. On GPUs the ranks of one role are judged
by the spread of their peers (`peer_judge.py`), and so are nodes as a whole. On CPUs wall times are
too noisy, so a fixed factor over the others' CPU time decides. Anywhere a single part that takes
`PART_FACTOR` times as long as the others' counts as well, if it makes the rank's own step longer by
more than a tenth.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from ..evidence.job_results import RankResult, RankRole
from ..evidence.metric import Unmeasured, fail
from ..evidence.phase_result import PhaseResult
from ..evidence.telemetry import typical_s
from ..text import plural
from .peer_judge import CPU_FACTOR, PeerVerdict, judge_by_factor, judge_ranks

LEAST_SCORE = 0.75
MOST_SHARE = 0.1
PART_FACTOR = 2.0
# Ranks that share cores wait for each other's time slices, 3 to 6 ms each under Linux. Kernel
# launches on a GPU are late by microseconds, work on its host by some hundred microseconds.
LATE_S = {"cpu": 0.020, "cuda": 0.001}
FEWEST_STEPS = 5
# By a fixed factor, passes that differ by less are not judged. A process's CPU time includes that
# of threads that wait for messages: on two busy cores a healthy rank had 1.2 ms more.
LATE_ALONE_S = {"cpu": 0.003, "cuda": 0.001}
OWN_STEP = "own step"


@dataclass(frozen=True)
class Straggler:
    """A rank that falls behind: what is slow, the median seconds of it, of the others', and of the
    whole step. `stands_for_node`: it is the middle one of a node that is slow as a whole."""

    rank: RankResult
    own_s: float
    others_s: float
    step_s: float
    part: str = "own part of a step"
    stands_for_node: bool = False

    def __str__(self) -> str:
        who, whose, others = f"{self.rank} on {self.rank.host} falls behind", "its", "the others"
        if self.stands_for_node:
            who = f"{self.rank.host} falls behind as a whole"
            whose, others = (
                f"in the middle is {self.rank}, whose",
                "the middle ranks of other nodes",
            )
        return (
            f"{who}: {whose} {self.part} takes {self.own_s * 1e3:.3g} ms, that of {others} "
            f"{self.others_s * 1e3:.3g} ms; a whole step takes {self.step_s * 1e3:.3g} ms"
        )


@dataclass(frozen=True)
class OwnSteps:
    """The passes of ranks of one role: part -> rank -> its typical seconds; `OWN_STEP` is the sum
    of all parts."""

    cpu: bool
    times: dict[str, dict[int, float]]
    nodes: dict[int, str]  # by rank

    @cached_property
    def verdicts(self) -> tuple[PeerVerdict, PeerVerdict | None]:
        """The judgement of the whole own steps, and that of nodes as a whole."""
        times = self.times[OWN_STEP]
        if self.cpu:
            return judge_by_factor(times, CPU_FACTOR), None
        return judge_ranks(times, self.nodes.__getitem__)


def check_stragglers(phase: PhaseResult) -> None:
    """Fail, naming the ranks that fall behind; unmeasured if a rank did not time its own part, or
    if no other has its role."""
    __tracebackhide__ = True
    stragglers = find_stragglers(phase)
    alone = [group for group in _group_by_role(phase.ranks).items() if len(group[1]) == 1]
    if alone and not stragglers:
        role, (rank,) = alone[0]
        more = f", nor {len(alone) - 1} more with theirs" if len(alone) > 1 else ""
        raise Unmeasured(
            "stragglers",
            f"{rank} cannot be compared: no other rank has its role ({role}){more}; expected two "
            "ranks or more of each role",
        )
    phase.judged.add("stragglers")
    visible = describe_visible(phase)
    if stragglers:
        fail("\n".join([*map(str, stragglers), *([f"{visible} is named"] if visible else [])]))
    if visible:
        phase.sensitivity.append(f"would have named {visible}")


def find_stragglers(phase: PhaseResult) -> list[Straggler]:
    """The ranks that fall behind, each once, the slowest first."""
    if phase.world_size < 2:
        raise Unmeasured("stragglers", "there is no other rank to compare with")
    if shared := describe_sharing(phase.ranks):
        raise Unmeasured("stragglers", shared)
    named: dict[int, Straggler] = {}
    for straggler in (*_late_to_reduce(phase), *_slow_alone(phase)):
        named.setdefault(straggler.rank.rank, straggler)
    return sorted(named.values(), key=lambda straggler: -straggler.own_s)


def describe_sharing(ranks: Sequence[RankResult]) -> str:
    """Two ranks that share a GPU, as those of virtual nodes of one machine may: each computes while
    the other waits, so their times say nothing of either. Empty if none do."""
    users: dict[str, RankResult] = {}
    for rank in ranks:
        if rank.gpu_uuid and (other := users.setdefault(rank.gpu_uuid, rank)) is not rank:
            return f"{other} and {rank} share a GPU ({rank.gpu_uuid}), and slow each other down"
    return ""


def find_slow_groups(groups: Sequence[PhaseResult]) -> list[bool]:
    """Which of several jobs of one program have a rank that falls behind, compared with the ranks
    of all of them. Raises Unmeasured, as `find_stragglers` does."""
    ranks = [rank for group in groups for rank in group.ranks]
    numbered = tuple(replace(rank, rank=number) for number, rank in enumerate(ranks))
    spec = {**groups[0].spec, "nodes": sum(int(group.spec["nodes"]) for group in groups)}
    together = replace(groups[0], ranks=numbered, spec=spec)
    slow = {straggler.rank.rank for straggler in find_stragglers(together)}
    ends = [*accumulate(len(group.ranks) for group in groups)]
    starts = [0, *ends[:-1]]
    return [not slow.isdisjoint(range(first, end)) for first, end in zip(starts, ends, strict=True)]


def describe_visible(phase: PhaseResult) -> str:
    """The rank whose own step is just slow enough to be named; empty if no rank measured its own
    step."""
    verdicts = [role.verdicts[0] for role in _roles(phase)]
    if not verdicts:
        return ""
    least = max(verdicts, key=lambda verdict: verdict.visible)
    clock = "time" if phase.on_gpus else "CPU time"
    percent = math.ceil(least.visible * 100 - 1e-6)
    return f"a rank whose own step takes {percent}% more {clock}{least.by_factor}"


def _late_to_reduce(phase: PhaseResult) -> Iterator[Straggler]:
    """The ranks that reach `Step.local_done` later than the others of their role; none in a
    pipeline, where a stage waits until there for the one before it. Where that was not measured,
    the ranks' own steps show which is slow."""
    staged = [rank for rank in phase.ranks if rank.role.pipeline_stage is not None]
    if not staged:
        try:
            timed = [_require_times(rank) for rank in phase.ranks]
        except Unmeasured:
            if not _roles(phase):
                raise
            return
        late_s = LATE_S["cuda" if phase.on_gpus else "cpu"]
        for ranks in _group_by_role(timed).values():
            yield from _late_of_role(ranks, late_s)
    elif not _roles(phase):
        raise Unmeasured(
            "stragglers",
            f"{staged[0]} is stage {staged[0].role.pipeline_stage} of a pipeline, which waits for "
            "other stages before step.local_done(), and no rank measured its own step",
        )


def _group_by_role(ranks: Sequence[RankResult]) -> dict[RankRole, list[RankResult]]:
    roles: dict[RankRole, list[RankResult]] = {}
    for rank in ranks:
        roles.setdefault(rank.role, []).append(rank)
    return roles


def _late_of_role(ranks: Sequence[RankResult], late_s: float) -> Iterator[Straggler]:
    if len(ranks) < 2:
        return
    medians = [statistics.median(rank.own_times_s) for rank in ranks]
    for index, rank in enumerate(ranks):
        others_s = statistics.median(medians[:index] + medians[index + 1 :])
        step_s = statistics.median(rank.step_times_s)
        # Its faster steps, the lower quartile, must show it as well.
        for own_s in (medians[index], statistics.quantiles(rank.own_times_s, n=4)[0]):
            late = own_s - others_s
            if own_s * LEAST_SCORE <= others_s or late <= max(late_s, MOST_SHARE * step_s):
                break
        else:
            yield Straggler(rank, medians[index], others_s, step_s)


def _slow_alone(phase: PhaseResult) -> Iterator[Straggler]:
    """The ranks whose passes of their own step are slow."""
    for role in _roles(phase):
        own, of_nodes = role.verdicts
        judged = [
            (part, own if part == OWN_STEP else judge_by_factor(times, PART_FACTOR), False)
            for part, times in role.times.items()
        ]
        for part, verdict, whole in (*judged, *([(OWN_STEP, of_nodes, True)] if of_nodes else [])):
            times = role.times[part]
            alone_s = LATE_ALONE_S["cpu" if role.cpu else "cuda"]
            least_s = 0.0 if verdict.by_spread else max(alone_s, MOST_SHARE * own.usual_s)
            for number in verdict.slow:
                if times[number] - verdict.usual_s > least_s:
                    rank = phase.ranks[number]
                    step_s = statistics.median(rank.step_times_s)
                    name = f"{part} (CPU time)" if role.cpu else part
                    yield Straggler(rank, times[number], verdict.usual_s, step_s, name, whole)


def _roles(phase: PhaseResult) -> list[OwnSteps]:
    """The own steps of each role with two ranks or more; none if no rank measured its own step."""
    cpu = not phase.on_gpus
    passes = {rank.rank: rank.own_passes_s(cpu) for rank in phase.ranks}
    measured = sum(map(bool, passes.values()))
    if measured not in (0, len(phase.ranks)):
        raise Unmeasured(
            "stragglers",
            f"{measured} of {plural(len(phase.ranks), 'rank')} measured their own step; expected "
            "all or none",
        )
    for parts in passes.values():
        parts[OWN_STEP] = tuple(map(sum, zip(*parts.values(), strict=True)))
    return [
        OwnSteps(
            cpu,
            {
                part: {rank.rank: typical_s(passes[rank.rank][part]) for rank in ranks}
                for part in passes[ranks[0].rank]
            },
            {rank.rank: rank.node for rank in ranks},
        )
        for ranks in _group_by_role(phase.ranks).values()
        if measured and len(ranks) > 1
    ]


def _require_times(rank: RankResult) -> RankResult:
    """The rank, if it timed its own part of enough steps; raises Unmeasured if not."""
    own = len(rank.own_times_s)
    reason = (rank.events.last("own_steps") or {}).get("not_measured")
    if not own and isinstance(reason, str):
        raise Unmeasured("stragglers", f"{rank} has no step of its own: {reason}")
    if own < FEWEST_STEPS or not rank.step_times_s:
        raise Unmeasured(
            "stragglers",
            f"{rank} timed its own part (step.local_done()) in {plural(own, 'step')} after "
            f"warm-up; expected all of them, and at least {FEWEST_STEPS}",
        )
    return rank
