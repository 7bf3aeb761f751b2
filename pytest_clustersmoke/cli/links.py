"""Merges edges, which are lines of a log, into links, each inside a node or between nodes.

A job of thousands of ranks, each connected to all others, has millions of edges. So there is only
one pass over the edges, which the reader has sorted, and equal parts of links share one object.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple, TypeVar

from ..evidence.nccl.nccl_log import Edge, Log, NcclTransport, Where, parse_transport
from .placement import Ends, Placement

INTRA, INTER = "intra_node", "inter_node"
SIDES: dict[bool | None, str | None] = {True: INTRA, False: INTER, None: None}
OTHER_END = {"send": "receive", "receive": "send"}

K = TypeVar("K")
T = TypeVar("T")
N = TypeVar("N", int, str)
Names = tuple[str, ...]
Pair = tuple[int, int, tuple[int, ...]]
# The kinds that one end logged, by role, connection and channel.
Kinds = dict[tuple[str, "int | None", "int | None"], set[str]]


class Link(NamedTuple):
    """One transport between two ranks, in NCCL's wording, merged from all lines that name it.

    `certain` is False if a line may belong to several `communicators`. `asymmetric` says whether
    the two ends logged different kinds for the same channel; None if only one end logged it, which
    is always so with P2P and SHM.
    """

    source: int
    destination: int
    wording: str
    channels: tuple[int, ...]
    connections: tuple[int, ...]
    sender_nics: Names  # by name, if logged
    receiver_nics: Names
    nics: Names  # of both, and of lines without a role
    roles: Names
    communicators: tuple[int, ...]
    certain: bool
    asymmetric: bool | None
    placement: str | None
    ends: Ends
    where: Where

    @property
    def transport(self) -> NcclTransport:
        return parse_transport(self.wording)

    @property
    def kind(self) -> str:
        return parse_transport(self.wording).kind

    @property
    def pair(self) -> Pair:
        """The two ranks; the same numbers in another communicator are other ranks."""
        return self.source, self.destination, self.communicators


def count_pairs(links: Iterable[Link], key: Callable[[Link], K]) -> dict[K, int]:
    """Count the pairs of ranks for each key of their links, which are sorted by pair."""
    counts: dict[K, int] = defaultdict(int)
    last: dict[K, Pair] = {}
    for link in links:
        mine = key(link)
        if last.get(mine) != link.pair:
            last[mine] = link.pair
            counts[mine] += 1
    return dict(counts)


def links_of(log: Log, placements: Sequence[Placement]) -> Iterator[Link]:
    """The links of edges, which are sorted by source and destination."""
    for _, same in groupby(log.edges, key=attrgetter("source", "destination")):
        groups: dict[tuple[int, ...], list[Edge]] = {}
        for edge in same:
            groups.setdefault(edge.communicators, []).append(edge)
        for owners in sorted(groups):
            edges, places = groups[owners], [placements[index] for index in owners]
            kinds = _kinds(edges) if len(places) == 1 and len(edges) > 1 else {}
            yield from merge_equal(_link(edge, places, kinds) for edge in edges)


def merge_equal(links: Iterable[Link]) -> Iterator[Link]:
    """Merge links of the same source, destination and wording; keeps the order."""
    for _, same in groupby(links, key=attrgetter("source", "destination")):
        wordings: dict[str, list[Link]] = {}
        for link in same:
            wordings.setdefault(link.wording, []).append(link)
        for _, equal in sorted(wordings.items()):
            yield equal[0] if len(equal) == 1 else _merge(equal)


def _link(edge: Edge, placements: Sequence[Placement], kinds: Kinds) -> Link:
    """The link that a single line of a log shows."""
    every = [placement.ends(edge) for placement in placements]
    same = {placement.same(*ends) for placement, ends in zip(placements, every, strict=True)}
    nics = _as_tuple(edge.nic)
    return Link(
        edge.source,
        edge.destination,
        edge.wording,
        edge.channels,
        _as_tuple(edge.connection),
        nics if edge.role == "send" else (),
        nics if edge.role == "receive" else (),
        nics,
        _as_tuple(edge.role),
        edge.communicators,
        len(edge.communicators) == 1,
        _asymmetric(edge, kinds),
        SIDES[same.pop()] if len(same) == 1 else None,
        _common_ends(every),
        edge.where,
    )


def _merge(links: Sequence[Link]) -> Link:
    """One link from several of the same source, destination and wording."""
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
    """The kinds that each end of a pair logged for each channel. The ends may use different NICs,
    but not different networks or GPUDirect RDMA. P2P and SHM are logged by one end only."""
    kinds: Kinds = defaultdict(set)
    for edge in edges:
        if edge.role is not None and edge.transport.net:
            for channel in edge.channels or (None,):
                kinds[edge.role, edge.connection, channel].add(edge.kind)
    return kinds


def _asymmetric(edge: Edge, kinds: Kinds) -> bool | None:
    """Whether the other end logged a different kind for a channel that both logged."""
    if not kinds or edge.role is None or not edge.transport.net:
        return None
    role = OTHER_END[edge.role]
    spots = [(role, edge.connection, channel) for channel in edge.channels or (None,)]
    other_ends = [kinds[spot] for spot in spots if spot in kinds]
    return any(other != {edge.kind} for other in other_ends) if other_ends else None


def _common_ends(ends: Sequence[Ends]) -> Ends:
    """Each end's node, if all agree."""
    if ends and all(other is ends[0] for other in ends):
        return ends[0]
    sources, destinations = {source for source, _ in ends}, {other for _, other in ends}
    source = sources.pop() if len(sources) == 1 else None
    common: Ends = _share((source, destinations.pop() if len(destinations) == 1 else None))
    return common


@lru_cache(maxsize=2**16)
def _share(value: T) -> T:
    """The same object for equal values, as many links have equal parts."""
    return value


@lru_cache(maxsize=4096)
def _as_tuple(value: N | None) -> tuple[N, ...]:
    return () if value is None else (value,)


def _union(parts: Sequence[tuple[N, ...]]) -> tuple[N, ...]:
    if all(part == parts[0] for part in parts):
        return parts[0]
    union: tuple[N, ...] = _share(tuple(sorted(set().union(*parts))))
    return union
