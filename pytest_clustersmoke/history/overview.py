"""What `clustersmoke history` shows: as text, JSON and CSV."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..identity import COMPARED
from ..references import show
from ..telemetry import plain
from . import changes
from .past import Level, level
from .query import Group, PhaseRun
from .table import moment, sparkline, table

# The metric that stands for a phase, the first that it has.
HEADLINES = ("busbw_gb_per_s", "steps_per_s")
CSV = (
    *("cluster", "phase", "run_id", "begun", "outcome", "good", "metric", "value", "unit"),
    *("queue_s", "run_s", "passed", "failed", "skipped", "known", "nodes", "hardware"),
    *(*COMPARED, "shape"),
)


@dataclass(frozen=True)
class Past:
    """A phase of a cluster and its newest runs, the newest first; `same` are the good runs that the
    newest is judged against, `asked` is the one metric that was asked for."""

    group: Group
    runs: Sequence[PhaseRun]
    same: Sequence[PhaseRun]
    asked: str | None = None

    @property
    def metrics(self) -> list[str]:
        """The metrics that are shown, that which stands for the phase first."""
        names = dict.fromkeys(name for run in self.runs for name in run.metrics)
        if self.asked is not None:
            return [self.asked] if self.asked in names else []
        first = [name for name in HEADLINES if name in names]
        return list(dict.fromkeys([*first[:1], *names]))

    def newest(self, metric: str) -> tuple[float | None, str]:
        """The newest value and its unit; None where the newest run has none."""
        unit = next(run.metrics[metric].unit for run in self.runs if metric in run.metrics)
        return self.runs[0].value(metric, unit), unit

    def values(self, metric: str) -> list[float | None]:
        """Of each run, the oldest first, in the newest unit."""
        _, unit = self.newest(metric)
        return [run.value(metric, unit) for run in reversed(self.runs)]

    def level(self, metric: str) -> Level | None:
        """That of the runs which the newest is judged against: the same as in its record."""
        _, unit = self.newest(metric)
        return level(value for one in self.same if (value := one.value(metric, unit)) is not None)


def text(past: Sequence[Past]) -> Iterator[str]:
    """One phase night by night, or a line for each of several."""
    if len(past) == 1:
        yield from _nights(past[0])
        return
    columns = ("cluster", "phase", "#runs", "#good", "newest (UTC)", "outcome", *_METRIC)
    rows = []
    for one in past:
        group, newest = one.group, one.runs[0]
        start = [group.cluster, group.phase, str(group.runs), str(group.good)]
        start += [moment(newest.begun), newest.outcome]
        names = one.metrics[:1]
        rows.append(start + (_metric(one, names[0]) if names else [""] * len(_METRIC)))
    if rows:
        yield from table(columns, rows)
    else:
        yield "the history holds no phases"


_METRIC = ("metric", "#newest", "unit", "#median", "#off", "#MAD", "trend")


def _metric(past: Past, name: str) -> list[str]:
    """A metric's cells: newest value, unit, median and distance from it, scaled MAD, sparkline."""
    value, unit = past.newest(name)
    here = past.level(name)
    off = mad = ""
    if here is not None and here.median:
        mad = f"{here.mad / abs(here.median) * 100:.1f} %"
        if value is not None:
            off = f"{(value - here.median) / abs(here.median) * 100:+.1f} %"
    bars = sparkline(past.values(name), here.median if here else None)
    shown = "-" if value is None else show(value)
    return [name, shown, unit, show(here.median) if here else "", off, mad, bars]


def _nights(past: Past) -> Iterator[str]:
    group = past.group
    yield f"{group.phase} on {group.cluster}: {group.runs:,} runs, {group.good:,} of them good"
    yield ""
    names = past.metrics[:1]
    columns = ["begun (UTC)", "run", "outcome", "criteria", "#queue s", "#run s"]
    columns += [f"#{name}" for name in names] + ["changed"]
    rows = []
    for run, before in zip(past.runs, [*past.runs[1:], None], strict=True):
        row = [moment(run.begun), run.run_id, run.outcome, _criteria(run)]
        row += [_seconds(run.queue_s), _seconds(run.run_s)]
        row += [show(run.metrics[name].value) if name in run.metrics else "-" for name in names]
        rows.append([*row, _changed(before, run)])
    yield from table(columns, rows)
    yield ""
    yield from table(_METRIC, [_metric(past, name) for name in past.metrics])


def _criteria(run: PhaseRun) -> str:
    """How many failed, the first by name; else how many passed."""
    results = Counter(run.criteria.values())
    if results["failed"]:
        first = next(name for name, result in run.criteria.items() if result == "failed")
        more = results["failed"] - 1
        return f"{first} failed{f', {more} more' if more else ''}"
    known = f", {results['known']} known" if results["known"] else ""
    return f"{results['passed']} passed{known}" if run.criteria else run.finding


def _changed(before: PhaseRun | None, run: PhaseRun) -> str:
    if before is None:
        return ""
    return ", ".join(changes.setup(before, run.setup.hardware, run.setup.shape, run.versions))


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def json_lines(past: Sequence[Past]) -> Iterator[str]:
    """One object, in lines."""
    phases = [
        {
            "cluster": one.group.cluster,
            "phase": one.group.phase,
            "runs_in_all": one.group.runs,
            "good_in_all": one.group.good,
            "runs": [_run(run, one.metrics) for run in one.runs],
        }
        for one in past
    ]
    yield from json.dumps({"phases": phases}, indent=1, allow_nan=False).splitlines()


def _run(run: PhaseRun, metrics: Sequence[str]) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "begun": run.begun,
        "outcome": run.outcome,
        "good": run.good,
        "reason": run.reason,
        "finding": run.finding,
        "job_id": run.job_id,
        "queue_s": run.queue_s,
        "run_s": run.run_s,
        "hardware": run.setup.hardware,
        "shape": run.setup.shape,
        "transport": run.transport,
        "nodes": run.nodes,
        "versions": run.versions,
        "criteria": run.criteria,
        "metrics": {
            name: {"value": plain(run.metrics[name].value), "unit": run.metrics[name].unit}
            for name in metrics
            if name in run.metrics
        },
    }


def csv_lines(past: Sequence[Past]) -> Iterator[str]:
    """A line for each metric of each run; a run without metrics has one all the same."""
    yield _csv_line(CSV)
    for one in past:
        for run in one.runs:
            names = [name for name in one.metrics if name in run.metrics]
            for name in names or [""]:
                yield _csv_line(_cells(run, name))


def _cells(run: PhaseRun, name: str) -> list[Any]:
    found = run.metrics.get(name)
    results = Counter(run.criteria.values())
    return [
        *(run.cluster, run.phase, run.run_id, run.begun, run.outcome, int(run.good)),
        *(name, plain(found.value) if found else "", found.unit if found else ""),
        *(run.queue_s, run.run_s),
        *(results[result] for result in ("passed", "failed", "skipped", "known")),
        *(" ".join(run.nodes), run.setup.hardware),
        *(getattr(run.setup, version) for version in COMPARED),
        run.setup.shape,
    ]


def _csv_line(cells: Sequence[Any]) -> str:
    import csv
    import io

    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(cells)
    return line.getvalue()
