"""Ranks that fall behind, judged from their recorded times."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_clustersmoke.criteria.stragglers import (
    check_stragglers,
    find_slow_groups,
    find_stragglers,
)
from pytest_clustersmoke.evidence.metric import Unmeasured
from pytest_clustersmoke.evidence.phase_result import PhaseResult
from tests.support.evidence import Evidence

STEPS = 20


def ran(
    folder: Path,
    *own: Sequence[float],
    step_s: float = 0.2,
    device: str = "cpu",
    models: Sequence[str] = (),
    uuids: Sequence[str] = (),
    stages: Sequence[int] = (),
) -> PhaseResult:
    """A phase whose ranks took these seconds for their own part of each step, after one more;
    `models` and `uuids` are those of their GPUs, `stages` those of a pipeline."""
    evidence = Evidence(folder, ranks_per_node=len(own)).started()
    for rank, seconds in enumerate(own):
        start = {"rank": rank, "node": "n0", "host": "h0", "device": device}
        start |= {"gpu_uuid": uuids[rank]} if uuids else {}
        evidence.rank(
            rank,
            ("start", start | ({"device_name": models[rank]} if models else {})),
            *([("fact", {"values": {"pipeline_stage": stages[rank]}})] if stages else []),
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
        check_stragglers(ran(tmp_path, [0.05] * STEPS, [0.1] * STEPS, [0.05] * STEPS))
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


def test_ranks_with_other_gpus_are_not_compared(tmp_path: Path) -> None:
    """The smaller GPUs are slower, and all alike; one that is slow among them is named."""
    models = ["H100"] * 4 + ["A40"] * 3
    own = [[seconds] * STEPS for seconds in [0.004] * 4 + [0.008] * 3]
    device, step_s = "cuda:0", 0.02
    check_stragglers(ran(tmp_path / "a", *own, device=device, step_s=step_s, models=models))
    own[5] = [0.016] * STEPS
    result = ran(tmp_path / "b", *own, device=device, step_s=step_s, models=models)
    assert [straggler.rank.rank for straggler in find_stragglers(result)] == [5]


def test_ranks_that_share_a_gpu_are_unmeasured(tmp_path: Path) -> None:
    """On a machine with one GPU all virtual nodes have it, and the one slows the other down."""
    own = ([0.004] * 9, [0.016] * 9)
    shared = ran(tmp_path / "a", *own, device="cuda:0", step_s=0.02, uuids=("GPU-1", "GPU-1"))
    with pytest.raises(Unmeasured, match=r"rank 0 .* and rank 1 .* share a GPU \(GPU-1\)"):
        check_stragglers(shared)
    apart = ran(tmp_path / "b", *own, device="cuda:0", step_s=0.02, uuids=("GPU-1", "GPU-2"))
    assert [straggler.rank.rank for straggler in find_stragglers(apart)] == [1]


def test_rank_that_is_alone_in_its_role_is_unmeasured(tmp_path: Path) -> None:
    """It has no like to be compared with, which is never a pass; a slow one among the others is
    named all the same."""
    own, models = [[0.05] * STEPS] * 4, ["H100", "H100", "H100", "A40"]
    with pytest.raises(Unmeasured, match=r"rank 3 \(n0\) cannot be compared: .* role \(A40\);"):
        check_stragglers(ran(tmp_path / "a", *own, models=models))
    own[1] = [0.1] * STEPS
    with pytest.raises(AssertionError, match=r"rank 1 .* falls behind"):
        check_stragglers(ran(tmp_path / "b", *own, models=models))


def test_later_stage_of_a_pipeline_is_not_late(tmp_path: Path) -> None:
    """It reaches local_done once the stage before it is done, which is no work of its own; without
    own steps nothing is measured then."""
    own = [[seconds] * STEPS for seconds in (0.004, 0.004, 0.008, 0.008)]
    result = ran(tmp_path, *own, step_s=0.02, device="cuda:0", stages=[0, 0, 1, 1])
    with pytest.raises(Unmeasured, match=r"rank 0 .* is stage 0 of a pipeline"):
        check_stragglers(result)


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
        check_stragglers(ran(tmp_path, *own))


Parts = dict[str, list[float]]


def measured_alone(
    folder: Path,
    *own: Parts | None,
    device: str = "cuda:0",
    parameters: Sequence[int] = (),
    stages: Sequence[int] = (),
    nodes: int = 1,
    local: bool = True,
) -> PhaseResult:
    """A phase whose ranks took these seconds for the parts of their own step, in equal steps;
    `local`: the program called step.local_done()."""
    per_node = len(own) // nodes
    evidence = Evidence(folder, nodes, per_node).started()
    equal = {"seconds": [0.1] * STEPS, "warmup": 0}
    equal |= {"local_seconds": [0.02] * STEPS} if local else {}
    for rank, parts in enumerate(own):
        both = {
            part: {"seconds": seconds, "cpu_seconds": [s / 2 for s in seconds]}
            for part, seconds in (parts or {}).items()
        }
        node = rank // per_node
        start = {"rank": rank, "node": f"n{node}", "host": f"h{node}", "device": device}
        held = {"parameters": parameters[rank]} if parameters else {}
        steps = [("own_steps", {"parts": both, **held})] if parts is not None else []
        if stages:
            steps.append(("fact", {"values": {"pipeline_stage": stages[rank]}}))
        evidence.rank(rank, ("start", start), ("step_times", equal), *steps)
    return evidence.result()


def own_step(times: float = 1.0, **slow: float) -> Parts:
    """Seconds of ten passes, which differ by 1 %; `times` is of all parts."""
    usual = {"forward": 0.02, "backward": 0.04, "optimizer": 0.01}
    return {
        part: [s * times * slow.get(part, 1) * (1 + n / 1000) for n in range(10)]
        for part, s in usual.items()
    }


@pytest.mark.parametrize("parts", ["x", {"forward": "x"}, {"forward": {"seconds": []}}, [1], 3])
def test_own_steps_of_another_type_count_as_none(tmp_path: Path, parts: Any) -> None:
    """What a rank wrote is never trusted: neither a criterion nor the report raises."""
    evidence = Evidence(tmp_path).rank(0, ("own_steps", {"parts": parts}))
    (rank,) = evidence.result().ranks
    assert rank.own_passes_s(cpu=False) == rank.own_passes_s(cpu=True) == {}


@pytest.mark.parametrize("ranks", [2, 4])
def test_gpu_of_few_is_not_named_for_less_than_a_millisecond(tmp_path: Path, ranks: int) -> None:
    """A step of 0.9 ms waits for the host that launches it; one of 70 ms does not."""
    short = [own_step(0.0133)] * (ranks - 1)
    check_stragglers(measured_alone(tmp_path / "short", own_step(0.0133 * 1.6), *short))
    whole = [own_step()] * (ranks - 1)
    with pytest.raises(AssertionError, match=r"rank 0 .* falls behind"):
        check_stragglers(measured_alone(tmp_path / "whole", own_step(1.6), *whole))


def test_own_steps_are_judged_without_local_done(tmp_path: Path) -> None:
    """A program of somebody else's need not call it to have a slow backward pass found."""
    own = [own_step(1 + rank / 1000) for rank in range(4)]
    check_stragglers(measured_alone(tmp_path / "healthy", *own, local=False))
    with pytest.raises(AssertionError, match=r"rank 3 .* falls behind: its backward"):
        slow = [*own[:3], own_step(backward=4.0)]
        check_stragglers(measured_alone(tmp_path / "slow", *slow, local=False))


def test_gpu_of_five_is_named_by_the_spread_of_the_other_four(tmp_path: Path) -> None:
    """Also for less than a millisecond, and for less than a tenth."""
    for number, (times, slow) in enumerate(((0.0286, 1.4), (1.0, 1.09))):
        own = [own_step(times * (1 + rank / 1000)) for rank in range(4)]
        job = measured_alone(tmp_path / str(number), own_step(times * slow), *own)
        with pytest.raises(AssertionError, match=r"rank 0 .* falls behind"):
            check_stragglers(job)


def test_gpu_is_named_by_the_spread_of_the_others(tmp_path: Path) -> None:
    """7 % slower than peers that differ by less than 1 %; the message says what is visible."""
    own = [own_step(1 + rank / 1000) for rank in range(8)]
    own[3] = own_step(1.07)
    with pytest.raises(AssertionError) as failure:
        check_stragglers(measured_alone(tmp_path, *own))
    first, second = str(failure.value).splitlines()
    assert first == (
        "rank 3 (n0, GPU 0) on h0 falls behind: its own step takes 75.2 ms, that of the others "
        "70.6 ms; a whole step takes 100 ms"
    )
    assert second == "a rank whose own step takes 5% more time is named"


def test_node_all_of_whose_gpus_are_slow_is_named(tmp_path: Path) -> None:
    """Of five nodes its GPUs are few enough to be named one by one; of three nodes they hide each
    other, and its middle one stands for it."""
    own = [own_step(1 + rank / 1000) for rank in range(8)]
    slow = [own_step(1.6 * (1 + rank / 1000)) for rank in range(8)]
    check_stragglers(measured_alone(tmp_path / "healthy", *own * 3, nodes=3))
    of_five = measured_alone(tmp_path / "five", *own, *slow, *own * 3, nodes=5)
    assert {each.rank.rank for each in find_stragglers(of_five)} == {*range(8, 16)}
    with pytest.raises(AssertionError) as failure:
        check_stragglers(measured_alone(tmp_path / "three", *own, *slow, *own, nodes=3))
    assert str(failure.value).splitlines()[0] == (
        "h1 falls behind as a whole: in the middle is rank 12 (n1, GPU 0), whose own step takes "
        "113 ms, that of the middle ranks of other nodes 70.6 ms; a whole step takes 100 ms"
    )


@pytest.mark.parametrize(
    ("stages", "parameters"), [([0] * 4 + [1] * 4, ()), ((), [100] * 4 + [200] * 4)]
)
def test_own_steps_of_uneven_stages_are_not_compared(
    stages: Sequence[int], parameters: Sequence[int], tmp_path: Path
) -> None:
    """A stage with twice the layers takes twice as long; a rank that is slow among its like is
    named."""
    own = [own_step(1 + rank % 4 / 1000) for rank in range(4)]
    own += [own_step(2 + rank % 4 / 1000) for rank in range(4)]
    roles = partial(measured_alone, stages=stages, parameters=parameters)
    check_stragglers(roles(tmp_path / "a", *own))
    own[1] = own_step(2.0)
    (straggler,) = find_stragglers(roles(tmp_path / "b", *own))
    assert straggler.rank.rank == 1


@pytest.mark.parametrize(
    ("ranks", "device", "words"),
    [
        (8, "cuda:0", "5% more time"),
        (4, "cuda:0", "50% more time (by a fixed factor of 1.5)"),
        (8, "cpu", "100% more CPU time (by a fixed factor of 2)"),
    ],
)
def test_passing_criterion_says_what_it_could_have_seen(
    ranks: int, device: str, words: str, tmp_path: Path
) -> None:
    """By the spread, or by the fixed factor that replaces it."""
    own = [own_step(1 + rank / 1000) for rank in range(ranks)]
    result = measured_alone(tmp_path, *own, device=device)
    check_stragglers(result)
    assert result.sensitivity == [f"would have named a rank whose own step takes {words}"]


@pytest.mark.parametrize("part", ["forward", "backward", "optimizer"])
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_slow_part_is_named(part: str, device: str, tmp_path: Path) -> None:
    """Four times as slow in one part, of two ranks, on CPU by its CPU time."""
    own = [own_step(), own_step(**{part: 4.0})]
    (straggler,) = find_stragglers(measured_alone(tmp_path, *own, device=device))
    assert straggler.rank.rank == 1
    assert straggler.part.startswith((part, "own step"))


@pytest.mark.parametrize(
    ("slow", "device"),
    [
        ({"times": 1.6}, "cpu"),  # what cores shared with others explain
        ({"optimizer": 1.6}, "cuda:0"),  # among two ranks
    ],
)
def test_slow_own_step_below_the_factor_is_ignored(
    slow: dict[str, float], device: str, tmp_path: Path
) -> None:
    """Where a spread cannot be measured, a fixed factor decides."""
    assert not find_stragglers(
        measured_alone(tmp_path, own_step(), own_step(**slow), device=device)
    )


def test_own_step_that_some_ranks_lack_is_unmeasured(tmp_path: Path) -> None:
    """All ranks measured it, or none did; times that are none do not count."""
    with pytest.raises(Unmeasured, match="1 of 2 ranks measured their own step"):
        check_stragglers(measured_alone(tmp_path / "a", own_step(), None))
    hostile: Parts = {"forward": [float("nan")] * 10}
    with pytest.raises(Unmeasured, match="1 of 2 ranks measured their own step"):
        check_stragglers(measured_alone(tmp_path / "b", own_step(), hostile))


@settings(derandomize=True, suppress_health_check=list(HealthCheck), deadline=None, max_examples=60)
@given(st.lists(st.lists(st.floats(0.010, 0.0133), min_size=9, max_size=9), min_size=2, max_size=5))
def test_noise_within_the_score_blames_no_rank(
    tmp_path_factory: pytest.TempPathFactory, own: list[list[float]]
) -> None:
    """In any order, ranks within a third of each other are equally fast."""
    folder = tmp_path_factory.mktemp("noise")
    assert not find_stragglers(ran(folder, *own, step_s=0.02, device="cuda:0"))


def test_slow_groups_are_found_by_the_ranks_of_all_groups(tmp_path: Path) -> None:
    """Also one of which all ranks are equally slow, which its own ranks cannot show."""
    usual, slow = [0.05] * STEPS, [0.1] * STEPS
    owns = [(usual, usual), (usual, usual), (slow, slow), (usual, usual)]
    groups = [ran(tmp_path / str(number), *own) for number, own in enumerate(owns)]
    assert find_stragglers(groups[2]) == []
    assert find_slow_groups(groups) == [False, False, True, False]
    assert find_slow_groups(groups[:2]) == [False, False]
