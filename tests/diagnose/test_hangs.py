"""Ranks that the others wait for, or that are out of step, are named; waiting ranks never are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.diagnose import diagnose
from pytest_clustersmoke.diagnose.hangs import find_hang, find_library_timeout, find_mismatch
from pytest_clustersmoke.evidence.finding import UNDECIDED, Finding
from pytest_clustersmoke.jobs.outcome import Judgement
from tests.diagnose.recorders import Left, call, calls

TIMED_OUT = "[unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation to complete"
LOST = "[pair.cc:553] Connection closed by peer [127.0.0.1]:1"


def only_hang(left: Left) -> Finding:
    (finding,) = find_hang(left.evidence())
    assert finding.id == "hang" and finding.primary
    return finding


def waiting(left: Left, ranks: tuple[int, ...], number: int, **more: Any) -> Left:
    for rank in ranks:
        left.record(rank, calls(number, ended=False, line=57, **more)).stack(rank, 57, "step", True)
    return left


def test_missing_rank_is_named_with_its_line(tmp_path: Path) -> None:
    """Which collective, where the rank is, which ranks wait where; waiters are only in the
    detail."""
    left = waiting(Left(tmp_path, 4, nodes=2).stalled(), (0, 1, 3), 23)
    finding = only_hang(left.record(2, calls(22)).stack(2, 41, "load"))
    assert (finding.ranks, finding.hosts) == ((2,), ("n1",))
    assert "rank 2 (n1) never reached all_reduce 23 of group 0 (default_pg)" in finding.cause
    assert "ranks 0-1, 3 wait (at /p/train.py:57 in step)" in finding.cause
    assert "stuck at /p/train.py:41 in load" in finding.cause
    assert "has made no progress" in finding.cause
    assert finding.detail["waiters"] == [0, 1, 3]
    assert finding.detail["lines"] == {"2": "/p/train.py:41 in load"}
    assert finding.detail["positions"] == {"train": "0-3"}
    files = [Path(line.file).name for line in finding.evidence]
    assert files[:2] == ["rank_00002.stack.txt", "rank_00002.flight_recorder.json"]
    assert finding.evidence[0].line == 3 and "line 41" in finding.evidence[0].text


def test_without_a_stall_there_is_no_hang(tmp_path: Path) -> None:
    """Records alone accuse no rank."""
    left = waiting(Left(tmp_path, 2), (0,), 5).record(1, calls(4))
    assert find_hang(left.evidence()) == []


def test_if_all_ranks_arrived_none_fell_behind(tmp_path: Path) -> None:
    """All hosts are named, but no rank; the next step is the network."""
    finding = only_hang(waiting(Left(tmp_path, 4, nodes=2).stalled(), (0, 1, 2, 3), 9))
    assert finding.ranks == () and finding.hosts == ("n0", "n1") and finding.detail[UNDECIDED]
    assert (
        "all 4 ranks reached all_reduce 9" in finding.cause and "none fell behind" in finding.cause
    )
    assert "network" in finding.fix and "NCCL_IB_DISABLE" not in finding.fix


def test_if_all_ranks_arrived_on_one_node_its_transport_is_suspected(tmp_path: Path) -> None:
    """No network is between them: InfiniBand off and P2P, as in the Gilbreth guide."""
    finding = only_hang(waiting(Left(tmp_path, 2).stalled(), (0, 1), 9))
    assert "all 2 ranks reached all_reduce 9" in finding.cause and len(finding.hosts) == 1
    assert "NCCL_IB_DISABLE=1" in finding.fix and "NCCL_P2P_LEVEL=NVL" in finding.fix
    assert "network between these hosts" not in finding.fix


def test_idle_device_is_named(tmp_path: Path) -> None:
    """If the recorder times calls: the rank whose device never started what the others' did."""
    left = Left(tmp_path, 2).stalled()
    for rank, state in enumerate(("started", "scheduled")):
        left.record(rank, calls(9, ended=False, state=state)).stack(rank, 57, "step", True)
    assert only_hang(left).ranks == (1,)


def test_rank_that_waits_in_another_group_is_a_victim(tmp_path: Path) -> None:
    """0 waits for 1 in one group, 1 for 2 in another: 2 is the culprit."""
    left = Left(tmp_path, 3).stalled()
    groups = {"7": [0, 1], "8": [1, 2]}
    left.record(0, [*calls(2), call(1, group="7", ended=False)], groups=groups)
    left.record(1, [*calls(2), call(1, group="8", ended=False)], groups=groups)
    left.record(2, calls(2), groups=groups).stack(2, 41, "load")
    finding = only_hang(left)
    assert finding.ranks == (2,) and finding.detail["waiters"] == [1]


def test_group_that_hangs_in_the_network_names_no_rank(
    tmp_path: Path,
) -> None:
    """Ranks 0 and 1 both reached their collective; rank 2 waits for them in another."""
    left = Left(tmp_path, 3).stalled()
    groups = {"7": [0, 1]}
    for rank in (0, 1):
        left.record(rank, [*calls(2), call(1, group="7", ended=False)], groups=groups)
    left.record(2, calls(3, ended=False), groups=groups)
    finding = only_hang(left)
    assert finding.ranks == () and "group 7" in finding.cause


def test_rank_without_a_record_is_judged_by_its_stack(tmp_path: Path) -> None:
    """It holds the GIL, so its recorder could not be read; its stack could."""
    left = waiting(Left(tmp_path, 3).stalled(), (0, 1), 5).stack(2, 41, "load")
    finding = only_hang(left)
    assert finding.ranks == (2,) and "/p/train.py:41 in load" in finding.cause


def test_rank_that_left_nothing_is_the_culprit(tmp_path: Path) -> None:
    """Neither record nor stack, while all others wait."""
    finding = only_hang(waiting(Left(tmp_path, 3).stalled(), (0, 1), 5))
    assert finding.ranks == (2,) and "left no stack" in finding.cause


@pytest.mark.parametrize("ranks", [2, 4])
def test_stacks_alone_show_which_rank_is_outside_a_collective(ranks: int, tmp_path: Path) -> None:
    """Without any flight recorder (torch 2.2 under gloo)."""
    left = Left(tmp_path, ranks).stalled()
    for rank in range(ranks):
        left.stack(rank, 41 if rank == 1 else 57, "load" if rank == 1 else "step", rank != 1)
    finding = only_hang(left)
    assert finding.ranks == (1,) and "/p/train.py:41 in load" in finding.cause
    assert finding.detail["waiters"] == [rank for rank in range(ranks) if rank != 1]


def test_stacks_all_in_a_collective_accuse_no_rank(tmp_path: Path) -> None:
    """Without records it is only known that all wait."""
    left = Left(tmp_path, 2).stalled()
    finding = only_hang(left.stack(0, 57, "step", True).stack(1, 57, "step", True))
    assert finding.ranks == () and "all 2 ranks wait in a collective" in finding.cause


def test_progress_shows_which_rank_is_behind_outside_collectives(tmp_path: Path) -> None:
    """A rank that has not ended the stage that the others have ended."""
    left = Left(tmp_path, 3).stalled()
    for rank in range(3):
        left.stack(rank, 60 + rank, "compute")
        if rank != 1:
            left.event(rank, "stage", name="train", state="end")
    finding = only_hang(left)
    assert finding.ranks == (1,) and "fell behind the others: train" in finding.cause


def test_ranks_that_all_stall_outside_collectives_are_all_named(tmp_path: Path) -> None:
    """All equally far, none in a collective."""
    finding = only_hang(Left(tmp_path, 2).stalled().stack(0, 60, "read").stack(1, 60, "read"))
    assert finding.ranks == (0, 1) and "none in a collective" in finding.cause
    assert finding.detail[UNDECIDED]


def test_group_timeout_before_the_stage_limit_is_a_hang(tmp_path: Path) -> None:
    """The victims raised before the stage's limit; the rank that stayed away is the finding."""
    left = Left(tmp_path, 3)
    for rank in (0, 1):
        # gloo marks a call that timed out as retired.
        left.record(rank, calls(5, line=57))
        left.event(rank, "error", type="RuntimeError", message=TIMED_OUT if rank else LOST)
    left.record(2, calls(4)).stack(2, 41, "load")
    (finding,) = find_library_timeout(left.evidence())
    assert finding.ranks == (2,) and finding.detail["waiters"] == [0, 1]
    first = diagnose(left.result(), Judgement("failed", "x"))[0]
    assert (first.id, first.ranks) == ("hang", (2,))


def test_rank_that_raised_is_placed_where_it_raised(tmp_path: Path) -> None:
    """By the time it is asked for its stacks, it is leaving its program."""
    left = Left(tmp_path, 2).record(0, calls(5)).stack(0, 72, "main")
    traceback = (
        'Traceback (most recent call last):\n  File "/p/train.py", line 72, in main\n'
        '  File "/p/train.py", line 57, in step\n    all_reduce()\n'
        '  File "/v/site-packages/torch/distributed/distributed_c10d.py", line 3, in all_reduce\n'
    )
    left.event(0, "error", type="RuntimeError", message=TIMED_OUT, traceback=traceback)
    (finding,) = find_library_timeout(left.record(1, calls(4)).stack(1, 41, "load").evidence())
    at = "/p/train.py:57 in step, called at /p/train.py:72 in main"
    assert finding.detail["waiters_at"] == at


def test_group_timeout_without_records_is_judged_by_stacks(tmp_path: Path) -> None:
    """Only for a timeout: a broken connection may be another rank's death."""
    left = Left(tmp_path, 2).event(0, "error", type="RuntimeError", message=TIMED_OUT)
    left.stack(1, 41, "load")
    (finding,) = find_library_timeout(left.evidence())
    assert finding.ranks == (1,)
    left = Left(tmp_path / "b", 2).event(0, "error", type="RuntimeError", message=LOST)
    assert find_library_timeout(left.stack(1, 41, "load").evidence()) == []


@pytest.mark.parametrize("message", ["CUDA out of memory", "boom"])
def test_rank_that_failed_for_its_own_reason_is_not_a_victim(message: str, tmp_path: Path) -> None:
    """Rank 1 raised something else: that is the cause, although rank 0 waited for it."""
    left = Left(tmp_path, 2).record(0, calls(5)).record(1, calls(4))
    left.event(0, "error", type="RuntimeError", message=LOST, traceback="t")
    left.event(1, "error", type="ValueError", message=message, traceback="t")
    assert find_library_timeout(left.evidence()) == []
    assert diagnose(left.result(), Judgement("failed", "x"))[0].ranks == (1,)


@pytest.mark.parametrize(("world", "culprits"), [(2, (0, 1)), (4, (3,))])
def test_ranks_that_wait_for_each_other_in_different_groups(
    world: int, culprits: tuple[int, ...], tmp_path: Path
) -> None:
    """The rank that most ranks wait for is named, otherwise all."""
    left = Left(tmp_path, world).stalled()
    left = waiting(left, tuple(range(world - 1)), 20)
    other = [call(number, group="1", ended=number < 8) for number in range(1, 9)]
    left.record(world - 1, [*calls(19), *other], groups={"1": list(range(world))})
    finding = only_hang(left)
    assert finding.ranks == culprits
    assert "wait for each other" in finding.cause and "all_reduce 20 of group 0" in finding.cause
    assert "all_reduce 8 of group 1" in finding.cause
    assert ("it is unknown which" in finding.cause) == (world == 2)
    assert finding.detail.get(UNDECIDED, False) == (world == 2)


RESET = "[pair.cc:537] Read error [127.0.0.1]:1: Connection reset by peer"
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


def only_mismatch(left: Left) -> Finding:
    (finding,) = find_mismatch(left.evidence())
    assert finding.id == "collective-mismatch"
    return finding


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
def test_odd_rank_of_three_is_named(odd: list[Any], how: str, tmp_path: Path) -> None:
    """More than half agree: the other rank is out of step, with both calls and lines."""
    left = Left(tmp_path, 3)
    for rank in (0, 2):
        left.record(rank, steps(0, 1, 2, 0))
    finding = only_mismatch(left.record(1, odd).stack(1, 41, "helper", True))
    assert (finding.ranks, finding.hosts, finding.detail["how"]) == ((1,), ("n0",), how)
    assert "is out of step in group 0 (default_pg): collective 4 is" in finding.cause
    assert "/p/train.py:57 in step on ranks 0, 2" in finding.cause
    assert set(finding.detail["calls"]) == {"0, 2", "1"} and UNDECIDED not in finding.detail


@pytest.mark.parametrize(
    ("usual", "odd", "how"),
    [
        ((0, 1, 2, 0, 1), (0, 1, 2, 1, 0), "order"),
        ((0, 1, 2, 0), (0, 1, 2, 2, 0), "extra"),
        ((0, 1, 2, 0, 1, 2), (0, 1, 2, 1, 2), "skipped"),
    ],
)
def test_later_calls_show_how_a_rank_departed(
    usual: tuple[int, ...], odd: tuple[int, ...], how: str, tmp_path: Path
) -> None:
    """The later calls of both sides show a skipped, an additional or a swapped call."""
    left = (
        Left(tmp_path, 3).record(0, steps(*usual)).record(1, steps(*odd)).record(2, steps(*usual))
    )
    finding = only_mismatch(left)
    assert finding.ranks == (1,) and finding.detail["how"] == how


def test_two_ranks_that_differ_are_both_named(tmp_path: Path) -> None:
    """Both ranks, both lines, and that it is unknown which is wrong."""
    left = Left(tmp_path, 2).record(0, steps(0)).record(1, steps(1))
    finding = only_mismatch(left)
    assert finding.ranks == (0, 1) and "it is unknown which" in finding.cause
    assert finding.detail[UNDECIDED]
    assert "train.py:57" in finding.cause and "train.py:58" in finding.cause


def test_rank_without_a_record_may_belong_to_either_side(tmp_path: Path) -> None:
    """Two of four agree, one differs, one is unknown: no majority of the group."""
    left = Left(tmp_path, 4).record(0, steps(0)).record(1, steps(0)).record(2, steps(1))
    assert only_mismatch(left).ranks == (0, 1, 2)


def test_victims_of_a_mismatch_are_not_named(tmp_path: Path) -> None:
    """The rank that aborted and the one that lost it come after the one out of step."""
    left = Left(tmp_path, 3).record(0, steps(0)).record(2, steps(0))
    left.record(1, [call(1, sizes=[[800]], ended=False)])
    left.event(2, "error", type="RuntimeError", message=RESET, traceback="t")
    findings = diagnose(left.result(), Judgement("failed", "x"))
    assert [(finding.id, finding.ranks) for finding in findings] == [("collective-mismatch", (1,))]


def test_equal_calls_are_not_a_mismatch(tmp_path: Path) -> None:
    """Even if shapes differ with equal numbers of elements, or one rank is ahead."""
    left = Left(tmp_path, 2).record(0, [call(1, sizes=[[2, 3]]), call(2)])
    assert find_mismatch(left.record(1, [call(1, sizes=[[3, 2]])]).evidence()) == []


@pytest.mark.parametrize("kind", ["gather", "scatter", "reduce", "all_to_all", "alltoall_base"])
def test_sizes_that_differ_by_design_are_not_compared(kind: str, tmp_path: Path) -> None:
    """Roots and uneven splits: only the kind counts."""
    left = Left(tmp_path, 2).record(0, [call(1, kind, [[4]])]).record(1, [call(1, kind, [])])
    assert find_mismatch(left.evidence()) == []


def test_old_difference_is_ignored(tmp_path: Path) -> None:
    """A difference that all ranks got past long ago explains no hang."""
    left = Left(tmp_path, 2)
    for rank in (0, 1):
        left.record(rank, [call(1, sizes=[[4 + rank]]), *calls(9)[1:]])
    assert find_mismatch(left.evidence()) == []


def test_truncated_records_are_compared_by_number(tmp_path: Path) -> None:
    """Rank 1 keeps fewer calls; calls with the same number are compared, and agree."""
    left = Left(tmp_path, 2).record(0, calls(9)).record(1, calls(9)[5:])
    assert find_mismatch(left.evidence()) == []


def test_calls_of_different_groups_are_not_compared(tmp_path: Path) -> None:
    """Each group is judged separately, over its own members."""
    left = Left(tmp_path, 2).record(0, [call(1, group="1")])
    assert find_mismatch(left.record(1, [call(1, "broadcast", group="2")]).evidence()) == []


@pytest.mark.parametrize(("error_at_s", "is_mismatch"), [(1.0, False), (2e9, True)])
def test_rank_that_failed_before_the_mismatch_is_the_cause(
    error_at_s: float, is_mismatch: bool, tmp_path: Path
) -> None:
    """What a rank calls while it cleans up after an exception is a consequence; an exception that
    garbled data raised is one of the mismatch."""
    left = Left(tmp_path, 3)
    for rank in range(3):
        left.record(rank, [call(1, "barrier" if rank == 1 else "all_reduce", ended=False)])
    left.event(1, "error", type="UnpicklingError", message="data was truncated", time=error_at_s)
    assert bool(find_mismatch(left.evidence())) is is_mismatch
