"""`clustersmoke report [RUN]`: renders a kept run again from its record."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..evidence.run_directory import RUN_ID
from ..evidence.whole_files import is_visible_file
from ..text import near, sanitize_line
from . import history_arguments as arguments
from .subcommand import add, print_lines

DESCRIPTION = """\
Renders the page and the metrics of a run again, from its report.json, and the page over all runs,
from history.db: after an update of pytest-clustersmoke, or if a page was lost. RUN is a run id, a
prefix of one, `latest`, or `previous` (the run before the latest); without it, `latest`. Verdict,
record and history stay as they are.
"""
EXAMPLES = """\
examples:
  clustersmoke report
  clustersmoke report 20261115-02
  for run in reports/2*/; do clustersmoke report "$(basename "$run")"; done

exit status: 0 rendered, 2 there is no such report, its record cannot be read, or a page cannot be
written
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    report = add(subparsers, "report", "render a kept run again", DESCRIPTION, EXAMPLES)
    report.add_argument(
        "run_id", nargs="?", default=arguments.LATEST, metavar="RUN", help="the run to render"
    )
    arguments.add_report_dir(report)
    report.set_defaults(run=_run_command)


def _run_command(parsed: argparse.Namespace) -> int:
    from ..report.publication import render_again  # the other commands need no renderer

    target = _find_report(parsed.report_dir, sanitize_line(parsed.run_id))
    try:
        remarks = render_again(target)
    except ValueError as error:
        arguments.refuse(str(error))
    for remark in remarks:
        print(f"clustersmoke: {remark}", file=sys.stderr)
    print_lines([str(target / "index.html")])
    return 2 if remarks else 0


def _find_report(report_dir: Path, word: str) -> Path:
    """The folder of a kept report. Raises UsageProblems."""
    try:
        names = sorted(
            path.name
            for path in report_dir.iterdir()
            if RUN_ID.fullmatch(path.name) and is_visible_file(path / "report.json")
        )
    except OSError as error:
        arguments.refuse(
            f"no reports in {report_dir}: {error.strerror}",
            "--report-dir",
            "the report directory of runs with --cluster",
        )
    place = {arguments.LATEST: -1, arguments.PREVIOUS: -2}.get(word)
    if place is not None:
        found = names[place:][:1] if len(names) >= -place else []
    else:
        found = [name for name in names if word and name.startswith(word)]
    if len(found) > 1:
        some = ", ".join(found[:5])
        arguments.refuse(f"`{word}` matches several runs", "", "", f"give more of it, as in {some}")
    if not found:
        arguments.refuse(
            f"no report of a run `{word}` in {report_dir}",
            "",
            f"the id of a kept run, a prefix of one, `{arguments.LATEST}`, `{arguments.PREVIOUS}`",
            near(word, names),
        )
    return report_dir / found[0]
