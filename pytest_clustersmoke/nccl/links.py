"""Edges -> links: what lines of a log have in common, merged, each inside a node or between nodes.

A job of thousands of ranks that all talk to all has millions of edges; so what many have in common
is kept once, and everything is one pass over what the reader has sorted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple, TypeVar

from .model import Edge, Log, NcclTransport, Where, transport
from .placement import Node, Placement

INTRA, INTER = "intra_node", "inter_node"
UNCERTAIN = "no line tells whose communicator's it is"

K = TypeVar("K")
T = TypeVar("T")
Spot = tuple[str, "int | None", "int | None"]
Names = tuple[str, ...]
Ends = tuple["Node | None", "Node | None"]


class Link(NamedTuple):
    """One wording of NCCL's between two ranks, merged from all lines that say it.

    `certain` is False where a line does not tell whose of `communicators` it is. `asymmetric` says
    whether the two ends told different kinds of the same channel; None where one end is silent, as
    it always is with P2P and SHM.
    """

    source: int
    destination: int
    wording: str
    channels: tuple[int, ...]
    connections: tuple[int, ...]
    nics: Names  # by name, where the log tells it
    sender_nics: Names
    receiver_nics: Names
    roles: Names
    communicators: tuple[int, ...]
    certain: bool
    asymmetric: bool | None
    placement: str | None
    ends: Ends
    where: Where
    why: str  # why the placement is not known
    pair: int  # one number for each source and destination of the same communicators

    @property
    def transport(self) -> NcclTransport:
        return transport(self.wording)

    @property
    def kind(self) -> str:
        return transport(self.wording).kind


def count_pairs(links: Iterable[Link], key: Callable[[Link], K]) -> dict[K, int]:
    """The pairs of ranks for each key of their links, which stand pair by pair."""
    counts: dict[K, int] = defaultdict(int)
    last: dict[K, int] = {}
    for link in links:
        mine = key(link)
        if last.get(mine) != link.pair:
            last[mine] = link.pair
            counts[mine] += 1
    return dict(counts)


# -- Edges -> links --------------------------------------------------------------------------------


def links_of(log: Log, placements: Sequence[Placement]) -> Iterator[Link]:
    """The links of edges, which the reader sorted by source and destination."""
    pair = 0
    for _, same in groupby(log.edges, key=attrgetter("source", "destination")):
        groups: dict[tuple[int, ...], list[Edge]] = {}
        for edge in same:
            groups.setdefault(edge.communicators, []).append(edge)
        for owners in sorted(groups) if len(groups) > 1 else groups:
            pair += 1
            yield from _links_of_pair(groups[owners], pair, [placements[i] for i in owners])


def _links_of_pair(
    edges: Sequence[Edge], pair: int, placements: Sequence[Placement]
) -> Iterator[Link]:
    """The links of edges of one source, destination and owners, by their wording."""
    asymmetric = _asymmetries(edges) if len(edges) > 1 and len(placements) == 1 else {}
    first = edges[0]
    told: tuple[str | None, str, Ends] | None = None
    if len(placements) == 1:
        ends = placements[0].node(first.source), placements[0].node(first.destination)
        # Else it depends on who logged.
        if None not in ends:
            told = _told(first, placements)
    wordings: dict[str, list[Edge]] = {}
    for edge in edges:
        wordings.setdefault(edge.wording, []).append(edge)
    for lines in wordings.values():  # in their order, which is the reader's
        asked = _any_true({asymmetric.get(id(edge)) for edge in lines}) if asymmetric else None
        side, why, ends = told or _agreed([_told(edge, placements) for edge in lines])
        yield _link(lines, pair, asked, side, why, ends)


def _link(
    lines: Sequence[Edge],
    pair: int,
    asymmetric: bool | None,
    side: str | None,
    why: str,
    ends: Ends,
) -> Link:
    """One link of edges of one source, destination, wording and owners."""
    first = lines[0]
    if len(lines) == 1:
        channels, connections, where = first.channels, _one(first.connection), first.where
        nics, roles = _one(first.nic), _one(first.role)
        sent = nics if first.role == "send" else ()
        received = nics if first.role == "receive" else ()
    else:
        channels = _union([edge.channels for edge in lines])
        connections = _union([_one(edge.connection) for edge in lines])
        where = min(edge.where for edge in lines)
        roles = _united([_one(edge.role) for edge in lines])
        nics = _united([_one(edge.nic) for edge in lines])
        sent = _united([_one(edge.nic) for edge in lines if edge.role == "send"])
        received = _united([_one(edge.nic) for edge in lines if edge.role == "receive"])
    return Link(
        first.source,
        first.destination,
        first.wording,
        channels,
        connections,
        nics,
        sent,
        received,
        roles,
        first.communicators,
        len(first.communicators) == 1,
        asymmetric,
        side,
        ends,
        where,
        why,
        pair,
    )


def _told(edge: Edge, placements: Sequence[Placement]) -> tuple[str | None, str, Ends]:
    """On which side an edge is, why that is not known, and the nodes of its ends; `placements` are
    those of its communicators."""
    every = [placement.ends(edge) for placement in placements]
    sides = {placement.together(*ends) for placement, ends in zip(placements, every, strict=True)}
    if sides == {True}:
        return INTRA, "", _common_ends(every)
    if sides == {False}:
        return INTER, "", _common_ends(every)
    why = placements[0].why_not(edge) if len(placements) == 1 else UNCERTAIN
    return None, why, _common_ends(every)


def _agreed(told: Sequence[tuple[str | None, str, Ends]]) -> tuple[str | None, str, Ends]:
    """What all lines of a link say."""
    if len(told) == 1:
        return told[0]
    ends = _common_ends([each for _, _, each in told])
    sides = {side for side, _, _ in told}
    if len(sides) == 1:
        return told[0][0], told[0][1], ends
    return None, next((why for _, why, _ in told if why), UNCERTAIN), ends


def _asymmetries(edges: Iterable[Edge]) -> dict[int, bool]:
    """By the edge's id: whether the other end told another kind of a channel they share.

    All edges are of one pair and communicator. The NICs may differ, each end having its own; a
    network or GPUDirect RDMA may not.
    """
    told: dict[Spot, dict[str, list[Edge]]] = {}  # kinds by role, connection and channel
    for edge in edges:
        if edge.role is not None and edge.transport.net:
            for channel in edge.channels or (None,):
                kinds = told.setdefault((edge.role, edge.connection, channel), {})
                kinds.setdefault(edge.kind, []).append(edge)
    found: dict[int, bool] = {}
    for (role, connection, channel), kinds in told.items():
        others = told.get(("send" if role == "receive" else "receive", connection, channel))
        if others is None:
            continue
        for kind, lines in kinds.items():
            differs = len(others) > 1 or kind not in others
            for edge in lines:
                found[id(edge)] = found.get(id(edge), False) or differs
    return found


# -- Links -> fewer links --------------------------------------------------------------------------


def merge_equal(links: Iterable[Link]) -> Iterator[Link]:
    """Links of one source, destination and wording as one, in that order."""
    for _, same in groupby(links, key=attrgetter("source", "destination")):
        wordings: dict[str, list[Link]] = {}
        for link in same:
            wordings.setdefault(link.wording, []).append(link)
        for _, each in sorted(wordings.items()):
            yield each[0] if len(each) == 1 else _merge(each)


def _merge(links: Sequence[Link]) -> Link:
    """What links of one source, destination and wording have in common."""
    sides = {link.placement for link in links}
    return links[0]._replace(
        channels=_union([link.channels for link in links]),
        connections=_union([link.connections for link in links]),
        nics=_united([link.nics for link in links]),
        sender_nics=_united([link.sender_nics for link in links]),
        receiver_nics=_united([link.receiver_nics for link in links]),
        roles=_united([link.roles for link in links]),
        communicators=_union([link.communicators for link in links]),
        certain=all(link.certain for link in links),
        asymmetric=_any_true({link.asymmetric for link in links}),
        placement=sides.pop() if len(sides) == 1 else None,
        ends=_common_ends([link.ends for link in links]),
        where=min(link.where for link in links),
    )


def _common_ends(ends: Sequence[Ends]) -> Ends:
    """Each end's node, where all agree."""
    sources, destinations = {one for one, _ in ends}, {one for _, one in ends}
    source = sources.pop() if len(sources) == 1 else None
    return _kept((source, destinations.pop() if len(destinations) == 1 else None))


@lru_cache(maxsize=2**16)
def _kept(ends: Ends) -> Ends:
    """The same object for equal ones: many edges have the same."""
    return ends


@lru_cache(maxsize=4096)
def _one(value: T | None) -> tuple[T, ...]:
    return () if value is None else (value,)


def _union(parts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    if all(part == parts[0] for part in parts):
        return parts[0]
    return tuple(sorted(set().union(*parts)))


def _united(parts: Sequence[Names]) -> Names:
    if not parts or all(part == parts[0] for part in parts):
        return parts[0] if parts else ()
    return tuple(sorted({name for part in parts for name in part}))


def _any_true(told: set[bool | None]) -> bool | None:
    known = told - {None}
    return any(known) if known else None
