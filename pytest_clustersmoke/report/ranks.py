"""What each rank did, for the record: its place, its steps, its memory; and the loss of all."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any

from .. import stragglers
from ..evidence import Unmeasured
from ..telemetry import number

if TYPE_CHECKING:
    from ..evidence import RankResult
    from ..result import PhaseResult
    from .model import Number, RankRecord, Spread

MAX_LOSSES = 500
FEWEST_STEPS = 2


def ranks(result: PhaseResult) -> list[RankRecord]:
    """A record of every rank that the phase was to have, whatever it left."""
    behind = _behind(result)
    steps = result.steps_done()
    return [_rank(one, steps.get(one.rank, 0), one.rank in behind) for one in result.ranks]


def _rank(rank: RankResult, steps: int, behind: bool) -> RankRecord:
    node_rank = rank.start.get("node_rank")
    times = rank.events.last("step_times") or {}
    return {
        "rank": rank.rank,
        "node_rank": node_rank if type(node_rank) is int else None,
        "node": rank.node,
        "host": rank.host,
        "local_rank": rank.local_rank,
        "device": str(rank.start.get("device", "unknown")),
        "done": rank.done,
        "steps": steps,
        "peak_memory_gib": rank.metrics().get("peak_memory_gib"),
        "step_s": _spread(times, "seconds"),
        "own_s": _spread(times, "local_seconds"),
        "behind": behind,
    }


def _behind(result: PhaseResult) -> set[int]:
    """The ranks that keep the others waiting; none where that cannot be told."""
    try:
        return {one.rank.rank for one in stragglers.stragglers(result)}
    except Unmeasured:
        return set()


def _spread(record: dict[str, Any], name: str) -> Spread | None:
    warmup = record.get("warmup")
    first = warmup if type(warmup) is int and warmup >= 0 else 0
    values = stragglers.seconds(record, name)[first:]
    if len(values) < FEWEST_STEPS:
        return None
    cuts = statistics.quantiles(values, n=20, method="inclusive")
    if not all(map(math.isfinite, cuts)):  # steps of 1e308 s overflow
        return None
    return {"p5": cuts[0], "p25": cuts[4], "p50": cuts[9], "p75": cuts[14], "p95": cuts[18]}


def losses(result: PhaseResult) -> list[tuple[int, Number]]:
    """(step, loss) as the lowest rank that told them has it, thinned to MAX_LOSSES; the last
    step is among them."""
    told = next((one for _, one in sorted(result.events("losses").items())), {})
    raw = told.get("mean")
    values = [number(one) for one in raw] if isinstance(raw, list) else []
    stride = math.ceil(len(values) / MAX_LOSSES) or 1
    chosen = list(range(stride - 1, len(values), stride))
    if values and (not chosen or chosen[-1] != len(values) - 1):
        chosen.append(len(values) - 1)
    return [(at + 1, math.nan if (value := values[at]) is None else value) for at in chosen]
