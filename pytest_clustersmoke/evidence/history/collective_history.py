"""The curves of collectives in past runs: stored with a run, read to be shown beside tonight's.

They are not metrics, so that nothing judges them: a point at a small size varies from night to
night, and of a hundred points one always looks bad.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from sqlite3 import Connection

from ...config.metrics import CURVE_PLACES
from ..collective_curves import CurveRecord, PastPointRecord, Point, RangeRecord
from .accepted_levels import AcceptedLevel, read_accepted_levels
from .history_schema import WITH_CURVES, Setup, read_version, shorten_line
from .outlier_judge import WINDOW

Figures = tuple[float, float]  # GB/s, seconds


def insert_curves(connection: Connection, phase: int, curves: Iterable[CurveRecord]) -> None:
    """Store the points of these curves."""
    connection.execute("DELETE FROM curve_points WHERE phase = ?", (phase,))
    connection.executemany(
        "INSERT OR REPLACE INTO curve_points VALUES (?, ?, ?, ?, ?)",
        [
            (phase, name, point.asked_bytes, point.busbw_gb_per_s, point.seconds)
            for curve in curves
            for name in (shorten_line(curve.collective),)
            for point in curve.points
        ],
    )


def read_curve_past(
    connection: Connection, cluster: str, phase: str, setup: Setup, before: float
) -> dict[Point, PastPointRecord]:
    """Each point in the newest good runs of this setup that began before a time; at most WINDOW.
    Runs before an accepted level of the collective do not count."""
    if (read_version(connection) or 0) < WITH_CURVES:
        return {}
    since = _find_levels(read_accepted_levels(connection, cluster, phase, before))
    same = " AND ".join(f"{name} = ?" for name in Setup._fields)
    rows = connection.execute(
        "SELECT p.begun, c.collective, c.size_bytes, c.busbw_gb_per_s, c.seconds "
        "FROM curve_points c JOIN phases p ON p.id = c.phase WHERE c.phase IN "
        "(SELECT id FROM phases WHERE cluster = ? AND phase = ? AND good = 1 "
        f"AND setup = (SELECT id FROM setups WHERE {same}) AND begun < ? "
        "ORDER BY begun DESC, id DESC LIMIT ?)",
        (cluster, phase, *setup, before, WINDOW),
    )
    points: dict[Point, list[Figures]] = defaultdict(list)
    for begun, name, size, busbw, seconds in rows:
        if float(begun) >= since.get(name, since[""]):
            points[str(name), int(size)].append((float(busbw), float(seconds)))
    return {point: _summarize(figures) for point, figures in points.items()}


def read_run_curves(
    connection: Connection, cluster: str, phase: str
) -> dict[str, dict[Point, Figures]]:
    """The id of each past run of a phase -> the points of its curves."""
    if (read_version(connection) or 0) < WITH_CURVES:
        return {}
    rows = connection.execute(
        "SELECT r.run_id, c.collective, c.size_bytes, c.busbw_gb_per_s, c.seconds "
        "FROM curve_points c JOIN phases p ON p.id = c.phase JOIN runs r ON r.id = p.run "
        "WHERE p.cluster = ? AND p.phase = ?",
        (cluster, phase),
    )
    curves: dict[str, dict[Point, Figures]] = defaultdict(dict)
    for run_id, name, size, busbw, seconds in rows:
        curves[str(run_id)][str(name), int(size)] = float(busbw), float(seconds)
    return curves


def _find_levels(levels: Sequence[AcceptedLevel]) -> Mapping[str, float]:
    """Collective -> when a level of one of its metrics was last accepted; "" -> of all metrics."""
    whole = max((level.accepted for level in levels if not level.metric), default=float("-inf"))
    since = {"": whole}
    for level in levels:
        if place := CURVE_PLACES.get(level.metric):
            name = place.collective
            since[name] = max(level.accepted, since.get(name, whole))
    return since


def _summarize(figures: Sequence[Figures]) -> PastPointRecord:
    busbw, seconds = zip(*figures, strict=True)
    return PastPointRecord(runs=len(figures), busbw_gb_per_s=_range(busbw), seconds=_range(seconds))


def _range(values: Sequence[float]) -> RangeRecord:
    return RangeRecord(low=min(values), median=statistics.median(values), high=max(values))
