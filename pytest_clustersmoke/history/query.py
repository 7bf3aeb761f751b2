"""Rows -> runs of the past, the newest first.

Somebody may have written into the file by hand, or its index be damaged: what is not of the kind
it should be counts as missing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..telemetry import METRICS
from .store import Setup

if TYPE_CHECKING:
    from sqlite3 import Connection

# SQLite before 3.32 takes no more than 999 values in one statement.
MAX_VALUES = 900


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
class Measured:
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
    metrics: dict[str, Measured] = field(default_factory=dict)

    def value(self, metric: str, unit: str) -> float | None:
        """A metric's value where it has one in this unit."""
        found = self.metrics.get(metric)
        return found.value if found is not None and found.unit == unit else None


@dataclass(frozen=True)
class Group:
    """How often a phase ran on a cluster, and how often it was good."""

    cluster: str
    phase: str
    runs: int
    good: int


_RUN = "id, run_id, cluster, begun, verdict, selection, partial, package_version"
_PHASE = (
    "p.id, r.run_id, p.cluster, p.phase, p.begun, p.good, p.outcome, p.reason, p.finding, "
    "p.job_id, p.queue_s, p.run_s, p.transport, p.nodes, p.versions, p.criteria, "
    + ", ".join(f"s.{name}" for name in Setup._fields)
)


def groups(connection: Connection) -> list[Group]:
    """Every phase of every cluster."""
    rows = connection.execute(
        "SELECT cluster, phase, count(*), sum(good) FROM phases GROUP BY cluster, phase"
    )
    return [Group(str(row[0]), str(row[1]), int(row[2]), int(row[3] or 0)) for row in rows]


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
    wanted: list[str] = ["begun < ?"]
    values: list[Any] = [before]
    for column, value in (("cluster", cluster), ("selection", selection)):
        if value is not None:
            wanted.append(f"{column} = ?")
            values.append(value)
    if prefix:
        wanted.append("substr(run_id, 1, ?) = ?")
        values += [len(prefix), prefix]
    rows = connection.execute(
        f"SELECT {_RUN} FROM runs WHERE {' AND '.join(wanted)} "
        "ORDER BY begun DESC, id DESC LIMIT ?",
        (*values, limit),
    )
    return [
        PastRun(int(number), str(run_id), str(of), _number(begun) or 0.0, *map(str, said))
        for number, run_id, of, begun, *said in rows
        if number is not None
    ]


def phases_of(connection: Connection, run: PastRun) -> list[PhaseRun]:
    """The phases of a run, in the order in which they were stored."""
    return _phase_runs(connection, "p.run = ?", [run.id], "p.id", -1)


def phase_runs(
    connection: Connection,
    cluster: str,
    phase: str,
    *,
    before: float = math.inf,
    good: bool | None = None,
    setups: Iterable[int] | None = None,
    limit: int = -1,
) -> list[PhaseRun]:
    """Past runs of a phase on a cluster that began before a time."""
    wanted = "p.cluster = ? AND p.phase = ? AND p.begun < ?"
    values: list[Any] = [cluster, phase, before]
    if good is not None:
        wanted += " AND p.good = ?"
        values.append(int(good))
    if setups is not None:
        chosen = list(setups)[:MAX_VALUES]
        wanted += f" AND p.setup IN ({_places(chosen)})"
        values += chosen
    return _phase_runs(connection, wanted, values, "p.begun DESC, p.id DESC", limit)


def setup_ids(connection: Connection, setup: Setup, *, versions: bool = True) -> list[int]:
    """The rows of a setup; without `versions` also those of other versions, the newest first."""
    compared = Setup._fields if versions else Setup._fields[:2]
    wanted = " AND ".join(f"{name} = ?" for name in compared)
    rows = connection.execute(
        f"SELECT id FROM setups WHERE {wanted} ORDER BY id DESC", setup[: len(compared)]
    )
    return [int(row[0]) for row in rows if row[0] is not None]


def newest_setup(connection: Connection, cluster: str, phase: str, least: int) -> int | None:
    """The setup of the newest good run of those setups with so many good runs."""
    row = connection.execute(
        "SELECT setup FROM phases WHERE cluster = ? AND phase = ? AND good = 1 GROUP BY setup "
        "HAVING count(*) >= ? ORDER BY max(begun) DESC LIMIT 1",
        (cluster, phase, least),
    ).fetchone()
    return None if row is None or row[0] is None else int(row[0])


def _phase_runs(
    connection: Connection, wanted: str, values: list[Any], order: str, limit: int
) -> list[PhaseRun]:
    found = connection.execute(
        f"SELECT {_PHASE} FROM phases p JOIN runs r ON r.id = p.run JOIN setups s ON "
        f"s.id = p.setup WHERE {wanted} ORDER BY {order} LIMIT ?",
        (*values, limit),
    )
    rows = [row for row in found if row[0] is not None]
    metrics = _metrics(connection, [int(row[0]) for row in rows])
    return [_phase_run(row, metrics.get(int(row[0]), {})) for row in rows]


def _phase_run(row: tuple[Any, ...], metrics: dict[str, Measured]) -> PhaseRun:
    return PhaseRun(
        run_id=str(row[1]),
        cluster=str(row[2]),
        phase=str(row[3]),
        begun=_number(row[4]) or 0.0,
        good=bool(row[5]),
        outcome=str(row[6]),
        reason=str(row[7]),
        finding=str(row[8]),
        job_id=str(row[9]),
        queue_s=_number(row[10]),
        run_s=_number(row[11]),
        transport=str(row[12]),
        nodes=tuple(map(str, _json(row[13], list))),
        versions={str(name): str(value) for name, value in _json(row[14], dict).items()},
        criteria={str(name): str(value) for name, value in _json(row[15], dict).items()},
        setup=Setup(*map(str, row[16:])),
        metrics=metrics,
    )


def _metrics(connection: Connection, phases: list[int]) -> dict[int, dict[str, Measured]]:
    found: dict[int, dict[str, Measured]] = {}
    for part in _parts(phases):
        rows = connection.execute(
            "SELECT phase, name, value, unit, higher_is_better FROM metrics "
            f"WHERE phase IN ({_places(part)})",
            part,
        )
        for phase, name, value, unit, higher in rows:
            try:
                measured = Measured(float(value), str(unit), bool(higher))
            except (TypeError, ValueError):
                continue
            found.setdefault(int(phase), {})[str(name)] = measured
    return {phase: _in_order(metrics) for phase, metrics in found.items()}


def _in_order(metrics: dict[str, Measured]) -> dict[str, Measured]:
    """As people know them, those that are not known last."""
    known = {name: metrics[name] for name in METRICS if name in metrics}
    return {**known, **metrics}


def _parts(values: list[int]) -> Iterator[list[int]]:
    for start in range(0, len(values), MAX_VALUES):
        yield values[start : start + MAX_VALUES]


def _places(values: list[int]) -> str:
    return ", ".join("?" * len(values))


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _json(written: object, kind: type) -> Any:
    try:
        value = json.loads(written) if isinstance(written, str) else None
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, kind) else kind()
