"""What is measured of collectives, by the definitions of nccl-tests: sizes, bandwidths, pairs.

The rank program measures by them and the criteria judge by them, so they stand once, here. Sources,
in github.com/NVIDIA/nccl-tests: doc/PERFORMANCE.md for bandwidths, and of src/all_reduce.cu,
all_gather.cu, reduce_scatter.cu and alltoall.cu the functions `...GetCollByteCount` for sizes.
"""

from __future__ import annotations

ELEMENT_BYTES = 4  # float32
ALIGN_BYTES = 16
SMALLEST_BYTES = 8
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
# All-reduce has a metric of its own at these sizes, where its ladder has them.
NAMED_SIZES = {
    "busbw_1mib_gb_per_s": 2**20,
    "busbw_64mib_gb_per_s": 2**26,
    "busbw_1gib_gb_per_s": 2**30,
}
PEAKS = {
    "all_reduce": "busbw_gb_per_s",
    "all_gather": "all_gather_busbw_gb_per_s",
    "reduce_scatter": "reduce_scatter_busbw_gb_per_s",
    "all_to_all": "all_to_all_busbw_gb_per_s",
}


def ladder(max_bytes: int, factor: int) -> list[int]:
    """The sizes to measure, in bytes: 8, each `factor` times the one before, up to `max_bytes`."""
    if factor < 2 or max_bytes < SMALLEST_BYTES:
        raise ValueError(
            f"sizes up to {max_bytes} B by a factor of {factor}; expected at least "
            f"{SMALLEST_BYTES} B and a factor of at least 2"
        )
    sizes = [SMALLEST_BYTES]
    while sizes[-1] * factor <= max_bytes:
        sizes.append(sizes[-1] * factor)
    return sizes


def elements(collective: str, asked_bytes: int, ranks: int) -> int:
    """How many float32 a collective of `asked_bytes` has; 0 where nothing is left of them.

    They are counted where nccl-tests counts them: the buffer of all-reduce, all that all-gather
    puts out, all that reduce-scatter takes in, the send buffer of all-to-all. In the last three
    each rank's share is the same whole number of 16 bytes, rounded down.
    """
    count = asked_bytes // ELEMENT_BYTES
    if collective == "all_reduce":
        return count
    return share(count, ranks) * ranks


def share(count: int, ranks: int) -> int:
    """Each rank's part of `count` float32 in the collectives that part them."""
    whole = ALIGN_BYTES // ELEMENT_BYTES
    return count // ranks // whole * whole


def received(collective: str, count: int, ranks: int) -> int:
    """How many of a collective's `count` float32 a rank holds as its result."""
    return count // ranks if collective == "reduce_scatter" else count


def bandwidths(collective: str, size_bytes: int, seconds: float, ranks: int) -> tuple[float, float]:
    """Algorithm and bus bandwidth in GB/s (1e9 bytes a second): S/t, and that times 2(n-1)/n for
    all-reduce, (n-1)/n for all-gather, reduce-scatter and all-to-all."""
    algorithm = size_bytes / seconds / 1e9
    passes = 2 if collective == "all_reduce" else 1
    return algorithm, algorithm * passes * (ranks - 1) / ranks


def rounds(nodes: int) -> list[list[tuple[int, int]]]:
    """Every pair of nodes once, in rounds of pairs that share no node; of an odd number of nodes
    one is left out in each round.

    The circle method of tournaments: node 0 stays, the others go round.
    """
    circle = list(range(nodes + nodes % 2))  # an odd number plays against one that is not there
    made = []
    for _ in circle[1:]:
        half = len(circle) // 2
        met = zip(circle[:half], reversed(circle[half:]), strict=True)
        made.append([(min(pair), max(pair)) for pair in met if max(pair) < nodes])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return [pairs for pairs in made if pairs]


def show_bytes(size: int) -> str:
    """A size as people write it: 8 B, 64 KiB, 1 GiB."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:g} {unit}"
    return f"{size} B"
