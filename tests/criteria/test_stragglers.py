"""Ranks that fall behind, judged from their recorded times."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_clustersmoke.criteria.stragglers import check, find_stragglers
from pytest_clustersmoke.evidence.metric import Unmeasured
from pytest_clustersmoke.evidence.phase_result import PhaseResult
from tests.support.evidence import Evidence

STEPS = 20


def ran(
    folder: Path, *own: Sequence[float], step_s: float = 0.2, device: str = "cpu"
) -> PhaseResult:
    """A phase whose ranks took these seconds for their own part of each step, after one more."""
    evidence = Evidence(folder, ranks_per_node=len(own)).started()
    for rank, seconds in enumerate(own):
        evidence.rank(
            rank,
            ("start", {"rank": rank, "node": "n0", "host": "h0", "device": device}),
            (
                "step_times",
                {
                    "seconds": [9.0] + [step_s] * len(seconds),
                    "warmup": 1,
                    "local_seconds": [8.0 * rank, *seconds],
                },
            ),
        )
    return evidence.result()


def test_slow_rank_is_named_with_its_host(tmp_path: Path) -> None:
    """It takes twice the others' time in every step, which is much of the step."""
    with pytest.raises(AssertionError) as failure:
        check(ran(tmp_path, [0.05] * STEPS, [0.1] * STEPS, [0.05] * STEPS))
    words = str(failure.value)
    assert words == (
        "rank 1 (n0) on h0 falls behind: its own part of a step takes 100 ms, that of the "
        "others 50 ms; a whole step takes 200 ms"
    )


def test_all_slow_ranks_are_named_slowest_first(tmp_path: Path) -> None:
    """Two of five are slow, each by its own measure."""
    own = [[value] * STEPS for value in (0.05, 0.1, 0.05, 0.15, 0.05)]
    assert [straggler.rank.rank for straggler in find_stragglers(ran(tmp_path, *own))] == [3, 1]


@pytest.mark.parametrize(
    ("own", "step_s", "device"),
    [
        ([0.05, 0.06], 0.2, "cpu"),  # a score of 0.83
        ([0.05, 0.1], 0.6, "cpu"),  # a twelfth of the step
        ([0.001, 0.015], 0.02, "cpu"),  # what sharing a core explains
        ([0.0001, 0.0009], 0.002, "cuda:0"),  # what a launch explains
    ],
)
def test_small_difference_is_ignored(
    own: list[float], step_s: float, device: str, tmp_path: Path
) -> None:
    """Each bound by itself keeps a slightly slower rank from being blamed."""
    assert not find_stragglers(
        ran(tmp_path, *([seconds] * STEPS for seconds in own), step_s=step_s, device=device)
    )


def test_rank_that_is_slow_now_and_then_is_ignored(tmp_path: Path) -> None:
    """Three of five steps are slow, so the median is slow, but the lower quartile is not."""
    mixed = [0.1, 0.1, 0.1, 0.05, 0.05] * 4
    assert not find_stragglers(ran(tmp_path, [0.05] * STEPS, mixed))


def test_gpu_that_is_late_by_milliseconds_is_named(tmp_path: Path) -> None:
    """A device's own clock has no noise of that size."""
    stragglers = find_stragglers(
        ran(tmp_path, [0.004] * 9, [0.008] * 9, step_s=0.02, device="cuda:0")
    )
    assert [straggler.rank.rank for straggler in stragglers] == [1]


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (([0.1] * STEPS,), "there is no other rank"),
        (([0.1] * STEPS, [0.1] * 4), "rank 1 .* in 4 steps after"),
        (([0.1] * STEPS, [float("nan")] * STEPS), "rank 1 .* in 0 steps after"),
    ],
)
def test_ranks_that_were_not_timed_are_unmeasured(
    own: tuple[list[float], ...], words: str, tmp_path: Path
) -> None:
    """A single rank, too few steps, and invalid times are unmeasured, not passed."""
    with pytest.raises(Unmeasured, match=words):
        check(ran(tmp_path, *own))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.floats(0.010, 0.0133), min_size=9, max_size=9), min_size=2, max_size=5))
def test_noise_within_the_score_blames_no_rank(
    tmp_path_factory: pytest.TempPathFactory, own: list[list[float]]
) -> None:
    """In any order, ranks within a third of each other are equally fast."""
    folder = tmp_path_factory.mktemp("noise")
    assert not find_stragglers(ran(folder, *own, step_s=0.02, device="cuda:0"))
