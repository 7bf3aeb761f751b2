"""Each pair of nodes by itself: send and receive at once, between ranks of one local rank.

A collective over all nodes is as slow as the slowest of them and does not say which that is; pairs
do. In a round every node is in one pair at most, so that no pair waits for another's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from pytest_clustersmoke import sweep
from pytest_clustersmoke.rank import Rank

if TYPE_CHECKING:
    from smoke_tests.collectives import Collectives
    from smoke_tests.stopwatch import Stopwatch

# Of each node its ranks by local rank.
Nodes = list[dict[int, int]]


def nodes_of_ranks(rank: Rank) -> Nodes:
    """Which ranks each node has, as the ranks themselves say, and not by arithmetic."""
    mine = torch.tensor([rank.node_rank, rank.local_rank], device=rank.device)
    told = [torch.zeros_like(mine) for _ in range(rank.world_size)]
    dist.all_gather(told, mine)
    nodes: dict[int, dict[int, int]] = {}
    for number, (node, local) in enumerate(one.tolist() for one in told):
        nodes.setdefault(node, {})[local] = number
    return [nodes[node] for node in sorted(nodes)]


def peer_of(rank: Rank, nodes: Nodes, pairs: list[tuple[int, int]]) -> int | None:
    """The rank that this one talks to in a round; None where it has none."""
    mine = next(i for i, ranks in enumerate(nodes) if rank.rank in ranks.values())
    for pair in pairs:
        if mine in pair:
            return nodes[sum(pair) - mine].get(rank.local_rank)
    return None


def measure_round(
    pairs: list[tuple[int, int]],
    nodes: Nodes,
    count: int,
    rank: Rank,
    collectives: Collectives,
    watch: Stopwatch,
) -> float:
    """Check and time the pairs of one round, all at once; GB/s each way of the slowest of them.

    GB/s are those of nccl-tests' sendrecv (src/sendrecv.cu): the bytes sent by their time.
    """
    size_bytes = count * sweep.ELEMENT_BYTES
    peer = peer_of(rank, nodes, pairs)
    if peer is None:
        timing = watch.time(None)
    else:
        exchange = collectives.exchange(peer, count)
        collectives.fill("send_recv", count)
        exchange()
        checked = collectives.check("send_recv", count, peer)
        timing = watch.time(exchange)
        rank.measured(
            "pair",
            peer=peer,
            size_bytes=size_bytes,
            own_seconds=timing.own_seconds,
            iterations=timing.iterations,
            gb_per_s=size_bytes / timing.own_seconds / 1e9,
            **checked,
        )
    (slowest_s,) = watch.slowest([timing.own_seconds])
    slowest = size_bytes / slowest_s / 1e9
    names = ", ".join(f"{one}-{other}" for one, other in pairs)
    rank.say(f"pairs of nodes {names}: the slowest {slowest:.3f} GB/s each way")
    return slowest
