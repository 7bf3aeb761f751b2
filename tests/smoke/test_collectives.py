"""The collectives of train_allreduce.py without a process group: sizes, bandwidths and pairs as
nccl-tests defines them, and the data that show whether a result is correct."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

import collectives
import train_allreduce
from collective_sizes import (
    AT_SIZE,
    ELEMENT_BYTES,
    PEAKS,
    SMALLEST_BYTES,
    bandwidths,
    list_sizes,
    round_size,
)
from collectives import Collectives
from pytest_clustersmoke.config.metrics import CURVE_PLACES, METRICS, CurvePlace


def rank(number: int, ranks: int, per_node: int = 1) -> Any:
    """A rank as the program sees it, on CPU."""
    return SimpleNamespace(
        rank=number,
        world_size=ranks,
        local_rank=number % per_node,
        local_world_size=per_node,
        device=torch.device("cpu"),
    )


def test_full_sizes_include_the_named_ones() -> None:
    """From 8 B to 1 GiB in powers of two: 28 sizes."""
    sizes = list_sizes(2**30, 2)
    assert sizes == [2**power for power in range(3, 31)]
    assert set(AT_SIZE) < set(sizes)


def test_sizes_end_at_the_bound() -> None:
    """The bound itself is included."""
    assert list_sizes(8, 2) == [8]
    assert list_sizes(127, 4) == [8, 32]
    assert list_sizes(128, 4) == [8, 32, 128]


@pytest.mark.parametrize(("most", "factor"), [(7, 2), (0, 2), (-8, 2), (64, 1), (64, 0)])
def test_impossible_sizes_are_refused(most: int, factor: int) -> None:
    """The error has both numbers."""
    with pytest.raises(ValueError, match=f"no sizes from 8 to {most} B with a factor of {factor}"):
        list_sizes(most, factor)


@pytest.mark.parametrize(
    ("name", "asked", "ranks", "count"),
    [
        # all_reduce.cu: the count is the given one.
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
    name: str, asked: int, ranks: int, count: int
) -> None:
    """Each rank's share is rounded down to a multiple of 16 bytes."""
    assert round_size(name, asked, ranks) == count * ELEMENT_BYTES


@pytest.mark.parametrize(
    ("name", "size", "seconds", "ranks", "algorithm", "bus"),
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
    name: str, size: int, seconds: float, ranks: int, algorithm: float, bus: float
) -> None:
    """S/t, and S/t times the collective's factor, in 1e9 B/s; the last line is from nccl-tests."""
    found = bandwidths(name, size, seconds, ranks)
    assert found == pytest.approx((algorithm, bus), rel=5e-4)


def test_every_bandwidth_is_a_metric() -> None:
    """In GB/s, higher being better."""
    for name in (*PEAKS.values(), *AT_SIZE.values()):
        assert METRICS[name].unit == "GB/s" and METRICS[name].higher_is_better


@given(st.integers(min_value=1, max_value=40), st.integers(min_value=1, max_value=3))
def test_every_pair_of_nodes_is_measured_once(nodes: int, per_node: int) -> None:
    """In each round the peers choose each other, with the same local rank, and a node is in one
    pair at most; over all rounds each pair of nodes appears once."""
    ranks = [rank(number, nodes * per_node, per_node) for number in range(nodes * per_node)]
    measured = []
    for distance in train_allreduce.rounds(nodes):
        peers = [train_allreduce.peer_of(own, distance) for own in ranks]
        for own, peer in zip(ranks, peers, strict=True):
            if peer is not None:
                assert peers[peer] == own.rank and peer % per_node == own.local_rank
                measured.append((own.rank // per_node, peer // per_node))
    pairs = [pair for pair in combinations(range(nodes), 2) for _ in range(per_node)]
    assert sorted(pair for pair in measured if pair[0] < pair[1]) == pairs


class Ranks:
    """All ranks of a world in one process, and the effect of each collective on their buffers."""

    def __init__(self, ranks: int, count: int) -> None:
        self.count, self.share = count, count // ranks
        self.all = [Collectives(rank(number, ranks), count * 4) for number in range(ranks)]

    def run(self, name: str, absent: int | None = None) -> Iterator[Collectives]:
        """Fill the buffers, compute the collective by its definition, and yield each rank; the
        `absent` rank sends nothing."""
        for member in self.all:
            member.fill(name, self.count)
            if member.rank == absent:
                member.sent[: self.count] = member.received[: self.count] = 0
        sent = [member.sent[: self.count].clone() for member in self.all]
        kept = [member.received[: self.count].clone() for member in self.all]
        part = self.share
        for number, member in enumerate(self.all):
            own = slice(number * part, (number + 1) * part)
            if name == "all_reduce":
                member.received[: self.count] = torch.stack(kept).sum(0)
            elif name == "all_gather":
                member.received[: self.count] = torch.cat([each[:part] for each in sent])
            elif name == "reduce_scatter":
                member.received[:part] = torch.stack(sent).sum(0)[own]
            else:
                member.received[: self.count] = torch.cat([each[own] for each in sent])
            yield member

    def results(self, name: str) -> int:
        """The number of elements in a rank's result."""
        return self.share if name == "reduce_scatter" else self.count


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 62])
@pytest.mark.parametrize("name", list(PEAKS))
def test_correct_result_passes_the_check(name: str, ranks: int) -> None:
    """The expected values follow from the definitions, for any number of ranks."""
    world = Ranks(ranks, 248 * ranks)
    correct = {"checked": world.results(name), "wrong": 0, "first_wrong": None}
    for member in world.run(name):
        assert member.check(name, world.count) == correct


@pytest.mark.parametrize("name", list(PEAKS))
@pytest.mark.parametrize("fault", ["bit", "nan", "shift", "swap", "stale", "missing"])
def test_wrong_result_is_detected(name: str, fault: str) -> None:
    """One bit, a NaN, misplaced data, a result never written, or a rank whose data are missing."""
    world = Ranks(4, 1024)
    member = list(world.run(name, absent=1 if fault == "missing" else None))[2]
    size = world.results(name)
    result = member.received[:size]
    if fault == "bit":
        result.view(torch.int32)[9] ^= 1
    elif fault == "nan":
        result[9] = float("nan")
    elif fault == "shift":
        result.copy_(result.roll(1))
    elif fault == "swap":
        result.copy_(result.roll(size // 2))
    elif fault == "stale":
        member.fill(name, world.count)
    checked = member.check(name, world.count)
    assert checked["wrong"] > 0 and checked["checked"] == size
    first = checked["first_wrong"]
    assert first["found"] != first["expected"]
    if fault in ("bit", "nan"):
        assert checked["wrong"] == 1 and first["index"] == 9


def test_index_of_a_wrong_element_counts_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check works in chunks, but the index is that in the whole result."""
    monkeypatch.setattr(collectives, "CHUNK", 100)
    member = next(Ranks(1, 1000).run("all_reduce"))
    member.received[742] += 1
    member.received[999] += 1
    checked = member.check("all_reduce", 1000)
    assert (checked["wrong"], checked["first_wrong"]["index"]) == (2, 742)


@pytest.mark.parametrize("ranks", [2, 64, 512, 4096, 100_000])
def test_sums_are_exact_for_any_number_of_ranks(ranks: int) -> None:
    """Float32 represents every sum over ranks exactly, and neighbours differ."""
    member = Collectives(rank(0, ranks), 8)
    sums = member.summand(member.weights, torch.arange(256))
    assert sums.max() <= collectives.EXACT and sums[0] != sums[1]
    assert sums.double().div(member.weights).frac().eq(0).all()


@pytest.mark.parametrize(
    ("backend", "message", "left_out"),
    [
        ("gloo", "no support for _allgather_base in Gloo process group", True),
        ("gloo", "Backend gloo does not support alltoall_base", True),
        ("gloo", "ProcessGroup gloo does not support alltoall", True),
        ("gloo", "Connection reset by peer", False),
        ("gloo", "[enforce fail at alltoall.cc:29] in->size % context->size == 0", False),
        ("nccl", "Backend nccl does not support alltoall_base", False),
    ],
)
def test_only_collectives_missing_in_gloo_are_left_out(
    monkeypatch: pytest.MonkeyPatch, backend: str, message: str, left_out: bool
) -> None:
    """Messages of old and new versions of torch count, under gloo only; other errors are raised."""

    def raises(*_: Any) -> None:
        raise RuntimeError(message)

    monkeypatch.setattr(dist, "all_to_all_single", raises)
    monkeypatch.setattr(dist, "get_backend", lambda: backend)
    member = Collectives(rank(0, 2), 64)
    if left_out:
        assert member.why_absent("all_to_all") == message
    else:
        with pytest.raises(RuntimeError) as error:
            member.why_absent("all_to_all")
        assert str(error.value) == message


def test_metrics_lie_on_the_curves_where_the_program_measures_them() -> None:
    """The page draws a metric's reference at the collective and size that it is of."""
    best = {metric: CurvePlace(name, "busbw_gb_per_s", None) for name, metric in PEAKS.items()}
    sized = {
        metric: CurvePlace("all_reduce", "busbw_gb_per_s", at) for at, metric in AT_SIZE.items()
    }
    latency = {"latency_us": CurvePlace("all_reduce", "seconds", SMALLEST_BYTES)}
    assert {**best, **sized, **latency} == CURVE_PLACES
    assert set(CURVE_PLACES) <= set(METRICS)
