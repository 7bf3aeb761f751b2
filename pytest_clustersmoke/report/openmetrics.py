"""metrics.prom: the figures of the record as OpenMetrics text that is also Prometheus text format.

A node exporter's textfile collector reads the older format and accepts no timestamps, so everything
is a gauge. A verdict or an outcome is one series per possible value, 1 for the current value.
Names end in OpenMetrics' base units (seconds, bytes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_args

from ..config.metrics import METRICS
from ..evidence.run_counts import Outcome, Result
from ..evidence.run_record import MetricRecord, PhaseRecord, RunRecord
from ..text import sanitize_line
from .node_ledger import DAYS
from .node_standing import MAX_NODES, STATES, NodeStanding
from .verdict import FIT, INCONCLUSIVE, NOT_PROVEN, PROVEN, UNFIT

PREFIX = "clustersmoke_"
FIT_MEANING = "1 if the selected phases found the cluster fit to train on, else 0"
BEGUN_MEANING = "When the run started"
WRITTEN_MEANING = "When the run was reported"
VERDICT_MEANING = "1 for the verdict that holds"
OUTCOME_MEANING = "1 for the outcome of the phase's job"
CRITERIA_MEANING = "Criteria of the phase by result"
MET_MEANING = "1 if the metric is within its reference's bounds, else 0"
REFERENCE_MEANING = "The metric divided by its reference"
STATE_MEANING = "1 for what the newest run that had the node saw of it"
NAMED_MEANING = f"Runs of the last {DAYS:g} days in which the node was bad"
LEFT_OUT_MEANING = "1 if the evidence of past runs is enough to leave the node out, else 0"
NODES_MEANING = f"Nodes of the last {DAYS:g} days by what the newest run saw of them"
PAST_MEANING = "The metric divided by the median of earlier good runs of the same setup"
# The curves of collectives: gauge, help text, and the factor of the record's figure.
CURVE_GAUGES = (
    ("phase_collective_busbw_bytes_per_second", "Bus bandwidth of a collective at a size", 1e9),
    ("phase_collective_seconds", "Time of a collective at a size, on the slowest rank", 1),
)
CURVE_LABELS = ("phase", "collective", "size_bytes")
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

    def list_known(self, cluster: str) -> Iterator[tuple[dict[str, str], float]]:
        """The labels of each sample, `cluster` first, and its value, unless that is unknown."""
        for values, value in self.samples:
            if value is not None:
                yield dict(zip(("cluster", *self.labels), (cluster, *values), strict=True)), value


class GaugeTable:
    """Gauges with their samples, in the order in which they were added."""

    def __init__(self) -> None:
        self._families: dict[str, Any] = {}

    def add(
        self,
        gauge: str,
        meaning: str,
        labels: Mapping[str, str],
        value: float,
        when: float | None = None,
    ) -> None:
        """Add a sample; `when` is its time in Unix seconds, if it has one."""
        from prometheus_client.core import GaugeMetricFamily

        if gauge not in self._families:
            unit = next((unit for _, unit, _ in UNITS if gauge.endswith(f"_{unit}")), "")
            self._families[gauge] = GaugeMetricFamily(
                PREFIX + gauge, meaning, labels=[*labels], unit=unit
            )
        words = [sanitize_line(str(word)) for word in labels.values()]
        self._families[gauge].add_metric(words, value, timestamp=when)

    def collect(self) -> Iterator[Any]:
        """What `generate_latest` asks for."""
        return iter(self._families.values())

    def render(self) -> str:
        """The gauges as OpenMetrics text."""
        from prometheus_client.openmetrics.exposition import generate_latest

        text: str = generate_latest(self).decode()
        return text


def render_metrics(record: RunRecord, standings: Sequence[NodeStanding] = ()) -> str:
    """The text of metrics.prom; `standings` are those of the cluster's nodes after the run. An
    unknown figure has no sample."""
    table = GaugeTable()
    gauges = (
        *_run_gauges(record),
        *_phase_gauges(record.phases),
        *list_node_gauges(standings),
    )
    for gauge in gauges:
        for labels, value in gauge.list_known(record.cluster):
            table.add(gauge.name, gauge.meaning, labels, value)
    return table.render()


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
    yield Gauge("run_verdict", VERDICT_MEANING, ("verdict",), held)
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
    yield Gauge("phase_outcome", OUTCOME_MEANING, ("phase", "outcome"), outcomes)
    results = [
        ((p.phase, result), sum(criterion.result == result for criterion in p.criteria.values()))
        for p in phases
        for result in get_args(Result)
    ]
    yield Gauge("phase_criteria", CRITERIA_MEANING, ("phase", "result"), results)
    metrics = [((p.phase, name), metric) for p in phases for name, metric in p.metrics.items()]
    for gauge, meaning, judge in (
        ("phase_reference_met", MET_MEANING, lambda metric: metric.met),
        ("phase_reference_ratio", REFERENCE_MEANING, _divide_by_reference),
        ("phase_past_ratio", PAST_MEANING, _divide_by_past),
    ):
        judged = [(where, judge(metric)) for where, metric in metrics]
        yield Gauge(gauge, meaning, ("phase", "metric"), judged)
    for name in dict.fromkeys(name for p in phases for name in p.metrics):
        gauge, _, factor = gauge_of(name)
        having = [p for p in phases if name in p.metrics]
        values = [((p.phase,), float(p.metrics[name].value) * factor) for p in having]
        yield Gauge(gauge, describe_metric(name), ("phase",), values)
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


def describe_metric(name: str) -> str:
    """The help text of a metric's gauge."""
    return f"Measured: {METRICS[name].meaning if name in METRICS else name}"


def divide(value: float, level: float | None) -> float | None:
    """How many times the level a value is; None without a level, or for one of 0."""
    return value / level if level else None


def _divide_by_reference(metric: MetricRecord) -> float | None:
    """None unless the reference is of the phase's sizes, so that it judges the metric."""
    reference = metric.reference if metric.met is not None else None
    return divide(float(metric.value), reference.value) if reference is not None else None


def _divide_by_past(metric: MetricRecord) -> float | None:
    """None also where only runs on other versions are known."""
    past = metric.past
    if past is None or past.get("other_versions"):
        return None
    return divide(float(metric.value), past["median"])


def _unexpected_links(phase: PhaseRecord) -> int | None:
    groups = phase.topology.groups if phase.topology else []
    return sum(group.unexpected for group in groups) if groups else None


def list_node_gauges(standings: Sequence[NodeStanding]) -> Iterator[Gauge]:
    """The gauges of a cluster's nodes, the worst of which come first: of each of at most MAX_NODES,
    and how many there are in all."""
    if not standings:
        return
    listed = standings[:MAX_NODES]
    states = [
        ((each.node, state), float(each.state == state)) for each in listed for state in STATES
    ]
    yield Gauge("node_state", STATE_MEANING, ("node", "state"), states)
    named = [((each.node,), each.named_runs) for each in listed]
    yield Gauge("node_named_runs", NAMED_MEANING, ("node",), named)
    left_out = [((each.node,), float(each.is_left_out)) for each in listed]
    yield Gauge("node_left_out", LEFT_OUT_MEANING, ("node",), left_out)
    counts = [((state,), sum(each.state == state for each in standings)) for state in STATES]
    yield Gauge("cluster_nodes", NODES_MEANING, ("state",), counts)
