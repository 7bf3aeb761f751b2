"""What a user can get wrong, told in one shape: what, where, what was expected, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


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
