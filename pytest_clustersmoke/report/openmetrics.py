"""metrics.prom: the record's figures as OpenMetrics text, which Prometheus's own format is part of.

A node exporter's textfile collector reads the older format and wants no timestamps, so everything
is a gauge: a verdict and an outcome are one series for each value they can have, 1 for the one that
holds. Units are those of OpenMetrics (seconds, bytes), told in the name.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, get_args

from .. import clean
from ..telemetry import METRICS, number
from ..verdict import FIT, INCONCLUSIVE, NOT_PROVEN, PROVEN, UNFIT
from .model import Outcome, Result

if TYPE_CHECKING:
    from .model import PhaseRecord, RunRecord

PREFIX = "clustersmoke_"
# How a name of telemetry.METRICS ends, how OpenMetrics has it, and the factor between their units.
# The first that fits holds.
UNITS: tuple[tuple[str, str, float], ...] = (
    ("_gb_per_s", "bytes_per_second", 1e9),
    ("tokens_per_s_per_rank", "tokens_per_second_per_rank", 1),
    ("steps_per_s", "steps_per_second", 1),
    ("samples_per_s", "samples_per_second", 1),
    ("_gib", "bytes", 2**30),
    ("_us", "seconds", 1e-6),
    ("_s", "seconds", 1),
)
# A gauge: its name, what it says, its unit where it has one, its labels beside `cluster`, and its
# samples: the values of those labels, and the value.
Samples = Iterable[tuple[tuple[str, ...], float | None]]
Gauge = tuple[str, str, str, tuple[str, ...], Samples]


def exposition(record: RunRecord) -> str:
    """The text of metrics.prom. A figure that is not known has no sample."""
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.openmetrics.exposition import generate_latest
    from prometheus_client.registry import CollectorRegistry

    families = []
    for name, told, unit, labels, samples in (*_of_run(record), *_of_phases(record["phases"])):
        family = GaugeMetricFamily(PREFIX + name, told, labels=("cluster", *labels), unit=unit)
        for values, value in samples:
            if value is not None:
                where = (record["cluster"], *values)
                family.add_metric([clean.line(str(word)) for word in where], value)
        if family.samples:
            families.append(family)

    class Once:
        def collect(self) -> Iterator[Any]:
            return iter(families)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Once())
    text: str = generate_latest(registry).decode()
    return text


def gauge_of(metric: str) -> tuple[str, str, float]:
    """The gauge that shows a metric: its name without the prefix, its unit, and the factor.

    A metric without a unit in its name keeps its name and has none.
    """
    for end, unit, factor in UNITS:
        if metric.endswith(end):
            stem = metric.removesuffix(end).strip("_")
            return "_".join(filter(None, ("phase", stem, unit))), unit, factor
    return f"phase_{metric}", "", 1


def _of_run(record: RunRecord) -> Iterator[Gauge]:
    states = (PROVEN, NOT_PROVEN, INCONCLUSIVE) if "proof" in record else (FIT, UNFIT, INCONCLUSIVE)
    verdict, phases = record["verdict"], record["phases"]
    if "proof" not in record:
        fit = "1 where the chosen phases found the cluster fit to train on, else 0"
        yield "run_fit", fit, "", (), [((), verdict == FIT)]
    held = [((state,), state == verdict) for state in states]
    yield "run_verdict", "1 for the verdict that holds", "", ("verdict",), held
    began, written = record["begun"], record["written"]
    yield "run_begun_timestamp_seconds", "When the run began", "seconds", (), [((), began)]
    yield "run_timestamp_seconds", "When the run was reported", "seconds", (), [((), written)]
    cut = bool(record["interrupted"] or record["partial"])
    yield "run_partial", "1 where the run did not come to its end", "", (), [((), cut)]
    about = (record["run_id"], record["backend"], record["package_version"])
    labels = ("run_id", "backend", "version")
    yield "run_about", "What ran; the value is always 1", "", labels, [(about, 1)]
    yield "run_phases", "Phases that were chosen", "", (), [((), len(record["phases_chosen"]))]
    every = [((), len(record["phases_of_cluster"]))]
    yield "cluster_phases", "Phases that the cluster runs", "", (), every
    failed = [((), len(record["failed"]))]
    yield "run_failures", "Phases, or other tests, that failed", "", (), failed
    told = "What was required and not measured"
    yield "run_not_measured", told, "", (), [((), len(record["not_measured"]))]
    known = [((), len(record["known"]))]
    yield "run_known_failures", "Failures that are acknowledged until a day", "", (), known
    differing = [((), len(record["differences"]))]
    yield "run_node_differences", "Facts in which nodes differ", "", (), differing
    yield (
        "phase_outcome",
        "1 for the outcome that the phase's job had",
        "",
        ("phase", "outcome"),
        [((p["phase"], one), p["outcome"] == one) for p in phases for one in get_args(Outcome)],
    )


def _of_phases(phases: list[PhaseRecord]) -> Iterator[Gauge]:
    def each(key: str) -> Samples:
        return [((one["phase"],), _number(one.get(key))) for one in phases]

    waited = "From submission to start of the phase's job"
    yield "phase_queue_seconds", waited, "seconds", ("phase",), each("queue_s")
    yield "phase_run_seconds", "Run time of the phase's job", "seconds", ("phase",), each("run_s")
    yield "phase_ranks", "Ranks of the phase", "", ("phase",), each("world_size")
    done = [((p["phase"],), sum(rank["done"] for rank in p["ranks"])) for p in phases]
    yield "phase_ranks_done", "Ranks that came to their end", "", ("phase",), done
    nodes = [((p["phase"],), len(p["nodes"])) for p in phases]
    yield "phase_nodes", "Nodes of the phase", "", ("phase",), nodes
    yield (
        "phase_criteria",
        "Criteria of the phase by their result",
        "",
        ("phase", "result"),
        [((p["phase"], result), count) for p in phases for result, count in _results(p)],
    )
    unexpected = [
        ((p["phase"],), sum(group["unexpected"] for group in topology["groups"]))
        for p in phases
        if (topology := p["topology"]) is not None and topology["groups"]
    ]
    told = "Links between ranks over a transport that is not expected"
    yield "phase_links_unexpected", told, "", ("phase",), unexpected
    yield from _measured(phases)


def _results(phase: PhaseRecord) -> list[tuple[str, int]]:
    counts = Counter(one["result"] for one in phase["criteria"].values())
    return [(result, counts[result]) for result in get_args(Result)]


def _measured(phases: list[PhaseRecord]) -> Iterator[Gauge]:
    """Each metric as a gauge of its own, and how it compares with its reference."""
    names = dict.fromkeys(name for phase in phases for name in phase["metrics"])
    for name in names:
        gauge, unit, factor = gauge_of(name)
        having = [phase for phase in phases if name in phase["metrics"]]
        meaning = METRICS[name].meaning if name in METRICS else name
        values = [((p["phase"],), _scaled(p["metrics"][name]["value"], factor)) for p in having]
        yield gauge, f"Measured: {meaning}", unit, ("phase",), values
    yield (
        "phase_reference_met",
        "1 where the metric is within its reference's bounds, 0 where it is not",
        "",
        ("phase", "metric"),
        [
            ((phase["phase"], name), met)
            for phase in phases
            for name, one in phase["metrics"].items()
            if (met := one["met"]) is not None
        ],
    )


def _scaled(value: Any, factor: float) -> float | None:
    known = number(value)
    return None if known is None else known * factor


def _number(value: Any) -> float | None:
    known = number(value)
    return known if known is not None and math.isfinite(known) else None
