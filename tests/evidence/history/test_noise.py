"""How often noise alone fails or warns, how reliably a loss of 30 % fails, and a slow loss.

Histories are drawn at random. The chance that the next night lies beyond a bound is then the tail
of the normal distribution, so a few thousand histories are enough to measure small chances. With
DRAWN_HISTORIES=100000 and `-s` the tests print the figures of docs/explanation/past-runs.md.
"""

from __future__ import annotations

import os
import random
from statistics import NormalDist, fmean

import pytest

from pytest_clustersmoke.evidence.history.history_store import is_good
from pytest_clustersmoke.evidence.history.outlier_judge import (
    FAIL_SPREADS,
    WARN_SPREADS,
    OutlierJudge,
    measure_level,
)
from tests.support.records import metric, parsed, phase, run

DRAWN = int(os.environ.get("DRAWN_HISTORIES", "2000"))
NIGHT = NormalDist()
HISTORIES = DRAWN // 100


def beyond(runs: int, noise: float, spreads: float, mean: float = 1.0) -> float:
    """The chance that a night lies beyond the bound from `runs` past runs, in the bad direction.

    Values are normal; `noise` is relative to the mean, which is 1 for the past runs.
    """
    drawn = random.Random(runs)
    chances = []
    for _ in range(DRAWN):
        here = measure_level(drawn.gauss(1.0, noise) for _ in range(runs))
        assert here is not None
        chances.append(NIGHT.cdf((here.median - here.off(spreads) - mean) / (noise * mean)))
    return fmean(chances)


@pytest.mark.parametrize("runs", [8, 12, 20, 60])
@pytest.mark.parametrize("noise", [0.02, 0.03, 0.05, 0.1])
def test_noise_alone_rarely_fails(runs: int, noise: float) -> None:
    """A metric fails in about one of 10,000 nights at most, and warns in about one of 500."""
    fails, warns = (beyond(runs, noise, spreads) for spreads in (FAIL_SPREADS, WARN_SPREADS))
    print(f"{runs} runs, noise {noise:.0%}: fails {fails:.1e}, warns {warns:.1e}")
    assert fails < 1.7e-4
    assert warns < 2e-3


@pytest.mark.parametrize("runs", [8, 10, 12, 20, 60])
def test_a_loss_of_a_third_fails(runs: int) -> None:
    """With noise of 2 % a loss of 30 % fails, except after eight very scattered runs."""
    missed = 1 - beyond(runs, 0.02, FAIL_SPREADS, mean=0.7)
    print(f"{runs} runs, noise 2%: a loss of 30 % is missed {missed:.1e}")
    assert missed < (6e-3 if runs == 8 else 5e-4)


@pytest.mark.parametrize("seed", range(200))
def test_loss_of_30_per_cent_fails(seed: int) -> None:
    """The judge itself, with ten past runs and 2 % noise: each of 200 such nights fails."""
    drawn = random.Random(seed)
    past = [drawn.gauss(9.5, 0.19) for _ in range(10)]
    judged = OutlierJudge().judge("", 0.7 * drawn.gauss(9.5, 0.19), True, past, [])
    assert judged["status"] == "fail"


def statuses(seed: int, healthy: int, losing: int = 0, warned_count: bool = False) -> list[str]:
    """The status of each night, with 2 % of noise: first healthy nights, then nights that each lose
    another 0.5 %. Nights count as past for later ones if they are good by the history's own rule,
    or, with `warned_count`, if they do not fail."""
    drawn, record = random.Random(seed), parsed(run(phase(metrics={"steps_per_s": metric(1.0)})))
    (judged_phase,) = record.phases
    past: list[float] = []
    results: list[str] = []
    for night in range(healthy + losing):
        value = drawn.gauss(1.0, 0.02) * 0.995 ** max(0, night - healthy)
        judged = OutlierJudge().judge("", value, True, past, [])
        judged_phase.metrics["steps_per_s"].past = judged
        if is_good(judged_phase, record) or (warned_count and judged["status"] != "fail"):
            past.insert(0, value)
        results.append(judged["status"])
    return results[healthy:] if losing else results


def test_slow_loss_fails_more_often_when_warned_nights_are_excluded() -> None:
    """Of histories that lose 0.5 % a night for 120 nights, 45 % in total, more than half fail; few
    would if warned nights counted."""
    never, before = (
        sum("fail" not in statuses(seed, 60, 120, counted) for seed in range(HISTORIES))
        for counted in (False, True)
    )
    print(f"0.5 % a night: of {HISTORIES} histories {never} never fail, {before} if warned count")
    assert never <= 0.45 * HISTORIES
    assert before >= 0.65 * HISTORIES


def test_excluding_warned_nights_adds_no_failures() -> None:
    """With noise alone nights fail just as rarely if warned nights are excluded from the past."""
    results = [status for seed in range(HISTORIES) for status in statuses(seed, 160)]
    fails, warns = results.count("fail"), results.count("warn")
    print(f"noise alone: of {len(results):,} nights {fails} fail, {warns} warn")
    assert fails <= max(1, 2e-4 * len(results))
    assert warns <= 4e-3 * len(results)
