"""A lasting loss counts only if reruns of the phase show at least half of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_clustersmoke.criteria.drift_confirmation import confirm_drift
from pytest_clustersmoke.evidence.phase_result import PhaseResult
from pytest_clustersmoke.evidence.run_directory import write_json
from pytest_clustersmoke.evidence.run_record import PastRecord
from tests.support.evidence import Evidence

HIGHER, LOWER = "steps_per_s", "peak_memory_gib"


def measured(folder: Path, value: float | None, name: str = HIGHER) -> PhaseResult:
    """A job that measured this value; without one a job that failed."""
    evidence = Evidence(folder).done()
    evidence.rank(0, ("metrics", {"values": {name: 0.0 if value is None else value}}))
    write_json(evidence.dir.result, {"outcome": "failed" if value is None else "passed"})
    evidence.dir.output.mkdir()
    return evidence.result()


def losing(median: float, bound: float | None = 9.0, status: str = "fail") -> PastRecord:
    """The record of a metric that lasts at this median, below or above its level 10."""
    return {
        "status": "fail" if status == "fail" else "ok",
        "runs": 30,
        "median": 10.0,
        "mad": 0.1,
        "warn": None,
        "fail": bound,
        "text": "it is 9.5: a lasting regression",
        "comparison": "a lasting regression",
        "drift": {
            "status": "fail" if status == "fail" else "ok",
            "nights": 20,
            "level": 10.0,
            "median": median,
            "text": "a lasting regression",
        },
    }


def confirmed(
    folder: Path,
    record: PastRecord,
    values: Sequence[float | None],
    tonight: float = 9.5,
    name: str = HIGHER,
) -> int:
    """Confirm the loss of a metric by reruns of these values; returns how many were made."""
    ran: list[tuple[str, int]] = []

    def run_again(phase: str, number: int) -> PhaseResult:
        ran.append((phase, number))
        return measured(folder / str(number), values[number - 1], name)

    confirm_drift(measured(folder, tonight, name), {name: record}, run_again)
    assert ran == [("small", number) for number in range(1, len(ran) + 1)]
    assert not any((folder / str(number) / "small" / "output").exists() for _, number in ran)
    return len(ran)


@pytest.mark.parametrize(
    ("values", "count", "status"),
    [
        ((9.5, 9.5), 2, "fail"),
        ((9.75, 9.75), 2, "fail"),  # exactly half of the loss
        ((9.76, 9.76), 2, "not confirmed"),
        ((10.0, 9.5, 9.7), 3, "fail"),
        ((9.5, 10.0, 9.9), 3, "not confirmed"),
        ((None, 9.5, 9.6), 3, "fail"),
        ((None, 9.9, None), 3, "not confirmed"),
        ((9.5, None, 9.9), 3, "fail"),  # their median is 9.7
    ],
)
def test_median_of_the_reruns_decides(
    tmp_path: Path, values: tuple[float | None, ...], count: int, status: str
) -> None:
    """No more reruns are made than decide it; one that failed is no measurement."""
    record = losing(9.5)
    assert confirmed(tmp_path, record, values) == count
    assert record["drift"]["status"] == status
    assert record["drift"]["reruns"] == [value for value in values[:count] if value is not None]
    assert record["status"] == ("fail" if status == "fail" else "warn")


def test_texts_name_the_values_of_the_reruns(tmp_path: Path) -> None:
    """In all texts: what the reruns measured, and what would have confirmed the loss."""
    record = losing(9.5)
    confirmed(tmp_path, record, (9.9, 10.1))
    words = "; not confirmed: run again 2 times: 9.900, 10.10; half of the loss is at 9.750"
    assert record["text"] == f"it is 9.5: a lasting regression{words}"
    assert record["comparison"] == record["drift"]["text"] == f"a lasting regression{words}"


def test_loss_that_no_rerun_measured_still_fails(tmp_path: Path) -> None:
    """Reruns that fail do not clear the cluster."""
    record = losing(9.5)
    assert confirmed(tmp_path, record, (None, None, None)) == 3
    assert (record["status"], record["drift"]["status"]) == ("fail", "fail")
    assert "run again 3 times to confirm it: no rerun passed on the same" in record["text"]


def test_value_that_fails_by_itself_fails_without_confirmation(tmp_path: Path) -> None:
    """Tonight's outlier is judged on its own, and no job runs again for it."""
    record = losing(9.5)
    assert confirmed(tmp_path, record, (10.0, 10.0), tonight=8.9) == 0
    assert record["status"] == "fail" and "reruns" not in record["drift"]


def test_more_memory_is_confirmed_by_higher_values(tmp_path: Path) -> None:
    """Where a lower value is better, reruns above the level confirm the loss."""
    record = losing(10.5, bound=11.0)
    assert confirmed(tmp_path, record, (10.4, 10.3), tonight=10.5, name=LOWER) == 2
    assert record["status"] == "fail"


def test_nothing_runs_again_without_a_lasting_loss(tmp_path: Path) -> None:
    """A drift that is ok costs no job."""
    record = losing(10.0, status="ok")
    assert confirmed(tmp_path, record, ()) == 0
    assert record["status"] == "ok" and "reruns" not in record["drift"]
