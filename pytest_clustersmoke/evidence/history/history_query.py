"""Reads past runs from the rows of history.db, the newest first.

Rows that refer to deleted ones are left out. A value of the wrong type raises TypeError or
ValueError, which `open_for_reading` turns into HistoryUnusable.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from sqlite3 import Connection, Row
from typing import Any

from ...config.metrics import METRICS, is_within
from .accepted_levels import AcceptedLevel, find_accepted_level, read_accepted_levels
from .history_schema import WITH_REFERENCES, Setup, read_version


@dataclass(frozen=True)
class PastRun:
    """A run, without its phases. When it began and was reported is in Unix seconds."""

    id: int
    run_id: str
    cluster: str
    begun: float
    written: float
    verdict: str
    selection: str
    partial: str
    package_version: str


@dataclass(frozen=True)
class StoredMetric:
    """A metric of a phase run; its value may be non-finite. `reference` is the one that it was
    judged by, with its bounds; None if none was of the phase's sizes."""

    value: float
    unit: str
    higher_is_better: bool
    reference: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether it is within the bounds of its reference; None without one."""
        return None if self.reference is None else is_within(self.value, self.low, self.high)


@dataclass(frozen=True)
class PhaseRun:
    """A phase of a run."""

    run_id: str
    cluster: str
    phase: str
    begun: float
    good: bool
    outcome: str
    reason: str
    finding: str
    job_id: str
    queue_s: float | None
    run_s: float | None
    transport: str
    setup: Setup
    nodes: tuple[str, ...]
    versions: dict[str, str]
    criteria: dict[str, str]
    metrics: dict[str, StoredMetric] = field(default_factory=dict)
    attempts: int = 1  # jobs that it took
    unmeasured: str = ""  # the required kinds of criteria that it did not measure

    def value(self, metric: str, unit: str) -> float | None:
        """A metric's value; None if it was not measured, or in another unit."""
        stored = self.metrics.get(metric)
        return stored.value if stored is not None and stored.unit == unit else None


@dataclass(frozen=True)
class PhaseCount:
    """How often a phase ran on a cluster, and how often it was good."""

    cluster: str
    phase: str
    runs: int
    good: int


WITH_PHASES = "EXISTS (SELECT 1 FROM phases WHERE phases.run = runs.id)"  # of runs
_SETUP = ", ".join(f"s.{name}" for name in Setup._fields)
_TEXTS = ("run_id", "cluster", "phase", "outcome", "reason", "finding", "job_id", "transport")
_PHASES = "FROM phases p JOIN runs r ON r.id = p.run JOIN setups s ON s.id = p.setup"


def count_phase_runs(connection: Connection) -> list[PhaseCount]:
    """Count the runs of every phase on every cluster."""
    rows = connection.execute(
        "SELECT cluster, phase, count(*), sum(good) FROM phases GROUP BY cluster, phase"
    )
    return [PhaseCount(*row) for row in rows]


def read_runs(
    connection: Connection,
    *,
    cluster: str | None = None,
    before: float = math.inf,
    selection: str | None = None,
    prefix: str = "",
    with_phases: bool | None = None,
    limit: int = -1,
) -> list[PastRun]:
    """Runs that began before a time and whose ids start with `prefix`, on request only those with
    phases or those without, such as screens; `limit` -1 means all."""
    conditions = ["begun < ?", "substr(run_id, 1, ?) = ?"]
    if with_phases is not None:
        conditions.append(WITH_PHASES if with_phases else f"NOT {WITH_PHASES}")
    values: list[Any] = [before, len(prefix), prefix]
    for column, value in (("cluster", cluster), ("selection", selection)):
        if value is not None:
            conditions.append(f"{column} = ?")
            values.append(value)
    rows = connection.execute(
        f"SELECT {', '.join(PastRun.__dataclass_fields__)} FROM runs "
        f"WHERE {' AND '.join(conditions)} ORDER BY begun DESC, id DESC LIMIT ?",
        (*values, limit),
    )
    return [PastRun(*row) for row in rows]


def read_run_times(
    connection: Connection, cluster: str, selection: str, *, before: float, limit: int
) -> list[float]:
    """How long the newest complete runs of this selection took, in seconds, the newest first; a
    screen, which has no phases, is none."""
    rows = connection.execute(
        "SELECT written - begun FROM runs WHERE cluster = ? AND selection = ? AND begun < ? "
        "AND interrupted = 0 AND partial = '' "
        f"AND {WITH_PHASES} "
        "ORDER BY begun DESC, id DESC LIMIT ?",
        (cluster, selection, before, limit),
    )
    return [float(seconds) for (seconds,) in rows]


def read_phases(connection: Connection, run: PastRun) -> list[PhaseRun]:
    """The phases of a run, in the order in which they were stored."""
    return _select_phase_runs(connection, "p.run = ?", [run.id], "p.id", -1)


def read_phase_runs(
    connection: Connection,
    cluster: str,
    phase: str,
    *,
    before: float = math.inf,
    since: float = -math.inf,
    good: bool = False,
    setup: Setup | None = None,
    other_versions: bool = False,
    oldest: bool = False,
    limit: int = -1,
) -> list[PhaseRun]:
    """Past runs of a phase on a cluster that began before a time, the newest or the oldest first.
    Optionally only the good ones, and only those of a setup, or of its hardware and shape on other
    versions. Runs of a setup are read to compare with: they lack metrics whose level was accepted
    after the run."""
    wanted = "p.cluster = ? AND p.phase = ? AND p.begun < ? AND p.begun >= ?"
    values: list[Any] = [cluster, phase, before, since]
    if good:
        wanted += " AND p.good = 1"
    if setup is not None:
        # With `=` SQLite uses the index that begins with the setup, with `IN` the one by time.
        versions = Setup._fields[2:]
        matches, equals = ("IN", "<>") if other_versions else ("=", "=")
        wanted += (
            f" AND p.setup {matches} (SELECT id FROM setups WHERE hardware = ? AND shape = ? AND "
            f"({', '.join(versions)}) {equals} ({', '.join('?' * len(versions))}))"
        )
        values += setup
    begun = "p.begun"
    if setup is not None and not good:  # else SQLite reads all setups, by time
        wanted, begun = f"{wanted} AND p.good IN (0, 1)", "+p.begun"
    order = f"{begun}, p.id" if oldest else f"{begun} DESC, p.id DESC"
    runs = _select_phase_runs(connection, wanted, values, order, limit)
    if setup is None:
        return runs
    levels = read_accepted_levels(connection, cluster, phase, before)
    return [_drop_earlier_levels(run, levels) for run in runs] if levels else runs


def _drop_earlier_levels(run: PhaseRun, levels: Sequence[AcceptedLevel]) -> PhaseRun:
    """The run without the metrics whose level was accepted after it began."""
    later = [level for level in levels if level.accepted > run.begun]
    metrics = {
        name: metric
        for name, metric in run.metrics.items()
        if find_accepted_level(later, name) is None
    }
    return replace(run, metrics=metrics)


def find_newest_setup(connection: Connection, cluster: str, phase: str, least: int) -> Setup | None:
    """Of the setups with at least `least` good runs, the one of the newest good run."""
    row = connection.execute(
        f"SELECT {_SETUP} FROM phases p JOIN setups s ON s.id = p.setup "
        "WHERE p.cluster = ? AND p.phase = ? AND p.good = 1 "
        "GROUP BY p.setup HAVING count(*) >= ? ORDER BY max(p.begun) DESC LIMIT 1",
        (cluster, phase, least),
    ).fetchone()
    return None if row is None else Setup(*row)


def _select_phase_runs(
    connection: Connection, wanted: str, values: list[Any], order: str, limit: int
) -> list[PhaseRun]:
    selected = f"{_PHASES} WHERE {wanted} ORDER BY {order} LIMIT ?"
    parameters = (*values, limit)
    metrics: dict[int, dict[str, StoredMetric]] = {}
    has_references = (read_version(connection) or 0) >= WITH_REFERENCES
    bounds = "reference, low, high" if has_references else "NULL, NULL, NULL"
    for phase, name, value, unit, higher, *judged in connection.execute(
        f"SELECT phase, name, value, unit, higher_is_better, {bounds} FROM metrics "
        f"WHERE phase IN (SELECT p.id {selected})",
        parameters,
    ):
        level = (None if bound is None else float(bound) for bound in judged)
        metrics.setdefault(phase, {})[name] = StoredMetric(float(value), unit, bool(higher), *level)
    rows = connection.execute(f"SELECT p.*, r.run_id, {_SETUP} {selected}", parameters)
    return [_parse_phase_run(row, metrics.get(row["id"], {})) for row in rows]


def _parse_phase_run(row: Row, metrics: dict[str, StoredMetric]) -> PhaseRun:
    known = {name: metrics[name] for name in METRICS if name in metrics}
    columns = row.keys()  # older databases lack the newest
    return PhaseRun(
        **{name: str(row[name]) for name in _TEXTS},
        begun=float(row["begun"]),
        good=bool(row["good"]),
        queue_s=None if row["queue_s"] is None else float(row["queue_s"]),
        run_s=None if row["run_s"] is None else float(row["run_s"]),
        nodes=tuple(map(str, json.loads(row["nodes"]))),
        versions={name: str(value) for name, value in dict(json.loads(row["versions"])).items()},
        criteria={name: str(value) for name, value in dict(json.loads(row["criteria"])).items()},
        setup=Setup(*(str(row[name]) for name in Setup._fields)),
        metrics={**known, **metrics},  # known metrics in their usual order, then the rest
        attempts=int(row["attempts"]) if "attempts" in columns else 1,
        unmeasured=str(row["unmeasured"]) if "unmeasured" in columns else "",
    )
