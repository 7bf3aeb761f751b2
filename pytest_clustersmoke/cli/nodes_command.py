"""`clustersmoke nodes`: what each node did in past runs."""

from __future__ import annotations

import argparse
import math
import time

from ..evidence.history.figure_history import read_figures
from ..evidence.history.node_history import DAY_S, KEPT_DAYS, read_observations
from ..report.node_ledger import NodeSummary
from ..text import near
from . import history_arguments as arguments
from .node_views import compare_figures, node_json_lines, node_text_lines
from .subcommand import add, print_lines

DESCRIPTION = """\
Shows one line per node, from history.db of the report directory: when it was last good and last
bad, in which phases, what named it in how many of them, its reboots and changed parts, and the
figures of its devices that are furthest below those of its peers and its own past. Only reads.
"""
EXAMPLES = """\
examples:
  clustersmoke nodes --cluster gilbreth
  clustersmoke nodes --cluster gilbreth --days 30 --json

exit status: 0 done, 2 unusable history or arguments
"""
DEFAULT_DAYS = 90.0


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    nodes = add(subparsers, "nodes", "show what each node did", DESCRIPTION, EXAMPLES)
    nodes.add_argument("--cluster", metavar="C", required=True, help="the cluster (required)")
    nodes.add_argument("--node", metavar="N", help="only this node")
    add_days(nodes, DEFAULT_DAYS, "runs of the last N days")
    arguments.add_report_dir(nodes)
    nodes.add_argument("--json", action="store_true", help="print one JSON object")
    nodes.set_defaults(run=_run_command)


def add_days(parser: argparse.ArgumentParser, default: float, what: str) -> None:
    parser.add_argument(
        "--days",
        type=_parse_days,
        default=default,
        metavar="N",
        help=f"{what} (default: {default:g})",
    )


def _parse_days(word: str) -> float:
    try:
        days = float(word)
    except ValueError:
        days = math.nan
    if not 0 < days <= KEPT_DAYS:
        raise argparse.ArgumentTypeError(
            f"`{word}` is not a number of days; expected more than 0, and at most {KEPT_DAYS:g}"
        )
    return days


def _run_command(parsed: argparse.Namespace) -> int:
    since = time.time() - parsed.days * DAY_S
    with arguments.open_history(parsed.report_dir) as connection:
        arguments.require_cluster(connection, parsed.cluster)
        histories = read_observations(connection, parsed.cluster, since)
        figures = compare_figures(read_figures(connection, parsed.cluster, since))
    names = sorted({*histories, *figures})
    if parsed.node is not None:
        if parsed.node not in names:
            known, words = arguments.one_of(names), f"no node `{parsed.node}` in the history"
            arguments.refuse(words, "--node", known, near(parsed.node, names))
        names = [parsed.node]
    nodes = [NodeSummary(name, histories.get(name, ())) for name in names]
    form = node_json_lines if parsed.json else node_text_lines
    print_lines(form(parsed.cluster, parsed.days, nodes, figures))
    return 0
