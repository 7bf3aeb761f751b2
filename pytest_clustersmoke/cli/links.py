"""Edges -> links: what lines of a log have in common, merged, each inside a node or between nodes.

A job of thousands of ranks that all talk to all has millions of edges; so everything is one pass
over what the reader has sorted, and equal parts of links are one object.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple, TypeVar

from ..evidence.nccl.nccl_log import Edge, Log, NcclTransport, Where, transport
from .placement import Ends, Placement

INTRA, INTER = "intra_node", "inter_node"
SIDES: dict[bool | None, str | None] = {True: INTRA, False: INTER, None: None}
OTHER_END = {"send": "receive", "receive": "send"}

K = TypeVar("K")
T = TypeVar("T")
N = TypeVar("N", int, str)
Names = tuple[str, ...]
Pair = tuple[int, int, tuple[int, ...]]
# By role, connection and channel: the kinds that this end said.
Kinds = dict[tuple[str, "int | None", "int | None"], set[str]]


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
    sender_nics: Names  # by name, where the log tells it
    receiver_nics: Names
    nics: Names  # of both, and of lines that do not tell whose they are
    roles: Names
    communicators: tuple[int, ...]
    certain: bool
    asymmetric: bool | None
    placement: str | None
    ends: Ends
    where: Where

    @property
    def transport(self) -> NcclTransport:
        return transport(self.wording)

    @property
    def kind(self) -> str:
        return transport(self.wording).kind

    @property
    def pair(self) -> Pair:
        """The two ranks; equal numbers in other communicators are other ranks."""
        return self.source, self.destination, self.communicators


def count_pairs(links: Iterable[Link], key: Callable[[Link], K]) -> dict[K, int]:
    """The pairs of ranks for each key of their links, which stand pair by pair."""
    counts: dict[K, int] = defaultdict(int)
    last: dict[K, Pair] = {}
    for link in links:
        mine = key(link)
        if last.get(mine) != link.pair:
            last[mine] = link.pair
            counts[mine] += 1
    return dict(counts)


def links_of(log: Log, placements: Sequence[Placement]) -> Iterator[Link]:
    """The links of edges, which the reader sorted by source and destination."""
    for _, same in groupby(log.edges, key=attrgetter("source", "destination")):
        groups: dict[tuple[int, ...], list[Edge]] = {}
        for edge in same:
            groups.setdefault(edge.communicators, []).append(edge)
        for owners in sorted(groups):
            edges, places = groups[owners], [placements[index] for index in owners]
            kinds = _kinds(edges) if len(places) == 1 and len(edges) > 1 else {}
            yield from merge_equal(_link(edge, places, kinds) for edge in edges)


def merge_equal(links: Iterable[Link]) -> Iterator[Link]:
    """Links of one source, destination and wording as one, in that order."""
    for _, same in groupby(links, key=attrgetter("source", "destination")):
        wordings: dict[str, list[Link]] = {}
        for link in same:
            wordings.setdefault(link.wording, []).append(link)
        for _, equal in sorted(wordings.items()):
            yield equal[0] if len(equal) == 1 else _merge(equal)


def _link(edge: Edge, placements: Sequence[Placement], kinds: Kinds) -> Link:
    """What one line says."""
    every = [placement.ends(edge) for placement in placements]
    same = {placement.same(*ends) for placement, ends in zip(placements, every, strict=True)}
    nics = _one(edge.nic)
    return Link(
        edge.source,
        edge.destination,
        edge.wording,
        edge.channels,
        _one(edge.connection),
        nics if edge.role == "send" else (),
        nics if edge.role == "receive" else (),
        nics,
        _one(edge.role),
        edge.communicators,
        len(edge.communicators) == 1,
        _asymmetric(edge, kinds),
        SIDES[same.pop()] if len(same) == 1 else None,
        _common_ends(every),
        edge.where,
    )


def _merge(links: Sequence[Link]) -> Link:
    """What links of one source, destination and wording have in common."""
    sides = {link.placement for link in links}
    asymmetric = {link.asymmetric for link in links} - {None}
    return links[0]._replace(
        channels=_union([link.channels for link in links]),
        connections=_union([link.connections for link in links]),
        sender_nics=_union([link.sender_nics for link in links]),
        receiver_nics=_union([link.receiver_nics for link in links]),
        nics=_union([link.nics for link in links]),
        roles=_union([link.roles for link in links]),
        communicators=_union([link.communicators for link in links]),
        certain=all(link.certain for link in links),
        asymmetric=any(asymmetric) if asymmetric else None,
        placement=sides.pop() if len(sides) == 1 else None,
        ends=_common_ends([link.ends for link in links]),
        where=min(link.where for link in links),
    )


def _kinds(edges: Iterable[Edge]) -> Kinds:
    """What each end of a pair of ranks said of each channel. NICs may differ, each end having its
    own; a network or GPUDirect RDMA may not. P2P and SHM are told by one end alone."""
    found: Kinds = defaultdict(set)
    for edge in edges:
        if edge.role is not None and edge.transport.net:
            for channel in edge.channels or (None,):
                found[edge.role, edge.connection, channel].add(edge.kind)
    return found


def _asymmetric(edge: Edge, kinds: Kinds) -> bool | None:
    """Whether the other end told another kind of a channel that both told of."""
    if not kinds or edge.role is None or not edge.transport.net:
        return None
    role = OTHER_END[edge.role]
    spots = [(role, edge.connection, channel) for channel in edge.channels or (None,)]
    others = [kinds[spot] for spot in spots if spot in kinds]
    return any(other != {edge.kind} for other in others) if others else None


def _common_ends(ends: Sequence[Ends]) -> Ends:
    """Each end's node, where all agree."""
    if ends and all(other is ends[0] for other in ends):
        return ends[0]
    sources, destinations = {source for source, _ in ends}, {other for _, other in ends}
    source = sources.pop() if len(sources) == 1 else None
    both: Ends = _kept((source, destinations.pop() if len(destinations) == 1 else None))
    return both


@lru_cache(maxsize=2**16)
def _kept(value: T) -> T:
    """The same object for equal ones: many links have the same."""
    return value


@lru_cache(maxsize=4096)
def _one(value: N | None) -> tuple[N, ...]:
    return () if value is None else (value,)


def _union(parts: Sequence[tuple[N, ...]]) -> tuple[N, ...]:
    if all(part == parts[0] for part in parts):
        return parts[0]
    union: tuple[N, ...] = _kept(tuple(sorted(set().union(*parts))))
    return union
