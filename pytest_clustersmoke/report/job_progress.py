"""How far a job got that did not pass: stages and ends of its ranks, and the steps of a few."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from ..diagnose.failure_evidence import FailureEvidence
from ..evidence.finding import UNDECIDED
from ..evidence.job_results import RankResult
from ..evidence.phase_result import PhaseResult
from ..evidence.progress_record import (
    LaneRecord,
    LaneState,
    MarkRecord,
    ProgressRecord,
    StageBarRecord,
    TrackRecord,
)
from ..evidence.telemetry import (
    MARK,
    MARK_EVERY_S,
    parse_finite,
    parse_int,
    parse_number,
    read_events,
)
from ..text import sanitize_line, shorten

# With more ranks, those that ended alike share a lane, except for this many named ones.
MAX_LANES, MAX_NAMED = 32, 12
MAX_STAGES, MAX_NODES, MAX_NOTE = 24, 4, 200
MAX_TRACKS, MAX_MARKS = 4, 200
MOST_S, MOST_STEPS, MOMENT_S = 1e9, 10**12, 1e-9
ORDER: tuple[LaneState, ...] = ("named", "silent", "failed", "unfinished", "done")


def progress_record(result: PhaseResult) -> ProgressRecord | None:
    """How far the job got; None if it passed, or if none of its ranks wrote anything."""
    if result.outcome == "passed" or not any(rank.start for rank in result.ranks):
        return None
    return _Course(result).record()


@dataclass(frozen=True)
class _Course:
    """What the ranks wrote, in seconds since the first of them started."""

    result: PhaseResult

    def record(self) -> ProgressRecord:
        ranks = self.result.ranks
        planned = [rank.steps_planned for rank in ranks if rank.steps_planned is not None]
        done = [rank.steps_done for rank in ranks if rank.steps_done is not None]
        flag = self.evidence.abort_flag
        return ProgressRecord(
            steps=max(planned, default=None),
            step=max(done, default=None),
            mark_every_s=MARK_EVERY_S if self._are_throttled() else None,
            ended_s=None if flag.time is None else self.since(flag.node_rank, flag.time),
            lanes=merge_lanes([self.lane(rank) for rank in ranks]),
            tracks=[
                TrackRecord(rank=rank.rank, marks=list(self._track(rank)))
                for rank in ranks
                if rank.rank in self.marks
            ],
        )

    @cached_property
    def evidence(self) -> FailureEvidence:
        return FailureEvidence(self.result)

    @cached_property
    def zero(self) -> float:
        at = self.evidence.timeline.at
        starts = [
            at(rank.node_rank, rank.start["time"]) for rank in self.result.ranks if rank.start
        ]
        return min(starts)

    def since(self, node: int | None, time: float) -> float:
        """From 0, since the first stage opens a moment before its rank says that it started, to a
        few decades: a rank may write any number as its time."""
        seconds = self.evidence.timeline.at(node, time) - self.zero
        return max(0.0, min(MOST_S, seconds))

    @cached_property
    def causes(self) -> dict[int, str]:
        """Rank -> the cause that names it, or its node if that is not every node. A cause that
        leaves open which rank is wrong names none."""
        causes: dict[int, str] = {}
        for finding in self.result.findings:
            if not finding.primary or finding.detail.get(UNDECIDED):
                continue
            hosts = set(finding.hosts)
            of_hosts = [rank.rank for rank in self.result.ranks if hosts & set(self.nodes(rank))]
            some = len(hosts) < len(self.result.nodes)
            named = finding.ranks or (of_hosts if some else ())
            for rank in named:
                causes.setdefault(rank, finding.cause)
        return causes

    def nodes(self, rank: RankResult) -> tuple[str, ...]:
        return self.evidence.hosts((rank.rank,))

    def lane(self, rank: RankResult) -> LaneRecord:
        state, note = self._describe_end(rank)
        times = [float(record["time"]) for record in rank.events.records]
        return LaneRecord(
            ranks=[rank.rank],
            nodes=list(self.nodes(rank)),
            state=state,
            note=sanitize_line(note)[:MAX_NOTE],
            stages=self._stages(rank),
            last_s=self.since(rank.node_rank, max(times)) if times else None,
            step=rank.steps_done,
        )

    def _describe_end(self, rank: RankResult) -> tuple[LaneState, str]:
        if rank.rank in self.causes:
            return "named", self.causes[rank.rank]
        if not rank.events.records:
            return "silent", "wrote nothing"
        if rank.done:
            return "done", "done"
        if rank.error is not None:
            return "failed", f"raised {rank.error.type}"
        open_stages = [stage.name for stage in self._stages(rank) if stage.ended_s is None]
        return "unfinished", f"in {open_stages[-1]}" if open_stages else "between stages"

    def _stages(self, rank: RankResult) -> list[StageBarRecord]:
        bars: list[StageBarRecord] = []
        for mark in rank.stages:
            at = self.since(rank.node_rank, mark.time)
            name = sanitize_line(mark.name)[:MAX_NOTE]
            begun = [bar for bar in bars if bar.name == name and bar.ended_s is None]
            if not mark.ended and len(bars) < MAX_STAGES:
                bars.append(StageBarRecord(name=name, begun_s=at, ended_s=None))
            elif mark.ended and begun:
                begun[-1].ended_s = at
        return bars

    def _are_throttled(self) -> bool:
        """Whether a loop of `Rank.steps` marked the steps: it gives rates, and leaves out marks."""
        return any("steps_per_s" in record for marks in self.marks.values() for record in marks)

    @cached_property
    def marks(self) -> dict[int, list[dict[str, Any]]]:
        """The marks of the named ranks and of the first of the others; all of them, of which the
        result of the phase has the last one alone."""
        marked = [rank for rank in self.result.ranks if rank.steps_done is not None]
        named = [rank for rank in marked if rank.rank in self.causes][: MAX_TRACKS - 1]
        others = [rank for rank in marked if rank.rank not in self.causes][:1]
        return {
            rank.rank: list(read_events(rank.events.path).named(MARK))
            for rank in sorted([*named, *others], key=lambda rank: rank.rank)
        }

    def _track(self, rank: RankResult) -> Iterator[MarkRecord]:
        """The rates are between the marks that are kept; that of the first is the rank's own."""
        every = [
            (step, float(record["time"]), float(record["mono"]), record)
            for record in self.marks[rank.rank]
            if (step := parse_int(record.get("step"))) is not None and abs(step) <= MOST_STEPS
        ]
        newer = [mark for at, mark in enumerate(every) if not at or mark[0] > every[at - 1][0]]
        before: tuple[int, float] | None = None
        for step, time, mono, record in _thin(newer):
            rate = parse_finite(record.get("steps_per_s"))
            if before is not None:
                took = mono - before[1]
                rate = parse_finite((step - before[0]) / took) if took > MOMENT_S else None
            before = step, mono
            yield MarkRecord(
                step=step,
                at_s=self.since(rank.node_rank, time),
                loss=parse_number(record.get("loss")),
                steps_per_s=rate,
            )


Mark = TypeVar("Mark")


def _thin(marks: Sequence[Mark]) -> list[Mark]:
    stride = math.ceil(len(marks) / MAX_MARKS) or 1
    return [mark for at, mark in enumerate(marks) if (len(marks) - 1 - at) % stride == 0]


def merge_lanes(lanes: Sequence[LaneRecord]) -> list[LaneRecord]:
    """At most MAX_LANES: of few ranks each its own; of many, those that ended alike share one."""
    if len(lanes) <= MAX_LANES:
        return list(lanes)
    alone = [lane for lane in lanes if lane.state == "named"][:MAX_NAMED]
    single = {lane.ranks[0] for lane in alone}
    alike: dict[tuple[object, ...], list[LaneRecord]] = {}
    for lane in lanes:
        if lane.ranks[0] not in single:
            stages = tuple((stage.name, stage.ended_s is None) for stage in lane.stages)
            alike.setdefault((lane.state, lane.note, stages), []).append(lane)
    groups = sorted(alike.values(), key=lambda group: (ORDER.index(group[0].state), -len(group)))
    room = MAX_LANES - len(alone)
    if len(groups) > room:
        rest = [lane for group in groups[room - 1 :] for lane in group]
        groups = [*groups[: room - 1], [_strip(lane) for lane in rest]]
    return alone + [_join(group) for group in groups]


def _strip(lane: LaneRecord) -> LaneRecord:
    """A lane that has nothing to tell it from others."""
    return lane.model_copy(
        update={"state": "unfinished", "note": "ended in other ways", "stages": []}
    )


def _join(lanes: Sequence[LaneRecord]) -> LaneRecord:
    """One lane of ranks that ended alike."""
    first = lanes[0]
    nodes = list(dict.fromkeys(node for lane in lanes for node in lane.nodes))
    return LaneRecord(
        ranks=sorted(rank for lane in lanes for rank in lane.ranks),
        nodes=nodes if len(nodes) <= MAX_NODES else [shorten(nodes, MAX_NODES)],
        state=first.state,
        note=first.note,
        stages=[
            StageBarRecord(
                name=first.stages[at].name,
                begun_s=statistics.median(lane.stages[at].begun_s for lane in lanes),
                ended_s=_median(lane.stages[at].ended_s for lane in lanes),
            )
            for at in range(len(first.stages))
        ],
        last_s=max((lane.last_s for lane in lanes if lane.last_s is not None), default=None),
        step=min((lane.step for lane in lanes if lane.step is not None), default=None),
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
