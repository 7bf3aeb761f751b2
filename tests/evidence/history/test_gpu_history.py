"""The own steps of GPUs in history.db."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.fingerprint import Fingerprint
from pytest_clustersmoke.evidence.history import gpu_history, history_database, history_schema
from pytest_clustersmoke.evidence.history.accepted_levels import AcceptedLevel, store_accepted_level
from pytest_clustersmoke.evidence.history.gpu_history import read_gpu_past
from tests.evidence.history.made import DAY_S, night
from tests.support.records import BEGUN, VERSIONS, Record, phase, rank, store_run

PHASE = phase()
WHO = Fingerprint(PHASE["hardware"], PHASE["shape"], VERSIONS)


def of_gpus(number: int, *gpus: tuple[str, float | None], **changes: Any) -> Record:
    """A run of one night in which these GPUs took these seconds."""
    ranks = [
        {**rank(at, 4), "gpu": gpu, "own_step_s": own_s} for at, (gpu, own_s) in enumerate(gpus)
    ]
    return night(number, ranks=ranks, **changes)


def past(directory: Path, *gpus: str, before: float = 1e12) -> dict[str, list[float]]:
    return read_gpu_past(directory, "gilbreth", PHASE["phase"], WHO, gpus, before)


def test_times_of_each_gpu_are_the_newest_first(tmp_path: Path) -> None:
    """A GPU has its own runs only, on whichever node it is."""
    for number in range(3):
        store_run(of_gpus(number, ("A", 1.0 + number), ("B", 2.0)), tmp_path)
    store_run(of_gpus(3, ("C", 3.0), ("A", 9.0)), tmp_path)
    assert past(tmp_path, "A", "B", "D") == {"A": [9.0, 3.0, 2.0, 1.0], "B": [2.0] * 3, "D": []}
    assert past(tmp_path, "A", before=BEGUN + 2 * DAY_S) == {"A": [2.0, 1.0]}


def test_runs_of_other_setups_and_bad_runs_do_not_count(tmp_path: Path) -> None:
    """Other versions, another shape, a failed criterion, and a level that was accepted later."""
    store_run(of_gpus(0, ("A", 1.0)), tmp_path)
    store_run(of_gpus(1, ("A", 2.0), versions={**VERSIONS, "driver": "1"}), tmp_path)
    store_run(of_gpus(2, ("A", 3.0), shape="{}"), tmp_path)
    failed = {"test_x": {"result": "failed", "text": ""}}
    store_run(of_gpus(3, ("A", 4.0), criteria=failed), tmp_path)
    assert past(tmp_path, "A") == {"A": [1.0]}
    level = AcceptedLevel("gilbreth", PHASE["phase"], "", BEGUN + DAY_S / 2, "me", "why")
    store_accepted_level(level, tmp_path)
    assert past(tmp_path, "A") == {"A": []}


def test_unusable_values_are_not_stored(tmp_path: Path) -> None:
    """Unknown GPUs and times that are none; a long name is cut, and the same GPU twice counts
    once."""
    record = of_gpus(0, ("", 1.0), ("A", None), ("B", -1.0), ("C" * 999, 2.0), ("D", 3.0))
    store_run(record, tmp_path)
    store_run(record, tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / history_database.NAME)) as connection:
        rows = connection.execute(
            "SELECT name, own_step_s FROM gpu_steps JOIN gpus ON gpus.id = gpu ORDER BY 2"
        ).fetchall()
    assert [own_s for _, own_s in rows] == [2.0, 3.0]
    assert max(len(name) for name, _ in rows) <= gpu_history.MAX_GPU


def test_no_more_gpus_are_stored_than_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a job claims."""
    monkeypatch.setattr(gpu_history, "MAX_NAMES", 2)
    store_run(of_gpus(0, ("A", 1.0), ("B", 1.0), ("C", 1.0)), tmp_path)
    assert past(tmp_path, "A", "B", "C") == {"A": [1.0], "B": [1.0], "C": []}


def test_gpus_of_runs_that_are_no_longer_read_are_pruned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU that is in none of the newest good runs is deleted with its times; one that runs of
    another phase still have stays, and bad runs push none out."""
    monkeypatch.setattr(gpu_history, "MAX_RUNS", 3)
    store_run(of_gpus(0, ("other", 1.0), phase="other"), tmp_path)
    for number, gpu in enumerate(("A", "B", "A", "C"), 1):
        store_run(of_gpus(number, (gpu, float(number)), ("other", 1.0)), tmp_path)
    failed = {"test_x": {"result": "failed", "text": ""}}
    store_run(of_gpus(5, ("D", 5.0), criteria=failed), tmp_path)
    assert past(tmp_path, "A", "B", "C", "other") == {
        "A": [3.0],
        "B": [2.0],
        "C": [4.0],
        "other": [1.0] * 3,
    }
    store_run(of_gpus(6, ("C", 6.0)), tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / history_database.NAME)) as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM gpus")}
    assert names == {"A", "C", "D", "other"}


def test_version_3_has_no_gpus_until_the_next_run(tmp_path: Path) -> None:
    """A database of version 3 is read without them; the next run adds their tables."""
    path = tmp_path / history_database.NAME
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for step in history_schema.MIGRATIONS[:3]:
            for statement in step:
                connection.execute(statement)
        connection.execute("PRAGMA user_version = 3")
        connection.execute(f"PRAGMA application_id = {history_schema.APPLICATION_ID}")
    assert past(tmp_path, "A") == {}
    store_run(of_gpus(0, ("A", 1.0)), tmp_path)
    assert past(tmp_path, "A") == {"A": [1.0]}


def test_no_history_is_no_past(tmp_path: Path) -> None:
    """Not an error."""
    assert past(tmp_path, "A") == {}
