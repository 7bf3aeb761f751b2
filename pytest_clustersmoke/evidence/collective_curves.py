"""The curves of collectives: bus bandwidth and time by message size, from what the ranks measured.

A rank program records a point with `rank.measured("collective", collective=..., asked_bytes=...,
size_bytes=..., seconds=..., algbw_gb_per_s=..., busbw_gb_per_s=..., wrong=...)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from ..text import sanitize_line
from .job_results import RankResult
from .run_counts import RecordModel
from .telemetry import parse_finite, parse_int, parse_text

# A ladder has four collectives of at most 28 sizes; a program that records more is cut.
MAX_CURVES, MAX_POINTS, MAX_NAME = 16, 64, 60
MOST_BYTES = 2**63  # SQLite has no larger integer


class RangeRecord(RecordModel):
    """The lowest, the median and the highest of past values."""

    low: float
    median: float
    high: float


class PastPointRecord(RecordModel):
    """A point of a curve in past good runs of the same setup. It is not judged."""

    runs: int
    busbw_gb_per_s: RangeRecord
    seconds: RangeRecord


class PointRecord(RecordModel):
    """A collective at one message size, as the definitions of nccl-tests have it."""

    asked_bytes: int = Field(description="the size that was asked for")
    size_bytes: int = Field(description="the same, rounded down to equal shares of the ranks")
    seconds: float = Field(description="of a call, on the slowest rank")
    algbw_gb_per_s: float
    busbw_gb_per_s: float
    wrong: int | None = Field(description="wrong elements, of all ranks; null: not checked")
    past: PastPointRecord | None = Field(default=None, description="null: not known")


class CurveRecord(RecordModel):
    """A collective by message size, the smallest first."""

    collective: str
    points: list[PointRecord]


Point = tuple[str, int]  # collective, bytes asked for


def read_curves(ranks: Sequence[RankResult]) -> list[CurveRecord]:
    """The points that every rank measured, by collective in the order in which they were first
    recorded."""
    found: dict[Point, dict[int, Mapping[str, Any]]] = {}
    for rank in ranks:
        for record in rank.measured("collective"):
            name = sanitize_line(parse_text(record.get("collective")) or "")
            asked = parse_int(record.get("asked_bytes"))
            if name and len(name) <= MAX_NAME and asked is not None and 0 < asked < MOST_BYTES:
                found.setdefault((name, asked), {})[rank.rank] = record
    curves: dict[str, list[PointRecord]] = {}
    for (name, asked), records in sorted(found.items(), key=lambda item: item[0][1]):
        point = _read_point(asked, list(records.values())) if len(records) == len(ranks) else None
        if point is not None and len(points := curves.setdefault(name, [])) < MAX_POINTS:
            points.append(point)
    order = [name for name in dict.fromkeys(name for name, _ in found) if name in curves]
    return [CurveRecord(collective=name, points=curves[name]) for name in order[:MAX_CURVES]]


def _read_point(asked: int, records: Sequence[Mapping[str, Any]]) -> PointRecord | None:
    """The point by its slowest rank; None if a value of a rank is missing or malformed."""
    figures = [
        [parse_finite(record.get(key)) for key in ("seconds", "algbw_gb_per_s", "busbw_gb_per_s")]
        for record in records
    ]
    size = parse_int(records[0].get("size_bytes"))
    whole = [row for row in figures if all(value is not None and value > 0 for value in row)]
    if size is None or not 0 < size < MOST_BYTES or len(whole) < len(figures):
        return None
    slowest = max(whole, key=lambda row: row[0] or 0.0)
    seconds, algbw, busbw = (float(value or 0.0) for value in slowest)
    wrong = [parse_int(record.get("wrong")) for record in records]
    known = [count for count in wrong if count is not None and 0 <= count < MOST_BYTES]
    return PointRecord(
        asked_bytes=asked,
        size_bytes=size,
        seconds=seconds,
        algbw_gb_per_s=algbw,
        busbw_gb_per_s=busbw,
        wrong=sum(known) if len(known) == len(wrong) else None,
    )
