"""What each rank did, for the record: its place, its steps, its memory; and the loss of all."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

from ..criteria import stragglers
from ..evidence.history.past_records import Number
from ..evidence.job_results import RankResult
from ..evidence.metric import Unmeasured
from ..evidence.phase_result import PhaseResult
from ..evidence.telemetry import number
from .run_record import RankRecord, SpreadRecord

MAX_LOSSES = 500
FEWEST_STEPS = 2


def rank_records(result: PhaseResult) -> list[RankRecord]:
    """A record of every rank that the phase was to have, whatever it left."""
    behind = _behind(result)
    steps = result.steps_done()
    return [_record(rank, steps.get(rank.rank, 0), rank.rank in behind) for rank in result.ranks]


def _record(rank: RankResult, steps: int, behind: bool) -> RankRecord:
    node_rank = rank.start.get("node_rank")
    times = rank.events.last("step_times") or {}
    return RankRecord(
        rank=rank.rank,
        node_rank=node_rank if type(node_rank) is int else None,
        node=rank.node,
        host=rank.host,
        local_rank=rank.local_rank,
        device=str(rank.start.get("device", "unknown")),
        done=rank.done,
        steps=steps,
        peak_memory_gib=rank.metrics().get("peak_memory_gib"),
        step_s=_spread(times, "seconds"),
        own_s=_spread(times, "local_seconds"),
        behind=behind,
    )


def _behind(result: PhaseResult) -> set[int]:
    """The ranks that keep the others waiting; none where that could not be measured."""
    try:
        return {one.rank.rank for one in stragglers.find_stragglers(result)}
    except Unmeasured:
        return set()


def _spread(times: Mapping[str, Any], name: str) -> SpreadRecord | None:
    warmup = times.get("warmup")
    first = warmup if type(warmup) is int and warmup >= 0 else 0
    values = stragglers.seconds(times, name)[first:]
    if len(values) < FEWEST_STEPS:
        return None
    cuts = statistics.quantiles(values, n=20, method="inclusive")
    if not all(map(math.isfinite, cuts)):  # steps of 1e308 s overflow
        return None
    return SpreadRecord(p5=cuts[0], p25=cuts[4], p50=cuts[9], p75=cuts[14], p95=cuts[18])


def mean_losses(result: PhaseResult) -> list[tuple[int, Number]]:
    """(step, loss) as the lowest rank that recorded losses has it, thinned to MAX_LOSSES; the last
    step is among them."""
    event = next((one for _, one in sorted(result.events("losses").items())), {})
    raw = event.get("mean")
    values = [number(one) for one in raw] if isinstance(raw, list) else []
    stride = math.ceil(len(values) / MAX_LOSSES) or 1
    chosen = list(range(stride - 1, len(values), stride))
    if values and (not chosen or chosen[-1] != len(values) - 1):
        chosen.append(len(values) - 1)
    return [(at + 1, math.nan if (value := values[at]) is None else value) for at in chosen]
