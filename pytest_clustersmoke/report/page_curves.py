"""The curves of collectives as index.html shows them: each with the references that bound it."""

from __future__ import annotations

from dataclasses import dataclass

from ..config.metrics import CURVE_PLACES
from ..evidence.collective_curves import CurveRecord
from ..evidence.run_record import MetricRecord, PhaseRecord


@dataclass(frozen=True)
class CurveBound:
    """A metric with a reference that lies on a curve; at no size of its own it bounds the best."""

    metric: str
    collective: str
    figure: str  # busbw_gb_per_s, or seconds
    asked_bytes: int | None
    record: MetricRecord


@dataclass(frozen=True)
class CurvesView:
    """The curves of a phase; `runs` is how many past runs have a point at most."""

    curves: list[CurveRecord]
    bounds: list[CurveBound]
    runs: int


def curves_view(record: PhaseRecord) -> CurvesView:
    """The curves of a phase with their references."""
    names = {curve.collective for curve in record.collectives}
    bounds = [
        CurveBound(name, place.collective, place.figure, place.asked_bytes, metric)
        for name, metric in record.metrics.items()
        if (place := CURVE_PLACES.get(name)) and place.collective in names and metric.reference
    ]
    points = [point for curve in record.collectives for point in curve.points]
    runs = max((point.past.runs for point in points if point.past), default=0)
    return CurvesView(record.collectives, bounds, runs)
