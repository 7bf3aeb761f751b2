"""`clustersmoke history`: what past runs measured."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from sqlite3 import Connection

from ..config.metrics import METRICS
from ..evidence.history.history_query import PhaseCount, read_phase_runs, read_runs
from ..evidence.history.outlier_judge import WINDOW
from ..text import near
from . import history_arguments as arguments
from .history_views import PhaseSeries, csv_lines, json_lines, text_lines
from .subcommand import add, print_lines

DESCRIPTION = """\
Shows past runs from history.db of the report directory: one line per phase and cluster, or one line
per run if there is only one phase of one cluster. First writes the reports of runs whose pytest
process was killed before it could do so; changes nothing else.
"""
EXAMPLES = """\
examples:
  clustersmoke history                                    each phase, its newest run and its trend
  clustersmoke history --cluster gilbreth --phase zero1_4node
  clustersmoke history --metric peak_memory_gib --last 60
  clustersmoke history --csv > history.csv
  clustersmoke history --openmetrics --last 400 > past.om

exit status: 0 done, 2 unusable history or arguments
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    history = add(subparsers, "history", "show what past runs measured", DESCRIPTION, EXAMPLES)
    history.add_argument("--cluster", metavar="C", help="only this cluster")
    history.add_argument("--phase", metavar="P", help="only this phase")
    history.add_argument("--metric", metavar="M", help="only this metric")
    history.add_argument(
        "--last",
        type=_count,
        default=20,
        metavar="N",
        help="the newest N runs of each phase (default: 20)",
    )
    arguments.add_report_dir(history)
    form = history.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object")
    form.add_argument(
        "--csv", action="store_true", help="print CSV with one line per metric of each run"
    )
    form.add_argument(
        "--openmetrics",
        action="store_true",
        help="print complete runs as OpenMetrics with timestamps, to fill Prometheus with the past",
    )
    history.set_defaults(run=_run_command)


def _count(word: str) -> int:
    if not word.isdecimal() or not 0 < int(word) < 2**31:
        raise argparse.ArgumentTypeError(f"`{word}` is not a number of runs; expected 1 or more")
    return int(word)


def _run_command(parsed: argparse.Namespace) -> int:
    with arguments.open_history(parsed.report_dir) as connection:
        counts = arguments.choose_phases(connection, parsed.cluster, parsed.phase)
        series = [_series(connection, count, parsed) for count in counts]
        series = [phase for phase in series if phase.runs]  # its rows may be deleted meanwhile
        if parsed.metric is not None:
            _check_metric(parsed.metric, series)
        text = _render_backfill(connection, parsed, series) if parsed.openmetrics else ""
    if parsed.openmetrics:
        print(text, end="")
        return 0
    form = json_lines if parsed.json else csv_lines if parsed.csv else text_lines
    print_lines(form(series))
    return 0


def _render_backfill(
    connection: Connection, parsed: argparse.Namespace, series: Sequence[PhaseSeries]
) -> str:
    from ..evidence.history.collective_history import read_run_curves
    from ..evidence.history.node_history import read_observations
    from ..report.backfill import PastPhase, find_medians, render_backfill
    from ..report.node_standing import choose_history_redactor

    phases = []
    for phase in series:
        key = (connection, phase.count.cluster, phase.count.phase)
        curves = read_run_curves(*key) if parsed.metric is None else {}
        phases += [
            PastPhase(run, phase.metrics, find_medians(connection, run), curves.get(run.run_id, {}))
            for run in phase.runs
        ]
    clusters = sorted({phase.run.cluster for phase in phases})
    return render_backfill(
        read_runs(connection, cluster=parsed.cluster),
        phases,
        {cluster: read_observations(connection, cluster) for cluster in clusters},
        choose_history_redactor(parsed.report_dir),
    )


def _series(connection: Connection, count: PhaseCount, parsed: argparse.Namespace) -> PhaseSeries:
    key = (connection, count.cluster, count.phase)
    runs = read_phase_runs(*key, limit=parsed.last)
    same = [
        run
        for newest in runs[:1]
        for run in read_phase_runs(
            *key, before=newest.begun, good=True, setup=newest.setup, limit=WINDOW
        )
    ]
    return PhaseSeries(count, runs, same, parsed.metric)


def _check_metric(metric: str, series: Iterable[PhaseSeries]) -> None:
    known = {name for phase in series for run in phase.runs for name in run.metrics}
    if metric not in known:
        names = sorted(known) or list(METRICS)
        arguments.refuse(
            f"no metric `{metric}` in these runs",
            "--metric",
            arguments.one_of(names),
            near(metric, names),
        )
