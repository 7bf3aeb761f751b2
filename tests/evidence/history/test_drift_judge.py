"""A lasting regression is found, however small each night is; noise alone almost never alarms."""

from __future__ import annotations

import math
import random
from statistics import median

import pytest

from benchmarks.drift import (
    MONTH,
    count_false_alarms,
    count_ladder_series,
    find_alarms,
    find_loss,
    judge_nights,
    list_series,
    normal_noise,
)
from pytest_clustersmoke.cli.suite_files import shipped_phases, shipped_profile
from pytest_clustersmoke.evidence.history.drift_judge import MIN_NIGHTS, judge_drift
from pytest_clustersmoke.evidence.history.outlier_judge import WINDOW

LEVEL = [10.0, 10.2, 9.8, 10.1, 9.9] * 6  # median 10, spread 1.5 %, widened by 1.29


def test_lasting_regression_fails() -> None:
    """Nights 5 % below the level are each within its noise; the sixth of them fails, and the text
    has the level, the loss and what to do."""
    nights = [9.5] * 5
    assert judge_drift(9.5, True, LEVEL, LEVEL)["status"] == "ok"
    assert judge_drift(9.5, True, LEVEL, nights[:4] + LEVEL)["status"] == "ok"
    record = judge_drift(9.5, True, LEVEL, nights + LEVEL)
    assert record == {
        "status": "fail",
        "nights": 20,
        "level": 10.0,
        "median": 9.5,
        "text": "a lasting regression: 9.500, the median of the last 6 nights, is 5.0 % below the "
        "accepted level 10.00 (from 20 good nights; spread 0.1504); find the cause, or accept the "
        "new level with `clustersmoke references accept`",
    }


def test_accepted_level_names_who_accepted_it() -> None:
    """The text says when, by whom and why the level was accepted."""
    accepted = "accepted on 2026-11-20 by anna: other cables"
    text = judge_drift(9.4, True, LEVEL, [9.4] * 6, accepted)["text"]
    assert f"(from 20 good nights, {accepted}; spread" in text


@pytest.mark.parametrize(("value", "higher"), [(11.0, True), (9.0, False)])
def test_improvement_never_fails(value: float, higher: bool) -> None:
    """Nights in the good direction are ok, however many there are."""
    assert judge_drift(value, higher, LEVEL, [value] * WINDOW)["status"] == "ok"


def test_more_memory_is_a_regression() -> None:
    """Where a lower value is better, nights above the level fail."""
    record = judge_drift(10.5, False, LEVEL, [10.5] * 8)
    assert record["status"] == "fail"
    assert "5.0 % above the accepted level" in record["text"]


@pytest.mark.parametrize("count", [0, 1, MIN_NIGHTS - 1])
def test_few_nights_are_not_measured(count: int) -> None:
    """With fewer than 20 good nights there is no level, however bad the nights are."""
    record = judge_drift(1.0, True, LEVEL[:count], [1.0] * WINDOW)
    assert (record["status"], record["nights"], record["level"]) == ("not measured", count, None)
    assert "at least 20 needed" in record["text"]


def test_two_bad_nights_are_not_a_lasting_regression() -> None:
    """However far two nights are below the level, a third is needed."""
    assert judge_drift(0.1, True, LEVEL, [0.1, *LEVEL])["status"] == "ok"
    assert judge_drift(0.1, True, LEVEL, [0.1, 0.1, *LEVEL])["status"] == "fail"


def test_repaired_cluster_is_soon_good_again() -> None:
    """After any number of bad nights, the first night at the level is ok."""
    bad = [9.0] * WINDOW
    assert judge_drift(9.0, True, LEVEL, bad)["status"] == "fail"
    assert judge_drift(10.0, True, LEVEL, bad)["status"] == "ok"


def test_level_does_not_follow_a_slow_loss() -> None:
    """At 0.1 % per night, no night is far from the one before; the loss fails within 90 nights."""
    drawn = random.Random(1)
    nights = [drawn.gauss(10, 0.2) * 0.999 ** max(0, night - 30) for night in range(150)]
    fails = [number for number, (_, drift) in enumerate(judge_nights(nights)) if drift == "fail"]
    assert 40 < fails[0] < 120


def test_level_is_of_the_first_nights_only() -> None:
    """The level is that of the first two thirds of the good nights, of 20 to 60."""
    record = judge_drift(10.0, True, [10.0] * WINDOW + [1.0] * 500, [])
    assert (record["nights"], record["level"]) == (WINDOW, 10.0)
    record = judge_drift(10.0, True, [10.0] * 30 + [9.0] * 15, [])
    assert (record["nights"], record["level"]) == (30, 10.0)


def test_loss_after_twenty_nights_is_found() -> None:
    """The level does not follow a loss that begins as soon as the level is known."""
    found = [find_loss(0.05, 0.02, seed, MIN_NIGHTS)[1] for seed in range(21)]
    assert median(found) <= 15


def test_values_that_are_not_finite_are_ignored() -> None:
    """A NaN is no night, neither of the level nor of the regression."""
    assert judge_drift(10.0, True, [math.nan, *LEVEL[:19]], [])["status"] == "not measured"
    assert judge_drift(9.5, True, LEVEL, [math.nan, math.inf, *[9.5] * 5])["status"] == "fail"


def test_level_of_zero_is_judged() -> None:
    """A median of 0 has no percentages, and no division by zero."""
    assert judge_drift(0.0, False, [0.0] * 20, [0.0] * 20)["status"] == "ok"
    assert judge_drift(1.0, False, [0.0] * 20, [1.0] * 20)["status"] == "fail"


@pytest.mark.parametrize(
    ("loss", "noise", "nights"), [(0.05, 0.01, 5), (0.05, 0.02, 8), (0.08, 0.03, 8)]
)
def test_loss_is_found_in_a_few_nights(loss: float, noise: float, nights: int) -> None:
    """In the median, as docs/explanation/measured.md says, and sooner than by single nights."""
    outlier, either = zip(*(find_loss(loss, noise, seed) for seed in range(21)), strict=True)
    assert median(either) <= nights
    assert median(outlier) > nights


@pytest.mark.parametrize("noise", [0.01, 0.02, 0.05])
def test_healthy_nights_have_no_drift(noise: float) -> None:
    """With levels of good nights only, as in use: 10 histories of 100 nights without an alarm."""
    for seed in range(10):
        drawn = random.Random(seed)
        judged = list(judge_nights([drawn.gauss(1.0, noise) for _ in range(100)]))
        assert "fail" not in {drift for _, drift in judged}


@pytest.mark.parametrize("histories", [50_000, pytest.param(200_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("age", [MIN_NIGHTS, 2 * WINDOW])
def test_shipped_constants_keep_the_budget(age: int, histories: int) -> None:
    """Of healthy months, at most 1 % have a false alarm in any metric of the ladder."""
    numpy = pytest.importorskip("numpy")
    alarms = count_false_alarms(normal_noise, numpy.random.default_rng(age), age, histories)
    assert alarms / histories * count_ladder_series() <= 0.01


def test_ladder_is_the_largest_shipped_profile() -> None:
    """Its metrics are counted from the phases that ship: a rate, its steady part and two peaks of
    memory where a phase trains, and each bandwidth."""
    phases = shipped_phases()
    series = {phase.name: list_series(phase) for phase in phases}
    assert series["mlp_1gpu"] == series["lora_sft_2node"]
    assert (len(series["mlp_1gpu"]), len(series["allreduce_1node"])) == (4, 7)
    assert len(series["allreduce_multinode"]) == 8
    listed = shipped_profile("local")["phases"]
    assert count_ladder_series() == sum(len(series[name]) for name in listed) == 12 * 4 + 7 + 8


def test_simulation_judges_as_the_shipped_judge() -> None:
    """Of 60 histories with and without a loss, both find an alarm in the same."""
    numpy = pytest.importorskip("numpy")
    age = 25
    nights = normal_noise(numpy.random.default_rng(3), age + MONTH, 60)
    nights[40:, ::2] -= 3.0
    shipped = [judge_history([10 + 0.5 * float(night) for night in row], age) for row in nights.T]
    assert shipped == find_alarms(nights, age).tolist()
    assert 10 < sum(shipped) < 50


def judge_history(nights: list[float], age: int) -> bool:
    return any(
        judge_drift(nights[at], True, nights[:at], nights[max(0, at - WINDOW) : at][::-1])["status"]
        == "fail"
        for at in range(age, len(nights))
    )
