"""Compares a run's record with earlier runs: each metric, each phase's trend, what changed."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from sqlite3 import Connection

from ..config.metrics import METRICS, show
from ..evidence.collective_curves import PastPointRecord, Point
from ..evidence.history import setup_changes
from ..evidence.history.accepted_levels import (
    AcceptedLevel,
    find_accepted_level,
    read_accepted_levels,
)
from ..evidence.history.collective_history import read_curve_past
from ..evidence.history.drift_judge import MAX_FIRST, judge_drift
from ..evidence.history.history_database import open_for_reading
from ..evidence.history.history_query import PhaseRun, StoredMetric, read_phase_runs, read_runs
from ..evidence.history.history_schema import Setup, shorten_line
from ..evidence.history.outlier_judge import (
    FAILING_UNITS,
    MIN_RUNS,
    WINDOW,
    OutlierJudge,
    SetupChanges,
)
from ..evidence.history.past_places import count_bad_runs, read_places
from ..evidence.node_naming import PlacesRecord
from ..evidence.run_record import (
    DriftRecord,
    Number,
    PastRecord,
    PhaseRecord,
    RunRecord,
    TrendRecord,
)
from ..evidence.telemetry import to_json_value
from ..text import outcome_words, shorten_lines

MAX_TREND, MAX_CHANGES = 60, 12


def past_of(
    cluster: str,
    phase: str,
    hardware: str,
    shape: str,
    versions: Mapping[str, str],
    metrics: Mapping[str, Number],
    report_dir: Path,
    before: float = math.inf,
) -> tuple[dict[str, PastRecord], list[str]]:
    """Each metric compared with the good runs that began before a time (Unix seconds); and in words
    those that could fail, which good runs measured and this one did not. Raises
    HistoryUnusable."""
    measured = {
        name: StoredMetric(float(value), METRICS[name].unit, METRICS[name].higher_is_better)
        for name, value in metrics.items()
    }
    setup = Setup.of(hardware, shape, versions)
    with open_for_reading(report_dir) as connection:
        past = _PhasePast(connection, cluster, phase, setup, _stored(versions), before)
        return past.judge_metrics(measured), past.list_missing(measured)


def annotate(record: RunRecord, report_dir: Path) -> None:
    """Fill in the record's comparison with the past: `past` of metrics, `trend`, `changed`,
    `last_good` and `places` of phases, `changes` of the run, the past of its named nodes. Runs that
    began later are ignored, and metrics that the criterion judged are not judged again. Raises
    HistoryUnusable and then leaves the record unchanged."""
    if record.proof is not None:  # staged faults do not belong in the history
        return
    compared = [phase for phase in record.phases if not phase.fault]
    with open_for_reading(report_dir) as connection:
        comparisons = [(phase, *_compare_phase(connection, record, phase)) for phase in compared]
        curves = [(phase, _read_curve_past(connection, record, phase)) for phase in compared]
        changes = _changes(connection, record, compared) if connection is not None else []
        places, named = _read_nodes(connection, record, compared)
    for phase, judged, trend, since in comparisons:
        phase.trend, phase.changed, phase.last_good = trend, list(since.changes), since.run_id
        for name, past in judged.items():
            phase.metrics[name].past = past
    for phase, points in curves:
        _add_curve_past(phase, points)
        phase.places = places.get(phase.phase)
    for node in record.named_nodes:
        if (counts := named.get(node.node)) is not None:
            node.past_runs, node.past_bad = counts
    record.changes = shorten_lines(changes, MAX_CHANGES)


def _read_nodes(
    connection: Connection | None, record: RunRecord, phases: list[PhaseRecord]
) -> tuple[dict[str, PlacesRecord | None], dict[str, tuple[int, int] | None]]:
    """Phase -> where it ran before; named node -> in how many earlier runs it was seen, and bad."""
    if connection is None:
        return {}, {}
    cluster, before = record.cluster, record.begun
    places = {
        phase.phase: read_places(
            connection, cluster, phase.phase, [node.node for node in phase.nodes], before
        )
        for phase in phases
    }
    named = {
        node.node: count_bad_runs(connection, cluster, node.node, before)
        for node in record.named_nodes
    }
    return places, named


def _read_curve_past(
    connection: Connection | None, record: RunRecord, phase: PhaseRecord
) -> dict[Point, PastPointRecord]:
    """The past of each point of the phase's curves, to be shown; it is not judged."""
    if connection is None or not phase.collectives:
        return {}
    setup = Setup.of(phase.hardware, phase.shape, phase.versions)
    return read_curve_past(connection, record.cluster, phase.phase, setup, record.begun)


def _add_curve_past(phase: PhaseRecord, points: Mapping[Point, PastPointRecord]) -> None:
    for curve in phase.collectives:
        name = shorten_line(curve.collective)
        for point in curve.points:
            if past := points.get((name, point.asked_bytes)):
                point.past = past


def _compare_phase(
    connection: Connection | None, record: RunRecord, phase: PhaseRecord
) -> tuple[dict[str, PastRecord], TrendRecord | None, SetupChanges]:
    setup = Setup.of(phase.hardware, phase.shape, phase.versions)
    versions = _stored(phase.versions)
    past = _PhasePast(connection, record.cluster, phase.phase, setup, versions, record.begun)
    measured = {
        name: StoredMetric(float(metric.value), metric.unit, metric.higher_is_better)
        for name, metric in phase.metrics.items()
        if metric.past is None  # otherwise the criterion has judged it
        and not phase.requeues  # of the last part of a run
    }
    return past.judge_metrics(measured), past.trend(phase), past.since


def _stored(versions: Mapping[str, str]) -> dict[str, str]:
    """Versions as the history stores them."""
    return {name: shorten_line(value) for name, value in versions.items()}


class _PhasePast:
    """The past of one phase on one cluster, for runs of one setup."""

    def __init__(
        self,
        connection: Connection | None,
        cluster: str,
        phase: str,
        setup: Setup,
        versions: Mapping[str, str],
        before: float,
    ) -> None:
        self._setup, self._versions = setup, versions
        self._newest: list[PhaseRun] = []
        self._same: list[PhaseRun] = []
        self._others: list[PhaseRun] = []
        self._recent: list[PhaseRun] = []
        self._levels: list[AcceptedLevel] = []
        self._first: dict[AcceptedLevel | None, list[PhaseRun]] = {}
        last_good: list[PhaseRun] = []
        if connection is not None:
            # Few of the newest runs may be good, so each question gets its own query.
            past = partial(read_phase_runs, connection, cluster, phase, before=before)
            self._newest = past(limit=MAX_TREND)
            last_good = past(good=True, limit=1)
            same = partial(past, setup=setup, limit=WINDOW)
            self._same = same(good=True)
            self._others = same(good=True, other_versions=True)
            self._recent = [run for run in same() if run.outcome == "passed"]
            self._levels = read_accepted_levels(connection, cluster, phase, before)
            newest = {level.metric: level for level in reversed(self._levels)}
            for level in (None, *newest.values()):
                since = level.accepted if level is not None else -math.inf
                self._first[level] = same(good=True, since=since, oldest=True, limit=MAX_FIRST)
        self.since = self._changes_since(last_good)

    def _changes_since(self, past: list[PhaseRun]) -> SetupChanges:
        """What changed since the newest of these runs."""
        if not past:
            return SetupChanges()
        changes = setup_changes.describe_setup_changes(
            past[0], self._setup.hardware, self._setup.shape, self._versions
        )
        return SetupChanges(past[0].run_id, changes)

    def judge_metrics(self, metrics: Mapping[str, StoredMetric]) -> dict[str, PastRecord]:
        return {name: self._judge_metric(name, metric) for name, metric in metrics.items()}

    def list_missing(self, metrics: Mapping[str, StoredMetric]) -> list[str]:
        """The metrics that could fail, which enough runs of the same setup have."""
        counts = Counter(
            name
            for run in self._same
            for name, metric in run.metrics.items()
            if name in METRICS and metric.unit in FAILING_UNITS and name not in metrics
        )
        return [
            f"{name} is missing; {count} of the last {len(self._same)} good runs have it"
            for name, count in sorted(counts.items())
            if count >= MIN_RUNS
        ]

    def _judge_metric(self, name: str, metric: StoredMetric) -> PastRecord:
        measured = f"{name} is {show(metric.value)} {metric.unit}".rstrip()
        fails = metric.unit in FAILING_UNITS
        record = OutlierJudge(self.since, self._changes_since(self._others)).judge(
            measured,
            metric.value,
            metric.higher_is_better,
            _values(self._same, name, metric.unit),
            _values(self._others, name, metric.unit),
            fails=fails,
        )
        if not fails or not math.isfinite(metric.value):
            return record
        level = find_accepted_level(self._levels, name)
        drift = judge_drift(
            metric.value,
            metric.higher_is_better,
            _values(self._first.get(level, []), name, metric.unit),
            _values(self._recent, name, metric.unit),
            str(level or ""),
        )
        return _add_drift(record, drift, measured)

    def trend(self, phase: PhaseRecord) -> TrendRecord | None:
        """The past runs, the oldest first; None if there are none."""
        if not self._newest:
            return None
        shown = self._newest[::-1]
        units = {name: metric.unit for name, metric in phase.metrics.items()}
        names = dict.fromkeys([*units, *(name for run in shown for name in run.metrics)])
        values: dict[str, list[Number | None]] = {
            name: [to_json_value(_trend_value(run, name, units.get(name))) for run in shown]
            for name in names
        }
        return {
            "run_ids": [run.run_id for run in shown],
            "begun": [run.begun for run in shown],
            "good": [run.good for run in shown],
            "same": [run.setup == self._setup for run in shown],
            "metrics": values,
        }


def _add_drift(record: PastRecord, drift: DriftRecord, measured: str) -> PastRecord:
    """The judgement of tonight together with that of the newest nights; the worse of both counts,
    and a lasting loss is named first."""
    record["drift"] = drift
    if drift["status"] == "fail":
        tonight = f"; tonight: {record['comparison']}" if record["status"] != "ok" else ""
        record["status"], record["comparison"] = "fail", f"{drift['text']}{tonight}"
        record["text"] = f"{measured}: {record['comparison']}"
    return record


def _values(past: list[PhaseRun], name: str, unit: str) -> list[float]:
    return [value for run in past if (value := run.value(name, unit)) is not None]


def _trend_value(run: PhaseRun, name: str, unit: str | None) -> float | None:
    """The value, if it is in the phase's unit; any unit if the phase lacks the metric."""
    metric = run.metrics.get(name)
    return metric.value if metric is not None and unit in (None, metric.unit) else None


def _changes(connection: Connection, record: RunRecord, phases: list[PhaseRecord]) -> list[str]:
    """What changed since each phase last ran on this cluster; the verdict since the last run with
    the same selection, or the last screen."""
    cluster, begun = record.cluster, record.begun
    selection = shorten_line(record.selection)  # as the history stores it
    before = read_runs(
        connection,
        cluster=cluster,
        before=begun,
        selection=selection,
        with_phases=record.screen is None,
        limit=1,
    )
    words = []
    if before and before[0].verdict != record.verdict:
        words.append(f"verdict {before[0].verdict} -> {record.verdict}")
    pairs = [
        (old, phase)
        for phase in phases
        for old in read_phase_runs(connection, cluster, phase.phase, before=begun, limit=1)
    ]
    for old, phase in pairs:
        words += _phase_changes(old, phase)
    words += _version_changes(pairs)
    placed = [(old, phase) for old, phase in pairs if old.nodes and phase.nodes]
    old_nodes = {node for old, _ in placed for node in old.nodes}
    new_nodes = {node.node for _, phase in placed for node in phase.nodes}
    return words + setup_changes.describe_node_changes(old_nodes, new_nodes)


def _say_ending(verb: str, outcome: str) -> str:
    """`is lost`, or `never ran`."""
    return outcome_words(outcome) if outcome == "never_ran" else f"{verb} {outcome_words(outcome)}"


def _phase_changes(old: PhaseRun, phase: PhaseRecord) -> list[str]:
    name, outcome, before = phase.phase, phase.outcome, _say_ending("was", old.outcome)
    if outcome != old.outcome and outcome != "passed":
        return [f"{name} {_say_ending('is', outcome)}, {before}"]
    again = [f"{name} passes again, {before}"] if outcome != old.outcome else []
    results = {criterion: entry.result for criterion, entry in phase.criteria.items()}
    failed = sorted(
        criterion
        for criterion, result in results.items()
        if result == "failed" and old.criteria.get(criterion) != "failed"
    )
    return again + ([f"{name}: {setup_changes.list_names(failed)} newly failed"] if failed else [])


def _version_changes(pairs: list[tuple[PhaseRun, PhaseRecord]]) -> list[str]:
    """Each change once, with its phases if not all phases have it."""
    phases_of: dict[str, list[str]] = defaultdict(list)
    for old, phase in pairs:
        if old.versions and phase.versions:  # a phase that never ran has none
            for change in setup_changes.describe_version_changes(
                old.versions, _stored(phase.versions)
            ):
                phases_of[change].append(phase.phase)
    return [
        change if len(names) == len(pairs) else f"{change} ({setup_changes.list_names(names)})"
        for change, names in phases_of.items()
    ]
