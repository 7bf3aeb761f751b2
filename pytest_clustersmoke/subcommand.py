"""What the subcommands of `clustersmoke` share: their help, the logs they are given, output."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable


def add(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    help: str,
    description: str,
    examples: str,
) -> argparse.ArgumentParser:
    """Its parser; the line breaks of `description` and `examples` are kept."""
    return subparsers.add_parser(
        name,
        help=help,
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_logs(parser: argparse.ArgumentParser) -> None:
    """The logs to read, as words of the command line."""
    parser.add_argument(
        "logs",
        nargs="+",
        metavar="LOG",
        help="a log; a directory, for all files below it; - for standard input",
    )


def print_lines(lines: Iterable[str]) -> None:
    """Print what was found."""
    for line in lines:
        print(line)
    sys.stdout.flush()
