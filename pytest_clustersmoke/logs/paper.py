"""What text is written on: its width, colours where they are wanted, and tables that fit."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TextIO

GAP = "  "
MIN_WIDTH = 40
BOLD, YELLOW = "1", "33"


@dataclass(frozen=True)
class Column:
    """A column of a table; where a table is too wide, those of the highest `weight` are kept."""

    title: str
    weight: int = 9
    number: bool = False


@dataclass(frozen=True)
class Paper:
    """`width` is that of the terminal, in characters; None where there is none to keep to."""

    width: int | None = None
    colours: bool = False

    @classmethod
    def of(cls, stream: TextIO) -> Paper:
        """What a stream is written on; https://no-color.org is heeded."""
        if not stream.isatty():
            return cls()
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        return cls(max(MIN_WIDTH, shutil.get_terminal_size().columns), not plain)

    def bold(self, text: str) -> str:
        return self._coloured(text, BOLD)

    def yellow(self, text: str) -> str:
        return self._coloured(text, YELLOW)

    def wrap(self, text: str, first: str = "", rest: str = "") -> list[str]:
        """Lines of a text, which begin with `first` and then with `rest`. Words, which may be
        paths, stay whole."""
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

    def table(self, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[str]:
        """A table, and a line that says what was left out to fit."""
        widths = [
            max(len(column.title), *(len(row[i]) for row in rows))
            for i, column in enumerate(columns)
        ]
        kept = self._fit(columns, widths)
        lines = [self.bold(_row([c.title for c in columns], columns, widths, kept))]
        lines += [_row(row, columns, widths, kept) for row in rows]
        left = [column.title for i, column in enumerate(columns) if i not in kept]
        if left:
            lines += self.wrap(
                f"(left out at {self.width} columns: {', '.join(left)}; a pipe or --json has all)"
            )
        return lines

    def _fit(self, columns: Sequence[Column], widths: Sequence[int]) -> list[int]:
        """The columns that fit, by their weight."""
        if self.width is None:
            return list(range(len(columns)))
        kept: list[int] = []
        room = self.width + len(GAP)
        for i in sorted(range(len(columns)), key=lambda i: -columns[i].weight):
            if not kept or widths[i] + len(GAP) <= room:
                kept.append(i)
                room -= widths[i] + len(GAP)
        return sorted(kept)

    def _coloured(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colours else text


def clean(text: str) -> str:
    """Logs are hostile text: what is printed of them stays on its line and moves no cursor."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


def _row(
    cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int], kept: Iterable[int]
) -> str:
    padded = [
        cells[i].rjust(widths[i]) if columns[i].number else cells[i].ljust(widths[i]) for i in kept
    ]
    return GAP.join(padded).rstrip()
