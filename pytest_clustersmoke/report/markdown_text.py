"""Text as GitHub's Markdown shows it: what is in it stands there letter by letter.

Cluster names, findings and log lines may hold anything. Nothing of theirs becomes markup, HTML, a
link, a mention of somebody, a reference to an issue, an emoji or a formula.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from .. import clean

# GitHub makes links of these after the Markdown has been read, so no backslash stops it: a space of
# no width does. Code is left alone.
APART = "\u200b"
LINKED = re.compile(r"(?<=@)|(?<=#)(?=\d)|(?<=GH-)|(?<=:)(?=//|[\w+-]+:)|(?<=www)(?=\.)", re.I)
MARKUP = re.compile(r"([\\`*_{}\[\]()#+\-.!|~=])")
FORMULA = "<span>$</span>"


def inline(words: str) -> str:
    """The words on one line, as they are."""
    apart = LINKED.sub(APART, clean.line(words).strip())
    marked = MARKUP.sub(r"\\\1", html.escape(apart, quote=False))
    return marked.replace("$", FORMULA)


def code(words: str) -> str:
    """The words on one line, as code. Not for a table, where a bar would end the cell."""
    text = clean.line(words).strip()
    fence = "`" * (_longest(text) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") or not text else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def block(words: str) -> str:
    """The words with their lines, as a block of code."""
    text = clean.lines(words)
    fence = "`" * max(3, _longest(text) + 1)
    return f"{fence}text\n{text}\n{fence}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[str] = ()) -> str:
    """A table; the columns named in `right` hold numbers."""
    numbers = set(right)
    marks = ["---:" if name in numbers else "---" for name in head]
    cells = [[inline(cell) for cell in row] for row in (head, *rows)]
    lines = [_line(cells[0]), _line(marks), *map(_line, cells[1:])]
    return "\n".join(lines)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _longest(text: str) -> int:
    """The longest run of backticks."""
    return max((len(run) for run in re.findall(r"`+", text)), default=0)
