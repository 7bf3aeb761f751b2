"""Two runs side by side: what differs, and by how much."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from sqlite3 import Connection
from typing import Any

from ..config.metrics import show
from ..evidence.history.history_query import PastRun, PhaseRun, read_phase_runs, read_phases
from ..evidence.history.outlier_judge import LEAST, WARN_SPREADS, WINDOW, measure_level
from ..evidence.history.setup_changes import (
    describe_node_changes,
    describe_setup_changes,
    list_names,
)
from ..evidence.telemetry import to_json_value

NONE = "none"


@dataclass(frozen=True)
class MetricPair:
    """A metric in both runs; None if a run does not have it. It differs if the values are at least
    `bound` apart, in the metric's unit."""

    metric: str
    unit: str
    first: float | None
    second: float | None
    bound: float
    higher_is_better: bool

    @property
    def percent(self) -> float | None:
        """The difference in percent of the first."""
        if self.first is None or self.second is None or not self.first:
            return None
        share = (self.second - self.first) / abs(self.first) * 100
        return share if math.isfinite(share) else None

    @property
    def differs(self) -> bool:
        if self.first is None or self.second is None:
            return True
        if not (math.isfinite(self.first) and math.isfinite(self.second)):
            return str(self.first) != str(self.second)
        return self.first != self.second and abs(self.second - self.first) >= self.bound

    def __str__(self) -> str:
        """`steps_per_s 9.500 -> 6.600 steps/s (-30.5 %), worse`."""
        first, second = (
            NONE if value is None else show(value) for value in (self.first, self.second)
        )
        text = f"{self.metric} {first} -> {second} {self.unit}"
        if self.percent is None:
            return text
        better = (self.percent > 0) == self.higher_is_better
        return f"{text} ({self.percent:+.1f} %), {'better' if better else 'worse'}"


@dataclass(frozen=True)
class PhasePair:
    """A phase in both runs; None if a run does not have it."""

    name: str
    first: PhaseRun | None
    second: PhaseRun | None
    metrics: tuple[MetricPair, ...] = ()

    @property
    def outcomes(self) -> tuple[str, str]:
        first, second = (run.outcome if run else NONE for run in (self.first, self.second))
        return first, second

    @property
    def criteria(self) -> dict[str, tuple[str, str]]:
        """The criteria whose results differ."""
        if self.first is None or self.second is None:
            return {}
        old, new = self.first.criteria, self.second.criteria
        results = {name: (old.get(name, NONE), new.get(name, NONE)) for name in {**old, **new}}
        return {name: (was, now) for name, (was, now) in results.items() if was != now}

    def differences(self) -> list[str]:
        """The differences of outcome, criteria and metrics, as text."""
        old, new = self.outcomes
        words = [f"{old} -> {new}"] if old != new else []
        words += [f"{name} {was} -> {now}" for name, (was, now) in self.criteria.items()]
        return words + [str(pair) for pair in self.metrics if pair.differs]

    def surroundings(self) -> list[str]:
        """Other differences: versions, hardware, arguments."""
        if self.first is None or self.second is None:
            return []
        setup, versions = self.second.setup, self.second.versions
        return describe_setup_changes(self.first, setup.hardware, setup.shape, versions)


@dataclass(frozen=True)
class RunComparison:
    """Two runs; the second is compared with the first."""

    first: PastRun
    second: PastRun
    phases: tuple[PhasePair, ...]

    @cached_property
    def differences(self) -> list[str]:
        """The differences of verdict, outcomes, criteria and metrics, as text."""
        words = []
        if self.first.verdict != self.second.verdict:
            words.append(f"verdict {self.first.verdict} -> {self.second.verdict}")
        compared = [pair for pair in self.phases if not self._selected_in_one_run(pair)]
        return words + [f"{pair.name}: {text}" for pair in compared for text in pair.differences()]

    def _selected_in_one_run(self, pair: PhasePair) -> bool:
        """Whether only one of the runs selected the phase."""
        return NONE in pair.outcomes and self.first.selection != self.second.selection

    @cached_property
    def surroundings(self) -> list[str]:
        """Other differences, as text: each once, with the phases that have it."""
        phases: dict[str, list[str]] = defaultdict(list)
        for pair in self.phases:
            for change in pair.surroundings():
                phases[change].append(pair.name)
        words = [f"{change} ({list_names(names)})" for change, names in phases.items()]
        old, new = self.first.package_version, self.second.package_version
        if old != new:
            words.append(f"pytest-clustersmoke {old} -> {new}")
        unpaired = [pair for pair in self.phases if self._selected_in_one_run(pair)]
        for side, other in (("first", 1), ("second", 0)):
            names = [pair.name for pair in unpaired if pair.outcomes[other] == NONE]
            words += [f"only in the {side} run: {', '.join(names)}"] if names else []
        old_nodes = {node for pair in self.phases if pair.first for node in pair.first.nodes}
        new_nodes = {node for pair in self.phases if pair.second for node in pair.second.nodes}
        return words + describe_node_changes(old_nodes, new_nodes)

    def as_dict(self) -> dict[str, Any]:
        """The comparison as plain data for JSON. In each pair the first run's value comes first."""
        runs = [{**vars(run)} for run in (self.first, self.second)]
        return {
            "runs": [{name: run[name] for name in run if name != "id"} for run in runs],
            "differ": bool(self.differences),
            "differences": self.differences,
            "also_different": self.surroundings,
            "phases": [_phase_dict(pair) for pair in self.phases],
        }


def _phase_dict(pair: PhasePair) -> dict[str, Any]:
    runs = (pair.first, pair.second)
    return {
        "phase": pair.name,
        "outcome": pair.outcomes,
        "criteria": pair.criteria,
        "versions": [run.versions if run else None for run in runs],
        "nodes": [run.nodes if run else None for run in runs],
        "hardware": [run.setup.hardware if run else None for run in runs],
        "shape": [run.setup.shape if run else None for run in runs],
        "metrics": {
            metric.metric: {
                "unit": metric.unit,
                "values": to_json_value([metric.first, metric.second]),
                "percent": metric.percent,
                "told_from": to_json_value(metric.bound),
                "differs": metric.differs,
            }
            for metric in pair.metrics
        },
    }


def compare_runs(connection: Connection, first: PastRun, second: PastRun) -> RunComparison:
    """Compare two runs. The bound of a metric is at least 5 %; if there are enough good runs with
    the first run's setup, it is also at least the distance that gets a warning."""
    old, new = (
        {phase.phase: phase for phase in read_phases(connection, run)} for run in (first, second)
    )
    pairs = [
        PhasePair(name, old.get(name), new.get(name), _metric_pairs(connection, old, new, name))
        for name in {**old, **new}
    ]
    return RunComparison(first, second, tuple(pairs))


def _metric_pairs(
    connection: Connection, olds: dict[str, PhaseRun], news: dict[str, PhaseRun], phase: str
) -> tuple[MetricPair, ...]:
    if phase not in olds or phase not in news:
        return ()
    old, new = olds[phase], news[phase]
    past = read_phase_runs(connection, old.cluster, phase, good=True, setup=old.setup, limit=WINDOW)
    pairs = []
    for name in {**old.metrics, **new.metrics}:
        metric = old.metrics.get(name) or new.metrics[name]
        unit = metric.unit
        here = measure_level(value for run in past if (value := run.value(name, unit)) is not None)
        bound = max(LEAST * abs(metric.value), here.off(WARN_SPREADS) if here else 0.0)
        values = (old.value(name, unit), new.value(name, unit))
        pairs.append(MetricPair(name, unit, *values, bound, metric.higher_is_better))
    return tuple(pairs)
