"""Judges how fast the GPUs of a node copy to each other.

A pair is compared with the same pair on other nodes: the same two numbers in their node, the same
model and CPU, and the same link between them, by what NVML says of it. There must be three nodes
that have it. A fixed factor decides: other jobs may use the host's paths as well, and copies
through the host take longer where its memory is far.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from ..config.metrics import show
from ..evidence.device_links import DevicePair
from .peer_judge import judge_by_factor

FEWEST_NODES = 3
FACTOR = 1.8  # as of copies between host and GPU


@dataclass(frozen=True)
class PlacedPair:
    """A pair with the node, the model and the local rank of its first GPU, and the model of the
    CPU."""

    node: str
    model: str
    local_rank: int
    cpu: str
    pair: DevicePair


@dataclass(frozen=True)
class SlowPair:
    """A pair that is slower than the same one elsewhere; `at`: its number."""

    made: PlacedPair
    usual: float
    at: int

    def __str__(self) -> str:
        pair = self.made.pair
        return (
            f"its copies to GPU {pair.to} ({pair.link}) reach {show(pair.gb_per_s)} GB/s, those of "
            f"the same two GPUs of other nodes {show(self.usual)} GB/s"
        )


def judge_pairs(pairs: Sequence[PlacedPair]) -> tuple[list[SlowPair], int]:
    """The slow ones, the worst first, and how many were compared."""
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for number, made in enumerate(pairs):
        if made.pair.link:
            key = (made.model, made.cpu, made.local_rank, made.pair.to, made.pair.link)
            alike[key].append(number)
    slow: list[tuple[float, SlowPair]] = []
    compared = 0
    for numbers in alike.values():
        if len({pairs[number].node for number in numbers}) < FEWEST_NODES:
            continue
        compared += len(numbers)
        times = {number: 1 / pairs[number].pair.gb_per_s for number in numbers}
        verdict = judge_by_factor(times, FACTOR)
        usual = 1 / verdict.usual_s
        slow += [
            (times[number] * usual, SlowPair(pairs[number], usual, number))
            for number in verdict.slow
        ]
    slow.sort(key=lambda each: -each[0])
    return [found for _, found in slow], compared
