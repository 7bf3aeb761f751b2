"""What index.html shows of a phase's ranks and links: all of few; of many those that stand out.

A run of eight phases with 512 ranks each must still open at once. What is left out is said on the
page, and is in report.json: never a rank that is behind or not done, nor an unexpected link.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from ..evidence.history.past_records import Number
from ..text import ranges
from .run_record import GroupRecord, LinkRecord, PhaseRecord, RankRecord, SpreadRecord

# Above so many ranks, nodes have rows, and ranks only where they stand out.
MANY_RANKS = 128
MAX_ROWS = 32
# 64 nodes have 2,080 pairs, themselves among them; the matrix of more could not be read.
MAX_GROUPS = 2500
# Unexpected links of many ranks beyond these are told by their ends, those alike in one row.
MAX_LINKS = 32


@dataclass(frozen=True)
class NodeRanks:
    """The ranks of one node: which, and their range in each figure."""

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
    rows: list[RankRecord]  # those that are listed one by one
    nodes: list[NodeRanks]  # of many ranks; empty where all are listed
    undone: str
    behind: str
    standing: int  # how many stand out


@dataclass(frozen=True)
class Bundle:
    """Unexpected links that are alike but for their ends; `where` is of the first."""

    transport: str
    nics: str
    unexpected: str
    ends: str
    count: int
    where: str


@dataclass(frozen=True)
class GroupBundle:
    """Pairs of one node with those after it, alike but for what was measured between them."""

    one: int
    kind: str
    links: int  # of each pair
    unexpected: int
    pairs: list[GroupRecord]


@dataclass(frozen=True)
class LinksView:
    links: list[LinkRecord]  # those that are listed one by one
    bundles: list[Bundle]
    links_left: int
    groups: list[GroupRecord]  # those that have a row each
    group_bundles: list[GroupBundle]
    groups_left: int


def ranks_view(record: PhaseRecord) -> RanksView:
    """The ranks of a phase, as the page shows them."""
    ranks = record.ranks
    undone = ranges(one.rank for one in ranks if not one.done)
    behind = ranges(one.rank for one in ranks if one.behind)
    if len(ranks) <= MANY_RANKS:
        return RanksView(ranks, [], undone, behind, 0)
    standing = _standing(ranks)
    rows = sorted(standing[:MAX_ROWS], key=lambda one: one.rank)
    return RanksView(rows, _by_node(ranks), undone, behind, len(standing))


def links_view(record: PhaseRecord) -> LinksView:
    """The links of a phase, as the page shows them."""
    topology = record.topology
    if topology is None:
        return LinksView([], [], 0, [], [], 0)
    groups = sorted(topology.groups, key=_worst_first)[:MAX_GROUPS]
    groups_left = len(topology.groups) - len(groups)
    if len(record.ranks) <= MANY_RANKS:
        shown = groups if groups_left else topology.groups
        return LinksView(topology.links, [], 0, shown, [], groups_left)
    links = [one for one in topology.links if one.unexpected]
    return LinksView(
        links=links[:MAX_LINKS],
        bundles=_bundles(links[MAX_LINKS:]),
        links_left=len(topology.links) - len(links),
        groups=[],
        group_bundles=_group_bundles(groups),
        groups_left=groups_left,
    )


def _bundles(links: list[LinkRecord]) -> list[Bundle]:
    alike: dict[tuple[str, str, str], list[LinkRecord]] = {}
    for one in links:
        key = (one.transport, ", ".join(one.nics), one.unexpected)
        alike.setdefault(key, []).append(one)
    return [
        Bundle(
            *key,
            ends=", ".join(f"{one.source}→{one.destination}" for one in held),
            count=len(held),
            where=held[0].where,
        )
        for key, held in alike.items()
    ]


def _group_bundles(groups: list[GroupRecord]) -> list[GroupBundle]:
    alike: dict[tuple[int, str, int, int], list[GroupRecord]] = {}
    for one in sorted(groups, key=lambda group: (not group.unexpected, *group.nodes)):
        key = (one.nodes[0], one.kind, one.links, one.unexpected)
        alike.setdefault(key, []).append(one)
    return [GroupBundle(*key, pairs=held) for key, held in alike.items()]


def _worst_first(group: GroupRecord) -> tuple[bool, float]:
    speed = group.bandwidth_gb_per_s
    return not group.unexpected, math.inf if speed is None else speed


def _standing(ranks: list[RankRecord]) -> list[RankRecord]:
    """Ranks to look at, the worst first: behind, not done, nowhere, without a figure that is a
    number; and those of the longest own part, the longest step and the most memory."""
    found = [one for one in ranks if one.behind]
    found += [one for one in ranks if not one.done]
    found += [one for one in ranks if one.node_rank is None]
    found += [one for one in ranks if isinstance(one.peak_memory_gib, str)]
    for figure in (_own, _step, _memory):
        found.append(max(ranks, key=figure))
    return list({one.rank: one for one in found}.values())


def _own(rank: RankRecord) -> float:
    return rank.own_s.p50 if rank.own_s else -1.0


def _step(rank: RankRecord) -> float:
    return rank.step_s.p50 if rank.step_s else -1.0


def _memory(rank: RankRecord) -> float:
    told = rank.peak_memory_gib
    return -1.0 if told is None or isinstance(told, str) else told


def _by_node(ranks: list[RankRecord]) -> list[NodeRanks]:
    found: dict[int | None, list[RankRecord]] = {}
    for one in ranks:
        found.setdefault(one.node_rank, []).append(one)
    return [
        _node(place, found[place]) for place in sorted(found, key=lambda at: (at is None, at or 0))
    ]


def _node(place: int | None, ranks: list[RankRecord]) -> NodeRanks:
    return NodeRanks(
        place=place,
        node=ranks[0].node if place is not None else "unknown",
        ranks=ranges(one.rank for one in ranks),
        undone=ranges(one.rank for one in ranks if not one.done),
        behind=ranges(one.rank for one in ranks if one.behind),
        steps=min(one.steps for one in ranks),
        memory=_most([one.peak_memory_gib for one in ranks]),
        step_s=_range([one.step_s for one in ranks]),
        own_s=_range([one.own_s for one in ranks]),
    )


def _most(values: Iterable[Number | None]) -> Number | None:
    """The highest; one that is no number before any other."""
    told = [one for one in values if one is not None]
    odd = [one for one in told if isinstance(one, str)]
    return odd[0] if odd else max(told, default=None)


def _range(spreads: Iterable[SpreadRecord | None]) -> SpreadRecord | None:
    """Of all ranks of a node, so that none is hidden: the lowest p5, the highest p95, and between
    them the medians."""
    held = [one for one in spreads if one]
    if not held:
        return None
    return SpreadRecord(
        p5=min(one.p5 for one in held),
        p25=statistics.median(one.p25 for one in held),
        p50=statistics.median(one.p50 for one in held),
        p75=statistics.median(one.p75 for one in held),
        p95=max(one.p95 for one in held),
    )
