"""The `clustersmoke` command: runs a subcommand, and turns errors into messages.

Exit status: 0 done; 1 no lab runs (`lab status`), findings (`diagnose`), differences (`compare`),
too many nodes to leave out (`exclude`), or `lab up` failed; 2 unusable arguments, machine or file;
129, 130 and 143 ended by a signal; 141 the reader of the output is gone.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from .. import __version__
from ..lab.lab_settings import LabError, LabStartError
from ..text import UsageProblems
from . import accept_command as accept
from . import compare_command as compare
from . import diagnose_command as diagnose
from . import exclude_command as exclude
from . import history_command as history
from . import init_command as init
from . import lab_command as lab
from . import nodes_command as nodes
from . import propose_command as propose
from . import report_command as report
from . import sensitivity_command as sensitivity
from . import status_command as status
from . import summary_command as summary
from . import transports_command as transports


def _add_references(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    references = subparsers.add_parser(
        "references", help="propose references from past runs, or accept a new level"
    )
    commands = references.add_subparsers(metavar="COMMAND", required=True)
    propose.add_parser(commands)
    accept.add_parser(commands)


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Each function adds a parser and sets its `run`, which takes the parsed arguments and returns the
# exit status.
SUBCOMMANDS: tuple[Callable[[argparse._SubParsersAction[argparse.ArgumentParser]], None], ...] = (
    transports.add_parser,
    diagnose.add_parser,
    init.add_parser,
    summary.add_parser,
    status.add_parser,
    history.add_parser,
    compare.add_parser,
    report.add_parser,
    _add_references,
    nodes.add_parser,
    exclude.add_parser,
    sensitivity.add_parser,
    lab.add_parser,
)


class Ended(KeyboardInterrupt):
    """A signal asked us to stop; the code that is running cleans up."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="clustersmoke",
        description="Tools for acceptance tests of GPU clusters; the tests run under pytest.",
    )
    top.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    subparsers = top.add_subparsers(metavar="COMMAND", required=True)
    for add in SUBCOMMANDS:
        add(subparsers)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    _prepare_stdout()
    parsed = parser().parse_args(arguments)
    for number in SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup
            signal.signal(number, _end)
    try:
        status: int = parsed.run(parsed)
        sys.stdout.flush()
        return status
    except UsageProblems as problems:
        for problem in problems.problems:
            print(f"clustersmoke: {problem}", file=sys.stderr)
        return 2
    except LabError as error:
        print(f"clustersmoke: {error}", file=sys.stderr)
        return 1 if isinstance(error, LabStartError) else 2
    except BrokenPipeError:
        # The reader is gone (`| head`). Without this, Python would print an error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        print(f"clustersmoke: {error}", file=sys.stderr)
        return 2
    except Ended as ended:
        return 128 + ended.number


def _prepare_stdout() -> None:
    """Make standard output accept everything: if it is closed, use /dev/null, and escape
    characters that its encoding lacks."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 -- never closed
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _end(number: int, _: FrameType | None) -> None:
    """Raise Ended once; a second signal must not interrupt the cleanup."""
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    raise Ended(number)
