"""What the nodes said of themselves, for the record: once for each node, and never without end.

Facts were written by jobs: a file of them may be large, or nested without measure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..result import PhaseResult
    from .model import FactsRecord, NodeRecord

# A node with eight GPUs and ten network cards tells some 10,000 characters, nested four deep.
MAX_DEPTH = 6
MAX_ENTRIES = 500
MAX_TEXT = 2000
MAX_NAME = 200
MAX_CHARACTERS = 2**18
CUT = "…"  # begins every word that stands where something was left out
# What NodeRecord and FactsRecord say already.
SAID = {"node_rank", "node", "host"}


def nodes(result: PhaseResult) -> list[NodeRecord]:
    """The nodes of a phase, by node rank."""
    return [
        {"node_rank": one.node_rank, "node": one.name, "host": one.host} for one in result.nodes
    ]


@dataclass
class _Node:
    host: str = ""
    told: dict[str, dict[str, Any]] = field(default_factory=dict)  # by phase


class Facts:
    """The facts of all nodes of a run, gathered phase by phase."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[str, int], _Node] = {}

    def add(self, result: PhaseResult) -> None:
        """Take what the nodes of a phase told. Two of one name in one phase are two nodes."""
        named: Counter[str] = Counter()
        for one in result.nodes:
            node = self._nodes.setdefault((one.name, named[one.name]), _Node())
            named[one.name] += 1
            if one.facts or not node.host:
                node.host = one.host
            if one.facts:
                node.told[result.name] = bounded(
                    {name: value for name, value in one.facts.items() if name not in SAID}
                )

    def records(self) -> list[FactsRecord]:
        """Each node once, in the order of the phases."""
        return [_record(name, node) for (name, _), node in self._nodes.items()]


def _record(name: str, node: _Node) -> FactsRecord:
    phases = list(node.told)
    last = node.told[phases[-1]] if phases else {}
    earlier = {phase: _unlike(facts, last) for phase, facts in node.told.items()}
    return {
        "node": name,
        "host": node.host,
        "phases": phases,
        "facts": last,
        "earlier": {phase: facts for phase, facts in earlier.items() if facts},
    }


def _unlike(facts: Mapping[str, Any], last: Mapping[str, Any]) -> dict[str, Any]:
    names = dict.fromkeys([*facts, *last])
    return {name: facts.get(name) for name in names if facts.get(name) != last.get(name)}


def bounded(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts, of which what is beyond any measure is cut and says so."""
    return _Bounds(MAX_CHARACTERS).mapping(facts, MAX_DEPTH)


@dataclass
class _Bounds:
    left: int  # characters that may still be kept

    def value(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            self.left -= min(len(value), MAX_TEXT)
            return _text(value, MAX_TEXT)
        if isinstance(value, dict | list) and value and depth == 0:
            return f"{CUT} nested deeper than {MAX_DEPTH}"
        if isinstance(value, dict):
            return self.mapping(value, depth)
        if isinstance(value, list):
            return self.entries(value, depth)
        self.left -= value.bit_length() // 3 if isinstance(value, int) else 20
        return value

    def mapping(self, value: Mapping[str, Any], depth: int) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for count, (name, inner) in enumerate(value.items()):
            if count == MAX_ENTRIES or self.left <= 0:
                kept[CUT] = f"{CUT} {len(value) - count} more"
                break
            self.left -= min(len(name), MAX_NAME)
            kept[_text(name, MAX_NAME)] = self.value(inner, depth - 1)
        return kept

    def entries(self, value: list[Any], depth: int) -> list[Any]:
        kept: list[Any] = []
        for count, inner in enumerate(value):
            if count == MAX_ENTRIES or self.left <= 0:
                kept.append(f"{CUT} {len(value) - count} more")
                break
            self.left -= 2
            kept.append(self.value(inner, depth - 1))
        return kept


def _text(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}{CUT} {len(text) - most} more characters"
