"""Rows -> runs of the past, the newest first.

Rows that hang on deleted ones are left out; a value that is not of its kind raises TypeError or
ValueError, which `reading` turns into words.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from sqlite3 import Connection, Row
from typing import Any

from ...config.metrics import METRICS
from .history_store import Setup


@dataclass(frozen=True)
class PastRun:
    """A run, without its phases. `begun` is in Unix seconds."""

    id: int
    run_id: str
    cluster: str
    begun: float
    verdict: str
    selection: str
    partial: str
    package_version: str


@dataclass(frozen=True)
class StoredMetric:
    """A metric of a phase run; the value may be not finite."""

    value: float
    unit: str
    higher_is_better: bool


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

    def value(self, metric: str, unit: str) -> float | None:
        """A metric's value where it has one in this unit."""
        found = self.metrics.get(metric)
        return found.value if found is not None and found.unit == unit else None


@dataclass(frozen=True)
class PhaseCount:
    """How often a phase ran on a cluster, and how often it was good."""

    cluster: str
    phase: str
    runs: int
    good: int


_SETUP = ", ".join(f"s.{name}" for name in Setup._fields)
_TEXTS = ("run_id", "cluster", "phase", "outcome", "reason", "finding", "job_id", "transport")
_PHASES = "FROM phases p JOIN runs r ON r.id = p.run JOIN setups s ON s.id = p.setup"


def phase_counts(connection: Connection) -> list[PhaseCount]:
    """Every phase of every cluster."""
    rows = connection.execute(
        "SELECT cluster, phase, count(*), sum(good) FROM phases GROUP BY cluster, phase"
    )
    return [PhaseCount(*row) for row in rows]


def runs(
    connection: Connection,
    *,
    cluster: str | None = None,
    before: float = math.inf,
    selection: str | None = None,
    prefix: str = "",
    limit: int = -1,
) -> list[PastRun]:
    """Runs that began before a time; `prefix` is of their ids, `limit` -1 all."""
    wanted = ["begun < ?", "substr(run_id, 1, ?) = ?"]
    values: list[Any] = [before, len(prefix), prefix]
    for column, value in (("cluster", cluster), ("selection", selection)):
        if value is not None:
            wanted.append(f"{column} = ?")
            values.append(value)
    rows = connection.execute(
        f"SELECT {', '.join(PastRun.__dataclass_fields__)} FROM runs "
        f"WHERE {' AND '.join(wanted)} ORDER BY begun DESC, id DESC LIMIT ?",
        (*values, limit),
    )
    return [PastRun(*row) for row in rows]


def phases_of(connection: Connection, run: PastRun) -> list[PhaseRun]:
    """The phases of a run, in the order in which they were stored."""
    return _phase_runs(connection, "p.run = ?", [run.id], "p.id", -1)


def phase_runs(
    connection: Connection,
    cluster: str,
    phase: str,
    *,
    before: float = math.inf,
    good: bool = False,
    setup: Setup | None = None,
    other_versions: bool = False,
    limit: int = -1,
) -> list[PhaseRun]:
    """Past runs of a phase on a cluster that began before a time: the good ones, those of a setup,
    or those of its hardware and shape on other versions."""
    wanted = "p.cluster = ? AND p.phase = ? AND p.begun < ?"
    values: list[Any] = [cluster, phase, before]
    if good:
        wanted += " AND p.good = 1"
    if setup is not None:
        # `=` has SQLite take the index that begins with the setup, `IN` the one by time.
        versions = Setup._fields[2:]
        is_one, is_same = ("IN", "<>") if other_versions else ("=", "=")
        wanted += (
            f" AND p.setup {is_one} (SELECT id FROM setups WHERE hardware = ? AND shape = ? AND "
            f"({', '.join(versions)}) {is_same} ({', '.join('?' * len(versions))}))"
        )
        values += setup
    return _phase_runs(connection, wanted, values, "p.begun DESC, p.id DESC", limit)


def newest_setup(connection: Connection, cluster: str, phase: str, least: int) -> Setup | None:
    """The setup of the newest good run of those setups with so many good runs."""
    row = connection.execute(
        f"SELECT {_SETUP} FROM phases p JOIN setups s ON s.id = p.setup "
        "WHERE p.cluster = ? AND p.phase = ? AND p.good = 1 "
        "GROUP BY p.setup HAVING count(*) >= ? ORDER BY max(p.begun) DESC LIMIT 1",
        (cluster, phase, least),
    ).fetchone()
    return None if row is None else Setup(*row)


def _phase_runs(
    connection: Connection, wanted: str, values: list[Any], order: str, limit: int
) -> list[PhaseRun]:
    chosen = f"{_PHASES} WHERE {wanted} ORDER BY {order} LIMIT ?"
    asked = (*values, limit)
    metrics: dict[int, dict[str, StoredMetric]] = {}
    for phase, name, value, unit, higher in connection.execute(
        "SELECT phase, name, value, unit, higher_is_better FROM metrics "
        f"WHERE phase IN (SELECT p.id {chosen})",
        asked,
    ):
        metrics.setdefault(phase, {})[name] = StoredMetric(float(value), unit, bool(higher))
    rows = connection.execute(f"SELECT p.*, r.run_id, {_SETUP} {chosen}", asked)
    return [_phase_run(row, metrics.get(row["id"], {})) for row in rows]


def _phase_run(row: Row, metrics: dict[str, StoredMetric]) -> PhaseRun:
    known = {name: metrics[name] for name in METRICS if name in metrics}
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
        metrics={**known, **metrics},  # as people know them, those that are not known last
    )
