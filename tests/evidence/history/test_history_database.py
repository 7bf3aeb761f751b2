"""history.db: its journal, concurrent writers and its lock, with real processes."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.history import history_database as database
from pytest_clustersmoke.evidence.history.history_database import HistoryUnusable
from pytest_clustersmoke.evidence.history.history_query import count_phase_runs, read_runs
from tests.evidence.history.made import FORK, in_process, night, nights, of_night, pragma, stored
from tests.support.records import annotate, phase, store_run
from tests.support.waiting import PATIENCE_S

WRITERS, EACH = 6, 8


def wal(directory: Path) -> sqlite3.Connection:
    """Put the database into WAL mode, as earlier versions did on local disks; return a
    connection."""
    connection = sqlite3.connect(directory / database.NAME, isolation_level=None)
    assert connection.execute("PRAGMA journal_mode = wal").fetchone() == ("wal",)
    return connection


def test_wal_database_becomes_one_with_a_rollback_journal(tmp_path: Path) -> None:
    """The next writer ends WAL mode, keeps what an earlier version stored and leaves no lock."""
    nights(tmp_path, 2)
    with contextlib.closing(wal(tmp_path)) as connection:
        connection.execute("UPDATE runs SET verdict = 'UNFIT'")
        with database.open_for_reading(tmp_path) as reader:
            assert reader is not None
            assert {run.verdict for run in read_runs(reader)} == {"UNFIT"}
    nights(tmp_path, 1, first=2)
    assert pragma(tmp_path / database.NAME, "journal_mode") == "delete"
    assert [path.name for path in tmp_path.iterdir()] == [database.NAME]
    assert len(stored(tmp_path)) == 3


def test_run_is_stored_while_another_process_reads_in_wal_mode(tmp_path: Path) -> None:
    """A reader in WAL mode does not block writers; the journal mode changes once it has ended."""
    nights(tmp_path, 1)
    with contextlib.closing(wal(tmp_path)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM runs").fetchone()
        nights(tmp_path, 1, first=1)
    nights(tmp_path, 1, first=2)
    assert pragma(tmp_path / database.NAME, "journal_mode") == "delete"
    assert len(stored(tmp_path)) == 3


def test_concurrent_writers_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six processes that start together without a database store all their runs, however long each
    waits for the others on a slow machine."""
    for name in ("PATIENCE_S", "READ_PATIENCE_S"):
        monkeypatch.setattr(database, name, PATIENCE_S)
    gate = FORK.Barrier(WRITERS)

    def writer(number: int) -> None:
        records = [
            of_night(night, phase("a"), phase("b"), run_id=f"{number}-{night}")
            for night in range(EACH)
        ]
        gate.wait(PATIENCE_S)
        for record in records:
            annotate(record, tmp_path)  # as every run does before it is stored
            store_run(record, tmp_path)

    started = [FORK.Process(target=writer, args=(number,)) for number in range(WRITERS)]
    for process in started:
        process.start()
    for process in started:
        process.join(PATIENCE_S)
    assert [process.exitcode for process in started] == [0] * WRITERS
    wanted = {f"{number}-{night}" for number in range(WRITERS) for night in range(EACH)}
    assert set(stored(tmp_path)) == wanted
    with database.open_for_reading(tmp_path) as connection:
        assert connection is not None
        assert [(count.phase, count.runs) for count in count_phase_runs(connection)] == [
            ("a", WRITERS * EACH),
            ("b", WRITERS * EACH),
        ]
        assert connection.execute("SELECT count(*) FROM setups").fetchone()[0] == 1


def test_a_writer_that_is_killed_leaves_all_or_nothing(tmp_path: Path) -> None:
    """A writer killed inside its transaction leaves what was there; the next one goes on."""
    nights(tmp_path, 3)

    def killed() -> None:
        with database.open_for_writing(tmp_path) as connection:
            connection.execute("DELETE FROM runs")
            connection.execute("PRAGMA cache_spill = 1")
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_process(killed) == -signal.SIGKILL
    nights(tmp_path, 1, first=3)
    assert len(stored(tmp_path)) == 4


def test_the_same_run_is_stored_once(tmp_path: Path) -> None:
    """A second record of a run replaces the first and everything that belongs to it."""
    nights(tmp_path, 1)
    record = of_night(1, phase("a"), phase("b"), run_id="r1", verdict="INCONCLUSIVE")
    store_run(record, tmp_path)
    store_run({**record, "verdict": "FIT", "phases": record["phases"][:1]}, tmp_path)
    with database.open_for_reading(tmp_path) as connection:
        assert connection is not None
        verdicts = {run.run_id: run.verdict for run in read_runs(connection)}
        assert verdicts.pop("r1") == "FIT"
        assert len(verdicts) == 1
        assert [count.phase for count in count_phase_runs(connection)] == ["a", "zero1_4node"]
        orphans = "SELECT count(*) FROM metrics WHERE phase NOT IN (SELECT id FROM phases)"
        assert connection.execute(orphans).fetchone()[0] == 0


def test_lock_of_a_live_holder_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock held elsewhere ends in one line that names it; the database is unchanged."""
    nights(tmp_path, 1)
    monkeypatch.setattr(database, "PATIENCE_S", 0.2)
    lock = tmp_path / f"{database.NAME}.lock"
    lock.write_text("1\nanother-host\n")
    with pytest.raises(HistoryUnusable) as raised:
        nights(tmp_path, 1, first=1)
    assert str(raised.value) == (
        f"nothing was added to the history: {lock} was held for 0.2 s by process 1 on "
        "another-host; delete the lock file if that process is gone"
    )
    lock.unlink()
    nights(tmp_path, 1, first=2)
    assert len(stored(tmp_path)) == 2


@pytest.mark.parametrize(
    ("changes", "held_s"),
    [({}, "0.3"), ({"interrupted": True}, "0.1"), ({"partial": "the run was interrupted"}, "0.1")],
)
def test_interrupted_run_waits_less_for_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], held_s: str
) -> None:
    """The record of an unfinished run uses the shorter limit."""
    assert (database.PATIENCE_S, database.HURRIED_S) == (20.0, 5.0)
    monkeypatch.setattr(database, "PATIENCE_S", 0.3)
    monkeypatch.setattr(database, "HURRIED_S", 0.1)
    (tmp_path / f"{database.NAME}.lock").write_text("\x1b[2Jnonsense")
    with pytest.raises(HistoryUnusable) as raised:
        store_run(of_night(0, **changes), tmp_path)
    assert f"was held for {held_s} s by an unknown process; delete" in str(raised.value)


def test_the_lock_of_a_process_that_died_here_is_removed(tmp_path: Path) -> None:
    """The lock file of a writer that was killed on this host blocks nobody."""

    def killed() -> None:
        with database.open_for_writing(tmp_path):
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_process(killed) == -signal.SIGKILL
    assert tmp_path.joinpath(f"{database.NAME}.lock").exists()
    nights(tmp_path, 1)
    assert len(stored(tmp_path)) == 1
    assert not tmp_path.joinpath(f"{database.NAME}.lock").exists()


def test_database_that_stays_locked_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If another process keeps the database locked, the writer gives up with a message."""
    nights(tmp_path, 1)
    monkeypatch.setattr(database, "PATIENCE_S", 0.2)
    with contextlib.closing(sqlite3.connect(tmp_path / database.NAME)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(HistoryUnusable, match=r"be written .database is locked.; nothing was"):
            nights(tmp_path, 1, first=1)
        assert len(stored(tmp_path)) == 1  # readers do not wait for it


@pytest.mark.parametrize(
    ("changes", "values"),
    [
        ({}, 1),
        ({"requeues": 1}, 0),
        ({"suspended_s": 12.0}, 0),
        ({"outcome": "preempted"}, 0),
    ],
)
def test_measurements_of_a_job_that_was_disturbed_are_not_stored(
    tmp_path: Path, changes: dict[str, Any], values: int
) -> None:
    """It was suspended or requeued, so its times are not those of the cluster."""
    store_run(night(1, **changes), tmp_path)
    with database.open_for_reading(tmp_path) as connection:
        assert connection is not None
        assert connection.execute("SELECT count(*) FROM metrics").fetchone()[0] == values
        assert connection.execute("SELECT good FROM phases").fetchone()[0] == values
