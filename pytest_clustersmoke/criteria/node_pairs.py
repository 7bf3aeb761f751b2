"""Pairs of nodes, each measured by itself: which pair is slow, and is it a node that is slow?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from statistics import median
from typing import Any

from ..evidence.job_results import RankResult
from ..evidence.metric import Unmeasured, fail
from ..evidence.phase_result import PhaseResult
from .bandwidth import (
    ELEMENT_BYTES,
    LARGE_BYTES,
    ROUNDING,
    check_elements,
    network,
    show_bytes,
    time_of,
)

# Healthy pairs of one fabric lie within a few percent of each other. A link that came up at half
# its rate or width, or a NIC that two GPUs share because another is gone, costs half.
SLOW = 0.20

Pair = tuple[int, int]


@dataclass(frozen=True)
class Pairs:
    """What the ranks of each pair of nodes wrote of their exchange; nodes are node ranks."""

    phase: PhaseResult

    @cached_property
    def node_of(self) -> dict[int, int]:
        """Rank -> its node, as the ranks themselves say."""
        __tracebackhide__ = True
        nodes = {rank.rank: rank.start.get("node_rank") for rank in self.phase.ranks}
        for rank in self.phase.ranks:
            if type(nodes[rank.rank]) is not int:
                raise Unmeasured("bandwidth", f"{rank} has no known node")
        count = len(set(nodes.values()))
        if count != self.phase.spec["nodes"]:
            fail(f"the ranks are on {count} nodes, expected {self.phase.spec['nodes']}")
        return {rank: node for rank, node in nodes.items() if node is not None}

    @cached_property
    def names(self) -> dict[int, str]:
        """Node -> its name; with its node rank where two nodes have one name."""
        names = {self.node_of[rank.rank]: rank.node for rank in self.phase.ranks}
        count = Counter(names.values())
        return {
            node: f"{name} (node {node})" if count[name] > 1 else name
            for node, name in sorted(names.items())
        }

    @cached_property
    def records(self) -> dict[tuple[int, int], Mapping[str, Any]]:
        """(rank, node of its peer) -> what the rank wrote of that exchange."""
        return {
            (rank.rank, self.node_of[record["peer"]]): record
            for rank in self.phase.ranks
            for record in rank.events.named("measured")
            if record.get("what") == "pair"
            and type(record.get("peer")) is int
            and record["peer"] in self.node_of
        }

    @cached_property
    def size_bytes(self) -> int:
        """How much was sent each way, the same in all exchanges."""
        __tracebackhide__ = True
        sizes: list[Any] = [record.get("size_bytes") for record in self.records.values()]
        for size in sizes:
            if type(size) is not int or size < ELEMENT_BYTES or size != sizes[0]:
                fail(f"exchanges of {sizes[0]!r} B and of {size!r} B; expected one size")
        return int(sizes[0]) if sizes else 0

    @cached_property
    def speeds(self) -> dict[Pair, float]:
        """Pair -> GB/s each way of the slowest of its ranks. Fails where a rank of a pair measured
        nothing, or received what was not sent."""
        __tracebackhide__ = True
        found: dict[Pair, float] = {}
        for pair in combinations(self.names, 2):
            for rank in self.phase.ranks:
                here = self.node_of[rank.rank]
                if here in pair:
                    speed = self._speed(rank, sum(pair) - here)
                    found[pair] = min(speed, found.get(pair, speed))
        return found

    def _speed(self, rank: RankResult, there: int) -> float:
        __tracebackhide__ = True
        record = self.records.get((rank.rank, there))
        if record is None:
            fail(f"{rank} measured no exchange with {self.names[there]}")
        what = f"the exchange of {rank} with rank {record['peer']}"
        check_elements(what, record, self.size_bytes // ELEMENT_BYTES)
        return self.size_bytes / time_of(record, "own_seconds", what) / 1e9


def check_all_measured(phase: PhaseResult) -> None:
    """Every rank exchanged data with a rank of every other node and received what was sent, and
    the slowest pair is the one whose bandwidth the metric says."""
    __tracebackhide__ = True
    found = Pairs(phase).speeds
    if not found:
        fail("the phase has one node, so there is no pair")
    slowest = min(found.values())
    for rank in phase.ranks:
        said = rank.metrics().get("pair_bandwidth_min_gb_per_s", math.nan)
        if not math.isclose(said, slowest, rel_tol=ROUNDING):
            fail(f"{rank} reports {said} GB/s for the slowest pair; the times give {slowest}")


def check_none_is_slow(phase: PhaseResult) -> None:
    """No pair of nodes is slower than the others by SLOW; names the node where it is one's fault.

    The others are the fastest m(m-1)/2 pairs, m being half of the nodes: as many as sound nodes
    have among them where the other half is slow. Their median is what a pair should have; the
    median of all pairs would be a slow node's own where one of four nodes, which half of all pairs
    touch, is slow.
    """
    __tracebackhide__ = True
    network(phase)
    measured = Pairs(phase)
    found, nodes = measured.speeds, len(measured.names)
    if nodes < 3:
        told = ", ".join(f"{speed:.2f} GB/s" for speed in found.values())
        raise Unmeasured(
            "bandwidth",
            f"two nodes are one pair ({told} each way), so there is no other pair to compare it "
            "with; to judge it, set a reference for pair_bandwidth_min_gb_per_s",
        )
    if measured.size_bytes < LARGE_BYTES:
        raise Unmeasured(
            "bandwidth",
            f"the pairs exchanged {show_bytes(measured.size_bytes)}; below "
            f"{show_bytes(LARGE_BYTES)} latency counts as well as bandwidth",
        )
    sound = (nodes + 1) // 2
    usual = median(sorted(found.values())[-sound * (sound - 1) // 2 :])
    slow = {pair for pair, speed in found.items() if speed < usual * (1 - SLOW)}
    if slow:
        fail(
            f"{_blame(found, slow, measured.names)}; usual between two nodes here: {usual:.2f} "
            f"GB/s each way, expected at most {SLOW:.0%} less"
        )


def _blame(found: Mapping[Pair, float], slow: set[Pair], names: Mapping[int, str]) -> str:
    """Nodes that are slow to all others, then the slow pairs that these do not explain."""
    words, explained = [], set()
    for node, name in names.items():
        mine = {pair for pair in found if node in pair}
        if mine <= slow:
            explained |= mine
            low, high = (pick(found[pair] for pair in mine) for pick in (min, max))
            words.append(f"node {name} is slow to every other node: {low:.2f} to {high:.2f} GB/s")
    for pair in sorted(slow - explained, key=lambda one: found[one]):
        one, other = (names[node] for node in pair)
        words.append(f"{one} and {other} are slow to each other: {found[pair]:.2f} GB/s")
    return "; ".join(words)
