"""All-reduce, all-gather, reduce-scatter and all-to-all from 8 B to 1 GiB; is every result right,
and how fast are they? With several nodes, how fast is each pair of them?

By hand:  torchrun --standalone --nproc_per_node=2 smoke_tests/train_allreduce.py
small:    torchrun --standalone --nproc_per_node=2 smoke_tests/train_allreduce.py \\
              --max-bytes 1048576 --iterations 5 --repeats 3
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil
import torch
import torch.distributed as dist

from pytest_clustersmoke import sweep
from pytest_clustersmoke.rank import Rank

if TYPE_CHECKING:
    from smoke_tests.collectives import Collectives
    from smoke_tests.node_pairs import measure_round, nodes_of_ranks
    from smoke_tests.stopwatch import Stopwatch
else:  # torchrun puts this file's own folder on the path, and not the one above
    from collectives import Collectives
    from node_pairs import measure_round, nodes_of_ranks
    from stopwatch import Stopwatch

# Two buffers of the largest size, and as much again for the checks and NCCL's own buffers.
MEMORY_FOR_A_SIZE = 4
DEBUG: Any = dist  # torch's annotations leave its debug level out


class Measured(NamedTuple):
    """One collective at one size; seconds are those of the slowest rank."""

    name: str
    asked_bytes: int
    seconds: float
    busbw_gb_per_s: float


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--max-bytes", type=int, default=2**30, help="the largest size")
    parser.add_argument("--factor", type=int, default=2, help="from each size to the next")
    parser.add_argument("--iterations", type=int, default=20, help="calls in a batch, at most")
    parser.add_argument("--warmup", type=int, default=5, help="calls before the first batch")
    parser.add_argument("--repeats", type=int, default=5, help="batches; their median counts")
    parser.add_argument(
        "--pairwise",
        action=argparse.BooleanOptionalAction,
        help="measure each pair of nodes (default: where there are several)",
    )
    parser.add_argument("--pair-bytes", type=int, default=2**26, help="sent each way in a pair")
    return parser.parse_args()


def fitting_bytes(args: argparse.Namespace, rank: Rank, watch: Stopwatch) -> int:
    """`max_bytes`, or what the rank with the least free memory has room for."""
    free_bytes: int
    if rank.device.type == "cuda":
        free_bytes = torch.cuda.mem_get_info(rank.device)[0]
    else:
        free_bytes = psutil.virtual_memory().available // rank.local_world_size
    least = -int(watch.slowest([-float(free_bytes)])[0])
    fitting: int = min(args.max_bytes, least // MEMORY_FOR_A_SIZE)
    rank.fact(max_bytes=fitting, free_bytes=least)
    return fitting


def present(rank: Rank, collectives: Collectives) -> list[str]:
    """The collectives that there are. gloo of older torch has not all of them: those are left out,
    and it is said why."""
    absent = {name: collectives.why_absent(name) for name in sweep.COLLECTIVES}
    rank.fact(left_out={name: why for name, why in absent.items() if why is not None})
    return [name for name, why in absent.items() if why is None]


def measure(
    name: str, asked_bytes: int, rank: Rank, collectives: Collectives, watch: Stopwatch
) -> Measured:
    """Check and time one collective at one size."""
    count = sweep.elements(name, asked_bytes, rank.world_size)
    size_bytes = count * sweep.ELEMENT_BYTES
    call = collectives.call(name, count)
    collectives.fill(name, count)
    call()  # connects as well: NCCL from 2.22 does so when a connection is first needed
    checked = collectives.check(name, count)
    collectives.clear(count)
    timing = watch.time(call)
    algbw, busbw = sweep.bandwidths(name, size_bytes, timing.seconds, rank.world_size)
    rank.measured(
        "collective",
        collective=name,
        asked_bytes=asked_bytes,
        size_bytes=size_bytes,
        seconds=timing.seconds,
        own_seconds=timing.own_seconds,
        iterations=timing.iterations,
        algbw_gb_per_s=algbw,
        busbw_gb_per_s=busbw,
        **checked,
    )
    rank.say(
        f"{name:<14} {sweep.show_bytes(size_bytes):>9} {timing.seconds * 1e6:11.1f} us  "
        f"algbw {algbw:8.3f}  busbw {busbw:8.3f} GB/s  {checked['wrong']} wrong"
    )
    return Measured(name, asked_bytes, timing.seconds, busbw)


def metrics(found: list[Measured], pair_speeds: list[float]) -> dict[str, float]:
    """The peak of each collective over all sizes, all-reduce at the named sizes, its latency."""
    values: dict[str, float] = {}
    for one in found:
        peak = sweep.PEAKS[one.name]
        values[peak] = max(values.get(peak, 0.0), one.busbw_gb_per_s)
    for one in found:
        if one.name == "all_reduce" and one.asked_bytes == sweep.SMALLEST_BYTES:
            values["latency_us"] = one.seconds * 1e6
        for name, size in sweep.NAMED_SIZES.items():
            if one.name == "all_reduce" and one.asked_bytes == size:
                values[name] = one.busbw_gb_per_s
    if pair_speeds:
        values["pair_bandwidth_min_gb_per_s"] = min(pair_speeds)
    return values


def no_detail() -> None:
    """Take TORCH_DISTRIBUTED_DEBUG=DETAIL back: it puts a collective of its own over gloo before
    each of ours, which would be timed with it, and takes sends and receives out of their batch."""
    if DEBUG.get_debug_level() == DEBUG.DebugLevel.DETAIL:
        DEBUG.set_debug_level(DEBUG.DebugLevel.INFO)


def main() -> None:
    args = parse_args()
    no_detail()  # before the process group is opened, which looks at it
    with Rank.start(init="torch") as rank:
        watch = Stopwatch(rank, args.iterations, args.warmup, args.repeats)
        sizes = sweep.ladder(fitting_bytes(args, rank, watch), args.factor)
        collectives = rank.stage(
            "data", lambda: Collectives(rank.rank, rank.world_size, sizes[-1], rank.device)
        )
        names = rank.stage("probe", lambda: present(rank, collectives))
        plan = [
            (name, size)
            for size in sizes
            for name in names
            if sweep.elements(name, size, rank.world_size)  # nccl-tests rounds small ones to none
        ]
        nodes = nodes_of_ranks(rank)
        pairwise = len(nodes) > 1 if args.pairwise is None else args.pairwise
        rounds = sweep.rounds(len(nodes)) if pairwise else []
        pair_count = min(args.pair_bytes, sizes[-1]) // sweep.ELEMENT_BYTES
        watch.steps = len(plan) + len(rounds)
        rank.fact(pairwise=pairwise, debug_level=DEBUG.get_debug_level().name)
        rank.say(f"{rank.world_size} ranks on {len(nodes)} nodes talk over {dist.get_backend()}")

        def run() -> dict[str, float]:
            found = [measure(*step, rank, collectives, watch) for step in plan]
            common = (nodes, pair_count, rank, collectives, watch)
            return metrics(found, [measure_round(pairs, *common) for pairs in rounds])

        rank.metrics(**rank.stage("train", run))


if __name__ == "__main__":
    main()
