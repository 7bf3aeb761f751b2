"""Which nodes a constraint lets a job have (man sbatch, --constraint): features joined by `&` and
`|`, from left to right as slurmctld does it, in parentheses, in brackets, and with counts."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

_TOKEN = re.compile(r"\s*(?:(?P<name>[^\s&|*()\[\],!]+)|(?P<mark>[&|*()\[\]]))\s*")
_COUNT = re.compile(r"\d+")
_CLOSES = {"(": ")", "[": "]"}

Test = Callable[[Collection[str]], bool]  # of a node's features


@dataclass(frozen=True)
class NodeConstraint:
    """A constraint that may be empty. `is_understood`: otherwise it has a form that is none of
    Slurm's, which is left to sbatch: it lets a job have every node."""

    text: str
    names: frozenset[str] = frozenset()
    is_understood: bool = True
    _allows: Test = field(default=lambda features: True, repr=False, compare=False)

    @classmethod
    def parse(cls, text: str) -> NodeConstraint:
        if not text.strip():
            return cls("")
        try:
            reader = _Reader(_split(text))
            allows = reader.read_all()
        except ValueError:
            return cls(text, is_understood=False)
        return cls(text, frozenset(reader.names), True, allows)

    def allows(self, features: Iterable[str]) -> bool:
        """Whether a job may have a node with these features."""
        return self._allows(frozenset(features))

    @property
    def is_plain(self) -> bool:
        """Whether each of its features must be there."""
        return not {*self.text} & {*"|*()[]"}


def _split(text: str) -> list[str]:
    """Its names and marks. Raises ValueError."""
    tokens, at = list[str](), 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(text[at:])
        tokens.append(match["name"] or match["mark"])
        at = match.end()
    return tokens


class _Reader:
    """Reads a constraint; each method raises ValueError where its form is none of Slurm's."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._tokens: Iterator[str] = iter(tokens)
        self._next = next(self._tokens, "")
        self.names: set[str] = set()

    def _take(self) -> str:
        token, self._next = self._next, next(self._tokens, "")
        return token

    def read_all(self) -> Test:
        allows = self._read_terms("")
        if self._next:
            raise ValueError(self._next)
        return allows

    def _read_terms(self, closes: str) -> Test:
        """Terms up to the mark that closes them. In brackets each is for nodes of its own."""
        allows = self._read_term(closes == "]")
        while self._next and self._next != closes:
            sign = self._take()
            if sign not in ("&", "|"):
                raise ValueError(sign)
            is_other = sign == "|" or closes == "]"
            allows = _join(allows, self._read_term(closes == "]"), is_other)
        return allows

    def _read_term(self, in_brackets: bool) -> Test:
        token = self._take()
        if closes := _CLOSES.get(token):
            allows = self._read_terms(closes)
            if self._take() != closes:
                raise ValueError(token)
        elif not token or token in "&|*)]":
            raise ValueError(token)
        else:
            self.names.add(token)
            allows = _has(token)
        if self._next == "*":
            self._take()
            if not _COUNT.fullmatch(self._take()):
                raise ValueError("*")
            # Outside of brackets so many nodes must have it, and the others may have anything.
            return allows if in_brackets else _allow_all
        return allows


def _has(name: str) -> Test:
    return lambda features: name in features


def _allow_all(features: Collection[str]) -> bool:
    return True


def _join(one: Test, other: Test, is_either: bool) -> Test:
    if is_either:
        return lambda features: one(features) or other(features)
    return lambda features: one(features) and other(features)
