"""Copies between host and GPU must reach a floor, on the first day and without peers; pairs of GPUs
and network cards are compared with the same ones of other nodes (made figures: no GPU)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from pytest_clustersmoke.criteria.link_speed import (
    PlacedCard,
    PlacedPair,
    choose_link,
    describe_floor,
    find_below_floor,
    judge_cards,
    judge_pairs,
)
from pytest_clustersmoke.evidence.device_links import (
    CardSpeed,
    DevicePair,
    PcieLink,
    list_card_figures,
    parse_cards,
    parse_pairs,
)
from pytest_clustersmoke.evidence.node_observation import DeviceFigure

TO_DEVICE = "host_to_device_gb_per_s"
GEN5, GEN4, GEN3 = PcieLink(32.0, 16), PcieLink(16.0, 16), PcieLink(8.0, 16)


def copy(value: float, name: str = TO_DEVICE) -> DeviceFigure:
    return DeviceFigure("n0", "GPU-0", name, value, "GB/s", True)


def judge(value: float, link: PcieLink | None, **more: Any) -> list[str]:
    return [str(miss) for miss in find_below_floor([copy(value, **more)], [link])]


@pytest.mark.parametrize(
    ("value", "link"),
    [(55.3, GEN5), (33.0, GEN5), (24.0, GEN4), (14.0, GEN4), (12.0, GEN3), (6.5, GEN3)],
)
def test_healthy_copies_reach_the_floor(value: float, link: PcieLink) -> None:
    """One H100 was measured with 55.3 GB/s; the lower one of each pair takes 1.8 times as long, as
    through the other socket."""
    assert judge(value, link) == []


def test_copy_below_the_floor_is_named_with_the_link() -> None:
    """And with how it ran while it carried the copies."""
    assert judge(6.9, PcieLink(32.0, 16, (32.0, 2))) == [
        "its host_to_device_gb_per_s is 6.900 GB/s; its PCIe link (32 GT/s x16) carries 63.02 "
        "GB/s, of which at least 25% was expected; it ran at 32 GT/s x2"
    ]
    (words,) = judge(14.0, PcieLink(32.0, 16, (32.0, 16)), name="device_to_host_gb_per_s")
    assert words.endswith("at least 25% was expected")


def test_nothing_is_expected_of_an_unknown_link() -> None:
    """Nor of a part of a GPU, and of figures that do not cross the link."""
    assert judge(0.1, None) == []
    assert judge(0.1, GEN5, name="device_copy_gb_per_s") == []
    assert choose_link(GEN5, "NVIDIA A100-SXM4-40GB MIG 1g.5gb") is None
    assert choose_link(GEN5, "NVIDIA H100 80GB HBM3") == GEN5
    assert describe_floor([None]) == "" and describe_floor([None, GEN5, GEN4]) == "7.877 GB/s"


def test_gpu_with_a_faster_way_is_not_named() -> None:
    """Grace Hopper copies by NVLink-C2C, whatever its PCIe link is."""
    assert judge(380.0, GEN5) == judge(380.0, PcieLink(2.5, 1)) == []


def test_healthy_nodes_of_all_kinds_name_nobody() -> None:
    """10,000 GPUs: of each generation, near and far, with a spread of 8 %."""
    draw = random.Random(14)
    for _ in range(10_000):
        link = draw.choice((GEN3, GEN4, GEN5, PcieLink(32.0, 8), PcieLink(16.0, 4)))
        share = draw.choice((0.88, 0.78, 0.49)) * draw.gauss(1, 0.08)
        assert judge(share * link.gb_per_s, link) == []


H100, NVLINK, SYS = "NVIDIA H100 80GB HBM3", "NVLink", "SYS"


def on_nodes(
    *speeds: float, link: str = NVLINK, first: int = 0, to: int = 1, model: str = H100
) -> list[PlacedPair]:
    """One pair of each of so many nodes."""
    return [
        PlacedPair(f"n{node}", model, first, "EPYC", DevicePair(to, link, speed))
        for node, speed in enumerate(speeds)
    ]


def test_slow_pair_is_named_with_what_it_reaches_elsewhere() -> None:
    """In the one direction in which it is slow."""
    pairs = [*on_nodes(370, 371, 40, 369), *on_nodes(370, 371, 372, 369, first=1, to=0)]
    (slow,), compared = judge_pairs(pairs)
    assert (slow.made.node, slow.made.local_rank, compared) == ("n2", 0, 8)
    assert str(slow) == (
        "its copies to GPU 1 (NVLink) reach 40.00 GB/s, those of the same two GPUs of other nodes "
        "370.0 GB/s"
    )


def test_pairs_of_another_link_are_not_alike() -> None:
    """Some nodes of a kind have no bridge between their GPUs; two are no peers of each other."""
    far = [PlacedPair(node, H100, 0, "EPYC", DevicePair(1, SYS, 12.0)) for node in ("n8", "n9")]
    assert judge_pairs([*on_nodes(370, 371, 369), *far]) == ([], 3)


def test_pair_that_lost_its_link_is_compared_with_those_that_have_it() -> None:
    """One in ten may have lost it; a faster link than elsewhere names nobody."""
    far = [PlacedPair(node, H100, 0, "EPYC", DevicePair(1, SYS, 12.0)) for node in ("n80", "n90")]
    slow, compared = judge_pairs([*on_nodes(*(370 + node for node in range(10))), *far])
    assert ([each.made.node for each in slow], compared) == (["n80", "n90"], 12)
    assert str(slow[0]) == (
        "its copies to GPU 1 (SYS) reach 12.00 GB/s, those of the same two GPUs of other nodes "
        "(NVLink) 374.5 GB/s"
    )
    near = [*on_nodes(12, 12.1, 11.9, link=SYS), *on_nodes(370)]
    assert judge_pairs(near) == ([], 4)


@pytest.mark.parametrize(
    "pairs",
    [
        on_nodes(370, 40),
        on_nodes(370, 371, 40, link=""),
        [*on_nodes(370, 371), *on_nodes(40, to=2)],
        [*on_nodes(370, 371), *on_nodes(40, model="NVIDIA A100")],
    ],
)
def test_nobody_is_named_without_two_witnesses(pairs: list[PlacedPair]) -> None:
    """Two nodes, an unknown link, another pair, another model."""
    assert judge_pairs(pairs) == ([], 0)


def test_healthy_pairs_name_nobody() -> None:
    """20 screens of 64 nodes whose eight GPUs have each a pair by NVLink and one by the host, with
    a spread of 8 %."""
    draw = random.Random(14)
    for _ in range(20):
        pairs = []
        for first in range(8):
            for to, link, usual in ((first ^ 1, NVLINK, 370.0), ((first + 4) % 8, SYS, 20.0)):
                speeds = (usual * draw.gauss(1, 0.08) for _ in range(64))
                pairs += on_nodes(*speeds, link=link, first=first, to=to)
        slow, compared = judge_pairs(pairs)
        assert slow == [] and compared == 1024


def test_rows_that_a_job_made_up_are_left_out() -> None:
    """Its text is hostile."""
    rows = [
        {"to": 1, "link": "NVLink\x1b[31m", "gb_per_s": 370.0},
        {"to": -1, "link": "NVLink", "gb_per_s": 370.0},
        {"to": 2, "link": 7, "gb_per_s": 30.0},
        {"to": 3, "gb_per_s": "nan"},
        "row",
    ]
    first, second = parse_pairs(rows)
    assert (first.to, first.gb_per_s) == (1, 370.0) and "\x1b" not in first.link
    assert second == DevicePair(2, "", 30.0)
    assert parse_pairs(None) == parse_pairs(3) == ()


NDR, GUID = "400 Gb/sec (4X NDR)", "b8cef60300a12c3e"


def cards_of(
    *speeds: float | None,
    name: str = "mlx5_0:1",
    rate: str = NDR,
    cpu: str = "EPYC",
    model: str = "H100",
    gpus: tuple[int, ...] = (0, 1),
) -> list[PlacedCard]:
    """One port of each of so many nodes."""
    cards = [
        CardSpeed(name, f"{GUID[:-4]}{node:04x}", rate, speed, gpus=gpus)
        for node, speed in enumerate(speeds)
    ]
    return [PlacedCard(f"n{node}", model, cpu, card) for node, card in enumerate(cards)]


def test_slow_card_is_named_with_what_it_shows() -> None:
    """By its name and GUID; the finding says that it need not be cable or switch."""
    cards = [*cards_of(23.9, 24.1, 6.1, 24.0), *cards_of(12.0, 12.1, 12.0, name="mlx5_4:1")]
    (slow,), compared = judge_cards(cards)
    assert (slow.made.node, slow.at, compared) == ("n2", 2, 7)
    assert str(slow) == (
        f"its network card mlx5_0:1 ({NDR}, GUID b8cef60300a10002) carries 6.100 GB/s of an "
        "all-reduce, that of other nodes 24.00 GB/s; this is the card or its PCIe path, and need "
        "not be cable or switch"
    )


@pytest.mark.parametrize(
    "cards",
    [
        cards_of(24.0, 6.0),
        cards_of(24.0, None, 6.0),
        [*cards_of(24.0, 24.0), *cards_of(6.0, cpu="Xeon")],
        [*cards_of(24.0, 24.0), *cards_of(6.0, model="L40S")],
        [*cards_of(24.0, 24.0), *cards_of(6.0, gpus=(4, 5))],
        [*cards_of(24.0, 24.0), *cards_of(6.0, name="mlx5_1:1")],
        [*cards_of(24.0, 24.0), *cards_of(12.0, rate="200 Gb/sec (4X HDR)")],
        [
            PlacedCard(f"n{n}", "H100", "EPYC", CardSpeed("mlx5_0:1", GUID, NDR, 24 / (1 + n)))
            for n in range(4)
        ],
    ],
)
def test_no_card_is_named_without_two_witnesses(cards: list[PlacedCard]) -> None:
    """Two nodes, one without a figure, another CPU, other GPUs, another card of that name (it is
    next to other GPUs), another name, another rate, and the one card of a machine with virtual
    nodes."""
    assert judge_cards(cards) == ([], 0)


def test_healthy_cards_name_nobody() -> None:
    """200 screens of 64 nodes with eight cards each, with a spread of 8 %."""
    draw = random.Random(14)
    for _ in range(200):
        cards = []
        for card in range(8):
            speeds = (24.0 * draw.gauss(1, 0.08) for _ in range(64))
            cards += cards_of(*speeds, name=f"mlx5_{card}:1")
        assert judge_cards(cards) == ([], 512)


def test_card_of_an_event_without_a_figure_has_its_reason() -> None:
    """A job wrote it: a value that cannot be a number or a GUID counts as missing. Each figure has
    the GUID of its card, which it keeps in another node."""
    row = {"name": "mlx5_0:1", "guid": GUID, "rate": NDR, "gb_per_s": 23.5, "gpus": [2, 3]}
    rows = [
        row,
        {**row, "guid": "0000000000000000", "gb_per_s": 12.0},
        {**row, "gb_per_s": -1, "why": "NCCL used NET/Socket in its place"},
        {**row, "gb_per_s": "fast"},
        {"name": 7, "gb_per_s": 3.0},
    ]
    cards = parse_cards([*rows, "nothing"])
    assert cards[0].gpus == (2, 3) and cards[-1].gpus == ()
    assert [card.why for card in cards] == [
        *("", "", "NCCL used NET/Socket in its place", "no figure", "no figure")
    ]
    figures = list_card_figures("n1", cards)
    named = [(figure.device, figure.value) for figure in figures]
    assert named == [(f"NIC-{GUID}:1", 23.5), ("n1/mlx5_0:1", 12.0)]
    assert {figure.name for figure in figures} == {"nic_busbw_gb_per_s"}
