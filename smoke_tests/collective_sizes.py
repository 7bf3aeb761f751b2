"""Sizes, metrics and bandwidths of the all-reduce phases, for train_allreduce.py and its criteria.

By the definitions of nccl-tests (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md). Without torch,
which a login node need not have.
"""

from __future__ import annotations

SMALLEST_BYTES = 8
ELEMENT_BYTES = 4  # float32
SHARE_BYTES = 16  # in all collectives but all-reduce, a rank's share is a multiple of this
PAIR_BYTES = 2**26  # sent each way between two nodes
# The metric of each collective: its best bus bandwidth over all sizes.
PEAKS = {
    "all_reduce": "busbw_gb_per_s",
    "all_gather": "all_gather_busbw_gb_per_s",
    "reduce_scatter": "reduce_scatter_busbw_gb_per_s",
    "all_to_all": "all_to_all_busbw_gb_per_s",
}
# All-reduce has its own metric at these sizes, if they are among those measured.
AT_SIZE = {
    2**20: "busbw_1mib_gb_per_s",
    2**26: "busbw_64mib_gb_per_s",
    2**30: "busbw_1gib_gb_per_s",
}


def list_sizes(max_bytes: int, factor: int) -> list[int]:
    """The sizes to measure, in bytes: 8, each `factor` times the one before, up to `max_bytes`.
    Raises ValueError if there is none."""
    if factor < 2 or max_bytes < SMALLEST_BYTES:
        raise ValueError(
            f"no sizes from {SMALLEST_BYTES} to {max_bytes} B with a factor of {factor}; expected "
            f"at least {SMALLEST_BYTES} B and a factor of 2 or more"
        )
    sizes = [SMALLEST_BYTES]
    while sizes[-1] * factor <= max_bytes:
        sizes.append(sizes[-1] * factor)
    return sizes


def round_size(name: str, asked_bytes: int, ranks: int) -> int:
    """The bytes of a collective of `asked_bytes`: in the buffer of all-reduce, the output of
    all-gather, the input of reduce-scatter and of all-to-all. In the last three each rank has an
    equal share, rounded down, which is 0 at the smallest sizes."""
    unit = ELEMENT_BYTES if name == "all_reduce" else SHARE_BYTES * ranks
    return asked_bytes // unit * unit


def bandwidths(name: str, size_bytes: int, seconds: float, ranks: int) -> tuple[float, float]:
    """algbw and busbw in GB/s: S/t, and S/t times 2(n-1)/n for all-reduce, otherwise (n-1)/n."""
    algbw = size_bytes / seconds / 1e9
    return algbw, algbw * (2 if name == "all_reduce" else 1) * (ranks - 1) / ranks


def derive_metrics(seconds: dict[tuple[str, int], float], ranks: int) -> dict[str, float]:
    """The metrics of collectives, from the seconds of each at each asked size: the best bus
    bandwidths, those of all-reduce at some sizes, and the latency of the smallest."""
    metrics: dict[str, float] = {}
    for (name, asked), taken in seconds.items():
        _, busbw = bandwidths(name, round_size(name, asked, ranks), taken, ranks)
        metrics[PEAKS[name]] = max(busbw, metrics.get(PEAKS[name], 0.0))
        if name == "all_reduce" and asked in AT_SIZE:
            metrics[AT_SIZE[asked]] = busbw
        if name == "all_reduce" and asked == SMALLEST_BYTES:
            metrics["latency_us"] = taken * 1e6
    return metrics
