"""A record beside the past: each metric, each phase's trend, and what changed since."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..references import show
from ..telemetry import METRICS, plain
from . import changes
from .database import reading
from .past import FAILING_UNITS, WINDOW, Judge
from .query import Measured, PhaseRun, phase_runs, runs, setup_ids
from .store import Setup, text

if TYPE_CHECKING:
    from sqlite3 import Connection

    from .comparison import Number, PastRecord, PhaseRecord, RunRecord, TrendRecord

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
) -> dict[str, PastRecord]:
    """Each metric's value beside the good runs that began before a time (Unix seconds). Raises
    HistoryUnusable."""
    measured = {
        name: Measured(float(value), METRICS[name].unit, METRICS[name].higher_is_better)
        for name, value in metrics.items()
    }
    setup = Setup.of(hardware, shape, versions)
    with reading(report_dir) as connection:
        stored = {name: text(value) for name, value in versions.items()}
        past = _Past(connection, cluster, phase, setup, stored, before)
        return past.judge(measured)


def annotate(record: RunRecord, report_dir: Path) -> None:
    """Fill in what a record says of the past: `past` of metrics, `trend` and `changed` of phases,
    `changes` of the run. Runs that began later are not looked at, and what the criterion judged is
    not judged again. Raises HistoryUnusable, and then leaves the record as it was."""
    if "proof" in record:
        return
    compared = [phase for phase in record["phases"] if not phase.get("fault")]
    found: list[tuple[PhaseRecord, dict[str, PastRecord], TrendRecord | None, list[str]]] = []
    with reading(report_dir) as connection:
        for phase in compared:
            setup = Setup.of(phase["hardware"], phase["shape"], phase["versions"])
            past = _Past(
                connection,
                record["cluster"],
                phase["phase"],
                setup,
                _stored(phase),
                record["begun"],
            )
            found.append((phase, past.judge(_measured(phase)), past.trend(phase), past.changed))
        since = _changes(connection, record, compared) if connection is not None else []
    for phase, judged, trend, changed in found:
        phase["trend"], phase["changed"] = trend, changed
        for name, one in judged.items():
            metric = phase["metrics"][name]
            metric["past"] = metric["past"] or one
    more = len(since) - MAX_CHANGES
    told = [f"... and {more} more"] if more > 0 else []
    record["changes"] = since[:MAX_CHANGES] + told


def _stored(phase: PhaseRecord) -> dict[str, str]:
    """The phase's versions as they are stored."""
    return {name: text(value) for name, value in phase["versions"].items()}


def _measured(phase: PhaseRecord) -> dict[str, Measured]:
    return {
        name: Measured(float(one["value"]), one["unit"], one["higher_is_better"])
        for name, one in phase["metrics"].items()
    }


class _Past:
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
        self._setup = setup
        self._newest: list[PhaseRun] = []
        self._same: list[PhaseRun] = []
        self._others: list[PhaseRun] = []
        last: list[PhaseRun] = []
        if connection is not None:
            # Of the newest runs the good ones may be few, so each question is asked by itself.
            here = setup_ids(connection, setup)
            alike = [one for one in setup_ids(connection, setup, versions=False) if one not in here]
            self._newest = phase_runs(connection, cluster, phase, before=before, limit=MAX_TREND)
            last = phase_runs(connection, cluster, phase, before=before, good=True, limit=1)
            self._same, self._others = (
                phase_runs(
                    connection,
                    cluster,
                    phase,
                    before=before,
                    good=True,
                    setups=setups,
                    limit=WINDOW,
                )
                for setups in (here, alike)
            )
        self.last_good = last[0].run_id if last else ""
        self.changed, self._since_others = (
            [
                f"{one} (last good run {run.run_id})"
                for run in before_it[:1]
                for one in changes.setup(run, setup.hardware, setup.shape, versions)
            ]
            for before_it in (last, self._others)
        )

    def judge(self, metrics: Mapping[str, Measured]) -> dict[str, PastRecord]:
        judge = Judge(self.changed, self.last_good, self._since_others)
        judged = {}
        for name, one in metrics.items():
            same, others = (
                [value for run in past if (value := run.value(name, one.unit)) is not None]
                for past in (self._same, self._others)
            )
            said = f"{name} is {show(one.value)} {one.unit}".rstrip()
            fails = one.unit in FAILING_UNITS
            judged[name] = judge.judge(
                said, one.value, one.higher_is_better, same, others, fails=fails
            )
        return judged

    def trend(self, phase: PhaseRecord) -> TrendRecord | None:
        """The past runs, the oldest first; None where there is none."""
        shown = list(reversed(self._newest))
        names = [*phase["metrics"], *(name for run in shown for name in run.metrics)]
        units = {name: one["unit"] for name, one in phase["metrics"].items()}
        values: dict[str, list[Number | None]] = {
            name: [plain(_value(run, name, units.get(name))) for run in shown]
            for name in dict.fromkeys(names)
        }
        return (
            {
                "run_ids": [run.run_id for run in shown],
                "begun": [run.begun for run in shown],
                "good": [run.good for run in shown],
                "same": [run.setup == self._setup for run in shown],
                "metrics": values,
            }
            if shown
            else None
        )


def _value(run: PhaseRun, name: str, unit: str | None) -> float | None:
    found = run.metrics.get(name)
    return None if found is None or unit not in (None, found.unit) else found.value


def _changes(connection: Connection, record: RunRecord, phases: list[PhaseRecord]) -> list[str]:
    """What changed since each phase ran last on this cluster; the verdict since the last run that
    was asked for the same."""
    cluster, begun = record["cluster"], record["begun"]
    selection = text(record["selection"])  # as it is stored
    before = runs(connection, cluster=cluster, before=begun, selection=selection, limit=1)
    words = []
    if before and before[0].verdict != record["verdict"]:
        words.append(f"verdict {before[0].verdict} -> {record['verdict']}")
    pairs = [
        (old, phase)
        for phase in phases
        for old in phase_runs(connection, cluster, phase["phase"], before=begun, limit=1)
    ]
    for old, phase in pairs:
        words += _phase_changes(old, phase)
    by_version: dict[str, list[str]] = defaultdict(list)
    for old, phase in pairs:
        if old.versions and phase["versions"]:  # a phase that never ran has none
            for change in changes.versions(old.versions, _stored(phase)):
                by_version[change].append(phase["phase"])
    for change, names in by_version.items():
        words.append(change if len(names) == len(pairs) else f"{change} ({changes.named(names)})")
    placed = [(old, phase) for old, phase in pairs if old.nodes and phase["nodes"]]
    old_nodes = {node for old, _ in placed for node in old.nodes}
    new_nodes = {node["node"] for _, phase in placed for node in phase["nodes"]}
    return words + changes.nodes(old_nodes, new_nodes)


def _phase_changes(old: PhaseRun, phase: PhaseRecord) -> list[str]:
    name, outcome = phase["phase"], phase["outcome"]
    reds = {one for one, result in phase["criteria"].items() if result["result"] == "failed"}
    new = sorted(reds - {one for one, result in old.criteria.items() if result == "failed"})
    if outcome != old.outcome:
        if outcome == "passed":
            return [f"{name} passes again, was {old.outcome}", *_red(name, new)]
        return [f"{name} is {outcome}, was {old.outcome}"]
    return _red(name, new)


def _red(name: str, criteria: list[str]) -> list[str]:
    return [f"{name}: {changes.named(criteria)} newly failed"] if criteria else []
