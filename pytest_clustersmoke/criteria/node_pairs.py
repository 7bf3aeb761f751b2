"""Judges pairs of nodes, each measured alone: which pair is slow, and whether one node is."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

from ..evidence.job_results import RankResult
from ..evidence.metric import Unmeasured, fail
from ..evidence.phase_result import PhaseResult
from ..text import format_bytes
from .bandwidth import LARGE_BYTES, ROUNDING, check_elements, read_time, require_network
from .peer_judge import judge_pairs

ELEMENT_BYTES = 4  # float32

Pair = tuple[int, int]


@dataclass(frozen=True)
class Pairs:
    """What the ranks of each pair of nodes recorded of their exchange; nodes are node ranks."""

    phase: PhaseResult

    @cached_property
    def node_of(self) -> dict[int, int]:
        """Rank -> its node, as the ranks recorded it."""
        __tracebackhide__ = True
        nodes: dict[int, int] = {}
        for rank in self.phase.ranks:
            if rank.node_rank is None:
                raise Unmeasured("bandwidth", f"{rank} has no known node")
            nodes[rank.rank] = rank.node_rank
        count = len(set(nodes.values()))
        if count != self.phase.spec["nodes"]:
            fail(f"the ranks are on {count} nodes, expected {self.phase.spec['nodes']}")
        return nodes

    @cached_property
    def names(self) -> dict[int, str]:
        """Node -> its name, with its node rank if two nodes have the same name."""
        names = {self.node_of[rank.rank]: rank.node for rank in self.phase.ranks}
        count = Counter(names.values())
        return {
            node: f"{name} (node {node})" if count[name] > 1 else name
            for node, name in sorted(names.items())
        }

    @cached_property
    def records(self) -> dict[tuple[int, int], Mapping[str, Any]]:
        """(rank, node of its peer) -> what the rank recorded of that exchange."""
        return {
            (rank.rank, self.node_of[record["peer"]]): record
            for rank in self.phase.ranks
            for record in rank.measured("pair")
            if type(record.get("peer")) is int and record["peer"] in self.node_of
        }

    @cached_property
    def size_bytes(self) -> int:
        """The bytes sent each way, the same in all exchanges."""
        __tracebackhide__ = True
        sizes: list[Any] = [record.get("size_bytes") for record in self.records.values()]
        for size in sizes:
            if type(size) is not int or size < ELEMENT_BYTES or size != sizes[0]:
                fail(f"exchanges of {sizes[0]!r} B and of {size!r} B; expected one size")
        return int(sizes[0]) if sizes else 0

    @cached_property
    def speeds(self) -> dict[Pair, float]:
        """Pair -> GB/s each way of the slowest of its ranks. Fails if a rank of a pair measured
        nothing, or received wrong data."""
        __tracebackhide__ = True
        speeds: dict[Pair, float] = {}
        for pair in combinations(self.names, 2):
            for rank in self.phase.ranks:
                here = self.node_of[rank.rank]
                if here in pair:
                    speed = self._speed(rank, sum(pair) - here)
                    speeds[pair] = min(speed, speeds.get(pair, speed))
        return speeds

    def _speed(self, rank: RankResult, there: int) -> float:
        __tracebackhide__ = True
        record = self.records.get((rank.rank, there))
        if record is None:
            fail(f"{rank} measured no exchange with {self.names[there]}")
        label = f"the exchange of {rank} with rank {record['peer']}"
        check_elements(label, record, self.size_bytes // ELEMENT_BYTES)
        return self.size_bytes / read_time(record, "own_seconds", label) / 1e9


def check_all_measured(phase: PhaseResult) -> None:
    """Every rank exchanged data with a rank of every other node and received what was sent, and
    the metric is the bandwidth of the slowest pair."""
    __tracebackhide__ = True
    speeds = Pairs(phase).speeds
    if not speeds:
        fail("the phase has one node, so there is no pair")
    slowest = min(speeds.values())
    for rank in phase.ranks:
        reported = rank.metrics().get("pair_bandwidth_min_gb_per_s", math.nan)
        if not math.isclose(reported, slowest, rel_tol=ROUNDING):
            fail(f"{rank} reports {reported} GB/s for the slowest pair; the times give {slowest}")


def check_none_is_slow(phase: PhaseResult) -> None:
    """No pair of nodes is slow by the spread of the others (`peer_judge.py`). Names the node if one
    node is at fault: the pairs of up to half of the nodes may be slow."""
    __tracebackhide__ = True
    require_network(phase)
    measured = Pairs(phase)
    speeds, nodes = measured.speeds, len(measured.names)
    if nodes < 3:
        shown = ", ".join(f"{speed:.2f} GB/s" for speed in speeds.values())
        raise Unmeasured(
            "bandwidth",
            f"two nodes are one pair ({shown} each way), so there is no other pair to compare it "
            "with; to judge it, set a reference for pair_bandwidth_min_gb_per_s",
        )
    if measured.size_bytes < LARGE_BYTES:
        raise Unmeasured(
            "bandwidth",
            f"the pairs exchanged {format_bytes(measured.size_bytes)}; below "
            f"{format_bytes(LARGE_BYTES)} latency counts as well as bandwidth",
        )
    pairs = list(speeds)
    verdict = judge_pairs({n: 1 / speed for n, speed in enumerate(speeds.values())}, nodes)
    percent = math.ceil((1 - 1 / (1 + verdict.visible)) * 100 - 1e-6)
    visible = f"a pair that is {percent}% slower{verdict.by_factor}"
    if verdict.slow:
        fail(
            f"{_blame(speeds, {pairs[number] for number in verdict.slow}, measured.names)}; pairs "
            f"of nodes here usually reach {1 / verdict.usual_s:.2f} GB/s each way; {visible} is "
            "named"
        )
    phase.sensitivity.append(f"would have named {visible}")


def _blame(speeds: Mapping[Pair, float], slow: set[Pair], names: Mapping[int, str]) -> str:
    """The nodes that are slow to all others, then the slow pairs that these do not explain."""
    words, explained = [], set()
    for node, name in names.items():
        mine = {pair for pair in speeds if node in pair}
        if mine <= slow:
            explained |= mine
            low, high = (pick(speeds[pair] for pair in mine) for pick in (min, max))
            words.append(f"node {name} is slow to every other node: {low:.2f} to {high:.2f} GB/s")
    for pair in sorted(slow - explained, key=lambda pair: speeds[pair]):
        first, second = (names[node] for node in pair)
        words.append(f"{first} and {second} are slow to each other: {speeds[pair]:.2f} GB/s")
    return "; ".join(words)
