"""The newest runs of each cluster with their phases, for the page over runs.

The runs of a cluster take one query and their phases another, both by an index, so that the time
does not grow with the years of the history.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from sqlite3 import Connection, Row

from ..telemetry import parse_offset
from .history_query import WITH_PHASES
from .history_schema import (
    WITH_ATTEMPTS,
    WITH_OFFSET,
    WITH_PUBLISH,
    WITH_REFERENCES,
    WITH_UNMEASURED,
    Setup,
    read_version,
)
from .setup_changes import describe_setup_changes

# The metric that stands for a phase: the first of these that it has.
HEADLINES = ("busbw_gb_per_s", "steps_per_s")
# Of runs: those whose verdict judges the cluster.
_WHOLE = f"selection = '' AND {WITH_PHASES}"
MAX_OLDER = 200  # kept reports of a cluster that are older than its newest runs
# A variable of SQLite for each; it has at least 999.
_MOST_IDS = 900


@dataclass(frozen=True)
class Headline:
    """The metric that stands for a phase, with the reference that it was judged by, if any."""

    name: str
    value: float
    unit: str
    reference: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class ListedPhase:
    """A phase of a listed run: how its job ended, and how its criteria did."""

    outcome: str
    good: bool
    finding: str
    reason: str
    failed: int
    known: int
    run_s: float | None
    nodes: tuple[str, ...]
    setup: Setup
    versions: Mapping[str, str]
    headline: Headline | None
    attempts: int = 1  # jobs that it took
    unmeasured: str = ""  # the required kinds of criteria that it did not measure

    def describe_changes(self, before: ListedPhase) -> list[str]:
        """What changed since an earlier run of the phase: versions, hardware, arguments."""
        setup = self.setup
        return describe_setup_changes(before, setup.hardware, setup.shape, self.versions)


@dataclass(frozen=True)
class ListedRun:
    """A run, with its phases by name. `begun` and `written` are in Unix seconds."""

    id: int
    run_id: str
    begun: float
    written: float
    verdict: str
    sentence: str
    selection: str
    interrupted: bool
    partial: str
    publish: str = ""  # `limits.publish` of its profile; empty: unknown
    utc_offset_s: int | None = None  # of the local time where it began; None: unknown
    phases: dict[str, ListedPhase] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether it judges the cluster: not a run of selected phases, and not a screen."""
        return bool(self.phases) and not self.selection


@dataclass(frozen=True)
class ClusterRuns:
    """The runs of a cluster, the newest first: the newest that ran phases, so that hourly screens
    do not hide the nights (the newest of any kind where none ran phases); and others, which are
    the newest screens, those that were asked for, and the newest whole one. `total` is how many the
    history has."""

    cluster: str
    total: int
    newest: Sequence[ListedRun]
    others: Sequence[ListedRun]


def read_newest_runs(
    connection: Connection, limit: int, kept: Collection[str] = ()
) -> list[ClusterRuns]:
    """The newest runs of each cluster, and others whose id is in `kept`; the cluster with the
    newest run comes first."""
    counts = connection.execute(
        "SELECT cluster, count(*) FROM runs GROUP BY cluster ORDER BY max(begun) DESC"
    ).fetchall()
    ids = sorted(kept, reverse=True)[:_MOST_IDS]
    return [_read_cluster(connection, str(cluster), total, limit, ids) for cluster, total in counts]


def _read_cluster(
    connection: Connection, cluster: str, total: int, limit: int, kept: Sequence[str]
) -> ClusterRuns:
    columns = "id, run_id, begun, written, verdict, sentence, selection, interrupted, partial, "
    columns += _name_columns(read_version(connection) or 0)

    def read(condition: str, limit: int, ids: Sequence[str] = ()) -> list[Row]:
        order = "ORDER BY begun DESC, id DESC LIMIT ?"
        text = f"SELECT {columns} FROM runs WHERE cluster = ? AND {condition} {order}"
        return connection.execute(text, (cluster, *ids, limit)).fetchall()

    newest = read(WITH_PHASES, limit) or read("TRUE", limit)
    shown = {str(row["run_id"]) for row in newest}
    found = [*read("TRUE", limit), *read(_WHOLE, 1)]
    asked = [run_id for run_id in kept if run_id not in shown]
    found += read(f"run_id IN ({', '.join('?' * len(asked))})", MAX_OLDER, asked)
    others = {row["id"]: row for row in found if row["run_id"] not in shown}
    order = sorted(others.values(), key=lambda row: (row["begun"], row["id"]), reverse=True)
    runs = [_parse_run(row) for row in (*newest, *order)]
    by_id = {run.id: run for run in runs}
    for run, phase, made in _read_phases(connection, list(by_id)):
        by_id[run].phases[phase] = made
    return ClusterRuns(cluster, int(total), runs[: len(newest)], runs[len(newest) :])


def _name_columns(version: int) -> str:
    """Those that older databases lack."""
    added = {"publish": WITH_PUBLISH, "utc_offset_s": WITH_OFFSET}
    return ", ".join(
        name if version >= since else f"NULL AS {name}" for name, since in added.items()
    )


def _parse_run(row: Row) -> ListedRun:
    return ListedRun(
        id=int(row["id"]),
        run_id=str(row["run_id"]),
        begun=float(row["begun"]),
        written=float(row["written"]),
        verdict=str(row["verdict"]),
        sentence=str(row["sentence"]),
        selection=str(row["selection"]),
        interrupted=bool(row["interrupted"]),
        partial=str(row["partial"]),
        publish=str(row["publish"] or ""),
        utc_offset_s=parse_offset(row["utc_offset_s"]),
    )


def _read_phases(
    connection: Connection, runs: Sequence[int]
) -> Iterator[tuple[int, str, ListedPhase]]:
    """The phases of these runs, with the id of the run's row."""
    bounds = "m.reference, m.low, m.high"
    version = read_version(connection) or 0
    added = "p.attempts" if version >= WITH_ATTEMPTS else "1 AS attempts"
    added += ", p.unmeasured" if version >= WITH_UNMEASURED else ", '' AS unmeasured"
    if version < WITH_REFERENCES:
        bounds = "NULL AS reference, NULL AS low, NULL AS high"
    setup = ", ".join(f"s.{name}" for name in Setup._fields)
    names = ", ".join(f"'{name}'" for name in HEADLINES)
    for start in range(0, len(runs), _MOST_IDS):
        some = runs[start : start + _MOST_IDS]
        rows = connection.execute(
            "SELECT p.run, p.phase, p.outcome, p.good, p.finding, p.reason, p.failed, p.known, "
            f"p.run_s, p.nodes, p.versions, {added}, {setup}, m.name, m.value, m.unit, {bounds} "
            "FROM phases p JOIN setups s ON s.id = p.setup "
            f"LEFT JOIN metrics m ON m.phase = p.id AND m.name IN ({names}) "
            f"WHERE p.run IN ({', '.join('?' * len(some))}) ORDER BY p.run, p.id, "
            f"m.name = '{HEADLINES[0]}'",
            some,
        )
        for row in rows:
            yield int(row["run"]), str(row["phase"]), _parse_phase(row)


def _parse_phase(row: Row) -> ListedPhase:
    """A phase; of several rows, one for each metric, the last one has the first of HEADLINES."""
    versions: dict[str, str] = json.loads(row["versions"])
    return ListedPhase(
        outcome=str(row["outcome"]),
        good=bool(row["good"]),
        finding=str(row["finding"]),
        reason=str(row["reason"]),
        failed=int(row["failed"]),
        known=int(row["known"]),
        run_s=_parse_number(row["run_s"]),
        nodes=tuple(map(str, json.loads(row["nodes"]))),
        setup=Setup(*(str(row[name]) for name in Setup._fields)),
        versions={name: str(value) for name, value in versions.items()},
        headline=_parse_headline(row),
        attempts=int(row["attempts"]),
        unmeasured=str(row["unmeasured"]),
    )


def _parse_headline(row: Row) -> Headline | None:
    if row["name"] is None:
        return None
    bounds = (_parse_number(row[name]) for name in ("reference", "low", "high"))
    return Headline(str(row["name"]), float(row["value"]), str(row["unit"]), *bounds)


def _parse_number(value: object) -> float | None:
    return None if value is None else float(str(value))


def find_last_verdicts(connection: Connection, verdicts: Collection[str]) -> set[str]:
    """The ids of each cluster's newest run of each of these verdicts: of all runs, and of those
    that are complete and of all phases."""
    clusters = [str(name) for (name,) in connection.execute("SELECT DISTINCT cluster FROM runs")]
    found = set()
    for cluster, verdict, kind in product(clusters, verdicts, ("1", f"partial = '' AND {_WHOLE}")):
        row = connection.execute(
            f"SELECT run_id FROM runs WHERE cluster = ? AND verdict = ? AND {kind} "
            "ORDER BY begun DESC, id DESC LIMIT 1",
            (cluster, verdict),
        ).fetchone()
        found |= {str(row[0])} if row else set()
    return found
