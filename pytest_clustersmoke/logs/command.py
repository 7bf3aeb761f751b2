"""What the subcommands that read a job's logs have in common: their words, streams and output."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from .. import clean

if TYPE_CHECKING:
    from .progress import ReadProgress

# So many unreadable files are named; a directory may hold thousands.
MAX_NAMED = 20


def add_logs(parser: argparse.ArgumentParser) -> None:
    """The logs to read, as words of the command line."""
    parser.add_argument(
        "logs",
        nargs="+",
        metavar="LOG",
        help="a log; a directory, for all files below it; - for standard input",
    )


@contextmanager
def opened(path: Path | None, progress: ReadProgress) -> Iterator[BinaryIO]:
    """A file, or standard input where there is no path. Raises OSError."""
    if path is not None:
        with path.open("rb") as stream:
            yield progress.watch(stream)
        return
    if sys.stdin is None:
        raise OSError("it is closed")
    if sys.stdin.isatty():
        print("clustersmoke: reading from the terminal; Ctrl-D ends it", file=sys.stderr)
    yield progress.watch(cast(BinaryIO, sys.stdin.buffer))


def print_lines(lines: Iterable[str]) -> None:
    """Print what was found."""
    for line in lines:
        print(line)
    sys.stdout.flush()


def say_refused(refused: Sequence[tuple[str, str]]) -> None:
    """Name what could not be read, and why, on standard error."""
    for name, why in refused[:MAX_NAMED]:
        print(f"clustersmoke: {clean.line(name)} {clean.line(why)}", file=sys.stderr)
    if len(refused) > MAX_NAMED:
        more = len(refused) - MAX_NAMED
        print(f"clustersmoke: ... and {more:,} more that cannot be read", file=sys.stderr)
