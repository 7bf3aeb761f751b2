"""A communicator's edges rank by rank: a row for each source, a column for each destination."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..logs.paper import Paper, clean
from .job import Job
from .links import Link
from .model import Communicator
from .placement import Node
from .remarks import many

NONE, SELF, SEVERAL, OTHER = ".", "\\", "*", "?"
CODES = {
    "P2P/CUMEM": "P",
    "P2P/IPC": "I",
    "P2P/direct pointer": "D",
    "P2P/MNNVL": "M",
    "P2P/indirect": "X",
    "P2P/common device": "C",
    "SHM": "S",
    "NET/IB/GDRDMA": "G",
    "NET/IB": "B",
    "NET/Socket": "T",
}
# For networks of other names, with GPUDirect RDMA and without.
DIRECT, PLAIN = "NFHJKLQRUVWYZAEO", "nfhjklqruvwyzaeo"
# Beyond this many ranks a cell is one character; beyond the next there is no picture.
ROOMY_RANKS = 64
MAX_RANKS = 2048
MAX_NAME = 20


def matrices(job: Job, paper: Paper) -> Iterator[str]:
    """What the letters mean, and the matrix of each communicator that has edges."""
    codes = assign(sorted({kind for _, kind in job.pairs}))
    told = [f"{code} {clean(kind)}" for kind, code in codes.items()]
    told += [f"{SEVERAL} several kinds", f"{NONE} no edge logged"]
    yield from paper.wrap("; ".join(told), "", "  ")
    for one in job.log.communicators:
        links = list(job.of(one))
        if links:
            yield ""
            yield paper.bold(f"communicator {one.index}, from rows to columns:")
            yield from _matrix(job, one, links, codes, paper)
    loose = sum(1 for link in job.links if not link.communicators)
    if loose:
        yield f"({many(loose, 'edge')} of no known communicator not shown)"


def assign(kinds: Sequence[str]) -> dict[str, str]:
    """A letter for each kind."""
    codes: dict[str, str] = {}
    used = set(CODES.values())
    for kind in kinds:
        letters = DIRECT if kind.endswith("/GDRDMA") else PLAIN
        code = CODES.get(kind) or next((one for one in letters if one not in used), OTHER)
        codes[kind] = code
        used.add(code)
    return codes


def _matrix(
    job: Job, one: Communicator, links: Sequence[Link], codes: dict[str, str], paper: Paper
) -> Iterator[str]:
    placement = job.placements[one.index]
    ends = {link.source for link in links} | {link.destination for link in links}
    ranks = sorted({*placement.nodes, *ends})
    if len(ranks) > MAX_RANKS:
        told = f"{len(ranks):,} ranks are too many to draw (at most {MAX_RANKS:,}); --json has all"
        yield from paper.wrap(told)
        return
    cells: dict[tuple[int, int], str] = {}
    for link in links:
        code = codes[link.kind]
        known = cells.setdefault((link.source, link.destination), code)
        if known != code:
            cells[link.source, link.destination] = SEVERAL
    lines = list(_grid(ranks, [placement.node(rank) for rank in ranks], cells))
    if paper.width is not None and max(map(len, lines)) > paper.width:
        yield from paper.wrap("(wider than the terminal; `| less -S` shows its lines whole)")
    yield from lines
    if one.ranks is not None and one.ranks > len(ranks):
        yield f"({many(one.ranks - len(ranks), 'rank')} without any line left out)"


def _grid(
    ranks: Sequence[int], nodes: Sequence[Node | None], cells: dict[tuple[int, int], str]
) -> Iterator[str]:
    """Rows and columns of ranks, with a stroke between nodes where ranks stand node by node."""
    gap = " " if len(ranks) <= ROOMY_RANKS else ""
    changes = {i for i in range(1, len(ranks)) if nodes[i] != nodes[i - 1]}
    strokes = changes if len(changes) < len(ranks) / 2 else set()
    names = [_short(node) for node in nodes]
    left, digits = max(map(len, names)), len(str(ranks[-1]))
    margin = " " * (left + digits + 3)

    def line(marks: Sequence[str]) -> str:
        parts = [f"|{mark}" if i in strokes else gap + mark for i, mark in enumerate(marks)]
        return "".join(parts)

    for place in range(digits):
        yield margin + line([str(rank).rjust(digits)[place] for rank in ranks])
    for i, source in enumerate(ranks):
        if i in strokes and gap:
            yield margin + line(["-"] * len(ranks)).replace(" ", "-")
        marks = [cells.get((source, rank), SELF if rank == source else NONE) for rank in ranks]
        name = names[i] if i == 0 or nodes[i] != nodes[i - 1] else ""
        yield f"{name.ljust(left)}  {str(source).rjust(digits)} {line(marks)}"


def _short(node: Node | None) -> str:
    name = clean(node.host) if node else "?"
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}~"
