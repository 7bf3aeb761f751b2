"""`clustersmoke compare RUN RUN`: what differs between two runs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..subcommand import add, print_lines
from . import words

if TYPE_CHECKING:
    from .compare import Comparison, Pair
    from .query import PastRun

DESCRIPTION = """\
Puts two runs of the report directory's history.db side by side. A RUN is an id, the beginning of
one, `latest`, or `previous`, the one before the latest on its cluster. Metrics differ where they
lie at least 5 % apart; where there are 8 good runs or more of the past, as far as a value from
their median to be warned of.
"""
EXAMPLES = """\
examples:
  clustersmoke compare previous latest
  clustersmoke compare 20261101-02 20261115-02 --json | jq .differences

exit status: 0 nothing differs, 1 verdict, outcomes, criteria or metrics do, 2 the history or the
words cannot be used
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    compare = add(subparsers, "compare", "what differs between two runs", DESCRIPTION, EXAMPLES)
    compare.add_argument("first", metavar="RUN", help="what the other is measured against")
    compare.add_argument("second", metavar="RUN", help="the other")
    compare.add_argument("--cluster", metavar="C", help="look for runs of one cluster only")
    words.add_report_dir(compare)
    compare.add_argument("--json", action="store_true", help="one JSON object on standard output")
    compare.set_defaults(run=_run)


def _run(asked: argparse.Namespace) -> int:
    from .compare import compare
    from .query import groups

    with words.history(asked.report_dir) as connection:
        if asked.cluster is not None:
            words.choose(groups(connection), asked.cluster, None)
        first, second = (
            words.run_of(connection, word, asked.cluster) for word in (asked.first, asked.second)
        )
        found = compare(connection, first, second)
    differences = found.differences()
    if asked.json:
        print_lines(json.dumps(found.as_dict(), indent=1, allow_nan=False).splitlines())
    else:
        print_lines(_text(found, differences))
    return int(bool(differences))


def _text(found: Comparison, differences: list[str]) -> Iterator[str]:
    from ..clean import line
    from .table import table

    runs = (found.first, found.second)
    rows = [["first", *_cells(runs[0])], ["second", *_cells(runs[1])]]
    yield from table(("", "run", "cluster", "begun (UTC)", "verdict", "of", "partial"), rows)
    yield ""
    yield "differences:" if differences else "no differences"
    yield from (f"  {line(text)}" for text in differences)
    also = found.surroundings()
    if also:
        yield "also different:"
        yield from (f"  {line(text)}" for text in also)
    metrics = [_metric(one.name, pair) for one in found.phases for pair in one.metrics]
    if metrics:
        yield ""
        titles = ("phase", "metric", "#first", "#second", "unit", "#difference", "#told from", "")
        yield from table(titles, metrics)


def _cells(run: PastRun) -> list[str]:
    from .table import moment

    scope = run.selection or "all"
    return [run.run_id, run.cluster, moment(run.begun), run.verdict, scope, run.partial]


def _metric(phase: str, pair: Pair) -> list[str]:
    from ..references import show

    values = ["-" if one is None else show(one) for one in (pair.first, pair.second)]
    percent = "-" if pair.percent is None else f"{pair.percent:+.1f} %"
    share = pair.told / abs(pair.first) * 100 if pair.first else 0.0
    told = f"{share:.1f} %" if share else "-"
    mark = "differs" if pair.differs else ""
    return [phase, pair.metric, *values, pair.unit, percent, told, mark]
