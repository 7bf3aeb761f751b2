"""`clustersmoke compare RUN RUN`: what differs between two runs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from ..config.metrics import show
from ..evidence.history.history_query import PastRun
from ..text import sanitize_line
from . import history_arguments as arguments
from .run_comparison import MetricPair, RunComparison, compare_runs
from .subcommand import add, format_json, print_lines
from .tables import moment, table

DESCRIPTION = """\
Compares two runs from history.db of the report directory. RUN is a run id, a prefix of one,
`latest`, or `previous` (the run before the latest on its cluster). Metrics differ if they are at
least 5 % apart; with 8 or more good past runs, they must also be at least as far apart as a value
must be from the median to get a warning.
"""
EXAMPLES = """\
examples:
  clustersmoke compare previous latest
  clustersmoke compare 20261101-02 20261115-02 --json | jq .differences

exit status: 0 no differences, 1 verdict, outcomes, criteria or metrics differ, 2 unusable history
or arguments
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    compare = add(
        subparsers, "compare", "show what differs between two runs", DESCRIPTION, EXAMPLES
    )
    compare.add_argument("first", metavar="RUN", help="the run to compare with")
    compare.add_argument("second", metavar="RUN", help="the run to compare")
    compare.add_argument("--cluster", metavar="C", help="consider only runs on this cluster")
    arguments.add_report_dir(compare)
    compare.add_argument("--json", action="store_true", help="print one JSON object")
    compare.set_defaults(run=_run_command)


def _run_command(parsed: argparse.Namespace) -> int:
    with arguments.open_history(parsed.report_dir) as connection:
        if parsed.cluster is not None:
            arguments.choose_phases(connection, parsed.cluster, None)
        first, second = (
            arguments.find_run(connection, word, parsed.cluster)
            for word in (parsed.first, parsed.second)
        )
        comparison = compare_runs(connection, first, second)
    if parsed.json:
        print_lines(format_json(comparison.as_dict()))
    else:
        print_lines(_text_lines(comparison))
    return int(bool(comparison.differences))


def _text_lines(comparison: RunComparison) -> Iterator[str]:
    rows = [["first", *_run_cells(comparison.first)], ["second", *_run_cells(comparison.second)]]
    yield from table(("", "run", "cluster", "begun (UTC)", "verdict", "selection", "partial"), rows)
    yield ""
    yield "differences:" if comparison.differences else "no differences"
    yield from (f"  {sanitize_line(text)}" for text in comparison.differences)
    if comparison.surroundings:
        yield "also different:"
        yield from (f"  {sanitize_line(text)}" for text in comparison.surroundings)
    metrics = [
        _metric_cells(pair.name, metric) for pair in comparison.phases for metric in pair.metrics
    ]
    if metrics:
        yield ""
        titles = ("phase", "metric", "#first", "#second", "unit", "#difference", "#threshold", "")
        yield from table(titles, metrics)


def _run_cells(run: PastRun) -> list[str]:
    scope = run.selection or "all"
    return [run.run_id, run.cluster, moment(run.begun), run.verdict, scope, run.partial]


def _metric_cells(phase: str, pair: MetricPair) -> list[str]:
    values = ["-" if value is None else show(value) for value in (pair.first, pair.second)]
    percent = "-" if pair.percent is None else f"{pair.percent:+.1f} %"
    share = pair.bound / abs(pair.first) * 100 if pair.first else 0.0
    bound = f"{share:.1f} %" if share else "-"
    mark = "differs" if pair.differs else ""
    return [phase, pair.metric, *values, pair.unit, percent, bound, mark]
