"""A value beside those of the past: median and MAD, which a few bad runs do not move.

The MAD is the median of the distances from the median; times 1.4826 (1 / the normal distribution's
quantile at 0.75) it estimates the standard deviation of values that scatter normally: C. Leys et
al., Detecting outliers: Do not use standard deviation around the mean, use absolute deviation
around the median, J. Exp. Soc. Psychol. 49 (2013) 764-766, doi:10.1016/j.jesp.2013.03.013.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..references import show

if TYPE_CHECKING:
    from ..report.model import PastRecord

SCALE = 1.4826
WINDOW, MIN_RUNS = 60, 8  # good runs: the newest so many, and no judgement on fewer
WARN_MADS, FAIL_MADS = 3.0, 5.0
LEAST = 0.05  # of the median; nearer to it nothing is told, however quiet the past was


@dataclass(frozen=True)
class Level:
    """Where values lay, and how far they scattered, in the metric's unit."""

    runs: int
    median: float
    mad: float  # scaled

    def off(self, mads: float) -> float:
        """How far from the median a value must lie to be told, in the metric's unit."""
        return max(mads * self.mad, LEAST * abs(self.median))

    def distance(self, value: float) -> str:
        """`30.1 % below the median 9.501`."""
        if value == self.median:
            return f"the median {show(self.median)}"
        side = "below" if value < self.median else "above"
        far = abs(value - self.median)
        share = f"{far / abs(self.median) * 100:.1f} %" if self.median else show(far)
        return f"{share} {side} the median {show(self.median)}"


def level(values: Iterable[float]) -> Level | None:
    """The level of the newest values, which come first; None where there are too few."""
    from statistics import median

    finite = [value for value in values if math.isfinite(value)][:WINDOW]
    if len(finite) < MIN_RUNS:
        return None
    middle = median(finite)
    return Level(len(finite), middle, SCALE * median(abs(value - middle) for value in finite))


@dataclass(frozen=True)
class Judge:
    """What values of one phase's metrics are judged beside: what changed since the last good run,
    in words, and that run's id (empty where there is none); and what changed since the last good
    run on other versions."""

    changed: Sequence[str] = ()
    last_good: str = ""
    since_others: Sequence[str] = ()

    def judge(
        self,
        said: str,
        value: float,
        higher_is_better: bool,
        same: Sequence[float],
        others: Sequence[float],
    ) -> PastRecord:
        """`said` is the value in words; `same` are values of good runs on the same hardware and
        versions, `others` those on other versions, the newest first."""
        here = level(same)
        known = sum(map(math.isfinite, same[:WINDOW])) if here is None else here.runs
        if not math.isfinite(value):
            text = f"{said}, which is no number"
            return _record("fail", here, known, text, higher_is_better)
        if here is None:
            text = f"{said}: {self._too_few(value, known, level(others))}"
            return _record("not enough history", None, known, text, higher_is_better)
        record = _record("ok", here, known, "", higher_is_better)
        if _beyond(value, here, record["fail"], higher_is_better):
            record["status"] = "fail"
        elif _beyond(value, here, record["warn"], higher_is_better):
            record["status"] = "warn"
        record["text"] = f"{said}: {self._beside(value, here, record)}"
        return record

    def _beside(self, value: float, here: Level, record: PastRecord) -> str:
        bounds = (
            f"spread {show(here.mad)}; it warns from {show(record['warn'] or 0.0)} and fails "
            f"from {show(record['fail'] or 0.0)}"
        )
        text = f"{here.distance(value)} of {here.runs} good runs ({bounds})"
        return text if record["status"] == "ok" else f"{text}; {self._since()}"

    def _too_few(self, value: float, known: int, other: Level | None) -> str:
        text = (
            f"not enough history: {known} good run{'s' * (known != 1)} on this hardware and these "
            f"versions, {MIN_RUNS} are needed"
        )
        if other is None:
            return text
        past = f"on other versions it is {other.distance(value)} of {other.runs} good runs"
        changed = ", ".join(self.since_others)
        return f"{text}; {past} (spread {show(other.mad)}); changed: {changed}"

    def _since(self) -> str:
        if self.changed:
            return f"changed: {', '.join(self.changed)}"
        return f"no version changed since the last good run {self.last_good}"


def _beyond(value: float, here: Level, bound: float | None, higher_is_better: bool) -> bool:
    """Whether a value is worse than the median, and as bad as the bound or worse."""
    if bound is None:
        return False
    if higher_is_better:
        return value < here.median and value <= bound
    return value > here.median and value >= bound


def _record(
    status: str, here: Level | None, runs: int, text: str, higher_is_better: bool
) -> PastRecord:
    sign = -1.0 if higher_is_better else 1.0
    return {
        "status": status,  # type: ignore[typeddict-item]
        "runs": runs,
        "median": here.median if here else None,
        "mad": here.mad if here else None,
        "warn": here.median + sign * here.off(WARN_MADS) if here else None,
        "fail": here.median + sign * here.off(FAIL_MADS) if here else None,
        "text": text,
    }
