"""What nodes did, in history.db."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.history import (
    history_database,
    history_schema,
    history_store,
    node_history,
)
from pytest_clustersmoke.evidence.history.node_history import read_observations
from pytest_clustersmoke.evidence.node_observation import SCREEN, NodeObservation, PastObservation
from tests.evidence.history.made import DAY_S, nights, of_night
from tests.support.records import BEGUN, Record, parsed

CLEARED = frozenset({"node-down", "tmp-full"})
GOOD = NodeObservation("n1", SCREEN, "good", "", False, "boot", {"driver": "550"}, CLEARED)


def store(directory: Path, record: Record, *observations: NodeObservation) -> None:
    history_store.store_run(parsed(record), directory, observations=observations)


def screen(number: int, **changes: Any) -> Record:
    """The run of a screen, which has no phases."""
    changes = {"phases": [], "phases_chosen": [], "nodes": [], **changes}
    return of_night(number, **changes)


def read(directory: Path, cluster: str = "gilbreth") -> dict[str, list[PastObservation]]:
    with history_database.open_for_reading(directory) as connection:
        assert connection is not None
        return read_observations(connection, cluster)


def rows(directory: Path, table: str) -> int:
    with contextlib.closing(sqlite3.connect(directory / history_database.NAME)) as connection:
        return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def test_observations_are_read_as_they_were_stored(tmp_path: Path) -> None:
    """By node, the newest first, with the run, the boot and the parts."""
    bad = NodeObservation("n2", SCREEN, "bad", "gpu-memory-errors: GPU 3", True)
    runs = [screen(0), screen(1)]
    store(tmp_path, runs[0], GOOD, bad)
    store(tmp_path, runs[1], NodeObservation("n1", SCREEN, "unknown"))
    past = read(tmp_path)
    assert list(past) == ["n1", "n2"]
    assert [(seen.state, seen.run_id, seen.seen) for seen in past["n1"]] == [
        ("unknown", runs[1]["run_id"], BEGUN + DAY_S),
        ("good", runs[0]["run_id"], BEGUN),
    ]
    assert (past["n1"][1].boot_id, past["n1"][1].parts) == ("boot", {"driver": "550"})
    assert [seen.cleared for seen in past["n1"]] == [frozenset(), CLEARED]
    (only,) = past["n2"]
    assert (only.reason, only.kind, only.definite) == (bad.reason, "gpu-memory-errors", True)
    assert read(tmp_path, "another") == {}


def test_the_worst_observation_of_a_node_and_source_counts(tmp_path: Path) -> None:
    """A node that a second check finds bad is not good, and definite evidence comes first."""
    store(
        tmp_path,
        screen(0),
        NodeObservation("n1", SCREEN, "bad", "slow: 8 %"),
        GOOD,
        NodeObservation("n1", SCREEN, "bad", "link-down: mlx5_0", True),
        NodeObservation("n1", "ddp", "good"),
        NodeObservation("n1", "ddp", "unknown"),
    )
    seen = {made.source: (made.state, made.kind) for made in read(tmp_path)["n1"]}
    assert seen == {SCREEN: ("bad", "link-down"), "ddp": ("good", "")}


def test_a_run_that_is_stored_again_replaces_what_it_said(tmp_path: Path) -> None:
    """Its observations are not doubled, and those it no longer has are gone."""
    record = screen(0)
    store(tmp_path, record, GOOD, NodeObservation("n2", SCREEN, "good"))
    store(tmp_path, record, GOOD)
    assert list(read(tmp_path)) == ["n1"]
    assert len(read(tmp_path)["n1"]) == 1


def test_hostile_text_is_cut_to_one_line(tmp_path: Path) -> None:
    """Whatever a job calls a node, and whatever it claims."""
    hostile = NodeObservation(
        "n1\n\x1b[31m" + "x" * 999,
        "a\nb",
        "bad",
        "id: \x1b]0;t\x07\n" + "y" * 9999,
        False,
        "b" * 999,
    )
    store(tmp_path, screen(0), hostile, NodeObservation("", SCREEN, "bad"))
    ((name, (seen,)),) = read(tmp_path).items()
    for text in (name, seen.source, seen.reason, seen.boot_id):
        assert "\n" not in text and "\x1b" not in text and len(text) <= 500


def test_no_more_observations_are_stored_than_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of a length that no node has are dropped."""
    monkeypatch.setattr(node_history, "MAX_OBSERVATIONS", 3)
    many = [NodeObservation(f"n{number}", SCREEN, "good") for number in range(9)]
    huge = NodeObservation("a", SCREEN, "good", parts={f"part {n}": "x" * 400 for n in range(99)})
    store(tmp_path, screen(0), huge, *many)
    assert list(read(tmp_path)) == ["a", "n0", "n1"]
    assert read(tmp_path)["a"][0].parts == {}


def test_old_observations_are_pruned(tmp_path: Path) -> None:
    """What a node did more than 180 days before its newest run is deleted, with its boot; another
    node's stays."""
    store(tmp_path, screen(0), GOOD, NodeObservation("n2", SCREEN, "good"))
    store(tmp_path, screen(181), NodeObservation("n1", SCREEN, "good", boot_id="other"))
    past = read(tmp_path)
    assert [seen.boot_id for seen in past["n1"]] == ["other"]
    assert len(past["n2"]) == 1
    assert rows(tmp_path, "boots") == 2


def test_deleted_runs_take_their_observations_along(tmp_path: Path) -> None:
    """Deleted by hand with foreign keys, they are gone; without, they are not shown, and a new run
    does not inherit them."""
    record = screen(0)
    store(tmp_path, record, GOOD)
    with contextlib.closing(sqlite3.connect(tmp_path / history_database.NAME)) as connection:
        connection.execute("DELETE FROM runs")
        connection.commit()
    assert read(tmp_path) == {}
    store(tmp_path, screen(1))
    assert read(tmp_path) == {}


def test_version_4_has_no_nodes_until_the_next_run(tmp_path: Path) -> None:
    """A database of version 4 is read without them and not changed; the next run adds their tables
    and keeps the runs."""
    path = tmp_path / history_database.NAME
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for step in history_schema.MIGRATIONS[:4]:
            for statement in step:
                connection.execute(statement)
        connection.execute("PRAGMA user_version = 4")
        connection.execute(f"PRAGMA application_id = {history_schema.APPLICATION_ID}")
        connection.execute(
            "INSERT INTO runs VALUES (1, 'old', 'gilbreth', 'slurm', 5.0, 6.0, 'FIT', 's', '', 0, "
            "'', '0.0.1', 'g', 'cuda', 2, '')"
        )
    before = path.read_bytes()
    assert read(tmp_path) == {}
    assert path.read_bytes() == before
    nights(tmp_path, 1)
    store(tmp_path, screen(1), GOOD)
    assert "n1" in read(tmp_path)
    assert rows(tmp_path, "runs") == 3


def test_the_newest_of_a_long_history_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most so many of each node, however many runs there were."""
    monkeypatch.setattr(node_history, "MAX_READ", 2)
    for number in range(3):
        store(tmp_path, screen(number), GOOD, NodeObservation("n2", SCREEN, "good"))
    assert [seen.seen - BEGUN for seen in read(tmp_path)["n1"]] == [2 * DAY_S, DAY_S]
    assert len(read(tmp_path)["n2"]) == 2


def test_nodes_are_read_by_time_and_not_by_scanning(tmp_path: Path) -> None:
    """Reading some days of a cluster uses the index, and so does replacing a run."""
    store(tmp_path, screen(0), GOOD)
    with contextlib.closing(sqlite3.connect(tmp_path / history_database.NAME)) as connection:
        for query in (
            "SELECT 1 FROM nodes WHERE cluster = 'c'",
            "SELECT 1 FROM node_observations o JOIN boots b ON b.id = o.boot "
            "JOIN runs r ON r.id = o.run WHERE o.node = 1 AND o.seen >= 1 ORDER BY o.seen DESC",
            "DELETE FROM node_observations WHERE run = 1",
            "DELETE FROM device_figures WHERE run = 1",
            "SELECT 1 FROM device_figures v JOIN runs r ON r.id = v.run "
            "WHERE v.node = 1 AND v.seen >= 1 ORDER BY v.seen DESC",
        ):
            plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}")]
            assert not any(step.startswith("SCAN") for step in plan), plan
