"""Judges a value against the median and spread of past values, which resist a few bad runs.

The spread is the mean distance from the median, with each distance capped at 5 scaled MADs. Times
sqrt(pi / 2) it estimates the standard deviation of normal values. The MAD alone (the median of the
distances, times 1.4826: C. Leys et al., J. Exp. Soc. Psychol. 49 (2013) 764-766,
doi:10.1016/j.jesp.2013.03.013) resists bad runs as well, but is too inexact for ten runs: a
bound with few false failures would miss a loss of 30 % in one history out of five.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ...config.metrics import describe_distance, show
from ...text import plural

if TYPE_CHECKING:
    from ..run_record import PastRecord

SCALE = 1.4826  # 1 / the normal distribution's quantile at 0.75
MEAN_SCALE = math.sqrt(math.pi / 2)
FAR_MADS = 5.0
NOT_ENOUGH: Literal["not enough history"] = "not enough history"
TOO_NOISY: Literal["too noisy"] = "too noisy"
WINDOW, MIN_RUNS = 60, 8  # the newest good runs that are used, and how many are needed
# In spreads, times `widening_factor`. Chosen so that an unchanged metric fails in at most about 1
# of 10,000 nights, given 8 to 60 runs with normal noise of 2 to 10 %.
# `pytest tests/evidence/history/test_noise.py -s` computes the rates; docs/explanation/past-runs.md
# lists them.
WARN_SPREADS, FAIL_SPREADS = 3.0, 4.0
LEAST_SPREAD = 0.015  # of the median: eight quiet nights do not prove a quiet machine
LEAST = 0.05  # of the median; smaller differences never count, however quiet the past was
SHOWN_LOSS = 0.25  # of the median: a past that cannot show such a loss is too noisy to judge by
LEAST_ABSOLUTE = 1e-6  # in the metric's unit: a median of 0 has no percentages
# Units of throughput, bandwidth and memory, where a loss is the cluster's fault. Times and training
# losses have longer tails than the bounds above allow for, so they only warn.
FAILING_UNITS = frozenset({"steps/s", "samples/s", "tokens/s", "GB/s", "GiB"})


def widening_factor(runs: int) -> float:
    """How much wider the bounds are for few runs, whose median and spread are inexact."""
    return 1 + 4.6 / (runs - 4)


@dataclass(frozen=True)
class PastLevel:
    """The median and scatter of past values, in the metric's unit."""

    runs: int
    median: float
    mad: float  # scaled
    spread: float

    def off(self, spreads: float) -> float:
        """The distance from the median that counts, in the metric's unit."""
        far = spreads * widening_factor(self.runs) * self.spread
        return max(far, LEAST * abs(self.median), LEAST_ABSOLUTE)

    def distance(self, value: float, name: str = "median") -> str:
        """`30.1 % below the median 9.501`."""
        return describe_distance(value, self.median, f"the {name}")


def measure_level(values: Iterable[float], least_spread: float = LEAST_SPREAD) -> PastLevel | None:
    """The level of the newest values, which come first; None if there are too few."""
    from statistics import fmean, median

    finite = [value for value in values if math.isfinite(value)][:WINDOW]
    if len(finite) < MIN_RUNS:
        return None
    middle = median(finite)
    distances = [abs(value - middle) for value in finite]
    mad, least = SCALE * median(distances), least_spread * abs(middle)
    far = FAR_MADS * max(mad, least)
    mean = fmean(min(distance, far) for distance in distances)
    return PastLevel(len(finite), middle, mad, max(MEAN_SCALE * mean, least))


@dataclass(frozen=True)
class SetupChanges:
    """What changed since a good run; its id is empty if there is none."""

    run_id: str = ""
    changes: Sequence[str] = ()

    def __str__(self) -> str:
        return ", ".join(f"{change} (last good run {self.run_id})" for change in self.changes)


@dataclass(frozen=True)
class OutlierJudge:
    """Judges the metrics of one phase, and explains a loss by what changed: since the last good
    run, and since the last good run on other versions."""

    since: SetupChanges = SetupChanges()
    since_others: SetupChanges = SetupChanges()

    def judge(
        self,
        measured: str,
        value: float,
        higher_is_better: bool,
        same: Sequence[float],
        others: Sequence[float],
        *,
        fails: bool = True,
    ) -> PastRecord:
        """Judge a value; `measured` is its text.

        `same` are values of good runs on the same hardware and versions, `others` those on other
        versions, both the newest first. Without `fails` a finite value can at most warn.
        """
        here = measure_level(same)
        known = sum(map(math.isfinite, same[:WINDOW])) if here is None else here.runs
        if not math.isfinite(value):
            record = _make_record(here, known, higher_is_better, fails)
            record["status"], record["comparison"] = "fail", "not a finite number"
            return {**record, "text": f"{measured}, which is not a finite number"}
        if here is None:
            return self._unjudged(measured, value, higher_is_better, known, measure_level(others))
        record = _make_record(here, known, higher_is_better, fails)
        if _is_beyond(value, here, record["fail"], higher_is_better):
            record["status"] = "fail"
        elif _is_beyond(value, here, record["warn"], higher_is_better):
            record["status"] = "warn"
        comparison = _describe_distance(value, here, record)
        if record["status"] != "ok":
            comparison += f"; {self._describe_changes()}"
        if record["status"] != "fail" and is_too_noisy(record):
            comparison += f"; not measured: too noisy to show {SHOWN_LOSS * 100:.0f} %"
            if record["status"] == "ok":
                record["status"] = TOO_NOISY
        return {**record, "text": f"{measured}: {comparison}", "comparison": comparison}

    def _unjudged(
        self,
        measured: str,
        value: float,
        higher_is_better: bool,
        known: int,
        other: PastLevel | None,
    ) -> PastRecord:
        """Judge a value with too few runs on these versions. Runs on other versions cannot fail it,
        since the new versions may be slower by design, but they can show what the change costs."""
        few = (
            f"{plural(known, 'good run')} on this hardware and these versions, at least "
            f"{MIN_RUNS} needed"
        )
        changed = f"changed: {str(self.since_others) or 'unknown'}"
        if other is not None:
            compared = _make_record(other, other.runs, higher_is_better, fails=False)
            if _is_beyond(value, other, compared["warn"], higher_is_better):
                beside = _describe_distance(value, other, compared, " on other versions")
                comparison = f"{beside}; {changed}; {NOT_ENOUGH}: {few}"
                compared |= {"status": "warn", "other_versions": True, "comparison": comparison}
                return {**compared, "text": f"{measured}: {comparison}"}
            past = f"against other versions it is {other.distance(value)} of {other.runs} good runs"
            few += f"; {past} (spread {show(other.spread)}); {changed}"
        record = _make_record(None, known, higher_is_better, fails=False)
        record |= {"status": NOT_ENOUGH, "comparison": few}
        return {**record, "text": f"{measured}: {NOT_ENOUGH}: {few}"}

    def _describe_changes(self) -> str:
        if self.since.changes:
            return f"changed: {self.since}"
        return f"no version changed since the last good run {self.since.run_id}"


def is_too_noisy(record: PastRecord) -> bool:
    """Whether a loss of SHOWN_LOSS is within the bounds, so that a value inside proves nothing."""
    middle = record["median"]
    bound = record["warn"] if record["fail"] is None else record["fail"]
    if middle is None or bound is None:
        return False
    return abs(bound - middle) > max(SHOWN_LOSS * abs(middle), 1.5 * LEAST_ABSOLUTE)


def _describe_distance(value: float, here: PastLevel, record: PastRecord, where: str = "") -> str:
    """`30.0 % below the median 9.500 of 12 good runs (spread 0.1; warns at 9.0)`."""
    bounds = [f"warns at {show(record['warn'] or 0.0)}"]
    if record["fail"] is not None:
        bounds.append(f"fails at {show(record['fail'])}")
    runs = f"{here.runs} good runs{where}"
    return f"{here.distance(value)} of {runs} (spread {show(here.spread)}; {' and '.join(bounds)})"


def _is_beyond(value: float, here: PastLevel, bound: float | None, higher_is_better: bool) -> bool:
    """Whether a value is worse than the median, and at the bound or beyond."""
    if bound is None:
        return False
    if higher_is_better:
        return value < here.median and value <= bound
    return value > here.median and value >= bound


def _make_record(
    here: PastLevel | None, runs: int, higher_is_better: bool, fails: bool
) -> PastRecord:
    sign = -1.0 if higher_is_better else 1.0
    return {
        "status": "ok",
        "runs": runs,
        "median": here.median if here else None,
        "mad": here.mad if here else None,
        "spread": here.spread if here else None,
        "warn": here.median + sign * here.off(WARN_SPREADS) if here else None,
        "fail": here.median + sign * here.off(FAIL_SPREADS) if here and fails else None,
        "text": "",
    }
