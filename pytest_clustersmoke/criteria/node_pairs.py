"""Judges pairs of nodes, each measured alone: which pair is slow, and whether one node is.

A pair must reach a floor, by the InfiniBand or RoCE ports that NCCL chose for its exchange and the
rates at which they run. The floor needs no other pair and no past, so it holds on the first day. It
is a floor and no target. All pairs of a round exchange at the same time, so a tree whose uplinks
carry a quarter of what its leaves do leaves them a quarter; ports may be faster than the PCIe links
of their GPUs, or be functions of one card. A tenth leaves room for each of these.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

from ..config.metrics import show
from ..evidence.interfaces import is_active, read_rate
from ..evidence.job_results import RankResult
from ..evidence.metric import Unmeasured, fail
from ..evidence.phase_result import PhaseResult
from ..evidence.telemetry import parse_rows
from ..text import format_bytes
from .bandwidth import LARGE_BYTES, ROUNDING, check_elements, read_time, require_network
from .peer_judge import judge_pairs
from .transport_sides import Transports

ELEMENT_BYTES = 4  # float32
SEND_RECV = 1  # NCCL's number of a connection that is not for collectives
FLOOR = 0.1  # of what the ports carry

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


@dataclass(frozen=True)
class Floors:
    """What each pair of nodes must reach; pairs of which NCCL's log or the nodes do not say which
    ports carry them, or how fast these run, have no floor."""

    phase: PhaseResult
    node_of: Mapping[int, int]

    @cached_property
    def carried(self) -> dict[Pair, float]:
        """(Node, its peer) -> GB/s each way of the ports that the node's ranks use for it, for
        each of these ranks; 0 if that is not known. They may receive by other ports than they send
        by: the way of fewer counts."""
        chosen: dict[tuple[Pair, str | None], set[str]] = defaultdict(set)
        transports = Transports(self.phase)
        for link in transports.inter_node.links():
            if link.edge.connection != SEND_RECV:
                continue  # collectives may use more ports
            own, other = (transports.nodes[rank] for rank in link.ends)
            is_rdma = link.transport.kind.startswith("NET/IB")
            chosen[(own, other), link.edge.role].add(
                (link.edge.nic if is_rdma else None) or "unknown"
            )
        ranks, rates = Counter(self.node_of.values()), self._rates
        carried: dict[Pair, float] = {}
        for (pair, _), hcas in chosen.items():
            known = [rates.get((pair[0], hca), 0.0) for hca in hcas]
            way = sum(known) / ranks[pair[0]] if all(known) else 0.0
            carried[pair] = min(way, carried.get(pair, way))
        return carried

    @property
    def _rates(self) -> dict[tuple[int, str], float]:
        """(Node, HCA) -> GB/s of its port; HCAs with several active ports are left out, since
        NCCL's log does not say which it used."""
        found: dict[tuple[int, str], list[float | None]] = defaultdict(list)
        for node in self.phase.nodes:
            for port in filter(is_active, parse_rows(node.facts.get("rdma_ports"))):
                found[node.node_rank, str(port.get("hca"))].append(read_rate(port))
        return {
            key: rates[0] / 8
            for key, rates in found.items()
            if len(rates) == 1 and rates[0] is not None
        }

    def of(self, pair: Pair) -> float:
        """GB/s each way for each rank; 0 if there is no floor."""
        both = [self.carried.get(ends, 0.0) for ends in (pair, pair[::-1])]
        return FLOOR * min(both)


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
    """No pair of nodes is below its floor, or slow by the spread of the others (`peer_judge.py`).
    Names the node if one node is at fault: the pairs of up to half of the nodes may be slow."""
    __tracebackhide__ = True
    require_network(phase)
    measured = Pairs(phase)
    speeds, nodes = measured.speeds, len(measured.names)
    if measured.size_bytes < LARGE_BYTES:
        raise Unmeasured(
            "bandwidth",
            f"the pairs exchanged {format_bytes(measured.size_bytes)}; below "
            f"{format_bytes(LARGE_BYTES)} latency counts as well as bandwidth",
        )
    _check_floors(measured)
    if nodes < 3:
        shown = ", ".join(f"{speed:.2f} GB/s" for speed in speeds.values())
        raise Unmeasured(
            "bandwidth",
            f"two nodes are one pair ({shown} each way), so there is no other pair to compare it "
            "with; to judge it, set a reference for pair_bandwidth_min_gb_per_s",
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


def _check_floors(measured: Pairs) -> None:
    """No pair that has a floor is below it."""
    __tracebackhide__ = True
    speeds, floors = measured.speeds, Floors(measured.phase, measured.node_of)
    known = {pair: floor for pair in speeds if (floor := floors.of(pair))}
    low = {pair for pair, floor in known.items() if speeds[pair] < floor}
    if low:
        worst = min(low, key=lambda pair: speeds[pair] / known[pair])
        first, second = (measured.names[node] for node in worst)
        fail(
            f"{_blame(speeds, low, measured.names)}; the ports that NCCL chose between {first} and "
            f"{second} carry {show(known[worst] / FLOOR)} GB/s each way for each rank, of which at "
            f"least {FLOOR:.0%} was expected: check the PCIe paths between their GPUs and ports "
            "(GPUDirect RDMA, access control services, IOMMU)"
        )
    if known:
        words = f"would have named a pair below {show(min(known.values()))} GB/s each way"
        measured.phase.sensitivity.append(words)


def _blame(speeds: Mapping[Pair, float], slow: set[Pair], names: Mapping[int, str]) -> str:
    """The nodes that are slow to all others, then the slow pairs that these do not explain."""
    if len(slow) == len(speeds) > 1:
        low, high = min(speeds.values()), max(speeds.values())
        return f"all {len(slow)} pairs of nodes are slow: {low:.2f} to {high:.2f} GB/s"
    words, explained = [], set()
    for node, name in names.items():
        mine = {pair for pair in speeds if node in pair}
        if mine <= slow and len(speeds) > 1:
            explained |= mine
            low, high = (pick(speeds[pair] for pair in mine) for pick in (min, max))
            words.append(f"node {name} is slow to every other node: {low:.2f} to {high:.2f} GB/s")
    for pair in sorted(slow - explained, key=lambda pair: speeds[pair]):
        first, second = (names[node] for node in pair)
        words.append(f"{first} and {second} are slow to each other: {speeds[pair]:.2f} GB/s")
    return "; ".join(words)
