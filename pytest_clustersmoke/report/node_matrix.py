"""The matrix of nodes by phases: how often each node was bad where, the worst nodes first."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from ..evidence.history.node_history import NodeCount
from ..evidence.node_observation import SCREEN
from ..text import sanitize_line
from .page_view import natural

MAX_NODES = 64  # rows; nodes that were bad come first


@dataclass
class NodeCell:
    """How often a node was seen in a phase, how often it was bad there, and what was found."""

    seen: int = 0
    bad: int = 0
    kinds: dict[str, int] = field(default_factory=dict)

    @property
    def words(self) -> str:
        found = ", ".join(f"{kind} {count} times" for kind, count in self.kinds.items())
        return f"bad in {self.bad} of {self.seen} runs" + (f": {found}" if found else "")


@dataclass(frozen=True)
class NodeLine:
    """A node with its cell in each column; `named` says what named it, and in how many phases."""

    node: str
    cells: list[NodeCell | None]
    named: str
    is_bad: bool


@dataclass(frozen=True)
class NodeMatrix:
    """The nodes of a cluster; `left_out` is how many more there are, none of them worse."""

    columns: list[str]
    nodes: list[NodeLine]
    left_out: int
    bad_left_out: int


def build_matrix(counts: Iterable[NodeCount], phases: Sequence[str]) -> NodeMatrix | None:
    """The matrix of these phases and of the screen; None if no node was seen."""
    cells: dict[str, dict[str, NodeCell]] = {}
    for counted in counts:
        cell = cells.setdefault(counted.node, {}).setdefault(counted.source, NodeCell())
        cell.seen += counted.count
        if counted.state == "bad":
            cell.bad += counted.count
            kind = sanitize_line(counted.kind)
            cell.kinds[kind] = cell.kinds.get(kind, 0) + counted.count
    if not cells:
        return None
    sources = {source for row in cells.values() for source in row}
    columns = [name for name in (SCREEN, *phases) if name in sources]
    ordered = sorted(cells, key=lambda node: (*_weigh(cells[node].values()), natural(node)))
    lines = [_make_line(node, cells[node], columns) for node in ordered]
    rest = lines[MAX_NODES:]
    return NodeMatrix(
        columns=[sanitize_line(name) for name in columns],
        nodes=lines[:MAX_NODES],
        left_out=len(rest),
        bad_left_out=sum(line.is_bad for line in rest),
    )


def _weigh(cells: Collection[NodeCell]) -> tuple[int, int]:
    """The node that was bad in the most phases comes first, then the one that was most often."""
    return -sum(cell.bad > 0 for cell in cells), -sum(cell.bad for cell in cells)


def _make_line(node: str, cells: dict[str, NodeCell], columns: Sequence[str]) -> NodeLine:
    return NodeLine(
        node=sanitize_line(node),
        cells=[cells.get(name) for name in columns],
        named=", ".join(_describe_kinds(cells)),
        is_bad=any(cell.bad for cell in cells.values()),
    )


def _describe_kinds(cells: dict[str, NodeCell]) -> Iterable[str]:
    """`slow-rank in 8 of 8 phases`, the kind of the most phases first."""
    phases = [name for name in cells if name != SCREEN]
    found: dict[str, list[str]] = {}
    for source, cell in cells.items():
        for kind in cell.kinds:
            found.setdefault(kind, []).append(source)
    for kind in sorted(found, key=lambda kind: (-len(found[kind]), kind)):
        named = [source for source in found[kind] if source != SCREEN]
        where = [f"{len(named)} of {len(phases)} phases"] if named else []
        where += ["the screen"] if SCREEN in found[kind] else []
        yield f"{kind} in {' and in '.join(where)}"
