"""What the nodes said of themselves, as tables: one row a node, and every fact with its values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..references import show
from .node_facts import UNKNOWN, common_facts
from .run_record import DifferenceRecord, FactsRecord

# Columns that every table of nodes has, by the names of node_facts.py.
COLUMNS = ("GPUs", "GPU", "driver", "kernel", "python", "package torch", "memory_bytes")
# Facts that say which node it is, and differ between any two.
OWN = {"node_rank", "node", "time"}
# Beside them those in which nodes differ: as many as a person can compare.
MAX_COLUMNS = 16
MAX_WORDS = 200
MAX_NAMES = 8
MAX_FACTS = 400


@dataclass(frozen=True)
class Cell:
    text: str
    differs: bool  # it is not what most nodes have, in a fact in which they should be alike


@dataclass(frozen=True)
class FactRow:
    """A fact, its values with their nodes, and whether nodes should be alike in it and are not."""

    fact: str
    values: list[tuple[str, str]]
    differs: bool


@dataclass(frozen=True)
class NodeTable:
    """The table of nodes; in `more` facts they differ, too, for which it has no column."""

    columns: list[str]
    rows: list[tuple[FactsRecord, list[Cell]]]
    more: int


def node_table(nodes: list[FactsRecord], differences: list[DifferenceRecord]) -> NodeTable:
    """Each node's cells: what every such table has, and the facts in which nodes differ."""
    by_fact = {one.fact: one.values for one in differences}
    told = {node.node: dict(common_facts(node.facts)) for node in nodes}
    columns = [name for name in COLUMNS if any(name in facts for facts in told.values())]
    unlike = [name for name in by_fact if name not in columns]
    columns += unlike[:MAX_COLUMNS]
    rows = []
    for node in nodes:
        cells = [_cell(node.node, told[node.node], name, by_fact) for name in columns]
        rows.append((node, cells))
    return NodeTable(columns, rows, len(unlike[MAX_COLUMNS:]))


def _cell(
    node: str, facts: Mapping[str, str], name: str, by_fact: Mapping[str, dict[str, list[str]]]
) -> Cell:
    for place, (value, nodes) in enumerate(by_fact.get(name, {}).items()):
        if node in nodes:
            return Cell(value, place > 0)
    return Cell(facts.get(name, UNKNOWN), False)


def all_facts(
    nodes: list[FactsRecord], differences: list[DifferenceRecord]
) -> tuple[list[FactRow], int]:
    """The facts of every node, by name; equal values once, with their nodes. And how many facts
    there are beyond these."""
    found: dict[str, dict[str, list[str]]] = {}
    for node in nodes:
        for name, value in _flat("", {k: v for k, v in node.facts.items() if k not in OWN}):
            found.setdefault(name, {}).setdefault(value, []).append(node.node)
    unlike = {one.fact for one in differences}
    rows = []
    for name, values in sorted(found.items())[:MAX_FACTS]:
        ordered = sorted(values.items(), key=lambda one: -len(one[1]))
        told = [(value, _who(held, len(nodes))) for value, held in ordered[:MAX_NAMES]]
        if len(ordered) > MAX_NAMES:
            told.append((f"and {len(ordered) - MAX_NAMES} more values", "facts.json of each node"))
        rows.append(FactRow(name, told, _as_named(name) in unlike))
    return rows, len(found) - len(rows)


def _as_named(name: str) -> str:
    """A flattened fact's name in node_facts.py."""
    if name.startswith("packages."):
        return "package " + name.partition(".")[2]
    return "driver" if name.endswith(".driver_version") else name


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}" if name else str(key), inner)
    elif isinstance(value, list) and any(isinstance(one, dict | list) for one in value):
        for number, inner in enumerate(value):
            yield from _flat(f"{name}.{number}", inner)
    else:
        yield name, ", ".join(map(_word, value)) if isinstance(value, list) else _word(value)


def _who(held: list[str], count: int) -> str:
    if len(held) == count:
        return "all nodes" if count > 1 else held[0]
    return ", ".join(held) if len(held) <= MAX_NAMES else f"{len(held)} nodes"


def fact_words(value: str, fact: str) -> str:
    """A fact's value as people read it: bytes as GiB."""
    if fact.endswith("_bytes") and value.isdecimal():
        return f"{show(int(value) / 2**30)} GiB"
    return value


def _word(value: Any) -> str:
    return str(value)[:MAX_WORDS]
