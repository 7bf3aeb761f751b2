"""The collectives of train_allreduce.py without a process group: sizes, bandwidths and pairs by
nccl-tests' definitions, and the data by which a right result is told from a wrong one."""

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
from collectives import NAMES, Collectives
from pytest_clustersmoke.config.metrics import METRICS
from pytest_clustersmoke.criteria import bandwidth


def rank(number: int, ranks: int, per_node: int = 1) -> Any:
    """A rank as the program sees it, on CPU."""
    return SimpleNamespace(
        rank=number,
        world_size=ranks,
        local_rank=number % per_node,
        local_world_size=per_node,
        device=torch.device("cpu"),
    )


def test_the_full_ladder() -> None:
    """From 8 B to 1 GiB by powers of two: 28 sizes, the named ones among them."""
    sizes = train_allreduce.ladder(2**30, 2)
    assert sizes == [2**power for power in range(3, 31)]
    assert set(train_allreduce.AT_SIZE) < set(sizes)


def test_a_ladder_ends_where_it_is_bounded() -> None:
    """The bound itself belongs to it; what does not fit does not."""
    assert train_allreduce.ladder(8, 2) == [8]
    assert train_allreduce.ladder(127, 4) == [8, 32]
    assert train_allreduce.ladder(128, 4) == [8, 32, 128]


@pytest.mark.parametrize(("most", "factor"), [(7, 2), (0, 2), (-8, 2), (64, 1), (64, 0)])
def test_a_ladder_that_has_no_end_or_no_step(most: int, factor: int) -> None:
    """It is refused, with both numbers."""
    with pytest.raises(ValueError, match=f"no sizes from 8 to {most} B with a factor of {factor}"):
        train_allreduce.ladder(most, factor)


@pytest.mark.parametrize(
    ("name", "asked", "ranks", "count"),
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
    name: str, asked: int, ranks: int, count: int
) -> None:
    """Each rank's share is a whole number of 16 bytes, rounded down, of what all of them have."""
    assert collectives.elements(name, asked, ranks) == count


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
    """S/t, and its factor by collective, in 1e9 B a second; the last is nccl-tests' own line."""
    found = collectives.bandwidths(name, size, seconds, ranks)
    assert found == pytest.approx((algorithm, bus), rel=5e-4)


def test_program_and_judge_measure_the_same() -> None:
    """They know the same collectives, metrics and sizes; each bandwidth is a metric in GB/s."""
    assert tuple(bandwidth.PEAKS) == NAMES
    assert train_allreduce.PEAKS == bandwidth.PEAKS
    assert {name: size for size, name in train_allreduce.AT_SIZE.items()} == bandwidth.NAMED_SIZES
    assert train_allreduce.SMALLEST_BYTES == bandwidth.SMALLEST_BYTES
    for name in (*bandwidth.PEAKS.values(), *bandwidth.NAMED_SIZES):
        assert METRICS[name].unit == "GB/s" and METRICS[name].higher_is_better


@given(st.integers(min_value=1, max_value=40), st.integers(min_value=1, max_value=3))
def test_every_pair_meets_once_and_no_node_is_in_two_pairs_at_once(
    nodes: int, per_node: int
) -> None:
    """In each round peers have each other, and one local rank; over all rounds each two nodes meet
    once."""
    everyone = [rank(number, nodes * per_node, per_node) for number in range(nodes * per_node)]
    met = []
    for distance in train_allreduce.rounds(nodes):
        peers = [train_allreduce.peer_of(one, distance) for one in everyone]
        for one, peer in zip(everyone, peers, strict=True):
            if peer is not None:
                assert peers[peer] == one.rank and peer % per_node == one.local_rank
                met.append((one.rank // per_node, peer // per_node))
    pairs = [pair for pair in combinations(range(nodes), 2) for _ in range(per_node)]
    assert sorted(pair for pair in met if pair[0] < pair[1]) == pairs


class Ranks:
    """All ranks of a world in one process, and what each collective does to their buffers."""

    def __init__(self, ranks: int, count: int) -> None:
        self.count, self.share = count, count // ranks
        self.all = [Collectives(rank(number, ranks), count * 4) for number in range(ranks)]

    def run(self, name: str, absent: int | None = None) -> Iterator[Collectives]:
        """Fill, do what the collective is defined to do, and give each rank; of the absent one
        nothing arrives."""
        for one in self.all:
            one.fill(name, self.count)
            if one.rank == absent:
                one.clear(self.count)
        sent = [one.sent[: self.count].clone() for one in self.all]
        kept = [one.received[: self.count].clone() for one in self.all]
        part = self.share
        for number, one in enumerate(self.all):
            mine = slice(number * part, (number + 1) * part)
            if name == "all_reduce":
                one.received[: self.count] = torch.stack(kept).sum(0)
            elif name == "all_gather":
                one.received[: self.count] = torch.cat([each[:part] for each in sent])
            elif name == "reduce_scatter":
                one.received[:part] = torch.stack(sent).sum(0)[mine]
            else:
                one.received[: self.count] = torch.cat([each[mine] for each in sent])
            yield one

    def results(self, name: str) -> int:
        """How many elements a rank has as its result."""
        return self.share if name == "reduce_scatter" else self.count


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 62])
@pytest.mark.parametrize("name", NAMES)
def test_what_a_collective_is_defined_to_do_is_right(name: str, ranks: int) -> None:
    """The expected values are those of the definitions, for any number of ranks."""
    world = Ranks(ranks, 248 * ranks)
    right = {"checked": world.results(name), "wrong": 0, "first_wrong": None}
    for one in world.run(name):
        assert one.check(name, world.count) == right


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("spoil", ["bit", "nan", "shift", "swap", "stale", "missing"])
def test_what_is_wrong_is_found(name: str, spoil: str) -> None:
    """One bit, a NaN, data that moved, a result never written, or a rank whose data are missing."""
    world = Ranks(4, 1024)
    one = list(world.run(name, absent=1 if spoil == "missing" else None))[2]
    size = world.results(name)
    result = one.received[:size]
    if spoil == "bit":
        result.view(torch.int32)[9] ^= 1
    elif spoil == "nan":
        result[9] = float("nan")
    elif spoil == "shift":
        result.copy_(result.roll(1))
    elif spoil == "swap":
        result.copy_(result.roll(size // 2))
    elif spoil == "stale":
        one.fill(name, world.count)
    found = one.check(name, world.count)
    assert found["wrong"] > 0 and found["checked"] == size
    first = found["first_wrong"]
    assert first["found"] != first["expected"]
    if spoil in ("bit", "nan"):
        assert found["wrong"] == 1 and first["index"] == 9


def test_a_wrong_element_far_in_is_numbered_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of the check do not show: the number is that of the whole result."""
    monkeypatch.setattr(collectives, "CHUNK", 100)
    one = next(Ranks(1, 1000).run("all_reduce"))
    one.received[742] += 1
    one.received[999] += 1
    found = one.check("all_reduce", 1000)
    assert (found["wrong"], found["first_wrong"]["index"]) == (2, 742)


@pytest.mark.parametrize("ranks", [2, 64, 512, 4096, 100_000])
def test_sums_are_exact_for_any_number_of_ranks(ranks: int) -> None:
    """No sum over ranks is above what float32 holds exactly, and neighbours differ."""
    one = Collectives(rank(0, ranks), 8)
    sums = one.summand(one.weights, torch.arange(256))
    assert sums.max() <= collectives.EXACT and sums[0] != sums[1]
    assert sums.double().div(one.weights).frac().eq(0).all()


@pytest.mark.parametrize(
    ("backend", "words", "left_out"),
    [
        ("gloo", "no support for _allgather_base in Gloo process group", True),
        ("gloo", "Backend gloo does not support alltoall_base", True),
        ("gloo", "ProcessGroup gloo does not support alltoall", True),
        ("gloo", "Connection reset by peer", False),
        ("gloo", "[enforce fail at alltoall.cc:29] in->size % context->size == 0", False),
        ("nccl", "Backend nccl does not support alltoall_base", False),
    ],
)
def test_only_a_collective_that_gloo_has_not_is_left_out(
    monkeypatch: pytest.MonkeyPatch, backend: str, words: str, left_out: bool
) -> None:
    """torch's words for it, of old and new versions, under gloo alone; other errors rise."""

    def raises(*_: Any) -> None:
        raise RuntimeError(words)

    monkeypatch.setattr(dist, "all_to_all_single", raises)
    monkeypatch.setattr(dist, "get_backend", lambda: backend)
    one = Collectives(rank(0, 2), 64)
    if left_out:
        assert one.why_absent("all_to_all") == words
    else:
        with pytest.raises(RuntimeError) as error:
            one.why_absent("all_to_all")
        assert str(error.value) == words
