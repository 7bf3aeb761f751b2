"""Ranks out of step: who called another collective, and where that cannot be told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.diagnose import diagnose
from pytest_clustersmoke.diagnose.hangs import find_mismatch
from pytest_clustersmoke.findings import Finding
from pytest_clustersmoke.outcome import Judgement

from .recorders import Left, call, calls

LOST = "[pair.cc:537] Read error [127.0.0.1]:1: Connection reset by peer"
STEP: list[dict[str, Any]] = [
    {"kind": "all_reduce", "sizes": [[400]]},
    {"kind": "broadcast", "sizes": [[6]]},
    {"kind": "all_reduce", "sizes": [[9]]},
]


def steps(*numbers: int, line: int = 57) -> list[dict[str, Any]]:
    """The calls of STEP in this order, numbered from 1; the last has not ended."""
    last = len(numbers)
    return [
        call(at, **STEP[which], ended=at < last, line=line + which)
        for at, which in enumerate(numbers, 1)
    ]


def only(left: Left) -> Finding:
    (found,) = find_mismatch(left.evidence())
    assert found.id == "collective-mismatch"
    return found


@pytest.mark.parametrize(
    ("odd", "how"),
    [
        ([*steps(0, 1, 2, 1)], "skipped"),  # the others wait in theirs
        ([*steps(0, 1, 2, 1, 0)], "order"),
        ([*steps(0, 1, 2), call(4, sizes=[[800]], ended=False)], "shape"),
        ([*steps(0, 1, 2), call(4, sizes=[[400]], dtype="Double", ended=False)], "type"),
        ([*steps(0, 1, 2), call(4, "all_gather", [[400]], ended=False)], "collective"),
    ],
)
def test_the_odd_one_of_three_is_named(odd: list[Any], how: str, tmp_path: Path) -> None:
    """More than half agree: the other is out of step, with both calls and lines told."""
    left = Left(tmp_path, 3)
    for rank in (0, 2):
        left.record(rank, steps(0, 1, 2, 0))
    found = only(left.record(1, odd).stack(1, 41, "helper", True))
    assert (found.ranks, found.hosts, found.detail["how"]) == ((1,), ("n0",), how)
    assert "is out of step in group 0 (default_pg): collective 4 is" in found.cause
    assert "/p/train.py:57 in step on ranks 0, 2" in found.cause
    assert set(found.detail["calls"]) == {"0, 2", "1"}


@pytest.mark.parametrize(
    ("usual", "odd", "how"),
    [
        ((0, 1, 2, 0, 1), (0, 1, 2, 1, 0), "order"),
        ((0, 1, 2, 0), (0, 1, 2, 2, 0), "extra"),
        ((0, 1, 2, 0, 1, 2), (0, 1, 2, 1, 2), "skipped"),
    ],
)
def test_what_was_called_behind_it_tells_how(
    usual: tuple[int, ...], odd: tuple[int, ...], how: str, tmp_path: Path
) -> None:
    """The later calls of both sides show a skipped, an additional and a swapped call."""
    left = (
        Left(tmp_path, 3).record(0, steps(*usual)).record(1, steps(*odd)).record(2, steps(*usual))
    )
    found = only(left)
    assert found.ranks == (1,) and found.detail["how"] == how


def test_of_two_ranks_neither_is_named_alone(tmp_path: Path) -> None:
    """Both ranks, both lines, and that it cannot be told."""
    left = Left(tmp_path, 2).record(0, steps(0)).record(1, steps(1))
    found = only(left)
    assert found.ranks == (0, 1) and "cannot be told" in found.cause
    assert "train.py:57" in found.cause and "train.py:58" in found.cause


def test_a_rank_without_a_record_may_be_with_either_side(tmp_path: Path) -> None:
    """Two of four agree, one differs, one is unknown: no majority of the group."""
    left = Left(tmp_path, 4).record(0, steps(0)).record(1, steps(0)).record(2, steps(1))
    assert only(left).ranks == (0, 1, 2)


def test_the_victims_of_it_are_not_named(tmp_path: Path) -> None:
    """The rank that aborted and the one that lost it come behind the one out of step."""
    left = Left(tmp_path, 3).record(0, steps(0)).record(2, steps(0))
    left.record(1, [call(1, sizes=[[800]], ended=False)])
    left.say(2, "error", type="RuntimeError", message=LOST, traceback="t")
    found = diagnose(left.result(), Judgement("failed", "x"))
    assert [(one.id, one.ranks) for one in found] == [("collective-mismatch", (1,))]


def test_equal_calls_are_none(tmp_path: Path) -> None:
    """Also where shapes differ but not the number of elements, and one is ahead."""
    left = Left(tmp_path, 2).record(0, [call(1, sizes=[[2, 3]]), call(2)])
    assert find_mismatch(left.record(1, [call(1, sizes=[[3, 2]])]).evidence()) == []


@pytest.mark.parametrize("kind", ["gather", "scatter", "reduce", "all_to_all", "alltoall_base"])
def test_sizes_that_may_differ_by_design_are_not_compared(kind: str, tmp_path: Path) -> None:
    """Roots and uneven splits: only the kind counts."""
    left = Left(tmp_path, 2).record(0, [call(1, kind, [[4]])]).record(1, [call(1, kind, [])])
    assert find_mismatch(left.evidence()) == []


def test_what_all_came_past_is_a_habit_of_the_program(tmp_path: Path) -> None:
    """A difference far behind the end explains no hang."""
    left = Left(tmp_path, 2)
    for rank in (0, 1):
        left.record(rank, [call(1, sizes=[[4 + rank]]), *calls(9)[1:]])
    assert find_mismatch(left.evidence()) == []


def test_a_ring_that_has_lost_its_beginning_is_compared_by_number(tmp_path: Path) -> None:
    """Rank 1 keeps fewer calls; those of one number are compared, and agree."""
    left = Left(tmp_path, 2).record(0, calls(9)).record(1, calls(9)[5:])
    assert find_mismatch(left.evidence()) == []


def test_calls_of_different_groups_are_not_compared(tmp_path: Path) -> None:
    """Each group counts for itself, over its own members."""
    left = Left(tmp_path, 2).record(0, [call(1, group="1")])
    assert find_mismatch(left.record(1, [call(1, "broadcast", group="2")]).evidence()) == []


@pytest.mark.parametrize(("error_at_s", "told"), [(1.0, False), (2e9, True)])
def test_a_rank_that_failed_before_is_the_cause(
    error_at_s: float, told: bool, tmp_path: Path
) -> None:
    """What a rank calls while it cleans up after an exception is a consequence; an exception that
    garbled data raised is one of the mismatch."""
    left = Left(tmp_path, 3)
    for rank in range(3):
        left.record(rank, [call(1, "barrier" if rank == 1 else "all_reduce", ended=False)])
    left.say(1, "error", type="UnpicklingError", message="data was truncated", time=error_at_s)
    assert bool(find_mismatch(left.evidence())) is told
