"""Lines for people: as wide as the terminal, in colour where that is wanted."""

from __future__ import annotations

import os
import shutil
import textwrap
from dataclasses import dataclass
from typing import TextIO

MIN_WIDTH = 40
BOLD, YELLOW = "1", "33"


@dataclass(frozen=True)
class TextOutput:
    """`width` is that of the terminal, in characters; None where there is none to keep to."""

    width: int | None = None
    colours: bool = False

    @classmethod
    def of(cls, stream: TextIO) -> TextOutput:
        """The form of what is written to a stream; https://no-color.org is heeded."""
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

    def _coloured(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colours else text
