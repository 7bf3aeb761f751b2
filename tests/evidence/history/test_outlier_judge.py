from __future__ import annotations

import math
import random

import pytest

from pytest_clustersmoke.config.metrics import METRICS
from pytest_clustersmoke.evidence.history.outlier_judge import (
    FAILING_UNITS,
    MIN_RUNS,
    SCALE,
    WARN_SPREADS,
    WINDOW,
    OutlierJudge,
    SetupChanges,
    measure_level,
    widening_factor,
)

QUIET = [10.0, 10.1, 9.9, 10.0, 10.2, 9.8, 10.1, 9.9, 10.0]  # median 10, spread 0.15: 1.5 %
LOUD = [8.0, 9.0, 9.5, 10.0, 10.0, 10.0, 10.5, 11.0, 12.0]  # median 10, spread 0.975
UPGRADE = SetupChanges("r1", ["torch 2.4 -> 2.5"])


def test_the_spread_estimates_the_standard_deviation_of_normal_noise() -> None:
    """For normal noise both spread and scaled MAD equal its standard deviation, within sampling
    error."""
    drawn = random.Random(1)
    level = measure_level(drawn.gauss(100, 3) for _ in range(WINDOW))
    assert level is not None
    assert level.mad == pytest.approx(3, rel=0.35)
    assert level.spread == pytest.approx(3, rel=0.25)
    assert level.median == pytest.approx(100, abs=1.5)


def test_a_few_bad_runs_do_not_move_the_level() -> None:
    """Two runs at a tenth of the speed leave the median and bounds where they were."""
    level, clean = measure_level([1.0, 1.0, *QUIET]), measure_level(QUIET)
    assert level and clean
    assert level.median == pytest.approx(clean.median, abs=0.1)
    assert level.mad <= 2 * clean.mad
    assert level.spread <= 2 * clean.spread


def test_only_the_newest_runs_count() -> None:
    """Values older than the window are ignored."""
    level = measure_level([10.0] * WINDOW + [1.0] * 500)
    assert level is not None
    assert (level.runs, level.median, level.mad, level.spread) == (WINDOW, 10.0, 0.0, 0.15)


@pytest.mark.parametrize(
    ("value", "higher", "past", "status"),
    [
        (10.0, True, QUIET, "ok"),
        (9.2, True, QUIET, "ok"),
        (9.1, True, QUIET, "warn"),  # 6 spreads; 5.76 warn at nine runs, 7.68 fail
        (8.8, True, QUIET, "fail"),  # 8 spreads
        (15.0, True, QUIET, "ok"),  # the good direction
        (10.8, False, QUIET, "ok"),
        (10.9, False, QUIET, "warn"),
        (11.2, False, QUIET, "fail"),
        (5.0, False, QUIET, "ok"),
        (4.5, True, LOUD, "too noisy"),  # 55 %, but 5.6 spreads
        (4.3, True, LOUD, "warn"),
        (2.5, True, LOUD, "fail"),
        (9.1, True, [10.0] * 8, "ok"),  # no noise seen: a spread of 1.5 % is assumed
        (9.0, True, [10.0] * 8, "warn"),
        (8.7, True, [10.0] * 8, "fail"),
        (9.51, True, [10.0] * 60, "ok"),  # a loss below 5 % never counts
        (9.5, True, [10.0] * 60, "warn"),
        (9.3, True, [10.0] * 60, "fail"),
        (0.0, False, [0.0] * 8, "ok"),
        (
            1e-9,
            False,
            [0.0] * 8,
            "ok",
        ),  # below LEAST_ABSOLUTE, since a median of 0 has no percentages
        (1.06e-6, False, [1e-6] * 8, "ok"),
        (0.1, False, [0.0] * 8, "fail"),
        (math.nan, True, QUIET, "fail"),
        (math.inf, True, QUIET, "fail"),
        (math.nan, True, [], "fail"),
    ],
)
def test_status(value: float, higher: bool, past: list[float], status: str) -> None:
    """3 spreads in the bad direction warn and 4 fail, if that is at least 5 %; spreads are widened
    for few runs."""
    record = OutlierJudge().judge("m is 7", value, higher, past, [])
    assert record["status"] == status
    assert record["text"].startswith("m is 7")


def test_the_bounds_are_where_the_status_changes() -> None:
    """`warn` and `fail` of the record are the first values that warn and fail."""
    for past in (QUIET, LOUD):
        for higher in (True, False):
            record = OutlierJudge().judge("", 10.0, higher, past, [])
            for status in ("warn", "fail"):
                bound = record["warn"] if status == "warn" else record["fail"]
                assert bound is not None
                inside = bound + (1e-9 if higher else -1e-9)
                assert OutlierJudge().judge("", bound, higher, past, [])["status"] == status
                assert OutlierJudge().judge("", inside, higher, past, [])["status"] != status


def test_bounds_follow_from_the_record() -> None:
    """Median, spread and number of runs of the record give its bounds."""
    for past in (QUIET, LOUD):
        record = OutlierJudge().judge("", 10.0, True, past, [])
        middle, spread, warn = record["median"], record["spread"], record["warn"]
        assert middle is not None and spread is not None and warn is not None
        assert middle - warn == pytest.approx(
            WARN_SPREADS * widening_factor(record["runs"]) * spread
        )


@pytest.mark.parametrize("count", range(MIN_RUNS))
def test_too_few_runs_do_not_pass(count: int) -> None:
    """With fewer than eight good runs nothing is judged, however near the value is."""
    record = OutlierJudge().judge("m is 10", 10.0, True, [10.0] * count, [])
    assert record["status"] == "not enough history"
    assert (record["runs"], record["median"], record["fail"]) == (count, None, None)
    runs = f"{count} good run{'s' * (count != 1)}"
    assert record["text"] == (
        f"m is 10: not enough history: {runs} on this hardware and these versions, at least 8 "
        "needed"
    )


def test_non_finite_values_are_ignored() -> None:
    """A past NaN neither counts as a run nor moves the median."""
    record = OutlierJudge().judge("m", 10.0, True, [math.nan, *[10.0] * 7], [])
    assert (record["status"], record["runs"]) == ("not enough history", 7)


def test_a_regression_names_what_changed() -> None:
    """The text of a failure has the distance, the bounds, and the versions that changed."""
    changed = SetupChanges("r1", ["nccl 2.19.3 -> 2.21.5"])
    text = OutlierJudge(changed).judge("m is 7", 7.0, True, QUIET, [])["text"]
    assert text == (
        "m is 7: 30.0 % below the median 10.00 of 9 good runs (spread 0.1500; warns at 9.136 and "
        "fails at 8.848); changed: nccl 2.19.3 -> 2.21.5 (last good run r1)"
    )
    text = OutlierJudge(SetupChanges("r1")).judge("m is 7", 7.0, True, QUIET, [])["text"]
    assert text.endswith("; no version changed since the last good run r1")


def test_new_versions_are_compared_in_words() -> None:
    """With too few runs on these versions the text compares with runs on other versions."""
    record = OutlierJudge(SetupChanges("r2"), UPGRADE).judge("m is 9.8", 9.8, True, [9.8], QUIET)
    assert record["status"] == "not enough history"
    assert (record["runs"], record["median"], record["warn"]) == (1, None, None)
    assert "1 good run on this hardware and these versions, at least 8 needed" in record["text"]
    assert (
        "against other versions it is 2.0 % below the median 10.00 of 9 good runs" in record["text"]
    )
    assert record["text"].endswith("changed: torch 2.4 -> 2.5 (last good run r1)")


def test_loss_on_new_versions_warns() -> None:
    """A value beyond the bound from runs on other versions warns, however far it is off, and the
    text names what changed."""
    judge = OutlierJudge(SetupChanges("r2"), UPGRADE)
    record = judge.judge("m is 7", 7.0, True, [7.0], QUIET)
    comparison = (
        "30.0 % below the median 10.00 of 9 good runs on other versions (spread 0.1500; warns at "
        "9.136); changed: torch 2.4 -> 2.5 (last good run r1); not enough history: 1 good run on "
        "this hardware and these versions, at least 8 needed"
    )
    assert record == {
        "status": "warn",
        "runs": 9,
        "median": 10.0,
        "mad": pytest.approx(0.14826),
        "spread": pytest.approx(0.15),
        "warn": pytest.approx(9.136),
        "fail": None,
        "text": f"m is 7: {comparison}",
        "comparison": comparison,
        "other_versions": True,
    }
    assert judge.judge("m is 7", 7.0, False, [7.0], QUIET)["status"] == "not enough history"
    assert "other_versions" not in judge.judge("m is 7", 7.0, True, [7.0] * 8, QUIET)


def test_metric_that_cannot_fail_warns() -> None:
    """However far off, such a metric only warns and has no failure bound; a non-finite value still
    fails."""
    record = OutlierJudge().judge("m is 1", 1.0, True, QUIET, [], fails=False)
    assert (record["status"], record["fail"]) == ("warn", None)
    assert "(spread 0.1500; warns at 9.136)" in record["text"]
    assert OutlierJudge().judge("m", math.nan, True, QUIET, [], fails=False)["status"] == "fail"


def test_throughput_bandwidth_and_memory_fail() -> None:
    """Metrics can fail by their units: rates, bandwidths and memory, but not times or losses."""
    warning = {name for name, kind in METRICS.items() if kind.unit not in FAILING_UNITS}
    losses, times = {"first_loss", "train_loss", "final_loss"}, {"own_step_s", "latency_us"}
    assert warning == losses | times | {"step_time_p50_s", "step_time_p95_s"}
    assert {kind.unit for kind in METRICS.values()} >= FAILING_UNITS


def test_scale_matches_the_normal_distribution() -> None:
    """1.4826 is one over the normal distribution's quantile at 0.75."""
    from statistics import NormalDist

    assert pytest.approx(1 / NormalDist().inv_cdf(0.75), abs=5e-5) == SCALE
