"""Which rank the others waited for, from stacks and events written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.diagnose.rank_positions import (
    left_before,
    ranks_behind,
    ranks_by_position,
    ranks_elsewhere,
    read_stacks,
)
from pytest_clustersmoke.result import collect
from pytest_clustersmoke.rundir import PhaseDir, write_json
from pytest_clustersmoke.telemetry import EventWriter

from .recorders import Left


def test_rank_that_was_done_before_a_stage_left_early_and_one_past_it_did_not(
    tmp_path: Path,
) -> None:
    """Rank 0 lost a peer in training, which rank 2 had ended and rank 1 had not."""
    directory = PhaseDir(tmp_path / "p")
    write_json(directory.spec, {"phase": "p", "nodes": 1, "ranks_per_node": 3})
    for rank, states in enumerate((["begin"], ["begin"], ["begin", "end"])):
        events = EventWriter(directory.rank_events(rank))
        for state in states:
            events.write("stage", name="train", state=state)
        if rank:
            events.write("done")
        events.close()
    result = collect(directory)
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
def test_ranks_that_are_in_no_collective_while_others_are(
    waits: list[bool | None], away: list[int], tmp_path: Path
) -> None:
    """None is told where all are, where none is, or where a rank's stack is missing."""
    left = Left(tmp_path, 3)
    for rank, inside in enumerate(waits):
        if inside is not None:
            left.stack(rank, 5, "x", inside)
    assert ranks_elsewhere(read_stacks(left.result()), range(3)) == away


@pytest.mark.parametrize(
    ("steps", "least"), [([3, 2, 3], [1]), ([3, 3, 3], []), ([2, 2, 3], [0, 1])]
)
def test_ranks_that_came_least_far(steps: list[int], least: list[int], tmp_path: Path) -> None:
    """By stages and steps; nobody where all are equally far."""
    left = Left(tmp_path, 3)
    for rank, step in enumerate(steps):
        left.say(rank, "step", step=step, steps=9)
    assert ranks_behind(left.result(), range(3)) == least


@pytest.mark.parametrize(
    ("events", "where"),
    [
        ([], "train"),
        ([("step", {"step": 4, "steps": 9})], "train, step 4 of 9"),
        ([("step", {"step": "x"})], "train"),
        ([("stage", {"name": "train", "state": "end"})], "after train"),
        ([("stage", {"name": "checkpoint", "state": "begin"})], "checkpoint"),
        ([("done", {})], "done"),
        ([("stage", {"name": ["x"], "state": 7})], "['x']"),
    ],
)
def test_last_stage_and_step(
    events: list[tuple[str, dict[str, Any]]], where: str, tmp_path: Path
) -> None:
    """As people read it; a value of another kind counts as missing."""
    left = Left(tmp_path, 2)
    for name, fields in events:
        left.say(1, name, **fields)
    told = ranks_by_position(left.result())
    assert told == ({"train": "0", where: "1"} if where != "train" else {"train": "0-1"})
