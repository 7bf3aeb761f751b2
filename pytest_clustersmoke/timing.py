"""How long a job waited and ran, from its nodes' results and the scheduler's word."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from .telemetry import number

if TYPE_CHECKING:
    from .result import PhaseResult
    from .scheduler_record import JobState


def job_times(
    result: PhaseResult, state: JobState | None, submitted: float | None
) -> dict[str, float | None]:
    """Queue wait and run time, kept apart, in seconds; times in Unix seconds; None where unknown.

    The scheduler's own clock gives the wait where it told the start: the nodes' may differ from
    ours. `overhead_s` is the wall from submission to the result known, less wait and torchrun's.
    """
    now = time.time()
    claimed, ends, torchrun = (
        _numbers(result, name) for name in ("started", "ended", "torchrun_s")
    )
    told = state.started if state else None
    begun = min(claimed) if claimed else told
    ended = max(ends, default=now)
    if state and told is not None and state.submitted is not None:
        queue_s: float | None = max(0.0, told - state.submitted)
    elif begun is not None and submitted is not None:
        queue_s = max(0.0, begun - submitted)
    else:
        queue_s = None
    overhead_s = None
    if submitted is not None and claimed:
        work_s = (queue_s or 0.0) + max(torchrun, default=0.0)
        overhead_s = max(0.0, now - submitted - work_s)
    return {
        "submitted": submitted,
        "started": begun,
        "ended": ended if begun is not None else None,
        "queue_s": queue_s,
        "run_s": max(0.0, ended - begun) if begun is not None else None,
        "torchrun_s": max(torchrun, default=None),
        "overhead_s": overhead_s,
    }


def _numbers(result: PhaseResult, name: str) -> list[float]:
    """The finite numbers that the nodes gave; they are hostile text like all that a job writes."""
    values = (number(node.result.get(name)) for node in result.nodes)
    return [value for value in values if value is not None and math.isfinite(value)]
