"""Check and time all-reduce, all-gather, reduce-scatter and all-to-all, and with several nodes the
exchange between each pair of nodes.

    torchrun --standalone --nproc_per_node=2 smoke_tests/train_allreduce.py \\
        --max-bytes 2097152 --factor 8 --iterations 3 --warmup 1 --repeats 3
    torchrun --standalone --nproc_per_node=8 smoke_tests/train_allreduce.py \\
        --max-bytes 1073741824 --factor 2 --iterations 20 --warmup 5 --repeats 5
"""

from __future__ import annotations

import argparse
from typing import Any

import psutil
import torch
import torch.distributed as dist

from collective_sizes import (
    ELEMENT_BYTES,
    PAIR_BYTES,
    PEAKS,
    bandwidths,
    derive_metrics,
    list_sizes,
    round_size,
)
from collectives import Collectives
from pytest_clustersmoke.rank import Rank, Stopwatch

# Two buffers of the largest size, and the same again for the checks and NCCL's own buffers.
MEMORY_FOR_A_SIZE = 4
debug: Any = dist  # torch's annotations lack the debug level


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=" ".join(__doc__.split("\n\n")[0].split()))
    parser.add_argument("--max-bytes", type=int, required=True, help="the largest size")
    parser.add_argument("--factor", type=int, required=True, help="ratio of successive sizes")
    parser.add_argument("--iterations", type=int, required=True, help="most calls in a batch")
    parser.add_argument("--warmup", type=int, required=True, help="calls before the first batch")
    parser.add_argument("--repeats", type=int, required=True, help="batches (median is reported)")
    return parser.parse_args()


def fit_to_memory(max_bytes: int, rank: Rank, watch: Stopwatch) -> int:
    """`max_bytes`, or less if the rank with the least free memory has no room for it."""
    free_bytes = psutil.virtual_memory().available // rank.local_world_size
    if rank.device.type == "cuda":
        free_bytes = torch.cuda.mem_get_info(rank.device)[0]
    least = -int(watch.slowest([-float(free_bytes)])[0])
    fitting = min(max_bytes, least // MEMORY_FOR_A_SIZE)
    rank.fact(max_bytes=fitting, free_bytes=least)
    return fitting


def probe_collectives(rank: Rank, collectives: Collectives) -> list[str]:
    """The collectives that work here; gloo in older versions of torch lacks some."""
    absent = {name: collectives.why_absent(name) for name in PEAKS}
    rank.fact(left_out={name: why for name, why in absent.items() if why is not None})
    return [name for name, why in absent.items() if why is None]


def measure(
    name: str, asked_bytes: int, rank: Rank, collectives: Collectives, watch: Stopwatch
) -> float:
    """Check and time one collective at one size; returns the slowest rank's seconds."""
    size_bytes = round_size(name, asked_bytes, rank.world_size)
    call, checked = collectives.verify(name, size_bytes // ELEMENT_BYTES)
    timing = watch.time(call)
    algbw, busbw = bandwidths(name, size_bytes, timing.seconds, rank.world_size)
    rank.measured(
        "collective",
        collective=name,
        asked_bytes=asked_bytes,
        size_bytes=size_bytes,
        algbw_gb_per_s=algbw,
        busbw_gb_per_s=busbw,
        **timing._asdict(),
        **checked,
    )
    rank.say(
        f"{name:<14} {size_bytes:>13,} B {timing.seconds * 1e6:11.1f} us  "
        f"algbw {algbw:8.3f}  busbw {busbw:8.3f} GB/s  {checked['wrong']} wrong"
    )
    return timing.seconds


def rounds(nodes: int) -> range:
    """The rounds in which each pair of nodes exchanges once, by `distance`; none for one node."""
    return range(1, 1 << (nodes - 1).bit_length())


def peer_of(rank: Rank, distance: int) -> int | None:
    """The rank with the same local rank on the node whose number differs in the bits of `distance`,
    so that a node is in at most one pair; None if that node does not exist."""
    node = rank.rank // rank.local_world_size
    peer = (node ^ distance) * rank.local_world_size + rank.local_rank
    return peer if peer < rank.world_size else None


def measure_pairs(
    distance: int, count: int, rank: Rank, collectives: Collectives, watch: Stopwatch
) -> float:
    """Check and time all pairs of one round at the same time; returns the GB/s of the slowest.

    As in nccl-tests' sendrecv.cu, this is the bytes sent each way divided by the time.
    """
    size_bytes = count * ELEMENT_BYTES
    peer = peer_of(rank, distance)
    if peer is None:
        timing = watch.time(None)
    else:
        call, checked = collectives.verify("send_recv", count, peer)
        timing = watch.time(call)
        record = {"peer": peer, "size_bytes": size_bytes, **timing._asdict(), **checked}
        rank.measured("pair", **record, gb_per_s=size_bytes / timing.own_seconds / 1e9)
    slowest = size_bytes / watch.slowest([timing.own_seconds])[0] / 1e9
    rank.say(f"pairs of nodes, round {distance}: slowest {slowest:.3f} GB/s each way")
    return slowest


def measure_all(
    sizes: list[int], names: list[str], rank: Rank, collectives: Collectives, watch: Stopwatch
) -> dict[str, float]:
    """Measure every collective at every size, then every pair of nodes; returns the best value of
    each metric."""
    ranks, nodes = rank.world_size, rank.world_size // rank.local_world_size
    plan = [(name, size) for size in sizes for name in names if round_size(name, size, ranks)]
    watch.steps = len(plan) + len(rounds(nodes))
    rank.say(f"{ranks} ranks on {nodes} nodes communicate over {dist.get_backend()}")
    seconds = {item: measure(*item, rank, collectives, watch) for item in plan}
    metrics = derive_metrics(seconds, ranks)
    count = min(PAIR_BYTES, sizes[-1]) // ELEMENT_BYTES
    speeds = [
        measure_pairs(distance, count, rank, collectives, watch) for distance in rounds(nodes)
    ]
    if speeds:
        metrics["pair_bandwidth_min_gb_per_s"] = min(speeds)
    return metrics


def main() -> None:
    args = parse_args()
    if debug.get_debug_level() == debug.DebugLevel.DETAIL:
        # DETAIL runs a gloo collective before each of ours, which would also be timed, and splits
        # batches of sends and receives. The process group reads the level when it is opened.
        debug.set_debug_level(debug.DebugLevel.INFO)
    with Rank.start(init="torch") as rank:
        watch = Stopwatch(rank, args.iterations, args.warmup, args.repeats)
        sizes = list_sizes(fit_to_memory(args.max_bytes, rank, watch), args.factor)
        collectives = rank.stage("data", lambda: Collectives(rank, sizes[-1]))
        names = rank.stage("probe", lambda: probe_collectives(rank, collectives))
        rank.fact(debug_level=debug.get_debug_level().name)
        common = (rank, collectives, watch)
        rank.metrics(**rank.stage("train", lambda: measure_all(sizes, names, *common)))


if __name__ == "__main__":
    main()
