"""When a run should end, by the runs before it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.history.usual_times import UsualTimes, read_usual_times
from pytest_clustersmoke.evidence.run_directory import RunDir
from tests.evidence.history.made import DAY_S, of_night
from tests.support.records import BEGUN, phase, store_run

NOW = BEGUN + 100 * DAY_S


def asked(tmp_path: Path, **changes: Any) -> UsualTimes:
    """The usual times of a run of the phases a and b, whose reports are in `reports`."""
    about = {
        "report": str(tmp_path / "reports" / "x"),
        "cluster": "gilbreth",
        "begun": NOW,
        "selection": "",
        "phases_chosen": ["a", "b"],
        **changes,
    }
    (tmp_path / "run.json").write_text(json.dumps(about))
    return read_usual_times(RunDir(tmp_path))


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """Three nights of 100, 200 and 900 s, one that was interrupted, one of a part, and one on
    another cluster; phase `a` took 10, 20 and 90 s, and 5 s where it failed."""
    (tmp_path / "reports").mkdir()
    for number, seconds in enumerate((100.0, 200.0, 900.0)):
        ran = phase("a", run_s=seconds / 10, not_measured=[])
        began = BEGUN + number * DAY_S
        store_run(of_night(number, ran, written=began + seconds), tmp_path / "reports")
    others: tuple[dict[str, Any], ...] = (
        {"interrupted": True, "partial": "the run was interrupted"},
        {"selection": "-k a"},
        {"cluster": "nebius"},
    )
    for number, changes in enumerate(others, start=10):
        began = BEGUN + number * DAY_S
        failed = phase("a", run_s=5.0, outcome="failed")
        store_run(of_night(number, failed, written=began + 7, **changes), tmp_path / "reports")
    return tmp_path


def test_run_ends_like_complete_runs_of_the_same_selection(stored: Path) -> None:
    """The median of the whole nights, and that of the phase's good runs."""
    usual = asked(stored)
    assert (usual.end, usual.runs) == (NOW + 200, 3)
    assert usual.phases == {"a": 20.0}
    assert usual.phase_end("a", NOW + 5) == NOW + 25
    assert usual.phase_end("b", NOW) is usual.phase_end("a", None) is None


def test_selection_without_a_past_has_no_expected_end(stored: Path) -> None:
    """Its phases may have one all the same."""
    usual = asked(stored, selection="-k other")
    assert (usual.end, usual.runs, usual.phases) == (None, 0, {"a": 20.0})


@pytest.mark.parametrize("name", ["report", "cluster", "begun"])
@pytest.mark.parametrize("value", [None, [], {}, 1e300, "nan", "\x00"])
def test_torn_run_json_has_no_usual_times(stored: Path, name: str, value: Any) -> None:
    """Whatever stands in it."""
    usual = asked(stored, **{name: value})
    assert usual.end is None and usual.phases == {}


def test_history_that_cannot_be_read_is_no_history(stored: Path) -> None:
    """A damaged database does not matter."""
    (stored / "reports" / "history.db").write_bytes(b"no database" * 1000)
    assert asked(stored) == UsualTimes(NOW)


@pytest.mark.parametrize("seconds", [1e300, float("inf"), -1e300])
def test_end_that_no_clock_has_is_unknown(seconds: float) -> None:
    """After a past run whose record has a broken time."""
    usual = UsualTimes(NOW, seconds, 1, {"a": seconds})
    assert (usual.end, usual.phase_end("a", NOW)) == (None, None)
    assert UsualTimes(NOW, 60.0, 1, {"a": 30.0}).phase_end("a", NOW) == NOW + 30
