"""metrics.prom: the figures of the record as OpenMetrics text that is also Prometheus text format.

A node exporter's textfile collector reads the older format and accepts no timestamps, so everything
is a gauge. A verdict or an outcome is one series per possible value, 1 for the current value.
Names end in OpenMetrics' base units (seconds, bytes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, get_args

from ..config.metrics import METRICS
from ..evidence.collective_curves import Point
from ..evidence.history.collective_history import Figures
from ..evidence.history.history_query import PastRun, PhaseRun
from ..evidence.run_counts import Outcome, Result
from ..evidence.run_record import PhaseRecord, RunRecord
from ..text import sanitize_line
from .verdict import FIT, INCONCLUSIVE, NOT_PROVEN, PROVEN, UNFIT

PREFIX = "clustersmoke_"
FIT_MEANING = "1 if the selected phases found the cluster fit to train on, else 0"
BEGUN_MEANING = "When the run started"
WRITTEN_MEANING = "When the run was reported"
# The curves of collectives: gauge, help text, and the factor of the record's figure.
CURVE_GAUGES = (
    ("phase_collective_busbw_bytes_per_second", "Bus bandwidth of a collective at a size", 1e9),
    ("phase_collective_seconds", "Time of a collective at a size, on the slowest rank", 1),
)
CURVE_LABELS = ("phase", "collective", "size_bytes")
# Those of past runs: run id and phase -> the points.
PastCurves = Mapping[tuple[str, str], Mapping[Point, Figures]]
# The end of a name in METRICS, the OpenMetrics unit, and the factor between them. The first match
# counts.
UNITS: tuple[tuple[str, str, float], ...] = (
    ("_gb_per_s", "bytes_per_second", 1e9),
    ("tokens_per_s_per_rank", "tokens_per_second_per_rank", 1),
    ("steps_per_s", "steps_per_second", 1),
    ("samples_per_s", "samples_per_second", 1),
    ("_gib", "bytes", 2**30),
    ("_us", "seconds", 1e-6),
    ("_s", "seconds", 1),
)


class Gauge(NamedTuple):
    """A gauge; each sample has the values of the labels (without `cluster`) and a value."""

    name: str
    meaning: str
    labels: tuple[str, ...]
    samples: Iterable[tuple[tuple[str, ...], float | None]]


def render_metrics(record: RunRecord) -> str:
    """The text of metrics.prom. An unknown figure has no sample."""
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.openmetrics.exposition import generate_latest
    from prometheus_client.registry import CollectorRegistry

    families = []
    for gauge in (*_run_gauges(record), *_phase_gauges(record.phases)):
        units = (unit for _, unit, _ in UNITS if gauge.name.endswith(f"_{unit}"))
        labels, unit = ("cluster", *gauge.labels), next(units, "")
        family = GaugeMetricFamily(PREFIX + gauge.name, gauge.meaning, labels=labels, unit=unit)
        for values, value in gauge.samples:
            if value is not None:
                where = (record.cluster, *values)
                family.add_metric([sanitize_line(str(word)) for word in where], value)
        if family.samples:
            families.append(family)

    class Once:
        def collect(self) -> Iterator[Any]:
            return iter(families)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Once())
    text: str = generate_latest(registry).decode()
    return text


def render_backfill(
    runs: Iterable[PastRun],
    phases: Iterable[PhaseRun],
    curves: PastCurves | None = None,
) -> str:
    """Past runs with a timestamp each, when they began, for `promtool tsdb create-blocks-from
    openmetrics`. Runs of a part, incomplete ones and screens are left out, as they are by
    reports/metrics-<cluster>.prom; so are those of which there is no phase here."""
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.openmetrics.exposition import generate_latest

    # The samples of a series stand together.
    past = sorted(phases, key=lambda phase: (phase.cluster, phase.phase, phase.begun))
    having = {phase.run_id for phase in past}
    complete = (run for run in runs if not (run.selection or run.partial))
    whole = {run.run_id: run for run in complete if run.run_id in having}
    families: dict[str, GaugeMetricFamily] = {}

    def add(gauge: str, meaning: str, labels: dict[str, str], value: float, when: float) -> None:
        units = (unit for _, unit, _ in UNITS if gauge.endswith(f"_{unit}"))
        family = families.setdefault(
            gauge,
            GaugeMetricFamily(PREFIX + gauge, meaning, labels=[*labels], unit=next(units, "")),
        )
        family.add_metric([sanitize_line(word) for word in labels.values()], value, timestamp=when)

    for run in sorted(whole.values(), key=lambda run: (run.cluster, run.begun)):
        where = {"cluster": run.cluster}
        add("run_fit", FIT_MEANING, where, run.verdict == FIT, run.begun)
        add("run_begun_timestamp_seconds", BEGUN_MEANING, where, run.begun, run.begun)
        add("run_timestamp_seconds", WRITTEN_MEANING, where, run.written, run.begun)
    for phase in past:
        if phase.run_id in whole:
            where = {"cluster": phase.cluster, "phase": phase.phase}
            for gauge, meaning, value in _phase_figures(phase):
                add(gauge, meaning, where, value, phase.begun)
    having_curves = (phase for phase in past if phase.run_id in whole)
    for labels, begun, figures in _past_points(having_curves, curves or {}):
        where = dict(zip(("cluster", *CURVE_LABELS), labels, strict=True))
        for (gauge, meaning, factor), value in zip(CURVE_GAUGES, figures, strict=True):
            add(gauge, meaning, where, value * factor, begun)
    registry = CollectedFamilies(list(families.values()))
    return str(generate_latest(registry).decode())


def _past_points(
    phases: Iterable[PhaseRun], curves: PastCurves
) -> list[tuple[tuple[str, ...], float, Figures]]:
    """Labels, time and figures of each point of past curves, series by series."""
    points = [
        (phase.cluster, phase.phase, name, size, phase.begun, figures)
        for phase in phases
        for (name, size), figures in curves.get((phase.run_id, phase.phase), {}).items()
    ]
    return [
        ((cluster, phase, name, str(size)), begun, figures)
        for cluster, phase, name, size, begun, figures in sorted(points)
    ]


class CollectedFamilies(NamedTuple):
    """What `generate_latest` asks for."""

    families: list[Any]

    def collect(self) -> Iterator[Any]:
        return iter(self.families)


def _phase_figures(phase: PhaseRun) -> Iterator[tuple[str, str, float]]:
    """The gauges of a past phase: name, meaning, value."""
    for gauge, value in (
        ("phase_queue_seconds", phase.queue_s),
        ("phase_run_seconds", phase.run_s),
    ):
        if value is not None:
            yield gauge, PHASE_FIGURES[gauge][0], value
    for name, metric in phase.metrics.items():
        gauge, _, factor = gauge_of(name)
        meaning = METRICS[name].meaning if name in METRICS else name
        yield gauge, f"Measured: {meaning}", metric.value * factor


def gauge_of(metric: str) -> tuple[str, str, float]:
    """The gauge of a metric: its name without the prefix, its unit, and the factor.

    A metric without a unit in its name keeps its name and has no unit.
    """
    for end, unit, factor in UNITS:
        if metric.endswith(end):
            stem = metric.removesuffix(end).strip("_")
            return "_".join(filter(None, ("phase", stem, unit))), unit, factor
    return f"phase_{metric}", "", 1


def _run_gauges(record: RunRecord) -> Iterator[Gauge]:
    figures: dict[str, tuple[str, float]] = {
        "run_begun_timestamp_seconds": (BEGUN_MEANING, record.begun),
        "run_timestamp_seconds": (WRITTEN_MEANING, record.written),
        "run_partial": (
            "1 if the run did not finish",
            bool(record.interrupted or record.partial),
        ),
        "run_phases": ("Selected phases", len(record.phases_chosen)),
        "cluster_phases": ("Phases that the cluster runs", len(record.phases_of_cluster)),
        "run_failures": ("Failed phases and other failed tests", len(record.failed)),
        "run_not_measured": ("Required measurements that are missing", len(record.not_measured)),
        "run_known_failures": ("Failures that an entry of `known` covers", len(record.known)),
        "run_node_differences": ("Facts that differ between nodes", len(record.differences)),
    }
    if record.proof is None:
        figures["run_fit"] = FIT_MEANING, record.verdict == FIT
    for name, (meaning, value) in figures.items():
        yield Gauge(name, meaning, (), [((), value)])
    states = (FIT, UNFIT) if record.proof is None else (PROVEN, NOT_PROVEN)
    held = [((state,), float(state == record.verdict)) for state in (*states, INCONCLUSIVE)]
    yield Gauge("run_verdict", "1 for the verdict that holds", ("verdict",), held)
    labels = ("run_id", "backend", "version")
    about = (record.run_id, record.backend, record.package_version)
    yield Gauge("run_about", "What ran; the value is always 1", labels, [(about, 1)])


# Figures of each phase, by the gauge's name: the help text, and where the figure comes from.
PHASE_FIGURES: dict[str, tuple[str, Callable[[PhaseRecord], float | None]]] = {
    "phase_queue_seconds": ("From submission to start of the phase's job", lambda p: p.queue_s),
    "phase_run_seconds": ("Run time of the phase's job", lambda p: p.run_s),
    "phase_ranks": ("Ranks of the phase", lambda p: p.world_size),
    "phase_ranks_done": (
        "Ranks that finished",
        lambda p: sum(rank.done for rank in p.ranks),
    ),
    "phase_nodes": ("Nodes of the phase", lambda p: len(p.nodes)),
    "phase_links_unexpected": (
        "Links between ranks over an unexpected transport",
        lambda p: _unexpected_links(p),
    ),
}


def _phase_gauges(phases: list[PhaseRecord]) -> Iterator[Gauge]:
    for name, (meaning, figure) in PHASE_FIGURES.items():
        yield Gauge(name, meaning, ("phase",), [((p.phase,), figure(p)) for p in phases])
    outcomes = [
        ((p.phase, outcome), float(p.outcome == outcome))
        for p in phases
        for outcome in get_args(Outcome)
    ]
    meaning = "1 for the outcome of the phase's job"
    yield Gauge("phase_outcome", meaning, ("phase", "outcome"), outcomes)
    results = [
        ((p.phase, result), sum(criterion.result == result for criterion in p.criteria.values()))
        for p in phases
        for result in get_args(Result)
    ]
    meaning = "Criteria of the phase by result"
    yield Gauge("phase_criteria", meaning, ("phase", "result"), results)
    met = [((p.phase, name), metric.met) for p in phases for name, metric in p.metrics.items()]
    meaning = "1 if the metric is within its reference's bounds, else 0"
    yield Gauge("phase_reference_met", meaning, ("phase", "metric"), met)
    for name in dict.fromkeys(name for p in phases for name in p.metrics):
        gauge, _, factor = gauge_of(name)
        meaning = METRICS[name].meaning if name in METRICS else name
        having = [p for p in phases if name in p.metrics]
        values = [((p.phase,), float(p.metrics[name].value) * factor) for p in having]
        yield Gauge(gauge, f"Measured: {meaning}", ("phase",), values)
    yield from _curve_gauges(phases)


def _curve_gauges(phases: list[PhaseRecord]) -> Iterator[Gauge]:
    points = [
        ((phase.phase, curve.collective, str(point.asked_bytes)), point)
        for phase in phases
        for curve in phase.collectives
        for point in curve.points
    ]
    for at, (name, meaning, factor) in enumerate(CURVE_GAUGES):
        values = [
            (labels, (point.busbw_gb_per_s, point.seconds)[at] * factor) for labels, point in points
        ]
        yield Gauge(name, meaning, CURVE_LABELS, values)


def _unexpected_links(phase: PhaseRecord) -> int | None:
    groups = phase.topology.groups if phase.topology else []
    return sum(group.unexpected for group in groups) if groups else None
