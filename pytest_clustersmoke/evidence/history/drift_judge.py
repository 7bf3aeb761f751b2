"""Finds a lasting regression that is too small to fail a single night.

The judge sums how far each night is below the accepted level (a one-sided CUSUM: E. S. Page,
Biometrika 41 (1954) 100-115, doi:10.1093/biomet/41.1-2.100). Every night adds its distance in
spreads, less an allowance; the sum never falls below zero. The level is the median of the first
good nights after the last accepted change, so that it does not follow a slow loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from ...config.metrics import show
from ...text import plural
from ..run_record import DriftRecord
from .outlier_judge import LEAST_ABSOLUTE, WINDOW, PastLevel, measure_level, widening_factor

MIN_NIGHTS = 20  # good nights that the level needs
MAX_FIRST = WINDOW * 3 // 2  # good nights that `count_level_nights` can need
# In spreads, widened for few nights. Chosen so that of the healthy histories of 30 nights, at most
# 1 % have a false alarm, for all metrics of the ladder together. `python benchmarks/drift.py`
# computes the rate, and how soon a loss is found; docs/explanation/measured.md lists both.
ALLOWANCE = 1.0
THRESHOLD = 9.0
MAX_DISTANCE = 4.0  # so two nights alone, however bad, are not a lasting loss


def judge_drift(
    value: float,
    higher_is_better: bool,
    first: Sequence[float],
    recent: Sequence[float],
    accepted: str = "",
) -> DriftRecord:
    """Judge whether the nights up to this value lastingly lie below the accepted level.

    `first` are the values of the first good nights at that level, `recent` those of the newest
    nights, the newest first, good or not; `accepted` says who accepted the level.
    """
    finite = [night for night in first if math.isfinite(night)]
    count = len(finite)
    level = measure_level(finite[: count_level_nights(count)])
    if level is None or count < MIN_NIGHTS:
        few = f"{plural(count, 'good night')} at the accepted level, at least {MIN_NIGHTS} needed"
        return {"status": "not measured", "nights": count, "level": None, "text": few}
    nights = [night for night in (*recent[:WINDOW][::-1], value) if math.isfinite(night)]
    losing = find_lasting_loss(nights, level, higher_is_better)
    record: DriftRecord = {
        "status": "fail" if losing else "ok",
        "nights": level.runs,
        "level": level.median,
        "text": "no lasting regression",
    }
    if losing:
        record["median"] = median(losing)
        record["text"] = _describe_loss(losing, level, accepted)
    return record


def count_level_nights(good: int) -> int:
    """How many of the first good nights the level is the median of: two thirds, so that it does not
    follow a loss that has begun."""
    return min(WINDOW, max(MIN_NIGHTS, good * 2 // 3))


def find_lasting_loss(
    nights: Sequence[float], level: PastLevel, higher_is_better: bool
) -> Sequence[float]:
    """The nights of a loss that lasts until the last of these nights; empty without one.

    The sum stops at the threshold, so that nights after a repair are soon good again.
    """
    spread = max(level.spread, LEAST_ABSOLUTE) * widening_factor(level.runs)
    sign = 1 if higher_is_better else -1
    total, began = 0.0, 0
    for number, night in enumerate(nights, 1):
        distance = min(sign * (level.median - night) / spread, MAX_DISTANCE)
        total = min(max(0.0, total + distance - ALLOWANCE), THRESHOLD)
        if total == 0.0:
            began = number
    return nights[began:] if total >= THRESHOLD else ()


def _describe_loss(losing: Sequence[float], level: PastLevel, accepted: str) -> str:
    """`a lasting regression: 9.020, the median of the last 6 nights, is 5.1 % below ...`."""
    middle = median(losing)
    nights = plural(len(losing), "night")
    origin = ", ".join(filter(None, [f"from {plural(level.runs, 'good night')}", accepted]))
    return (
        f"a lasting regression: {show(middle)}, the median of the last {nights}, is "
        f"{level.distance(middle, 'accepted level')} ({origin}; spread {show(level.spread)}); find "
        "the cause, or accept the new level with `clustersmoke references accept`"
    )
