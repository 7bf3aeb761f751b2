"""Arguments of the commands on the history. An unknown name is refused with a list of the known
ones."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from sqlite3 import Connection
from typing import NoReturn

from ..evidence.history.history_database import NAME, HistoryUnusable, reading
from ..evidence.history.history_query import PastRun, PhaseCount, phase_counts, runs
from ..text import Problem, UsageProblems, near, sanitize_line

LATEST, PREVIOUS = "latest", "previous"
MAX_LISTED = 20


def add_report_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--report-dir",
        type=Path,
        default=Path("reports"),
        metavar="DIR",
        help=f"directory of {NAME} (default: reports)",
    )


@contextmanager
def open_history(report_dir: Path) -> Iterator[Connection]:
    """Open the history, after reporting runs whose controller was killed, which stores them.
    Raises UsageProblems if there is no readable history."""
    from ..report.recovery import recover

    for line in recover(report_dir, os.environ):
        print(sanitize_line(line), file=sys.stderr)
    try:
        with reading(report_dir) as connection:
            if connection is None:
                refuse(
                    f"no {NAME} in {report_dir}",
                    "--report-dir",
                    "the report directory of runs with --cluster",
                )
            yield connection
    except HistoryUnusable as error:
        refuse(str(error))


def refuse(what: str, where: str = "", expected: str = "", todo: str = "") -> NoReturn:
    raise UsageProblems(
        [Problem(sanitize_line(what), where, sanitize_line(expected), sanitize_line(todo))]
    )


def choose_phases(
    connection: Connection, cluster: str | None, phase: str | None
) -> list[PhaseCount]:
    """The phases of all clusters, or of the one given, or the one phase given. Raises
    UsageProblems."""
    found = phase_counts(connection)
    for kind, name in (("cluster", cluster), ("phase", phase)):
        if name is None:
            continue
        names = sorted({getattr(count, kind) for count in found})
        if name not in names:
            refuse(
                f"no {kind} `{name}` in the history", f"--{kind}", one_of(names), near(name, names)
            )
        found = [count for count in found if getattr(count, kind) == name]
    return found


def one_of(names: Sequence[str]) -> str:
    """``one of `a`, `b` ``; a long list is cut."""
    more = len(names) - MAX_LISTED
    listed = ", ".join(f"`{name}`" for name in names[:MAX_LISTED])
    return f"one of {listed}{f' and {more} more' if more > 0 else ''}" if names else ""


def find_run(connection: Connection, word: str, cluster: str | None) -> PastRun:
    """Find a run by id, a prefix of one, `latest`, or `previous`, the run before the latest on
    its cluster. Raises UsageProblems."""
    word = sanitize_line(word)
    if word in (LATEST, PREVIOUS):
        found = runs(connection, cluster=cluster, limit=1)
        if found and word == PREVIOUS:
            found = runs(connection, cluster=found[0].cluster, limit=2)[1:]
        if not found:
            refuse(f"the history has no {word} run")
        return found[0]
    found = runs(connection, cluster=cluster, prefix=word, limit=MAX_LISTED) if word else []
    whole = [run for run in found if run.run_id == word]
    if len(whole or found) == 1:
        return (whole or found)[0]
    if found:
        listed = ", ".join(run.run_id for run in found[:5])
        refuse(f"`{word}` matches several runs", "", "", f"give more of the id, such as {listed}")
    newest = [run.run_id for run in runs(connection, cluster=cluster, limit=200)]
    refuse(
        f"no run `{word}` in the history",
        "",
        f"a run id, a prefix of one, `{LATEST}` or `{PREVIOUS}`",
        near(word, [LATEST, PREVIOUS, *newest]),
    )
