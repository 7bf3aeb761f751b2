"""Builds histories from records: runs of one cluster, one a day."""

from __future__ import annotations

import contextlib
import multiprocessing
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_clustersmoke.evidence.history import history_database as database
from pytest_clustersmoke.evidence.history.history_query import read_runs
from tests.support.records import BEGUN, VERSIONS, Record, metric, phase, run, store_run

DAY_S = 86_400.0
FORK = multiprocessing.get_context("fork")


def night(number: int, steps_per_s: float = 9.5, **changes: Any) -> Record:
    """The run of one night, with one phase and one metric; `changes` are of the phase."""
    metrics = {"steps_per_s": metric(steps_per_s)}
    return of_night(number, phase(**{"metrics": metrics, **changes}))


def of_night(number: int, *phases: Any, **changes: Any) -> Record:
    """A run of one night with these phases; `changes` are of the run."""
    return run(*phases, begun=BEGUN + number * DAY_S, **changes)


def nights(
    directory: Path, count: int, *, first: int = 0, noise: float = 0.05, **changes: Any
) -> None:
    """Store good runs, whose steps/s scatter around a median of 9.5."""
    for number in range(first, first + count):
        store_run(night(number, 9.5 + noise * (number % 5 - 2), **changes), directory)


def with_versions(**changes: str) -> dict[str, str]:
    return {**VERSIONS, **changes}


def in_process(work: Callable[[], Any]) -> int:
    """Run a function in a process of its own; the exit status is 0 if it did not raise."""
    process = FORK.Process(target=work)
    process.start()
    process.join(120)
    assert process.exitcode is not None
    return process.exitcode


def stored(directory: Path) -> list[str]:
    with database.open_for_reading(directory) as connection:
        assert connection is not None
        assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        return [run.run_id for run in read_runs(connection)]


def pragma(path: Path, name: str) -> Any:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute(f"PRAGMA {name}").fetchone()[0]
