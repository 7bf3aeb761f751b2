"""The criterion on the past, which judges as the report does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.criteria.past_annotation import past_of
from pytest_clustersmoke.criteria.past_criterion import check_past
from pytest_clustersmoke.evidence.metric import Unmeasured
from pytest_clustersmoke.evidence.run_record import PastRecord
from tests.evidence.history.made import night, nights
from tests.support.records import VERSIONS, Record, annotate, metric, phase, store_run


def judged(record: Record, directory: Path) -> PastRecord:
    annotate(record, directory)
    past: PastRecord | None = record["phases"][0]["metrics"]["steps_per_s"]["past"]
    assert past is not None
    return past


def of_values(directory: Path, **metrics: Any) -> dict[str, PastRecord]:
    return of_all(directory, **metrics)[0]


def of_all(directory: Path, **metrics: Any) -> tuple[dict[str, PastRecord], list[str]]:
    held = phase()
    return past_of(
        "gilbreth",
        held["phase"],
        held["hardware"],
        held["shape"],
        VERSIONS,
        metrics,
        directory,
    )


def test_criterion_and_report_agree(tmp_path: Path) -> None:
    """Both judge a metric the same way, to the letter."""
    nights(tmp_path, 12)
    record = night(12, 6.65)
    assert judged(record, tmp_path) == of_values(tmp_path, steps_per_s=6.65)["steps_per_s"]


def test_criterion_names_each_metric_that_fails(tmp_path: Path) -> None:
    """With its text, and no metric that does not fail."""
    nights(
        tmp_path,
        8,
        metrics={"steps_per_s": metric(10.0), "samples_per_s": metric(100.0, "samples/s")}
        | {"peak_memory_gib": metric(9.0, "GiB", False)},
    )
    past = of_values(tmp_path, steps_per_s=8.0, samples_per_s=99.0, peak_memory_gib=12.0)
    with pytest.raises(AssertionError) as raised:
        check_past(past)
    words = str(raised.value)
    assert words.startswith("steps_per_s is 8.000 steps/s: 20.0 % below the median 10.00 of 8")
    assert "; peak_memory_gib is 12.00 GiB: 33.3 % above the median 9.000" in words
    assert "samples_per_s" not in words


def test_warning_does_not_fail_the_criterion(tmp_path: Path) -> None:
    """Between the two thresholds the criterion passes, and the record says warn."""
    nights(tmp_path, 10, noise=0.2)  # median 9.5, spread 0.3
    past = of_values(tmp_path, steps_per_s=7.8)
    assert past["steps_per_s"]["status"] == "warn"
    check_past(past)


def test_warning_by_runs_on_other_versions_is_unmeasured(tmp_path: Path) -> None:
    """The criterion reports the cost of new versions, and neither fails nor passes."""
    nights(tmp_path, 12, versions={**VERSIONS, "driver": "535.1"})
    past = of_values(tmp_path, steps_per_s=6.65)
    with pytest.raises(Unmeasured) as raised:
        check_past(past)
    assert raised.value.kind == "history"
    words = str(raised.value).removeprefix("not measured (history): ")
    assert words.startswith(
        "steps_per_s is 6.650 steps/s: 29.8 % below the median 9.475 of 12 good"
    )
    assert "; changed: driver 535.1 -> 550.54.15 (last good run " in words
    assert "; not enough history: 0 good runs on this hardware and these versions" in words


def test_later_runs_are_not_the_past_of_a_criterion(tmp_path: Path) -> None:
    """A run that began later and ended earlier counts for neither criterion nor record."""
    nights(tmp_path, 7)
    nights(tmp_path, 1, first=20)
    record = night(10, 5.0)
    held = record["phases"][0]
    past, _ = past_of(
        record["cluster"],
        held["phase"],
        held["hardware"],
        held["shape"],
        held["versions"],
        {"steps_per_s": 5.0},
        tmp_path,
        record["begun"],
    )
    assert past["steps_per_s"] == judged(record, tmp_path)
    assert past["steps_per_s"]["runs"] == 7


def test_past_too_noisy_to_show_a_loss_is_unmeasured(tmp_path: Path) -> None:
    """If a loss of 25 % would not fail, a loss of 20 % or 28 % does not pass, whether it is within
    all bounds or warns, and whatever other metrics show."""
    for number in range(30):
        metrics = {
            "steps_per_s": metric(9.5 + 0.5 * (number % 5 - 2)),
            "peak_memory_gib": metric(9.0, "GiB", False),
        }
        store_run(night(number, metrics=metrics), tmp_path)
    for value, status in ((9.5, "too noisy"), (7.6, "too noisy"), (6.84, "warn")):
        past = of_values(tmp_path, steps_per_s=value, peak_memory_gib=9.0)
        assert past["steps_per_s"]["status"] == status
        assert past["peak_memory_gib"]["status"] == "ok"
        with pytest.raises(Unmeasured, match=r"not measured: too noisy to show 25 %"):
            check_past(past)
    with pytest.raises(AssertionError, match=r"steps_per_s is 1\.000"):
        check_past(of_values(tmp_path, steps_per_s=1.0, peak_memory_gib=9.0))


def test_noisy_time_does_not_hide_the_criterion(tmp_path: Path) -> None:
    """Metrics that only warn are reported as too noisy, and the others are judged."""
    for number in range(30):
        metrics = {
            "steps_per_s": metric(9.5),
            "step_time_p95_s": metric(1.0 + 0.2 * (number % 5 - 2), "s", False),
        }
        store_run(night(number, metrics=metrics), tmp_path)
    past = of_values(tmp_path, steps_per_s=9.5, step_time_p95_s=1.0)
    assert past["step_time_p95_s"]["status"] == "too noisy"
    check_past(past)


BOTH = {"steps_per_s": metric(9.5), "samples_per_s": metric(95.0, "samples/s")}


def test_metric_that_could_fail_and_has_no_past_is_unmeasured(tmp_path: Path) -> None:
    """Whatever other metrics show; one that only warns is not missed."""
    nights(tmp_path, 30)
    nights(tmp_path, 7, first=30, metrics=BOTH)
    past = of_values(tmp_path, steps_per_s=9.5, samples_per_s=95.0, step_time_p50_s=0.1)
    assert past["steps_per_s"]["status"] == "ok"
    with pytest.raises(Unmeasured) as raised:
        check_past(past)
    words = str(raised.value)
    assert "samples_per_s is 95.00 samples/s: not enough history: 7 good runs" in words
    assert "steps_per_s" not in words and "step_time" not in words
    with pytest.raises(AssertionError, match=r"steps_per_s is 1\.000"):
        check_past(of_values(tmp_path, steps_per_s=1.0, samples_per_s=95.0))


def test_metric_that_good_runs_have_and_this_one_lacks_is_unmeasured(tmp_path: Path) -> None:
    """It may be what failed; eight good runs must have it."""
    nights(tmp_path, 7, metrics=BOTH)
    nights(tmp_path, 5, first=7)
    assert of_all(tmp_path, steps_per_s=9.5)[1] == []
    nights(tmp_path, 1, first=12, metrics=BOTH)
    past, missing = of_all(tmp_path, steps_per_s=9.5)
    assert missing == ["samples_per_s is missing; 8 of the last 13 good runs have it"]
    with pytest.raises(Unmeasured, match="samples_per_s is missing"):
        check_past(past, missing)


def test_lasting_loss_fails_the_criterion(tmp_path: Path) -> None:
    """A loss that no single night shows fails after some nights, in the criterion and the record;
    the nights that fail are not good, and the loss does not become normal."""
    nights(tmp_path, 30)
    failed = []
    for number in range(30, 60):
        record = night(number, 9.1)
        past = judged(record, tmp_path)
        failed.append(past["status"] == "fail")
        store_run(record, tmp_path)
    first = failed.index(True)
    assert 4 <= first <= 10
    assert all(failed[first:])
    with pytest.raises(AssertionError, match=r"9\.100 steps/s: a lasting regression"):
        check_past(of_values(tmp_path, steps_per_s=9.1))
    assert of_values(tmp_path, steps_per_s=9.5)["steps_per_s"]["status"] == "ok"


def test_times_have_no_drift(tmp_path: Path) -> None:
    """Drift is judged for metrics that can fail; others never have it in their record."""
    metrics = {"steps_per_s": metric(9.5), "step_time_p50_s": metric(0.1, "s", False)}
    nights(tmp_path, 12, metrics=metrics)
    past = of_values(tmp_path, steps_per_s=9.5, step_time_p50_s=0.1)
    assert past["steps_per_s"]["drift"]["status"] == "not measured"
    assert "drift" not in past["step_time_p50_s"]


@pytest.mark.parametrize("count", [0, 7])
def test_too_little_history_is_unmeasured(tmp_path: Path, count: int) -> None:
    """With fewer than eight good runs the criterion is unmeasured, and reports their number."""
    nights(tmp_path, count)
    with pytest.raises(Unmeasured) as raised:
        check_past(of_values(tmp_path, steps_per_s=9.5))
    assert raised.value.kind == "history"
    assert f"not enough history: {count} good runs on this hardware" in str(raised.value)


def test_no_metrics_are_unmeasured() -> None:
    """A phase without metrics does not pass."""
    with pytest.raises(Unmeasured, match="there are no metrics to compare"):
        check_past({})


def test_infinite_value_fails_without_history(tmp_path: Path) -> None:
    """Even on the first day."""
    with pytest.raises(
        AssertionError, match="steps_per_s is inf steps/s, which is not a finite number"
    ):
        check_past(of_values(tmp_path, steps_per_s=float("inf")))
