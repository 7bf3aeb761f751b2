"""`clustersmoke references accept`: a person accepts the level of metrics as the new normal."""

from __future__ import annotations

import argparse
import getpass
import os
import time
from sqlite3 import Connection

from ..config.metrics import METRICS
from ..evidence.history.accepted_levels import AcceptedLevel, store_accepted_level
from ..evidence.history.figure_history import read_figure_names
from ..evidence.history.history_database import HistoryUnusable
from ..evidence.history.history_query import read_phase_runs
from ..evidence.history.outlier_judge import MIN_RUNS
from ..text import near, sanitize_line
from . import history_arguments as arguments
from .subcommand import add, print_lines

DESCRIPTION = """\
Records in history.db that the level of a phase's metrics is right from now on, and who says so,
when and why. Runs that began earlier are no longer compared with later ones. Use it after a change
that no version shows, such as other cables or new firmware.
"""
EXAMPLES = """\
examples:
  clustersmoke references accept --cluster gilbreth --phase zero1_4node --reason "other cables"
  clustersmoke references accept --cluster gilbreth --phase zero1_4node --metric steps_per_s \\
      --reason "power limit of 350 W" --by anna

exit status: 0 done, 2 unusable history or arguments
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    accept = add(subparsers, "accept", "accept the level of metrics", DESCRIPTION, EXAMPLES)
    accept.add_argument("--cluster", metavar="C", required=True, help="the cluster (required)")
    accept.add_argument("--phase", metavar="P", required=True, help="the phase (required)")
    accept.add_argument(
        "--metric", metavar="M", default="", help="only this metric or device figure (default: all)"
    )
    accept.add_argument("--reason", metavar="TEXT", required=True, help="what changed (required)")
    accept.add_argument("--by", metavar="NAME", help="who accepts it (default: your user name)")
    arguments.add_report_dir(accept)
    accept.set_defaults(run=_run_command)


def _run_command(parsed: argparse.Namespace) -> int:
    from ..evidence.history.drift_judge import MIN_NIGHTS  # other commands do not load it

    reason = sanitize_line(parsed.reason).strip()
    if not reason:
        arguments.refuse("the reason is empty", "--reason", "what changed, in a few words")
    with arguments.open_history(parsed.report_dir) as connection:
        arguments.choose_phases(connection, parsed.cluster, parsed.phase)
        if parsed.metric:
            _check_metric(connection, parsed)
    person = sanitize_line(parsed.by or _user_name()).strip()
    level = AcceptedLevel(parsed.cluster, parsed.phase, parsed.metric, time.time(), person, reason)
    try:
        store_accepted_level(level, parsed.report_dir)
    except HistoryUnusable as error:
        arguments.refuse(str(error))
    subject = parsed.metric or "every metric"
    print_lines(
        [
            f"{subject} of {parsed.phase} on {parsed.cluster}: {level}",
            f"Runs from now on are compared with each other only: outliers after {MIN_RUNS} good "
            f"runs, drift after {MIN_NIGHTS}.",
        ]
    )
    return 0


def _check_metric(connection: Connection, parsed: argparse.Namespace) -> None:
    runs = read_phase_runs(connection, parsed.cluster, parsed.phase)
    names = {name for run in runs for name in run.metrics}
    names |= read_figure_names(connection, parsed.cluster, parsed.phase)
    if parsed.metric not in names:
        known = sorted(names) or list(METRICS)
        arguments.refuse(
            f"no metric `{parsed.metric}` in the runs of {parsed.phase}",
            "--metric",
            arguments.one_of(known),
            near(parsed.metric, known),
        )


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return f"user {os.getuid()}"
