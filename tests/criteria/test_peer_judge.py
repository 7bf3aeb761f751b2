"""The judge of slow ranks: thresholds from the spread between peers."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pytest_clustersmoke.criteria.peer_judge import (
    FLOOR,
    judge_by_factor,
    judge_peers,
    student_quantile,
)


def ranks(count: int, spread: float, slow: dict[int, float] | None = None) -> dict[int, float]:
    """Rank -> seconds: healthy ranks about 1 s, and slow ones by a factor."""
    normal = random.Random(count).gauss
    healthy = {rank: normal(1, spread) for rank in range(count)}
    return healthy | {rank: healthy[rank] * factor for rank, factor in (slow or {}).items()}


@pytest.mark.parametrize(
    ("chance", "freedom", "value"),
    [(0.05, 1, 6.314), (0.025, 2, 4.303), (0.0005, 6, 5.959), (0.0005, 7, 5.408), (0.01, 60, 2.39)],
)
def test_quantiles_are_those_of_the_tables(chance: float, freedom: int, value: float) -> None:
    """Student's t, as printed in tables."""
    assert student_quantile(chance, freedom) == pytest.approx(value, abs=6e-4)


def test_slow_rank_is_named_by_the_spread_of_its_peers() -> None:
    """10 % are much if the peers differ by 0.5 %, and nothing if they differ by 5 %."""
    assert judge_peers(ranks(16, 0.005, {3: 1.1})).slow == (3,)
    assert judge_peers(ranks(16, 0.05, {3: 1.1})).slow == ()


def test_several_slow_ranks_do_not_hide_each_other() -> None:
    """A node of 8 slow ranks among 64 is named as a whole, the slowest first."""
    times = ranks(64, 0.005, dict.fromkeys(range(8), 1.2))
    slow = judge_peers(times).slow
    assert set(slow) == set(range(8))
    assert list(slow) == sorted(slow, key=lambda rank: -times[rank])


def test_less_than_four_percent_is_never_named() -> None:
    """Without any spread between the peers, the floor decides."""
    assert judge_peers({**dict.fromkeys(range(8), 1.0), 8: 1.039}).slow == ()
    verdict = judge_peers({**dict.fromkeys(range(8), 1.0), 8: 1.041})
    assert verdict.slow == (8,) and verdict.visible == pytest.approx(FLOOR)


@pytest.mark.parametrize("count", [5, 8, 16, 64])
@pytest.mark.parametrize("spread", [0.01, 0.03])
def test_slow_down_that_is_called_visible_is_named(count: int, spread: float) -> None:
    """Any rank that takes this much longer than the others usually take."""
    times = ranks(count, spread)
    healthy = judge_peers(times)
    assert healthy.slow == ()
    for rank in times:
        slow_s = healthy.usual_s * (1 + healthy.visible) * 1.0001
        assert judge_peers({**times, rank: slow_s}).slow == (rank,)


def test_few_peers_are_judged_by_a_fixed_factor() -> None:
    """Three peers do not show a spread."""
    assert judge_peers({0: 1.0, 1: 1.01, 2: 0.99, 3: 1.45}).slow == ()
    verdict = judge_peers({0: 1.0, 1: 1.01, 2: 0.99, 3: 1.55})
    assert (verdict.slow, verdict.visible) == ((3,), 0.5)
    assert judge_by_factor({0: 1.0, 1: 2.1}, 2.0).slow == (1,)


@given(st.lists(st.floats(1e-6, 1e3), min_size=2, max_size=40))
def test_most_ranks_are_never_named(seconds: list[float]) -> None:
    """Whatever the times are: at most a quarter, or fewer than all where a factor decides."""
    slow = judge_peers(dict(enumerate(seconds))).slow
    assert len(slow) <= len(seconds) / 4 or len(slow) < len(seconds) <= 4


@given(st.lists(st.floats(0.001, 1000.0), min_size=2, max_size=12), st.floats(1.0, 2.0))
def test_rank_is_judged_by_the_median_of_the_others(seconds: list[float], factor: float) -> None:
    """Whatever stands twice among them."""
    times = dict(enumerate(seconds))
    others = {
        rank: statistics.median(value for other, value in times.items() if other != rank)
        for rank in times
    }
    slow = {rank for rank, value in times.items() if value > factor * others[rank]}
    assume(len(slow) < len(times))
    assert set(judge_by_factor(times, factor).slow) == slow
