"""Sizes, bandwidths and pairs by nccl-tests' definitions."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_clustersmoke import sweep
from pytest_clustersmoke.telemetry import METRICS


def test_the_full_ladder() -> None:
    """From 8 B to 1 GiB by powers of two: 28 sizes, the named ones among them."""
    sizes = sweep.ladder(2**30, 2)
    assert sizes == [2**power for power in range(3, 31)]
    assert set(sweep.NAMED_SIZES.values()) < set(sizes)


def test_a_ladder_ends_where_it_is_bounded() -> None:
    """The bound itself belongs to it; what does not fit does not."""
    assert sweep.ladder(8, 2) == [8]
    assert sweep.ladder(127, 4) == [8, 32]
    assert sweep.ladder(128, 4) == [8, 32, 128]


@pytest.mark.parametrize(("most", "factor"), [(7, 2), (0, 2), (-8, 2), (64, 1), (64, 0)])
def test_a_ladder_that_has_no_end_or_no_step(most: int, factor: int) -> None:
    """It is refused, and the words say what was expected."""
    with pytest.raises(ValueError, match="expected at least 8 B and a factor of at least 2"):
        sweep.ladder(most, factor)


@pytest.mark.parametrize(
    ("collective", "asked", "ranks", "count"),
    [
        # all_reduce.cu: count is what was asked for.
        ("all_reduce", 8, 2, 2),
        ("all_reduce", 2**20, 3, 2**18),
        # all_gather.cu, reduce_scatter.cu, alltoall.cu: (count / nranks) & -(16 / 4), x nranks.
        ("all_gather", 8, 2, 0),
        ("all_gather", 16, 2, 0),
        ("all_gather", 32, 2, 8),
        ("reduce_scatter", 2**20, 3, 262_140),
        ("reduce_scatter", 64, 3, 12),
        ("all_to_all", 2**20, 6, 262_128),
        ("all_to_all", 127, 8, 0),
        ("all_to_all", 128, 8, 32),
    ],
)
def test_sizes_are_rounded_as_nccl_tests_does(
    collective: str, asked: int, ranks: int, count: int
) -> None:
    """Each rank's share is a whole number of 16 bytes, rounded down, of what all of them have."""
    assert sweep.elements(collective, asked, ranks) == count


@pytest.mark.parametrize(
    ("collective", "size", "seconds", "ranks", "algorithm", "bus"),
    [
        ("all_reduce", 10**9, 0.01, 8, 100.0, 175.0),
        ("all_reduce", 10**9, 0.01, 2, 100.0, 100.0),
        ("all_gather", 10**9, 0.01, 8, 100.0, 87.5),
        ("reduce_scatter", 10**9, 0.01, 4, 100.0, 75.0),
        ("all_to_all", 10**9, 0.01, 2, 100.0, 50.0),
        # A line that nccl-tests printed (aws-ofi-nccl issue 65): 16 ranks, 64 MiB in 6586.3 us.
        ("all_reduce", 67_108_864, 6586.3e-6, 16, 10.19, 19.10),
    ],
)
def test_bandwidths(
    collective: str, size: int, seconds: float, ranks: int, algorithm: float, bus: float
) -> None:
    """S/t, and its factor by collective, in 1e9 B a second; the last is nccl-tests' own line."""
    found = sweep.bandwidths(collective, size, seconds, ranks)
    assert found == pytest.approx((algorithm, bus), rel=5e-4)


@given(st.integers(min_value=0, max_value=40))
def test_every_pair_meets_once_and_no_node_is_in_two_pairs_at_once(nodes: int) -> None:
    """A tournament: n-1 rounds of an even number of nodes; n of an odd one, each without one."""
    rounds = sweep.rounds(nodes)
    met = [pair for pairs in rounds for pair in pairs]
    assert sorted(met) == sorted(combinations(range(nodes), 2))
    for pairs in rounds:
        busy = [node for pair in pairs for node in pair]
        assert len(busy) == len(set(busy)) == nodes - nodes % 2
    assert len(rounds) == (nodes - 1 + nodes % 2 if nodes > 1 else 0)


@pytest.mark.parametrize(
    ("size", "shown"),
    [(8, "8 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (2**26, "64 MiB"), (2**30, "1 GiB")],
)
def test_sizes_as_people_write_them(size: int, shown: str) -> None:
    assert sweep.show_bytes(size) == shown


def test_every_bandwidth_is_a_metric() -> None:
    """Each peak and named size is a metric of which more is better, in GB/s."""
    for name in (*sweep.PEAKS.values(), *sweep.NAMED_SIZES):
        assert METRICS[name].unit == "GB/s" and METRICS[name].higher_is_better
    assert tuple(sweep.PEAKS) == sweep.COLLECTIVES
