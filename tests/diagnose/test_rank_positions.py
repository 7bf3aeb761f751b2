"""Where ranks were, from faulthandler, py-spy and their progress, and which ones are behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.diagnose.rank_positions import (
    Stack,
    left_before,
    ranks_behind,
    ranks_by_position,
    ranks_elsewhere,
    read_stacks,
    stack_of_rank,
    stacks_of_children,
)
from pytest_clustersmoke.evidence.phase_result import collect_phase
from pytest_clustersmoke.evidence.run_directory import PhaseDir, write_json
from pytest_clustersmoke.evidence.telemetry import EventWriter
from tests.diagnose.recorders import Left

SITE = "/v/lib/python3.11/site-packages"
OWN_THREAD = [
    "Thread 0x1 (most recent call first):",
    '  File "/r/pytest_clustersmoke/rank/rank_dumps.py", line 3 in _watch',
    "",
]
HUNG = [
    *OWN_THREAD,
    "Current thread 0x2 (most recent call first):",
    f'  File "{SITE}/torch/utils/data/dataloader.py", line 1 in _try_get_data',
    '  File "/p/train.py", line 7 in main',
    '  File "/p/train.py", line 9 in <module>',
]
ENDED = ["Current thread 0x2 (most recent call first):", '  File "/p/train.py", line 99 in late']
CHILD = ["Current thread 0x2 (most recent call first):", '  File "/p/data.py", line 4 in read']
ASKED, ASKED_CHILD = "== asked: rank 0, pid 7 ==", "== asked: a child of rank 0, pid 8 =="


def directory(folder: Path, *lines: str) -> PhaseDir:
    made = PhaseDir(folder)
    made.dumps.mkdir(parents=True)
    made.rank_stack(0).write_text("\n".join(lines) + "\n")
    return made


def stack(made: PhaseDir) -> Stack:
    stack_ = stack_of_rank(made, 0)
    assert stack_ is not None
    return stack_


@pytest.mark.parametrize(
    "lines",
    [
        [ASKED, *HUNG],
        [ASKED, *HUNG, ASKED_CHILD, *CHILD, *ENDED],
        [*ENDED, ASKED, *HUNG, *ENDED],  # a worker that was ended long before
        [*HUNG, *ENDED],  # nobody asked: SIGTERM, twice
    ],
)
def test_stack_of_the_hang_counts(lines: list[str], tmp_path: Path) -> None:
    """The main thread, which faulthandler lists last, of the first dump that was asked for."""
    stack_ = stack(directory(tmp_path, *lines))
    assert str(stack_.program) == "/p/train.py:7 in main" and stack_.line == str(stack_.program)
    line = (tmp_path / "dumps/rank_00000.stack.txt").read_text().splitlines()
    assert line[stack_.evidence().line - 1].strip() == stack_.evidence().text
    assert stack_.waits_for_loader and not stack_.perhaps_in_collective


def test_forked_processes_are_distinguished(tmp_path: Path) -> None:
    """A worker of its data loader wrote into the same file."""
    (stack_,) = stacks_of_children(directory(tmp_path, ASKED, *HUNG, ASKED_CHILD, *CHILD), 0)
    assert str(stack_.program) == "/p/data.py:4 in read"


def test_stack_at_the_end_counts_if_none_was_asked_for(tmp_path: Path) -> None:
    """torchrun ended the rank before."""
    assert stack(directory(tmp_path, *ENDED)).program.name == "late"


@pytest.mark.parametrize(
    ("file", "certain", "perhaps"),
    [
        ("torch/distributed/distributed_c10d.py", True, True),
        ("torch/autograd/graph.py", False, True),
        ("torch/cuda/__init__.py", False, True),
        ("torch/nn/modules/linear.py", False, False),
    ],
)
def test_collective_is_recognised_by_its_file(
    file: str, certain: bool, perhaps: bool, tmp_path: Path
) -> None:
    """Backward, and waiting for a device, may hide one in native code."""
    head = "Current thread 0x1 (most recent call first):"
    lines = [head, f'  File "{SITE}/{file}", line 3 in f', '  File "/p/t.py", line 4 in step']
    stack_ = stack(directory(tmp_path, ASKED, *lines))
    assert (stack_.in_collective, stack_.perhaps_in_collective) == (certain, perhaps)


def test_py_spy_replaces_a_missing_faulthandler_dump(tmp_path: Path) -> None:
    """As py-spy 0.4 prints it, with native frames: the main thread comes first."""
    made = directory(tmp_path, "== asked: rank 0, pid 7 ==")
    made.rank_py_spy(0).write_text(
        "Process 7: python train.py\nPython v3.11.7 (/usr/bin/python3.11)\n\n"
        'Thread 7 (idle): "MainThread"\n    clock_nanosleep (libc.so.6)\n'
        "    0x7fd58b8acf7a (libffi.so.8.1.2)\n    wait (/u/lib/python3.11/threading.py:327)\n"
        '    load (/p/train.py:41)\n    <module> (/p/train.py:50)\nThread 9 (idle): "x"\n'
        "    other (/p/other.py:1)\n"
    )
    stack_ = stack(made)
    assert str(stack_.program) == "/p/train.py:41 in load" and stack_.evidence().line == 8
    assert len(stack_.frames) == 5 and str(stack_.frames[0]) == "clock_nanosleep"


@pytest.mark.parametrize(
    "text", ["", "x", "Thread ", "== asked: rank 0", '  File "a", line 1 in b']
)
def test_file_without_a_stack_counts_as_missing(text: str, tmp_path: Path) -> None:
    """A job wrote it."""
    assert stack_of_rank(directory(tmp_path, text), 0) is None
    assert stack_of_rank(PhaseDir(tmp_path / "none"), 0) is None


def test_huge_file_is_read_to_a_bound(tmp_path: Path) -> None:
    """One endless line, then binary."""
    made = directory(tmp_path, ASKED, *HUNG)
    with made.rank_stack(0).open("ab") as stream:
        stream.write(b"\xff" * (8 * 2**20))
    assert stack(made).program.line == 7


def test_rank_that_was_done_before_a_stage_left_early(
    tmp_path: Path,
) -> None:
    """Rank 0 lost a peer in training, which rank 2 had completed and rank 1 had not."""
    directory = PhaseDir(tmp_path / "p")
    write_json(directory.spec, {"phase": "p", "nodes": 1, "ranks_per_node": 3})
    for rank, states in enumerate((["begin"], ["begin"], ["begin", "end"])):
        events = EventWriter(directory.rank_events(rank))
        for state in states:
            events.write("stage", name="train", state=state)
        if rank:
            events.write("done")
        events.close()
    result = collect_phase(directory)
    assert [rank.rank for rank in left_before(result, [result.ranks[0]])] == [1]


@pytest.mark.parametrize(
    ("waits", "away"),
    [
        ([True, False, True], [1]),
        ([True, False, False], [1, 2]),
        ([True, True, True], []),
        ([False, False, False], []),
        ([True, False, None], []),
    ],
)
def test_ranks_outside_a_collective_that_others_wait_in(
    waits: list[bool | None], away: list[int], tmp_path: Path
) -> None:
    """None if all are in one, none is, or a rank's stack is missing."""
    left = Left(tmp_path, 3)
    for rank, inside in enumerate(waits):
        if inside is not None:
            left.stack(rank, 5, "x", inside)
    assert ranks_elsewhere(read_stacks(left.result()), range(3)) == away


@pytest.mark.parametrize(
    ("steps", "steps_per_s", "least"),
    [
        ([17, 4, 17], 2.0, [1]),
        ([7, 4, 7], 2.0, []),  # it may have done five steps since its last mark
        ([90, 40, 95], 20.0, [1]),
        ([90, 80, 91], 20.0, []),
        ([120, 80, 125], 20.0, [0, 1]),
        ([40, 41, 90], 20.0, [0, 1]),
        ([3, 3, 3], 2.0, []),
        ([9, 2, 9], "fast", [1]),
    ],
)
def test_ranks_that_are_furthest_behind(
    steps: list[int], steps_per_s: Any, least: list[int], tmp_path: Path
) -> None:
    """By stages and steps. None if all may be equally far: marks of steps are half a second
    apart."""
    left = Left(tmp_path, 3)
    for rank, step in enumerate(steps):
        left.event(rank, "step", step=step, steps=99, steps_per_s=steps_per_s)
    assert ranks_behind(left.result(), range(3)) == least


@pytest.mark.parametrize(
    ("events", "where"),
    [
        ([], "train"),
        ([("step", {"step": 4, "steps": 9})], "train, after step 4 of 9"),
        ([("step", {"step": "x"})], "train"),
        ([("stage", {"name": "train", "state": "end"})], "after train"),
        ([("stage", {"name": "checkpoint", "state": "begin"})], "checkpoint"),
        ([("done", {})], "done"),
        ([("stage", {"name": ["x"], "state": 7})], "train"),
    ],
)
def test_last_stage_and_step(
    events: list[tuple[str, dict[str, Any]]], where: str, tmp_path: Path
) -> None:
    """In readable form; a value of the wrong type counts as missing."""
    left = Left(tmp_path, 2)
    for name, fields in events:
        left.event(1, name, **fields)
    positions = ranks_by_position(left.result())
    assert positions == ({"train": "0", where: "1"} if where != "train" else {"train": "0-1"})
