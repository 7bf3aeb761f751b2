"""Histories with damaged bytes, or with rows that were deleted by hand."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from types import ModuleType

import pytest

from pytest_clustersmoke.cli import main
from pytest_clustersmoke.evidence.history import history_database as database
from pytest_clustersmoke.evidence.history.history_database import HistoryUnusable
from pytest_clustersmoke.evidence.history.history_query import count_phase_runs, read_phase_runs
from pytest_clustersmoke.evidence.run_counts import RunTally
from pytest_clustersmoke.evidence.run_directory import RunDir
from pytest_clustersmoke.report import publication, record_builder
from pytest_clustersmoke.report.publication import publish
from pytest_clustersmoke.report.record_builder import FinishedRun, make_record
from tests.evidence.history.made import night, nights, of_night, stored
from tests.support.harness import Suite
from tests.support.records import annotate, phase, store_run

TABLE, DAMAGED = b"CREATE TABLE runs", b"CREATE T\xa7BLE runs"


def damage(path: Path) -> None:
    """Replace a byte of the table's definition with invalid UTF-8."""
    content = path.read_bytes()
    assert content.count(TABLE) == 1
    path.write_bytes(content.replace(TABLE, DAMAGED))


def test_rows_without_ids_are_ignored(tmp_path: Path) -> None:
    """If a damaged definition loses a table's ids, its rows are ignored."""
    nights(tmp_path, 9)
    path = tmp_path / database.NAME
    content = path.read_bytes()
    for table in (b"runs", b"setups", b"phases"):
        begins = b"CREATE TABLE %s (\n    id INTEGER PRIMARY KEY" % table
        assert content.count(begins) == 1
        path.write_bytes(content.replace(begins, begins.replace(b"R P", b"RXP")))
        record = night(10)
        annotate(record, tmp_path)
        past = record["phases"][0]["metrics"]["steps_per_s"]["past"]
        assert past is not None and past["status"] == "not enough history"
        assert main(["history", "--report-dir", str(tmp_path)]) == 0


def by_hand(directory: Path, *statements: str) -> None:
    """Run statements as in the sqlite3 shell, where foreign keys are off."""
    with contextlib.closing(sqlite3.connect(directory / database.NAME)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE phases SET nodes = 'node0, node1'",
        "UPDATE phases SET versions = '[1]'",
        "UPDATE metrics SET value = 'fast'",
    ],
)
def test_value_of_wrong_type_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], statement: str
) -> None:
    """A value of the wrong type ends in one line, for the report and the commands."""
    nights(tmp_path, 9)
    by_hand(tmp_path, statement)
    with pytest.raises(HistoryUnusable, match=r"history.db cannot be read \("):
        annotate(night(10), tmp_path)
    assert main(["history", "--report-dir", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_damaged_table_definition_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A byte of invalid UTF-8 counts as damage for readers, writers and commands."""
    nights(tmp_path, 2)
    damage(tmp_path / database.NAME)
    for call in (annotate, store_run):
        with pytest.raises(HistoryUnusable, match=r"history.db is damaged, or not a database \("):
            call(night(2), tmp_path)
    assert main(["history", "--report-dir", str(tmp_path)]) == 2
    assert "is damaged, or not a database" in capsys.readouterr().err


def test_run_with_damaged_history_has_its_verdict(suite: Suite) -> None:
    """The run is FIT, its criterion on the past is skipped, and one line reports the damage."""
    suite.cluster()
    suite.phase(base="Started", body="pass")
    suite.run()
    damage(suite.reports / database.NAME)
    result = suite.run()
    assert result.ret == 0
    lines = [line for line in result.outlines if "history.db is damaged" in line]
    assert len(lines) == 1, lines
    (judged,) = suite.record()["phases"]
    assert judged["criteria"]["test_metrics_are_as_in_the_past"]["result"] == "skipped"


@pytest.mark.parametrize(
    ("module", "name"), [(record_builder, "annotate"), (publication, "store_run")]
)
def test_unexpected_history_error_does_not_lose_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str
) -> None:
    """Any error of the history becomes a short sanitized line next to the report."""

    def broken(*_: object) -> None:
        raise TypeError("\x1b[2J" + "x" * 10_000)

    monkeypatch.setattr(module, name, broken)
    about = night(0)
    directory, target = RunDir(tmp_path / "runs" / about["run_id"]), tmp_path / about["run_id"]
    run = FinishedRun(directory, target, about, RunTally())
    (line,) = publish(make_record(run), directory, tmp_path, {}, unread=run.unread)
    assert (target / "report.json").is_file()
    assert line.startswith("history: TypeError: ") and len(line) <= 500
    assert line.isprintable()


@pytest.mark.parametrize(
    "statements",
    [
        ("DELETE FROM runs",),
        ("DELETE FROM runs WHERE id = (SELECT max(id) FROM runs)",),
        ("DELETE FROM runs", "DELETE FROM phases"),
        ("DELETE FROM setups",),
    ],
)
def test_rows_deleted_by_hand_do_not_block_a_run(
    tmp_path: Path, statements: tuple[str, ...]
) -> None:
    """Rows that refer to deleted ones are removed when their ids are reused, so that they do not
    mix with the new rows."""
    nights(tmp_path, 3)
    by_hand(tmp_path, *statements)
    with database.open_for_reading(tmp_path) as connection:
        assert connection is not None
        left = len(read_phase_runs(connection, "gilbreth", "zero1_4node"))
    store_run(of_night(9, phase(metrics={}), phase("a"), run_id="new"), tmp_path)
    assert "new" in stored(tmp_path)
    with database.open_for_reading(tmp_path) as connection:
        assert connection is not None
        runs = read_phase_runs(connection, "gilbreth", "zero1_4node")
        assert (runs[0].run_id, runs[0].metrics, len(runs)) == ("new", {}, left + 1)
        assert {count.phase: count.runs for count in count_phase_runs(connection)}["a"] == 1


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM runs WHERE cluster = 'old'",
        "DELETE FROM setups WHERE hardware = 'old'",
    ],
)
def test_a_phase_without_a_readable_run_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], statement: str
) -> None:
    """Every form of `history` shows the other phases, and none ends in a traceback."""
    nights(tmp_path, 2)
    store_run(of_night(0, phase(hardware="old"), cluster="old"), tmp_path)
    by_hand(tmp_path, statement)
    for form in ((), ("--json",), ("--csv",), ("--metric", "steps_per_s")):
        assert main(["history", "--report-dir", str(tmp_path), *form]) == 0
        assert "gilbreth" in capsys.readouterr().out
