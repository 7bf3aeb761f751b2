"""A node's facts as values of known types, and the findings about it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from ...evidence.finding import Evidence, Finding, read_head
from ...evidence.telemetry import parse_number
from ...evidence.variable_names import show_value
from ...text import FAILURE, shorten
from ..gpu_facts import rows

MANY = 8
# Of so many other nodes, one may have lost the same link. Where more lack it, the nodes may have
# been cabled differently on purpose.
ONE_IN = 10

T = TypeVar("T")


@dataclass(frozen=True)
class Node:
    """A node's facts; a value that is missing or of the wrong type is None.

    `path` is the file that has them, for findings to quote. It is None on the nodes themselves:
    they decide whether to start, and read no file twice.
    """

    rank: int
    name: str
    facts: Mapping[str, Any]
    path: Path | None = None

    def build_finding(
        self, identity: str, cause: str, fix: str, fact: str, severity: str = FAILURE, **detail: Any
    ) -> Finding:
        """What is wrong with this node. `cause` does not name it, so that nodes with the same
        problem are reported together. `fact` is the key that shows it."""
        return Finding(
            identity,
            cause,
            fix,
            primary=severity == FAILURE,
            evidence=self._quote(fact, cause),
            hosts=(self.name,),
            detail=detail,
            severity=severity,
        )

    def _quote(self, fact: str, cause: str) -> tuple[Evidence, ...]:
        if self.path is None:
            return ()
        wanted = f' "{fact}":'  # only top-level keys are indented by one space
        for line, text in read_head(self.path):
            if text.startswith(wanted):
                return (Evidence(str(self.path), line, text.strip()),)
        return (Evidence(str(self.path), 1, cause),)

    def text(self, key: str) -> str | None:
        value = self.facts.get(key)
        return show_value(value) if isinstance(value, str) else None

    def number(self, key: str) -> float | None:
        value = parse_number(self.facts.get(key))
        return value if value is not None and math.isfinite(value) else None

    def mapping(self, key: str) -> dict[str, Any] | None:
        value = self.facts.get(key)
        return value if isinstance(value, dict) else None

    def rows(self, key: str) -> list[dict[str, str]] | None:
        """The rows of a table; values that are not text are left out."""
        return rows(self.facts, key)


def nodes_of(
    facts: Sequence[Mapping[str, Any] | None], path_of: Callable[[int], Path] | None = None
) -> list[Node]:
    """The nodes that wrote facts, in node rank order; the others are unknown."""
    nodes = (
        Node(rank, f"node {rank}", values, path_of and path_of(rank))
        for rank, values in enumerate(facts)
        if values
    )
    return [replace(node, name=node.text("node") or node.name) for node in nodes]


def most_common(values: Iterable[T]) -> T | None:
    """The most common value; None if two are equally common."""
    first, *others = Counter(values).most_common(2)
    return None if others and others[0][1] == first[1] else first[0]


def is_usual(having: int, others: int) -> bool:
    """Whether so many of the other nodes have what one lacks that it should have it too."""
    return having >= others - others // ONE_IN


def find_usual(counts: Iterable[int]) -> int:
    """What all other nodes have of something, or more, but for those that may have lost some."""
    ordered = sorted(counts)
    return ordered[len(ordered) // ONE_IN]


def shorten_names(words: Iterable[str]) -> str:
    """`a, b and 7 more`."""
    return shorten(list(words), MANY)
