"""Pairs of GPUs are compared with the same pair on other nodes (made figures: no GPU)."""

from __future__ import annotations

import random

import pytest

from pytest_clustersmoke.criteria.pair_speed import PlacedPair, judge_pairs
from pytest_clustersmoke.evidence.device_links import DevicePair, parse_pairs

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
    """Of a node whose GPUs go through the host; a lone one of its kind has no peers."""
    far = PlacedPair("n9", H100, 0, "EPYC", DevicePair(1, SYS, 12.0))
    assert judge_pairs([*on_nodes(370, 371, 369), far]) == ([], 3)


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
