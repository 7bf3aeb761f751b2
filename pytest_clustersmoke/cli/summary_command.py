"""`clustersmoke summary [RUN]`: a run in ten lines."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..evidence.run_directory import RUN_ID, read_json
from ..evidence.whole_files import is_visible_file
from ..text import UsageProblems, clip, near, sanitize_line
from . import history_arguments as arguments
from .subcommand import add, format_json, print_lines

DESCRIPTION = """\
Prints a run in at most ten lines, the verdict first: for mails and chats. RUN is a run id, a prefix
of one, or `latest`, which is the default. Everything is read from report.json of the run, which
decides nothing anew. First writes the reports of runs whose pytest process was killed before it
could do so. With --log, a run without a report is no error: the end of that file is printed,
without what `limits.publish: names` of the cluster hides.
"""
EXAMPLES = """\
examples:
  clustersmoke summary
  clustersmoke summary 20261101-02 --markdown
  clustersmoke summary --cluster gilbreth --json | jq -r .verdict

exit status: 0 printed, whatever the verdict, 2 no such run, or unusable arguments
"""
MAX_BYTES = 512 * 2**20  # of a report.json
LAST_LINES, LAST_BYTES, LINE_CHARS = 20, 2**16, 300  # of pytest's output


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    summary = add(subparsers, "summary", "print a run in ten lines", DESCRIPTION, EXAMPLES)
    summary.add_argument(
        "run_id", nargs="?", default=arguments.LATEST, metavar="RUN", help="the run (latest)"
    )
    summary.add_argument("--cluster", metavar="C", help="consider only runs on this cluster")
    summary.add_argument(
        "--report-dir",
        type=Path,
        default=Path("reports"),
        metavar="DIR",
        help="directory of the reports (default: reports)",
    )
    summary.add_argument(
        "--log",
        type=Path,
        metavar="FILE",
        help="pytest's output, of which the end is printed if the run has no report",
    )
    form = summary.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object, which is not cut")
    form.add_argument("--markdown", action="store_true", help="print Markdown")
    summary.set_defaults(run=_run_command)


def _run_command(parsed: argparse.Namespace) -> int:
    from ..report.run_digest import RunDigest

    arguments.report_killed_runs(parsed.report_dir)
    try:
        found = _find_record(parsed.report_dir, parsed.run_id, parsed.cluster)
    except UsageProblems:
        if parsed.log is None or parsed.json or parsed.markdown:
            raise
        print_lines(["no report", "pytest's output ends with:", *_read_end(parsed)])
        return 0
    digest = RunDigest.of(*found)
    if parsed.json:
        print_lines(format_json(digest.as_dict()))
    else:
        print_lines(digest.markdown() if parsed.markdown else digest.lines())
    return 0


def _read_end(parsed: argparse.Namespace) -> Iterator[str]:
    """The last lines of the log, as they may be published. Raises UsageProblems."""
    from ..evidence.run_request import user_name
    from ..report.redaction import Redactor

    redactor = None if _publishes_all(parsed.cluster) else Redactor(user_name())
    try:
        with parsed.log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_BYTES))
            lines = file.read(LAST_BYTES).decode(errors="replace").splitlines()
    except OSError as error:
        arguments.refuse(f"{parsed.log} cannot be read: {error.strerror or error}", "--log")
    for line in lines[-LAST_LINES:]:
        yield clip(sanitize_line(redactor.hide(line) if redactor else line), LINE_CHARS)


def _publishes_all(cluster: str | None) -> bool:
    """Whether the cluster's profile in ./cluster.yaml hides nothing; not if it cannot be read."""
    from ..config.cluster_file import find_config, load_cluster_file

    try:
        file = load_cluster_file(find_config(Path.cwd(), None), os.environ)
        return cluster is not None and file.profile(cluster).limits.publish == "all"
    except UsageProblems:
        return False


def _find_record(report_dir: Path, word: str, cluster: str | None) -> tuple[Any, Path]:
    """The record of a run with its directory. Raises UsageProblems."""
    names = list(_list_reports(report_dir))
    if word == arguments.LATEST:
        for name in names:
            record = _read_record(report_dir / name)
            if record.is_of_cluster and cluster in (None, record.cluster):
                return record, report_dir / name
        on = "" if cluster is None else f" on {cluster}"
        expected = "a run of phases; give the id of a screen or a proof"
        arguments.refuse(f"no report of a run{on} in {report_dir}", "--report-dir", expected)
    found = [name for name in names if word and name.startswith(word)]
    if not found:
        expected = f"a run id, a prefix of one, or `{arguments.LATEST}`"
        arguments.refuse(
            f"no report of run `{word}` in {report_dir}", "", expected, near(word, names)
        )
    if len(found) > 1:
        listed = ", ".join(found[:5])
        arguments.refuse(f"`{word}` matches several runs", "", "", f"give more of the id: {listed}")
    record = _read_record(report_dir / found[0])
    if cluster not in (None, record.cluster):
        arguments.refuse(f"run {found[0]} is on {record.cluster}", "--cluster")
    return record, report_dir / found[0]


def _list_reports(report_dir: Path) -> Iterator[str]:
    """The ids of the runs that have a report, the newest first."""
    try:
        names = sorted((path.name for path in report_dir.iterdir()), reverse=True)
    except OSError:
        return
    yield from (
        name
        for name in names
        if RUN_ID.fullmatch(name) and is_visible_file(report_dir / name / "report.json")
    )


def _read_record(report: Path) -> Any:
    from pydantic import ValidationError

    from ..evidence.run_record import RunRecord

    path = report / "report.json"
    try:
        return RunRecord.model_validate(read_json(path, MAX_BYTES))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole file"
        what = sanitize_line(f"{path} is not a report of this version: {where}: {first['msg']}")
        arguments.refuse(what, "", "a report.json that this version of clustersmoke wrote")
