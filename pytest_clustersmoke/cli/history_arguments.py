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

from ..evidence.history.history_database import NAME, HistoryUnusable, open_for_reading
from ..evidence.history.history_query import PastRun, PhaseCount, count_phase_runs, read_runs
from ..report.unreported_runs import has_unreported
from ..text import Problem, UsageProblems, near, sanitize_line, shorten

LATEST, PREVIOUS = "latest", "previous"
MAX_LISTED = 20


def add_report_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--report-dir",
        "--reports",
        type=Path,
        default=Path("reports"),
        metavar="DIR",
        help=f"directory of {NAME} (default: reports)",
    )


def report_killed_runs(report_dir: Path) -> None:
    """Report runs whose controller was killed, with a line on each on standard error."""
    if has_unreported(report_dir):
        from ..session.dead_runs import report_dead_runs

        for line in report_dead_runs(report_dir, os.environ):
            print(sanitize_line(line), file=sys.stderr)


@contextmanager
def open_history(report_dir: Path) -> Iterator[Connection]:
    """Open the history. First report runs whose controller was killed, so that they are in it.
    Raises UsageProblems if there is no readable history."""
    report_killed_runs(report_dir)
    try:
        with open_for_reading(report_dir) as connection:
            if connection is None:
                refuse(
                    f"no {NAME} in {report_dir}",
                    "--report-dir",
                    "the report directory of runs with --cluster",
                )
            yield connection
    except HistoryUnusable as error:
        refuse(str(error))


def refuse(problem: str, where: str = "", expected: str = "", todo: str = "") -> NoReturn:
    raise UsageProblems(
        [Problem(sanitize_line(problem), where, sanitize_line(expected), sanitize_line(todo))]
    )


def require_cluster(connection: Connection, cluster: str) -> None:
    """Raise UsageProblems if the history has no run on this cluster."""
    if read_runs(connection, cluster=cluster, limit=1):
        return
    names = [str(name) for (name,) in connection.execute("SELECT DISTINCT cluster FROM runs")]
    words = f"no cluster `{cluster}` in the history"
    refuse(words, "--cluster", one_of(sorted(names)), near(cluster, names))


def choose_phases(
    connection: Connection, cluster: str | None, phase: str | None
) -> list[PhaseCount]:
    """The phases of this cluster, or of all; only the phase of this name, if given. Raises
    UsageProblems for an unknown name."""
    counts = count_phase_runs(connection)
    for kind, name in (("cluster", cluster), ("phase", phase)):
        if name is None:
            continue
        names = sorted({getattr(count, kind) for count in counts})
        if name not in names:
            refuse(
                f"no {kind} `{name}` in the history", f"--{kind}", one_of(names), near(name, names)
            )
        counts = [count for count in counts if getattr(count, kind) == name]
    return counts


def one_of(names: Sequence[str]) -> str:
    """``one of `a`, `b` ``; a long list is cut."""
    return f"one of {shorten([f'`{name}`' for name in names], MAX_LISTED)}" if names else ""


def find_run(connection: Connection, word: str, cluster: str | None) -> PastRun:
    """Find a run by its id, a prefix of its id, `latest` or `previous` (the run before the latest
    on the same cluster), of which neither is a screen. Raises UsageProblems."""
    word = sanitize_line(word)
    if word in (LATEST, PREVIOUS):
        runs = read_runs(connection, cluster=cluster, with_phases=True, limit=1)
        if runs and word == PREVIOUS:
            of = runs[0].cluster
            runs = read_runs(connection, cluster=of, with_phases=True, limit=2)[1:]
        if not runs:
            refuse(f"the history has no {word} run")
        return runs[0]
    runs = read_runs(connection, cluster=cluster, prefix=word, limit=MAX_LISTED) if word else []
    whole = [run for run in runs if run.run_id == word]
    if len(whole or runs) == 1:
        return (whole or runs)[0]
    if runs:
        listed = ", ".join(run.run_id for run in runs[:5])
        refuse(f"`{word}` matches several runs", "", "", f"give more of the id, such as {listed}")
    newest = [run.run_id for run in read_runs(connection, cluster=cluster, limit=200)]
    refuse(
        f"no run `{word}` in the history",
        "",
        f"a run id, a prefix of one, `{LATEST}` or `{PREVIOUS}`",
        near(word, [LATEST, PREVIOUS, *newest]),
    )
