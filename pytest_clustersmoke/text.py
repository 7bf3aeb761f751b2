"""Hostile text made harmless: what a job wrote, before it reaches a terminal, XML or a report.

Control characters, terminal escapes, marks that turn the direction of writing, and lone halves of
UTF-16 pairs become U+FFFD; all that people read stays.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

REPLACEMENT = "\ufffd"


def sanitize_line(text: str) -> str:
    """The text on one line: nothing in it begins a line of its own or moves a cursor."""
    if text.isprintable():
        return text
    joined = " ".join(part for part in text.replace("\t", " ").splitlines() if part.strip())
    return "".join(char if char.isprintable() else REPLACEMENT for char in joined)


def sanitize_lines(text: str) -> str:
    """The text with its lines and tabs."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else REPLACEMENT for char in text)


# What a user can get wrong, told in one shape: what, where, what was expected, what to do.


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with what the user wrote.

    `where` is `file:line` or the option's name; it comes first, so that editors can jump to it.
    """

    what: str
    where: str = ""
    expected: str = ""
    todo: str = ""

    def __str__(self) -> str:
        parts = [f"{self.where}: {self.what}" if self.where else self.what]
        if self.expected:
            parts.append(f"expected {self.expected}")
        if self.todo:
            parts.append(self.todo)
        return "; ".join(parts)


class UsageProblems(Exception):
    """Everything that is wrong with the options and files, found at once."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: Sequence[Problem] = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


def near(word: str, known: Iterable[str]) -> str:
    """The words "did you mean `x`?" where one of `known` is close to `word`, else nothing."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean `{close[0]}`?" if close else ""


# What messages are made of: numbers of things, and lists that stay short.


def plural(count: int, one: str, several: str = "") -> str:
    """`1 pair`, `2 pairs`."""
    return f"{count:,} {one if count == 1 else several or one + 's'}"


def ranges(numbers: Iterable[int]) -> str:
    """`0-7, 9` of sorted numbers."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return span_list(spans)


def span_list(spans: Iterable[Iterable[int]]) -> str:
    """The same of the first and last number of each span."""
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
