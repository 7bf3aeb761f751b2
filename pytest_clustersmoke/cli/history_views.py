"""The output of `clustersmoke history`: text, JSON and CSV."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..config.metrics import show
from ..evidence.fingerprint import COMPARED
from ..evidence.history.history_query import PhaseCount, PhaseRun
from ..evidence.history.newest_runs import HEADLINES
from ..evidence.history.outlier_judge import PastLevel, measure_level
from ..evidence.history.setup_changes import describe_setup_changes
from ..evidence.telemetry import to_json_value
from ..text import format_seconds, plural, shorten
from .subcommand import format_json
from .tables import moment, sparkline, table

RESULTS = ("passed", "failed", "skipped", "known")
CSV = (
    *("cluster", "phase", "run_id", "begun", "outcome", "good", "metric", "value", "unit"),
    *("queue_s", "run_s", *RESULTS, "nodes", "hardware", *COMPARED, "shape"),
)
METRIC_COLUMNS = ("metric", "#newest", "unit", "#median", "#off", "#MAD", "trend")


@dataclass(frozen=True)
class PhaseSeries:
    """A phase of a cluster and its newest runs, newest first. `same` are the good runs that the
    newest is judged against; `chosen` is the metric that the user chose, if any."""

    count: PhaseCount
    runs: Sequence[PhaseRun]
    same: Sequence[PhaseRun]
    chosen: str | None = None

    @property
    def metrics(self) -> list[str]:
        """The metrics to show; the one that represents the phase comes first."""
        names = dict.fromkeys(name for run in self.runs for name in run.metrics)
        if self.chosen is not None:
            return [self.chosen] if self.chosen in names else []
        first = [name for name in HEADLINES if name in names]
        return list(dict.fromkeys([*first[:1], *names]))

    def unit(self, metric: str) -> str:
        """The newest unit."""
        return next(run.metrics[metric].unit for run in self.runs if metric in run.metrics)

    def values(self, metric: str) -> list[float | None]:
        """The value of each run, oldest first, in the newest unit."""
        unit = self.unit(metric)
        return [run.value(metric, unit) for run in reversed(self.runs)]

    def level(self, metric: str) -> PastLevel | None:
        """The past level that the newest run is judged against, as in its record."""
        unit = self.unit(metric)
        values = [run.value(metric, unit) for run in self.same]
        return measure_level(value for value in values if value is not None)


def text_lines(series: Sequence[PhaseSeries]) -> Iterator[str]:
    """One phase run by run, or one line per phase."""
    if not series:
        yield "the history has no phases"
    elif len(series) == 1:
        yield from _run_lines(series[0])
    else:
        columns = ("cluster", "phase", "#runs", "#good", "newest (UTC)", "verdict", *METRIC_COLUMNS)
        yield from table(columns, map(_phase_row, series))


def _phase_row(series: PhaseSeries) -> list[str]:
    count, newest = series.count, series.runs[0]
    row = [count.cluster, count.phase, str(count.runs), str(count.good)]
    row += [moment(newest.begun), _verdict(newest)]
    names = series.metrics[:1]
    return row + (_metric_row(series, names[0]) if names else [""] * len(METRIC_COLUMNS))


def _metric_row(series: PhaseSeries, name: str) -> list[str]:
    """Newest value, unit, median and distance from it, scaled MAD, sparkline."""
    values, here = series.values(name), series.level(name)
    off = mad = ""
    if here is not None and here.median:
        mad = f"{here.mad / abs(here.median) * 100:.1f} %"
        if values[-1] is not None:
            off = f"{(values[-1] - here.median) / abs(here.median) * 100:+.1f} %"
    newest = "-" if values[-1] is None else show(values[-1])
    bars = sparkline(values, here.median if here else None)
    return [name, newest, series.unit(name), show(here.median) if here else "", off, mad, bars]


def _run_lines(series: PhaseSeries) -> Iterator[str]:
    count = series.count
    runs = f"{plural(count.runs, 'run')}, {count.good:,} of them good"
    yield f"{count.phase} on {count.cluster}: {runs}"
    yield ""
    headline = series.metrics[:1]
    columns = ("begun (UTC)", "run", "outcome", "criteria", "#queue s", "#run s")
    rows = [
        [
            *(moment(run.begun), run.run_id, run.outcome, _criteria(run)),
            *(format_seconds(run.queue_s), format_seconds(run.run_s)),
            *(show(run.metrics[name].value) if name in run.metrics else "-" for name in headline),
            _changed(before, run),
        ]
        for run, before in zip(series.runs, [*series.runs[1:], None], strict=True)
    ]
    yield from table((*columns, *(f"#{name}" for name in headline), "changed"), rows)
    yield ""
    yield from table(METRIC_COLUMNS, [_metric_row(series, name) for name in series.metrics])


def _verdict(run: PhaseRun) -> str:
    """That of the phase: a job that passed may have criteria that did not."""
    from ..report.phase_table import judge_stored  # the other views need no records

    results = Counter(run.criteria.values())
    counts = results["failed"], results["known"], run.attempts
    return judge_stored(run.outcome, *counts, run.unmeasured).words


def _criteria(run: PhaseRun) -> str:
    """The first failed criterion and how many more, or how many passed and what was required but
    not measured."""
    if failed := [name for name, result in run.criteria.items() if result == "failed"]:
        return f"{shorten(failed, 1)} failed"
    results = Counter(run.criteria.values())
    known = f", {results['known']} known" if results["known"] else ""
    missing = f", not measured: {run.unmeasured}" if run.unmeasured else ""
    return f"{results['passed']} passed{known}{missing}" if run.criteria else run.finding


def _changed(before: PhaseRun | None, run: PhaseRun) -> str:
    if before is None:
        return ""
    return ", ".join(
        describe_setup_changes(before, run.setup.hardware, run.setup.shape, run.versions)
    )


def json_lines(series: Sequence[PhaseSeries]) -> list[str]:
    """The lines of one JSON object."""
    phases = [
        {
            "cluster": phase.count.cluster,
            "phase": phase.count.phase,
            "runs_in_all": phase.count.runs,
            "good_in_all": phase.count.good,
            "runs": [_json_run(run, phase.metrics) for run in phase.runs],
        }
        for phase in series
    ]
    return format_json({"phases": phases})


def _json_run(run: PhaseRun, names: Sequence[str]) -> dict[str, Any]:
    fields = {
        name: value
        for name, value in vars(run).items()
        if name not in ("cluster", "phase", "setup", "metrics")
    }
    setup = {"hardware": run.setup.hardware, "shape": run.setup.shape}
    return {**fields, **setup, "metrics": _metrics(run, names)}


def _metrics(run: PhaseRun, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    return {
        name: {"value": to_json_value(run.metrics[name].value), "unit": run.metrics[name].unit}
        for name in names
        if name in run.metrics
    }


def csv_lines(series: Sequence[PhaseSeries]) -> Iterator[str]:
    """One line per metric of each run; a run without metrics also has one line."""
    import csv
    import io

    lines = io.StringIO()
    writer = csv.DictWriter(lines, CSV, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for phase in series:
        for run in phase.runs:
            writer.writerows(_csv_rows(run, phase.metrics))
    yield from lines.getvalue().splitlines()


def _csv_rows(run: PhaseRun, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    results = {**dict.fromkeys(RESULTS, 0), **Counter(run.criteria.values())}
    fields = {**results, **vars(run), **run.setup._asdict()}
    fields |= {"good": int(run.good), "nodes": " ".join(run.nodes)}
    for name, metric in _metrics(run, names).items() or [("", {})]:
        yield {**fields, "metric": name, **metric}
