"""What the commands on the history have in common: the words they take, and how they answer.

Names that are not known are told with those that are; all that is printed of the database is clean.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from .. import clean
from ..errors import Problem, UsageProblems, near
from . import query
from .database import NAME, HistoryUnusable, reading

if TYPE_CHECKING:
    from sqlite3 import Connection

LATEST, PREVIOUS = "latest", "previous"
MAX_LISTED = 20


def add_report_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--report-dir",
        type=Path,
        default=Path("reports"),
        metavar="DIR",
        help=f"where {NAME} lies (default: reports)",
    )


@contextmanager
def history(report_dir: Path) -> Iterator[Connection]:
    """The history there; runs that were killed and never reported are reported first, which stores
    them. Raises UsageProblems where there is none that can be read."""
    from ..report.recovery import recover

    for line in recover(report_dir, os.environ):
        print(clean.line(line), file=sys.stderr)
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
    raise UsageProblems([Problem(clean.line(what), where, clean.line(expected), clean.line(todo))])


def choose(
    found: Sequence[query.Group], cluster: str | None, phase: str | None
) -> list[query.Group]:
    """The groups of a cluster and a phase, where these are given. Raises UsageProblems."""
    if cluster is not None:
        _known("cluster", cluster, (one.cluster for one in found))
        found = [one for one in found if one.cluster == cluster]
    if phase is not None:
        _known("phase", phase, (one.phase for one in found))
        found = [one for one in found if one.phase == phase]
    return list(found)


def _known(kind: str, name: str, names: Iterable[str]) -> None:
    listed = sorted(set(names))
    if name not in listed:
        refuse(
            f"no {kind} `{name}` in the history", f"--{kind}", one_of(listed), near(name, listed)
        )


def one_of(names: Sequence[str]) -> str:
    """``one of `a`, `b` ``, of many the first."""
    more = len(names) - MAX_LISTED
    listed = ", ".join(f"`{name}`" for name in names[:MAX_LISTED])
    return f"one of {listed}{f' and {more} more' if more > 0 else ''}" if names else ""


def run_of(connection: Connection, word: str, cluster: str | None) -> query.PastRun:
    """The run that a word means: an id, the beginning of one, `latest`, or `previous`, which is
    the one before it on its cluster. Raises UsageProblems."""
    word = clean.line(word)
    if word in (LATEST, PREVIOUS):
        found = query.runs(connection, cluster=cluster, limit=1)
        if found and word == PREVIOUS:
            found = query.runs(connection, cluster=found[0].cluster, limit=2)[1:]
        if not found:
            refuse(f"there is no {word} run in the history")
        return found[0]
    found = query.runs(connection, cluster=cluster, prefix=word, limit=MAX_LISTED)
    whole = [run for run in found if run.run_id == word]
    if len(whole or found) == 1:
        return (whole or found)[0]
    if found and word:
        listed = ", ".join(run.run_id for run in found[:5])
        refuse(f"`{word}` is the beginning of several runs", "", "", f"such as {listed}")
    newest = [run.run_id for run in query.runs(connection, cluster=cluster, limit=200)]
    refuse(
        f"no run `{word}` in the history",
        "",
        f"a run id, the beginning of one, `{LATEST}` or `{PREVIOUS}`",
        near(word, [LATEST, PREVIOUS, *newest]),
    )
