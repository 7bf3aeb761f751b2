"""Judges what the links of a node's GPUs and its network cards carry.

A copy between host and GPU must reach a floor, by the PCIe link that the node has. The floor needs
no peer and no past, so it holds on the first day. It is a floor and no target. One H100 whose link
carries 63.0 GB/s reached 55.3, a share of 0.88; through the other socket of a node copies take up
to 1.8 times as long, which leaves 0.49; half of that is the floor. A link that trained to a quarter
of its lanes, or two generations down, falls below it.

A pair of GPUs that copy to each other is compared with the same pair on other nodes: the same two
numbers in their node, the same model and CPU, and the same link between them, by what NVML says of
it. There must be three nodes that have it. Where the others all but agree on the link, as nine of
ten do, a pair with another one is compared with them: its link is lost. Only nodes count all of
whose GPUs the job has: the same numbers may be other GPUs elsewhere. A fixed factor decides: other
jobs may use the host's paths as well, and copies through the host take longer where its memory is
far.

A port of a network card is compared in the same way with that of the same name and rate on other
nodes with the same CPU, between the same two numbers of GPUs of the same model: where the kernel
names cards in another order, it is another card.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..config.metrics import show
from ..evidence.device_links import CardSpeed, DevicePair, PcieLink, show_ends
from ..evidence.node_observation import DeviceFigure
from ..node.checks.node_values import is_usual
from .peer_judge import judge_by_factor

SHARE = 0.25
COPIES = ("host_to_device_gb_per_s", "device_to_host_gb_per_s")
FEWEST_NODES = 3
FACTOR = 1.8  # as of copies between host and GPU


@dataclass(frozen=True)
class FloorMiss:
    """A copy that is slower than the floor of its link; `at`: its number in the figures."""

    figure: DeviceFigure
    link: PcieLink
    at: int

    def __str__(self) -> str:
        figure, link = self.figure, self.link
        words = (
            f"its {figure.name} is {show(figure.value)} {figure.unit}; its PCIe link ({link}) "
            f"carries {show(link.gb_per_s)} GB/s, of which at least {SHARE:.0%} was expected"
        )
        is_less = link.now is not None and link.now != (link.gt_per_s, link.lanes)
        return f"{words}; it ran at {show_ends(link.now)}" if is_less and link.now else words


def choose_link(link: PcieLink | None, model: str) -> PcieLink | None:
    """The link that a GPU of this model has to itself: a part of a GPU (MIG) has a part of it."""
    return None if "MIG" in model.upper().split() else link


def find_below_floor(
    figures: Sequence[DeviceFigure], links: Sequence[PcieLink | None]
) -> Iterator[FloorMiss]:
    """The copies below the floor, each figure with its link; None where it is unknown, or where
    another job may use it."""
    for number, (figure, link) in enumerate(zip(figures, links, strict=True)):
        if link is not None and figure.name in COPIES and figure.value < SHARE * link.gb_per_s:
            yield FloorMiss(figure, link, number)


def describe_floor(links: Sequence[PcieLink | None]) -> str:
    """The lowest floor; empty if there is none."""
    known = [link.gb_per_s for link in links if link is not None]
    return f"{show(SHARE * min(known))} GB/s" if known else ""


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
    """A pair that is slower than the same one elsewhere; `at`: its number; `usual_link`: what
    connects it there."""

    made: PlacedPair
    usual: float
    at: int
    usual_link: str

    def __str__(self) -> str:
        pair = self.made.pair
        there = "" if self.usual_link == pair.link else f" ({self.usual_link})"
        return (
            f"its copies to GPU {pair.to} ({pair.link}) reach {show(pair.gb_per_s)} GB/s, those of "
            f"the same two GPUs of other nodes{there} {show(self.usual)} GB/s"
        )


def judge_pairs(pairs: Sequence[PlacedPair]) -> tuple[list[SlowPair], int]:
    """The slow ones, the worst first, and how many were compared."""
    places: dict[Hashable, list[int]] = defaultdict(list)
    for number, made in enumerate(pairs):
        if made.pair.link:
            places[made.model, made.cpu, made.local_rank, made.pair.to].append(number)
    alike: dict[Hashable, list[int]] = defaultdict(list)
    usual_links = dict[int, str]()
    for place, numbers in places.items():
        links = [pairs[number].pair.link for number in numbers]
        usual, having = Counter(links).most_common(1)[0]
        for number, link in zip(numbers, links, strict=True):
            is_lost = link != usual and is_usual(having, len(links) - 1)
            usual_links[number] = usual if is_lost else link
            alike[place, usual_links[number]].append(number)
    speeds = [(made.node, made.pair.gb_per_s) for made in pairs]
    slow, compared = _judge_speeds(speeds, alike)
    found = [SlowPair(pairs[at], speed, at, usual_links[at]) for at, speed in slow]
    return found, compared


@dataclass(frozen=True)
class PlacedCard:
    """A port of a network card with its node, and the models of the node's GPUs and CPU."""

    node: str
    model: str
    cpu: str
    card: CardSpeed


@dataclass(frozen=True)
class SlowCard:
    """A port that carries less than the same one elsewhere; `at`: its number."""

    made: PlacedCard
    usual: float
    at: int

    def __str__(self) -> str:
        card = self.made.card
        return (
            f"its {card} carries {show(card.gb_per_s or 0)} GB/s of an all-reduce, that of other "
            f"nodes {show(self.usual)} GB/s; this is the card or its PCIe path, and need not be "
            "cable or switch"
        )


def judge_cards(cards: Sequence[PlacedCard]) -> tuple[list[SlowCard], int]:
    """The slow ones, the worst first, and how many were compared."""
    alike = {
        key: [number for number in numbers if cards[number].card.gb_per_s is not None]
        for key, numbers in _group_cards(cards).items()
    }
    speeds = [(made.node, made.card.gb_per_s or 0.0) for made in cards]
    slow, compared = _judge_speeds(speeds, alike)
    return [SlowCard(cards[number], usual, number) for number, usual in slow], compared


def find_unusable(cards: Sequence[PlacedCard]) -> Iterator[PlacedCard]:
    """The ports that NCCL cannot use, where it can use the same one on half of the nodes or more.
    A port that was not tried has no GPUs, and is like no other."""
    for numbers in _group_cards(cards).values():
        failed = [cards[number] for number in numbers if cards[number].card.gb_per_s is None]
        if 2 * len(failed) <= len(numbers):
            yield from failed


def _group_cards(cards: Sequence[PlacedCard]) -> dict[Hashable, list[int]]:
    """The numbers of ports that are alike. One card of several nodes is left out: it is that of a
    machine whose virtual nodes measure at the same time."""
    owners: dict[str, set[str]] = defaultdict(set)
    for made in cards:
        owners[made.card.guid].add(made.node)
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for number, made in enumerate(cards):
        card = made.card
        if not card.guid or len(owners[card.guid]) == 1:
            alike[made.model, made.cpu, card.name, card.rate, card.gpus].append(number)
    return alike


def _judge_speeds(
    speeds: Sequence[tuple[str, float]], alike: Mapping[Hashable, Sequence[int]]
) -> tuple[list[tuple[int, float]], int]:
    """The numbers of the slow ones, the worst first, each with the usual speed of those alike; and
    how many were compared. Each speed has its node."""
    slow: list[tuple[float, int, float]] = []
    compared = 0
    for numbers in alike.values():
        if len({speeds[number][0] for number in numbers}) < FEWEST_NODES:
            continue
        compared += len(numbers)
        times = {number: 1 / speeds[number][1] for number in numbers}
        verdict = judge_by_factor(times, FACTOR)
        usual = 1 / verdict.usual_s
        slow += [(times[number] * usual, number, usual) for number in verdict.slow]
    slow.sort(key=lambda each: -each[0])
    return [(number, usual) for _, number, usual in slow], compared
