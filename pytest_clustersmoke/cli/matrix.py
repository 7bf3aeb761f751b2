"""A communicator's edges as a matrix: a row for each source rank, a column for each destination."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..evidence.nccl.nccl_log import Communicator
from ..text import plural, sanitize_line
from .job_transports import JobTransports
from .links import Link
from .placement import HostNode
from .subcommand import TextOutput

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
# Letters for other networks, with GPUDirect RDMA and without.
DIRECT, PLAIN = "NFHJKLQRUVWYZAEO", "nfhjklqruvwyzaeo"
# Above this many ranks a cell is one character; above MAX_RANKS nothing is drawn.
ROOMY_RANKS = 64
MAX_RANKS = 2048
MAX_NAME = 20


def matrices(job: JobTransports, out: TextOutput) -> Iterator[str]:
    """The key of letters, and the matrix of each communicator with edges."""
    codes = assign_letters(sorted({kind for _, kind in job.pairs}))
    key = [f"{letter} {sanitize_line(kind)}" for kind, letter in codes.items()]
    key += [f"{SEVERAL} several kinds", f"{NONE} no edge logged"]
    yield from out.wrap("; ".join(key), rest="  ")
    for communicator in job.log.communicators:
        links = list(job.of(communicator))
        if links:
            yield ""
            yield out.bold(f"communicator {communicator.index}, from rows to columns:")
            yield from _matrix(job, communicator, links, codes, out)
    loose = sum(1 for link in job.links if not link.communicators)
    if loose:
        yield f"({plural(loose, 'edge')} not shown, as their communicator is unknown)"


def assign_letters(kinds: Sequence[str]) -> dict[str, str]:
    """A letter for each kind."""
    letters: dict[str, str] = {}
    used = set(CODES.values())
    for kind in kinds:
        free = DIRECT if kind.endswith("/GDRDMA") else PLAIN
        letter = CODES.get(kind) or next((mark for mark in free if mark not in used), OTHER)
        letters[kind] = letter
        used.add(letter)
    return letters


def _matrix(
    job: JobTransports,
    communicator: Communicator,
    links: Sequence[Link],
    letters: dict[str, str],
    out: TextOutput,
) -> Iterator[str]:
    placement = job.placements[communicator.index]
    cells: dict[tuple[int, int], str] = {}
    for link in links:
        letter = letters[link.kind]
        if cells.setdefault((link.source, link.destination), letter) != letter:
            cells[link.source, link.destination] = SEVERAL
    ranks = sorted({*placement.nodes, *(rank for pair in cells for rank in pair)})
    if len(ranks) > MAX_RANKS:
        text = (
            f"{len(ranks):,} ranks are too many to draw (at most {MAX_RANKS:,}); --json "
            "lists all edges"
        )
        yield from out.wrap(text)
        return
    lines = list(_grid(ranks, [placement.node(rank) for rank in ranks], cells))
    if out.width is not None and max(map(len, lines)) > out.width:
        yield from out.wrap("(wider than the terminal; `| less -S` shows whole lines)")
    yield from lines
    if communicator.ranks is not None and communicator.ranks > len(ranks):
        yield f"({plural(communicator.ranks - len(ranks), 'rank')} without a log line left out)"


def _grid(
    ranks: Sequence[int], nodes: Sequence[HostNode | None], cells: dict[tuple[int, int], str]
) -> Iterator[str]:
    """Rows and columns of ranks, with a stroke between nodes if ranks are ordered by node."""
    gap = " " if len(ranks) <= ROOMY_RANKS else ""
    changes = {i for i in range(1, len(ranks)) if nodes[i] != nodes[i - 1]}
    strokes = changes if len(changes) < len(ranks) / 2 else set()
    names = [sanitize_line(node.host)[:MAX_NAME] if node else "?" for node in nodes]
    name_width, digits = max(map(len, names)), len(str(ranks[-1]))
    margin = " " * (name_width + digits + 3)

    def line(marks: Sequence[str]) -> str:
        return "".join(("|" if i in strokes else gap) + mark for i, mark in enumerate(marks))

    for place in range(digits):
        yield margin + line([str(rank).rjust(digits)[place] for rank in ranks])
    for i, source in enumerate(ranks):
        if i in strokes and gap:
            yield margin + line(["-"] * len(ranks)).replace(" ", "-")
        marks = [cells.get((source, rank), SELF if rank == source else NONE) for rank in ranks]
        name = names[i] if i == 0 or i in changes else ""
        yield f"{name.ljust(name_width)}  {str(source).rjust(digits)} {line(marks)}"
