"""The curves of collectives in history.db: shown beside tonight's, and judged by nothing."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

from pytest_clustersmoke.evidence.history import history_database
from pytest_clustersmoke.evidence.history.accepted_levels import AcceptedLevel, store_accepted_level
from tests.evidence.history.made import DAY_S, night, with_versions
from tests.support.records import BEGUN, Record, annotate, metric, phase, store_run

PHASE = phase()["phase"]


def point(busbw: float, size: int = 64) -> Record:
    figures = {"seconds": 64 / busbw / 1e9, "algbw_gb_per_s": busbw, "busbw_gb_per_s": busbw}
    return {"asked_bytes": size, "size_bytes": size, **figures, "wrong": 0}


def swept(number: int, busbw: float, name: str = "all_reduce", **changes: Any) -> Record:
    """The run of one night, in which this collective reached this bandwidth at 64 B."""
    curves = [{"collective": name, "points": [point(busbw)]}]
    return night(number, collectives=curves, **changes)


def past(record: Record, directory: Path) -> Record | None:
    """The past of the first point, as the record of this run has it."""
    annotate(record, directory)
    made: Record = record["phases"][0]["collectives"][0]["points"][0]
    return made.get("past")


def test_point_has_the_range_of_past_good_runs(tmp_path: Path) -> None:
    """Lowest, median and highest, and how many runs; a first run has none."""
    assert past(swept(0, 1.0), tmp_path) is None
    for number, busbw in enumerate((3.0, 1.0, 2.0)):
        store_run(swept(number, busbw), tmp_path)
    made = past(swept(3, 9.0), tmp_path)
    assert made is not None and made["runs"] == 3
    assert made["busbw_gb_per_s"] == {"low": 1.0, "median": 2.0, "high": 3.0}
    assert made["seconds"]["low"] == 64 / 3.0 / 1e9
    assert past(swept(3, 9.0, "all_gather"), tmp_path) is None
    before = past(swept(1, 9.0), tmp_path)
    assert before is not None and before["runs"] == 1


def test_bad_runs_and_other_setups_are_no_past(tmp_path: Path) -> None:
    """A failed criterion, other versions, a suspended job; and a level that was accepted later."""
    store_run(swept(0, 1.0), tmp_path)
    failed = {"test_x": {"result": "failed", "text": ""}}
    store_run(swept(1, 2.0, criteria=failed), tmp_path)
    store_run(swept(2, 3.0, versions=with_versions(nccl="9")), tmp_path)
    store_run(swept(3, 4.0, suspended_s=9.0), tmp_path)
    made = past(swept(4, 1.0), tmp_path)
    assert made is not None and made["runs"] == 1 and made["busbw_gb_per_s"]["median"] == 1.0
    for metric_name, runs in (("all_gather_busbw_gb_per_s", 1), ("busbw_1mib_gb_per_s", None)):
        level = AcceptedLevel("gilbreth", PHASE, metric_name, BEGUN + DAY_S / 2, "me", "why")
        store_accepted_level(level, tmp_path)
        made = past(swept(4, 1.0), tmp_path)
        assert (made["runs"] if made else None) == runs


def test_points_are_judged_by_nothing(tmp_path: Path) -> None:
    """A point that falls to a tenth after 20 steady nights changes no judgement of a metric, is in
    no trend, and the run is as good as before."""
    metrics = {"busbw_gb_per_s": metric(9.5, "GB/s")}
    for number in range(20):
        store_run(swept(number, 10.0, metrics=metrics), tmp_path)
    steady, fallen = (swept(20, busbw, metrics=metrics) for busbw in (10.0, 1.0))
    for record in (steady, fallen):
        annotate(record, tmp_path)
    one, other = (record["phases"][0] for record in (steady, fallen))
    assert one["metrics"] == other["metrics"] and one["metrics"]["busbw_gb_per_s"]["past"]
    assert list(other["trend"]["metrics"]) == ["busbw_gb_per_s"] and one["trend"] == other["trend"]
    store_run(fallen, tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / history_database.NAME)) as connection:
        assert connection.execute("SELECT count(*), sum(good) FROM phases").fetchone() == (21, 21)


def test_points_go_with_their_run(tmp_path: Path) -> None:
    """A run that is stored again has its points once, and a phase without a curve has none."""
    for _ in range(2):
        record = swept(0, 1.0)
        record["run_id"] = "20261101-020000-abcdef"
        store_run(record, tmp_path)
    store_run(night(1), tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / history_database.NAME)) as connection:
        rows = connection.execute("SELECT collective, size_bytes, busbw_gb_per_s FROM curve_points")
        assert rows.fetchall() == [("all_reduce", 64, 1.0)]
