"""Which rank the others waited for, from flight recorders and events written by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_clustersmoke.diagnose.suspects import absent_from_collective, left_before, stack_line
from pytest_clustersmoke.result import PhaseResult, collect
from pytest_clustersmoke.rundir import PhaseDir, write_json
from pytest_clustersmoke.telemetry import EventWriter


def phase(root: Path, ranks: int) -> PhaseDir:
    directory = PhaseDir(root)
    write_json(directory.spec, {"phase": "p", "nodes": 1, "ranks_per_node": ranks})
    directory.dumps.mkdir()
    return directory


def recorded(root: Path, last: list[int | None], group: str = "0") -> PhaseResult:
    """Ranks whose flight recorders end with these collectives; None leaves none."""
    directory = phase(root, len(last))
    for rank, number in enumerate(last):
        if number is not None:
            entries = [
                {"collective_seq_id": one, "process_group": [group, "x"], "is_p2p": False}
                for one in range(1, number + 1)
            ]
            write_json(directory.rank_flight_recorder(rank), {"entries": entries})
    return collect(directory)


@pytest.mark.parametrize(
    ("last", "absent"),
    [
        ([23, 22, 23, 23], [1]),
        ([5, 4, 4, 5], [1, 2]),
        ([5, 3, 4, 5], [1]),
        ([7, 7, 7, 7], []),
        ([None, 7, 7, 7], []),
        ([None, None, None, 7], []),
    ],
)
def test_ranks_whose_recorder_ends_first_are_absent(
    last: list[int | None], absent: list[int], tmp_path: Path
) -> None:
    """Only ranks that left a record are compared, and none is named where all came equally far."""
    found = absent_from_collective(recorded(tmp_path / "p", last))
    assert [rank.rank for rank in found] == absent


def test_collectives_of_some_ranks_only_are_not_compared(tmp_path: Path) -> None:
    """In a group of its own a rank may well have begun fewer."""
    assert absent_from_collective(recorded(tmp_path / "p", [9, 2], group="3")) == []


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"entries": 5}', '{"entries": [1, {"process_group": 3}]}']
)
def test_recorder_that_is_none_counts_as_missing(text: str, tmp_path: Path) -> None:
    """A job wrote it: whatever it holds, nobody is accused because of it."""
    result = recorded(tmp_path / "p", [3, 3, 3])
    result.directory.rank_flight_recorder(1).write_text(text)
    assert absent_from_collective(result) == []


def test_rank_that_was_done_before_a_stage_left_early_and_one_past_it_did_not(
    tmp_path: Path,
) -> None:
    """Rank 0 lost a peer in training, which rank 2 had ended and rank 1 had not."""
    directory = phase(tmp_path / "p", 3)
    for rank, states in enumerate((["begin"], ["begin"], ["begin", "end"])):
        events = EventWriter(directory.rank_events(rank))
        for state in states:
            events.write("stage", name="train", state=state)
        if rank:
            events.write("done")
        events.close()
    result = collect(directory)
    assert [rank.rank for rank in left_before(result, [result.ranks[0]])] == [1]


def test_main_thread_is_the_last_that_faulthandler_lists(tmp_path: Path) -> None:
    """Its innermost frame is given with its line in the file."""
    directory = phase(tmp_path / "p", 1)
    stack = [
        "Thread 0x1 (most recent call first):",
        '  File "dumps.py", line 3 in _watch',
        "",
        "Current thread 0x2 (most recent call first):",
        '  File "train.py", line 7 in main',
        '  File "train.py", line 9 in <module>',
    ]
    directory.rank_stack(0).write_text("\n".join(stack))
    assert stack_line(directory, 0) == (5, 'File "train.py", line 7 in main')
    assert stack_line(directory, 1) is None


def test_recorder_of_a_real_shape_is_read(tmp_path: Path) -> None:
    """As torch writes it: `process_group` is (name, description), point-to-point left out."""
    result = recorded(tmp_path / "p", [1, 2])
    entries = json.loads(result.directory.rank_flight_recorder(0).read_text())["entries"]
    entries.append({"collective_seq_id": 99, "process_group": ["0", "default_pg"], "is_p2p": True})
    write_json(result.directory.rank_flight_recorder(0), {"entries": entries})
    assert [rank.rank for rank in absent_from_collective(result)] == [0]
