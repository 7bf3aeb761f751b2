"""What the subcommands share: output for terminals, help, arguments for logs."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TextIO

MIN_WIDTH = 40
BOLD, YELLOW = "1", "33"


@dataclass(frozen=True)
class TextOutput:
    """`width` is that of the terminal in characters; None if the output is not a terminal."""

    width: int | None = None
    colours: bool = False

    @classmethod
    def of(cls, stream: TextIO) -> TextOutput:
        """The output for a stream; respects https://no-color.org."""
        if not stream.isatty():
            return cls()
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        return cls(max(MIN_WIDTH, shutil.get_terminal_size().columns), not plain)

    def bold(self, text: str) -> str:
        return self._coloured(text, BOLD)

    def yellow(self, text: str) -> str:
        return self._coloured(text, YELLOW)

    def wrap(self, text: str, first: str = "", rest: str = "") -> list[str]:
        """Wrap a text into lines; the first starts with `first`, the others with `rest`. Words are
        never broken, since they may be paths."""
        if self.width is None:
            return [first + text]
        return textwrap.wrap(
            text,
            self.width,
            initial_indent=first,
            subsequent_indent=rest,
            break_on_hyphens=False,
            break_long_words=False,
        ) or [first.rstrip()]

    def _coloured(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colours else text


def add(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    help: str,
    description: str,
    examples: str,
) -> argparse.ArgumentParser:
    """Add a subcommand; the line breaks of `description` and `examples` are kept."""
    return subparsers.add_parser(
        name,
        help=help,
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_logs(parser: argparse.ArgumentParser) -> None:
    """Add the argument for the logs to read."""
    parser.add_argument(
        "logs",
        nargs="+",
        metavar="LOG",
        help="a log file, a directory (all files below it), or - for standard input",
    )


def format_json(value: Any) -> list[str]:
    """The lines of a value as JSON. Raises ValueError if a number in it is not finite."""
    return json.dumps(value, indent=1, allow_nan=False).splitlines()


def print_lines(lines: Iterable[str]) -> None:
    """Print lines, and flush."""
    for line in lines:
        print(line)
    sys.stdout.flush()
