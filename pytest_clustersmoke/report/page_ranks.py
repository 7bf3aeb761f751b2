"""Which ranks and links of a phase index.html shows: all if there are few, otherwise highlights.

A run of eight phases with 512 ranks each must still open at once. The page says what is left out,
and report.json has it. Ranks that are behind or not done and unexpected links are never left out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from ..evidence.run_record import (
    GroupRecord,
    LinkRecord,
    Number,
    PhaseRecord,
    RankRecord,
    SpreadRecord,
)
from ..text import ranges

# With more ranks than this, nodes have rows, and ranks only if they stand out.
MANY_RANKS = 128
MAX_ROWS = 32
# 64 nodes have 2,080 pairs, counting each node with itself; a larger matrix is unreadable.
MAX_GROUPS = 2500
# Further unexpected links share rows: those that differ only in their ends.
MAX_LINKS = 32


@dataclass(frozen=True)
class NodeRanks:
    """The ranks of one node, and the range of each figure over them."""

    place: int | None
    node: str
    ranks: str
    undone: str
    behind: str
    steps: int  # the fewest
    memory: Number | None  # the most
    step_s: SpreadRecord | None
    own_s: SpreadRecord | None


@dataclass(frozen=True)
class RanksView:
    rows: list[RankRecord]  # those listed individually
    nodes: list[NodeRanks]  # empty if all ranks are listed
    undone: str
    behind: str
    outliers: int  # how many ranks stand out


@dataclass(frozen=True)
class Bundle:
    """Unexpected links that differ only in their ends; `where` is that of the first."""

    transport: str
    nics: str
    unexpected: str
    ends: str
    count: int
    where: str


@dataclass(frozen=True)
class GroupBundle:
    """Pairs of one node with later nodes that differ only in the measured bandwidth."""

    first: int  # node rank
    kind: str
    links: int  # of each pair
    unexpected: int
    pairs: list[GroupRecord]


@dataclass(frozen=True)
class LinksView:
    links: list[LinkRecord]  # those listed individually
    bundles: list[Bundle]
    links_left: int
    groups: list[GroupRecord]  # those with a row each
    group_bundles: list[GroupBundle]
    groups_left: int
    slowest: list[GroupRecord]  # the worst pairs of nodes, if not each pair has a row
    usual: float | None  # the median bandwidth of the pairs


def ranks_view(record: PhaseRecord) -> RanksView:
    """The ranks of a phase, as the page shows them."""
    ranks = record.ranks
    undone = ranges(rank.rank for rank in ranks if not rank.done)
    behind = ranges(rank.rank for rank in ranks if rank.behind)
    if len(ranks) <= MANY_RANKS:
        return RanksView(ranks, [], undone, behind, 0)
    outliers = _outliers(ranks)
    rows = sorted(outliers[:MAX_ROWS], key=lambda rank: rank.rank)
    return RanksView(rows, _by_node(ranks), undone, behind, len(outliers))


def links_view(record: PhaseRecord) -> LinksView:
    """The links of a phase, as the page shows them."""
    topology = record.topology
    if topology is None:
        return LinksView([], [], 0, [], [], 0, [], None)
    worst_first = sorted(topology.groups, key=_worst_first)
    groups = worst_first[:MAX_GROUPS]
    groups_left = len(topology.groups) - len(groups)
    usual = _usual_speed(topology.groups)
    if len(record.ranks) <= MANY_RANKS:
        return LinksView(topology.links, [], 0, groups, [], groups_left, [], usual)
    links = [link for link in topology.links if link.unexpected]
    return LinksView(
        links=links[:MAX_LINKS],
        bundles=_bundles(links[MAX_LINKS:]),
        links_left=len(topology.links) - len(links),
        groups=[],
        group_bundles=_group_bundles(groups),
        groups_left=groups_left,
        slowest=[group for group in worst_first if group.bandwidth_gb_per_s is not None][:MAX_ROWS],
        usual=usual,
    )


def _bundles(links: list[LinkRecord]) -> list[Bundle]:
    alike: dict[tuple[str, str, str], list[LinkRecord]] = {}
    for link in links:
        key = (link.transport, ", ".join(link.nics), link.unexpected)
        alike.setdefault(key, []).append(link)
    return [
        Bundle(
            *key,
            ends=", ".join(f"{link.source}→{link.destination}" for link in held),
            count=len(held),
            where=held[0].where,
        )
        for key, held in alike.items()
    ]


def _group_bundles(groups: list[GroupRecord]) -> list[GroupBundle]:
    alike: dict[tuple[int, str, int, int], list[GroupRecord]] = {}
    for group in groups:  # the worst first, and so are the nodes
        key = (group.nodes[0], group.kind, group.links, group.unexpected)
        alike.setdefault(key, []).append(group)
    return [GroupBundle(*key, pairs=held) for key, held in alike.items()]


def _usual_speed(groups: Iterable[GroupRecord]) -> float | None:
    speeds = [speed for group in groups if (speed := group.bandwidth_gb_per_s) is not None]
    return statistics.median(speeds) if speeds else None


def _worst_first(group: GroupRecord) -> tuple[bool, float]:
    speed = group.bandwidth_gb_per_s
    return not group.unexpected, math.inf if speed is None else speed


def _outliers(ranks: list[RankRecord]) -> list[RankRecord]:
    """Ranks to look at, the worst first: behind, not done, on an unknown node, with a figure that
    is not a number; then those with the longest own part, the longest step and the most memory."""
    chosen = [rank for rank in ranks if rank.behind]
    chosen += [rank for rank in ranks if not rank.done]
    chosen += [rank for rank in ranks if rank.node_rank is None]
    chosen += [rank for rank in ranks if isinstance(rank.peak_memory_gib, str)]
    for figure in (_own, _step, _memory):
        chosen.append(max(ranks, key=figure))
    return list({rank.rank: rank for rank in chosen}.values())


def _own(rank: RankRecord) -> float:
    return rank.own_s.p50 if rank.own_s else -1.0


def _step(rank: RankRecord) -> float:
    return rank.step_s.p50 if rank.step_s else -1.0


def _memory(rank: RankRecord) -> float:
    memory = rank.peak_memory_gib
    return -1.0 if memory is None or isinstance(memory, str) else memory


def _by_node(ranks: list[RankRecord]) -> list[NodeRanks]:
    by_node: dict[int | None, list[RankRecord]] = {}
    for rank in ranks:
        by_node.setdefault(rank.node_rank, []).append(rank)
    return [
        _node(place, by_node[place])
        for place in sorted(by_node, key=lambda at: (at is None, at or 0))
    ]


def _node(place: int | None, ranks: list[RankRecord]) -> NodeRanks:
    return NodeRanks(
        place=place,
        node=ranks[0].node if place is not None else "unknown",
        ranks=ranges(rank.rank for rank in ranks),
        undone=ranges(rank.rank for rank in ranks if not rank.done),
        behind=ranges(rank.rank for rank in ranks if rank.behind),
        steps=min(rank.steps for rank in ranks),
        memory=_most([rank.peak_memory_gib for rank in ranks]),
        step_s=_range([rank.step_s for rank in ranks]),
        own_s=_range([rank.own_s for rank in ranks]),
    )


def _most(values: Iterable[Number | None]) -> Number | None:
    """The highest value; a value that is not a number comes first."""
    known = [value for value in values if value is not None]
    odd = [value for value in known if isinstance(value, str)]
    return odd[0] if odd else max(known, default=None)


def _range(spreads: Iterable[SpreadRecord | None]) -> SpreadRecord | None:
    """The range over all ranks of a node, so that none is hidden: the lowest p5, the highest p95,
    and medians between them."""
    held = [spread for spread in spreads if spread]
    if not held:
        return None
    return SpreadRecord(
        p5=min(spread.p5 for spread in held),
        p25=statistics.median(spread.p25 for spread in held),
        p50=statistics.median(spread.p50 for spread in held),
        p75=statistics.median(spread.p75 for spread in held),
        p95=max(spread.p95 for spread in held),
    )
