"""A check that failed, and a node's facts by type."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from ...evidence.telemetry import parse_number
from ...evidence.variable_names import show_value
from ...text import shorten
from ..gpu_facts import rows

FAILURE, WARNING = "failure", "warning"
FACTS, MEETING = "facts", "meeting"
MANY = 8

T = TypeVar("T")


@dataclass(frozen=True)
class Check:
    """A check that failed on these nodes (by rank).

    `what` describes the problem without the nodes' names, so that nodes with the same problem are
    reported together. `fact` is the key that shows it in a node's `file`: FACTS, or MEETING (its
    report on the connection to node 0).
    """

    id: str
    nodes: tuple[int, ...]
    what: str
    fix: str
    severity: str = FAILURE
    fact: str = ""
    file: str = FACTS
    detail: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Node:
    """A node's facts; a value that is missing or of the wrong type is None."""

    rank: int
    facts: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.text("node") or f"node {self.rank}"

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


def nodes_of(facts: Sequence[Mapping[str, Any] | None]) -> list[Node]:
    """The nodes that wrote facts; the others are unknown."""
    return [Node(rank, values) for rank, values in enumerate(facts) if values]


def merged(checks: Iterable[Check]) -> list[Check]:
    """Merge equal checks of several nodes into one; failures come first."""
    by_problem: dict[tuple[str, str, str], Check] = {}
    for check in sorted(checks, key=lambda check: check.severity != FAILURE):
        key = (check.severity, check.id, check.what)
        nodes = {*(by_problem[key].nodes if key in by_problem else ()), *check.nodes}
        by_problem[key] = replace(by_problem.get(key, check), nodes=tuple(sorted(nodes)))
    return list(by_problem.values())


def most_common(values: Iterable[T]) -> T | None:
    """The most common value; None if two are equally common."""
    first, *others = Counter(values).most_common(2)
    return None if others and others[0][1] == first[1] else first[0]


def listed(words: Iterable[str]) -> str:
    """`a, b and 7 more`."""
    return shorten(list(words), MANY)
