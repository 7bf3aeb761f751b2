"""Histories of other versions, and files that are not histories."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.history import history_database as database
from pytest_clustersmoke.evidence.history import history_schema
from pytest_clustersmoke.evidence.history.accepted_levels import read_accepted_levels
from pytest_clustersmoke.evidence.history.history_database import HistoryUnusable
from pytest_clustersmoke.evidence.history.history_query import count_phase_runs, read_runs
from tests.evidence.history.made import FORK, nights, pragma, stored


def of_version_1(path: Path) -> None:
    """A history as version 1 left it, with one run."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for statement in history_schema.MIGRATIONS[0]:
            connection.execute(statement)
        connection.execute("PRAGMA user_version = 1")
        connection.execute(f"PRAGMA application_id = {history_schema.APPLICATION_ID}")
        connection.execute(
            "INSERT INTO runs VALUES (1, 'old', 'gilbreth', 'slurm', 5.0, 6.0, 'FIT', 's', '', 0, "
            "'', '0.0.1', 'g', 'cuda', 2, '')"
        )


def test_an_older_version_is_migrated_by_the_next_run(tmp_path: Path) -> None:
    """A database of version 1 is migrated with its runs when a run is stored."""
    path = tmp_path / database.NAME
    of_version_1(path)
    nights(tmp_path, 1)
    assert pragma(path, "user_version") == history_schema.VERSION == len(history_schema.MIGRATIONS)
    assert "old" in stored(tmp_path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'index'").fetchall()
    assert {"runs_by_time", "phases_by_setup"} <= {name for (name,) in rows}


def test_reading_an_older_version_changes_nothing(tmp_path: Path) -> None:
    """A reader can use an old database and leaves the file unchanged, to the byte."""
    path = tmp_path / database.NAME
    of_version_1(path)
    before = path.read_bytes()
    assert stored(tmp_path) == ["old"]
    assert path.read_bytes() == before


def test_a_migration_that_fails_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a step fails half-way, the database keeps its version and its runs."""
    path = tmp_path / database.NAME
    of_version_1(path)
    steps = (*history_schema.MIGRATIONS, ("CREATE TABLE half (x)", "CREATE TABLE half (x)"))
    monkeypatch.setattr(history_schema, "MIGRATIONS", steps)
    monkeypatch.setattr(history_schema, "VERSION", len(steps))
    with pytest.raises(HistoryUnusable, match="table half already exists"):
        nights(tmp_path, 1)
    monkeypatch.undo()
    assert pragma(path, "user_version") == 1
    assert stored(tmp_path) == ["old"]


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    """A database of a newer clustersmoke is neither read nor written, and the message says why."""
    nights(tmp_path, 1)
    path = tmp_path / database.NAME
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    before = path.read_bytes()
    for use in (lambda: nights(tmp_path, 1), lambda: stored(tmp_path)):
        with pytest.raises(HistoryUnusable) as raised:
            use()
        assert str(raised.value) == (
            f"{path} has schema version 99; expected {history_schema.VERSION} or older; it was "
            "left unchanged; update pytest-clustersmoke, or choose another report directory"
        )
    assert path.read_bytes() == before


def foreign(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE bookmarks (url)")


def no_database(path: Path) -> None:
    path.write_text("these are notes, not a database" * 100)


def torn(path: Path) -> None:
    nights(path.parent, 30)
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    path.write_bytes(content)


def cut(path: Path) -> None:
    nights(path.parent, 30)
    path.write_bytes(path.read_bytes()[:6000])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (foreign, "is a database, but not a clustersmoke history; it was left unchanged"),
        (
            no_database,
            "is damaged, or not a database (file is not a database); it was left unchanged",
        ),
        (torn, "is damaged, or not a database (database disk image is malformed); it was left un"),
        (cut, "is damaged, or not a database (database disk image is malformed); it was left un"),
    ],
)
def test_damaged_and_foreign_files_are_left_alone(
    tmp_path: Path, make: Callable[[Path], None], words: str
) -> None:
    """A file that is not a sound history is refused in one line and does not change."""
    path = tmp_path / database.NAME
    make(path)
    before = path.read_bytes()
    with pytest.raises(HistoryUnusable) as raised:
        nights(tmp_path, 1)
    assert str(raised.value).startswith(f"{path} {words}")
    assert "\n" not in str(raised.value)
    assert path.read_bytes() == before
    with pytest.raises(HistoryUnusable), database.open_for_reading(tmp_path) as connection:
        assert connection is not None
        read_runs(connection)
        count_phase_runs(connection)


def test_database_being_created_is_not_foreign(tmp_path: Path) -> None:
    """A reader sees all or nothing of a database that another process is creating. If a separate
    statement read the version, about one answer in three would be wrong."""
    for number in range(20):
        path = tmp_path / f"{number}.db"
        maker = sqlite3.connect(path, isolation_level=None)
        maker.execute("PRAGMA journal_mode = wal")
        looks = FORK.Event()

        def look(path: Path = path, looks: Any = looks) -> None:
            connection = sqlite3.connect(path, isolation_level=None)
            while (version := history_schema.read_version(connection)) != history_schema.VERSION:
                assert version == 0
                looks.set()

        process = FORK.Process(target=look)
        process.start()
        assert looks.wait(60)
        maker.execute("BEGIN IMMEDIATE")
        history_schema.migrate(maker)
        maker.execute("COMMIT")
        process.join(60)
        assert process.exitcode == 0


def test_version_2_has_no_accepted_levels_until_the_next_run(tmp_path: Path) -> None:
    """A database of version 2 is read without them; the next run adds their table."""
    path = tmp_path / database.NAME
    of_version_1(path)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for statement in history_schema.MIGRATIONS[1]:
            connection.execute(statement)
        connection.execute("PRAGMA user_version = 2")
    with database.open_for_reading(tmp_path) as reader:
        assert reader is not None
        assert read_accepted_levels(reader, "gilbreth", "zero1_4node") == []
    nights(tmp_path, 1)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM accepted_levels").fetchone() == (0,)
