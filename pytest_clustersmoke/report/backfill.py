"""Past runs as OpenMetrics text with timestamps, to fill Prometheus with the nights before.

Each sample has the time when its run began. The gauges are those of metrics.prom, as far as the
history has their figures.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from sqlite3 import Connection
from typing import get_args

from ..evidence.collective_curves import Point
from ..evidence.history.collective_history import Figures
from ..evidence.history.history_query import PastRun, PhaseRun, StoredMetric, read_phase_runs
from ..evidence.history.outlier_judge import WINDOW, measure_level
from ..evidence.node_observation import PastObservation
from ..evidence.run_counts import Outcome, Result
from .node_ledger import ByNode
from .node_standing import SPAN_S, hide_names, judge_nodes
from .openmetrics import (
    BEGUN_MEANING,
    CRITERIA_MEANING,
    CURVE_GAUGES,
    CURVE_LABELS,
    FIT_MEANING,
    MET_MEANING,
    OUTCOME_MEANING,
    PAST_MEANING,
    PHASE_FIGURES,
    REFERENCE_MEANING,
    VERDICT_MEANING,
    WRITTEN_MEANING,
    GaugeTable,
    describe_metric,
    divide,
    gauge_of,
    list_node_gauges,
)
from .redaction import Redactor
from .verdict import FIT, INCONCLUSIVE, UNFIT

Medians = Mapping[str, float]  # metric -> median of the good runs before, in the metric's unit


@dataclass(frozen=True)
class PastPhase:
    """A phase of a past run, those of its metrics that are wanted, the level of each that it was
    compared with, and the curves of its collectives."""

    run: PhaseRun
    wanted: Collection[str]
    medians: Medians
    curves: Mapping[Point, Figures] = field(default_factory=dict)

    @property
    def metrics(self) -> dict[str, StoredMetric]:
        return {name: each for name, each in self.run.metrics.items() if name in self.wanted}


def find_medians(connection: Connection, run: PhaseRun) -> Medians:
    """The median of each metric over the good runs of its setup before a run; without those of too
    few runs."""
    key = (connection, run.cluster, run.phase)
    same = read_phase_runs(*key, before=run.begun, good=True, setup=run.setup, limit=WINDOW)
    medians = {}
    for name, metric in run.metrics.items():
        values = (past.value(name, metric.unit) for past in same)
        level = measure_level(value for value in values if value is not None)
        if level is not None:
            medians[name] = level.median
    return medians


def render_backfill(
    runs: Iterable[PastRun],
    phases: Iterable[PastPhase],
    nodes: Mapping[str, ByNode] | None = None,
    redactor: Redactor | None = None,
) -> str:
    """Complete past runs for `promtool tsdb create-blocks-from openmetrics`. Runs of a part,
    incomplete ones and screens are left out, as they are by reports/metrics-<cluster>.prom; so are
    those of which there is no phase here. `nodes` is what was observed of each cluster's nodes, and
    a `redactor` hides in their names what must not be published."""
    past = sorted(phases, key=lambda phase: (phase.run.cluster, phase.run.phase, phase.run.begun))
    having = {phase.run.run_id for phase in past}
    complete = (run for run in runs if not (run.selection or run.partial))
    listed = sorted(
        (run for run in complete if run.run_id in having),
        key=lambda run: (run.cluster, run.begun),
    )
    names = {run.run_id for run in listed}
    table = _SeriesTable()
    for run in listed:
        _add_run(table, run)
    for phase in past:
        if phase.run.run_id in names:
            _add_phase(table, phase)
    for run in listed:
        _add_nodes(table, run, (nodes or {}).get(run.cluster, {}), redactor)
    return table.render()


class _SeriesTable:
    """Samples by gauge and labels: those of a series stand together, as OpenMetrics wants it."""

    def __init__(self) -> None:
        self._series: dict[str, dict[tuple[str, ...], list[tuple[float, float]]]] = {}
        self._about: dict[str, tuple[str, tuple[str, ...]]] = {}

    def add(
        self, gauge: str, meaning: str, labels: Mapping[str, str], value: float, when: float
    ) -> None:
        self._about.setdefault(gauge, (meaning, tuple(labels)))
        series = self._series.setdefault(gauge, {})
        series.setdefault(tuple(labels.values()), []).append((value, when))

    def render(self) -> str:
        table = GaugeTable()
        for gauge, series in self._series.items():
            meaning, names = self._about[gauge]
            for words, samples in series.items():
                labels = dict(zip(names, words, strict=True))
                for value, when in samples:
                    table.add(gauge, meaning, labels, value, when)
        return table.render()


def _add_run(table: _SeriesTable, run: PastRun) -> None:
    where = {"cluster": run.cluster}
    table.add("run_fit", FIT_MEANING, where, run.verdict == FIT, run.begun)
    table.add("run_begun_timestamp_seconds", BEGUN_MEANING, where, run.begun, run.begun)
    table.add("run_timestamp_seconds", WRITTEN_MEANING, where, run.written, run.begun)
    for verdict in (FIT, UNFIT, INCONCLUSIVE):
        held = float(run.verdict == verdict)
        table.add("run_verdict", VERDICT_MEANING, {**where, "verdict": verdict}, held, run.begun)


def _add_phase(table: _SeriesTable, phase: PastPhase) -> None:
    run = phase.run
    where = {"cluster": run.cluster, "phase": run.phase}
    for outcome in get_args(Outcome):
        held = float(run.outcome == outcome)
        table.add("phase_outcome", OUTCOME_MEANING, {**where, "outcome": outcome}, held, run.begun)
    results = Counter(run.criteria.values())
    for result in get_args(Result):
        labels = {**where, "result": result}
        table.add("phase_criteria", CRITERIA_MEANING, labels, results[result], run.begun)
    times = {"phase_queue_seconds": run.queue_s, "phase_run_seconds": run.run_s}
    for gauge, seconds in times.items():
        if seconds is not None:
            table.add(gauge, PHASE_FIGURES[gauge][0], where, seconds, run.begun)
    for name, metric in phase.metrics.items():
        gauge, _, factor = gauge_of(name)
        table.add(gauge, describe_metric(name), where, metric.value * factor, run.begun)
    for gauge, meaning, name, value in _compare(phase):
        table.add(gauge, meaning, {**where, "metric": name}, value, run.begun)
    for (name, size), figures in sorted(phase.curves.items()):
        point = dict(zip(CURVE_LABELS, (run.phase, name, str(size)), strict=True))
        for (gauge, meaning, factor), figure in zip(CURVE_GAUGES, figures, strict=True):
            labels = {"cluster": run.cluster, **point}
            table.add(gauge, meaning, labels, figure * factor, run.begun)


def _compare(phase: PastPhase) -> Iterator[tuple[str, str, str, float]]:
    """The gauges of each metric against its reference and its past: name, meaning, metric,
    value."""
    for name, metric in phase.metrics.items():
        figures = (
            ("phase_reference_met", MET_MEANING, metric.met),
            ("phase_reference_ratio", REFERENCE_MEANING, divide(metric.value, metric.reference)),
            ("phase_past_ratio", PAST_MEANING, divide(metric.value, phase.medians.get(name))),
        )
        for gauge, meaning, value in figures:
            if value is not None:
                yield gauge, meaning, name, float(value)


def _add_nodes(
    table: _SeriesTable, run: PastRun, by_node: ByNode, redactor: Redactor | None
) -> None:
    """The nodes as they stood when the run was reported."""
    seen = {node: _cut(history, run) for node, history in by_node.items()}
    before = {node: history for node, history in seen.items() if history}
    for gauge in list_node_gauges(hide_names(judge_nodes(before, run.written), redactor)):
        for labels, value in gauge.list_known(run.cluster):
            table.add(gauge.name, gauge.meaning, labels, value, run.begun)


def _cut(history: Sequence[PastObservation], run: PastRun) -> Sequence[PastObservation]:
    """What was observed of a node in the SPAN_S before, the newest first."""
    start = bisect_left(history, -run.begun, key=lambda seen: -seen.seen)
    end = bisect_right(history, SPAN_S - run.written, key=lambda seen: -seen.seen)
    return history[start:end]
