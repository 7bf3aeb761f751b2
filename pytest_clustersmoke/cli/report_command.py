"""`clustersmoke report [RUN]`: renders a kept run again from its record."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..evidence.run_directory import RUN_ID, RunDir, read_json
from ..evidence.whole_files import MAX_JSON_BYTES, explain_unreadable
from ..text import near, sanitize_line
from . import history_arguments as arguments
from .subcommand import add, print_lines

if TYPE_CHECKING:
    from ..evidence.run_record import RunRecord

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
    # Loaded here: the other commands need no renderer.
    from ..report.publication import RUNS, list_views, write_views
    from ..report.runs_page import has_run, write_runs_page

    report_dir: Path = parsed.report_dir
    target = _find_report(report_dir, sanitize_line(parsed.run_id))
    record = _read_record(target)
    has_journal = RunDir(target).journal.exists()
    in_history = has_run(report_dir, record.run_id)
    views = list_views(record, target, has_journal, in_history=in_history)
    views[RUNS] = lambda: write_runs_page(report_dir)
    remarks = write_views(views)
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
            if RUN_ID.fullmatch(path.name) and (path / "report.json").is_file()
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


def _read_record(target: Path) -> RunRecord:
    from pydantic import ValidationError

    from ..evidence.run_record import SCHEMA, RunRecord

    path = target / "report.json"
    value = read_json(path)
    if value is None:
        why = explain_unreadable(path, MAX_JSON_BYTES) or "cannot be read"
        arguments.refuse(f"{path} {why}", "", "the record of a run")
    try:
        return RunRecord.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        arguments.refuse(
            f"{path} is not a record of this version: {place}: {first['msg']}",
            "",
            f"a record of schema {SCHEMA}",
        )
