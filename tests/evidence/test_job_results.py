"""The results of nodes and ranks: each value is parsed once, and a wrong one counts as missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.job_results import (
    AbortFlag,
    RankError,
    RankResult,
    StageMark,
    read_node_result,
)
from tests.support.evidence import Evidence


def rank_with(folder: Path, event: str, **fields: Any) -> RankResult:
    return Evidence(folder).rank(0, (event, fields)).result().ranks[0]


@pytest.mark.parametrize("wrong", [None, True, "3", 3.0, [3], {"a": 3}])
def test_wrong_values_of_a_rank_are_missing(tmp_path: Path, wrong: Any) -> None:
    """Numbers are integers, texts are not empty."""
    numbers = dict.fromkeys(("node_rank", "local_rank", "pid"), wrong)
    rank = rank_with(tmp_path, "start", **numbers, device=[wrong], device_name=[wrong], nccl=[1])
    assert (rank.node_rank, rank.local_rank, rank.pid) == (None, None, None)
    assert (rank.node, rank.host, rank.device) == ("unknown", "unknown", "unknown")
    assert rank.device_name is None and rank.version("nccl") is None
    assert str(rank) == "rank 0 (unknown)"


def test_rank_describes_itself(tmp_path: Path) -> None:
    """Its node and its GPU."""
    rank = rank_with(
        tmp_path, "start", node="n0", node_rank=0, device="cuda:1", device_name="A100", nccl="2.21"
    )
    assert str(rank) == "rank 0 (n0, GPU 1)" and rank.node_rank == 0
    assert (rank.device_name, rank.version("nccl"), rank.version("torch")) == ("A100", "2.21", None)


@pytest.mark.parametrize(
    ("fields", "times"),
    [
        ({"seconds": [9.0, 1, 2.0], "warmup": 1}, (1.0, 2.0)),
        ({"seconds": [9.0, 1.0], "warmup": -5}, (9.0, 1.0)),
        ({"seconds": [9.0, 1.0], "warmup": "1"}, (9.0, 1.0)),
        ({"seconds": [9.0, "nan"]}, ()),
        ({"seconds": [9.0, "inf"]}, ()),
        ({"seconds": [9.0, -1.0]}, ()),
        ({"seconds": [9.0, True]}, ()),
        ({"seconds": {"0": 9.0}}, ()),
        ({}, ()),
    ],
)
def test_step_times_leave_out_the_warm_up(
    tmp_path: Path, fields: dict[str, Any], times: tuple[float, ...]
) -> None:
    """If anything in the list is not a time, none of it counts."""
    rank = rank_with(tmp_path, "step_times", **fields)
    assert rank.step_times_s == times and rank.own_times_s == ()


def test_stages_and_steps(tmp_path: Path) -> None:
    """Marks that are neither a beginning nor an end are left out."""
    evidence = Evidence(tmp_path).rank(
        0,
        ("stage", {"name": "model", "state": "begin"}),
        ("stage", {"name": "model", "state": "end", "seconds": 2}),
        ("stage", {"name": ["x"], "state": 7}),
        ("stage", {"name": ["x"], "state": "begin", "seconds": "nan"}),
        ("step", {"step": 3, "steps": "9"}),
    )
    (rank,) = evidence.result().ranks
    assert rank.stages == (
        StageMark("model", False, None, rank.stages[0].time),
        StageMark("model", True, 2.0, rank.stages[1].time),
        StageMark("unknown", False, None, rank.stages[2].time),
    )
    assert (rank.steps_done, rank.steps_planned) == (3, None)


def test_error_names_type_and_message(tmp_path: Path) -> None:
    """With the time and the line of the event; a rank that raised nothing has none."""
    evidence = Evidence(tmp_path, 1, 2).started()
    evidence.rank(0, ("error", {"type": "ValueError", "message": "bad", "traceback": ["x"]}))
    first, second = evidence.result().ranks
    assert isinstance(first.error, RankError) and str(first.error) == "ValueError: bad"
    assert (first.error.line, first.error.traceback, first.error.time > 0) == (3, "", True)
    assert second.error is None


@pytest.mark.parametrize("wrong", [None, True, "nan", "inf", [1], 10**400])
def test_wrong_values_of_a_node_are_missing(tmp_path: Path, wrong: Any) -> None:
    """Times are finite; reasons are texts."""
    values = dict.fromkeys(("started", "ended", "launcher_s", "paused_s"), wrong)
    (node,) = Evidence(tmp_path).node(0, ok=1, reason=[wrong], why={}, **values).result().nodes
    assert (node.started, node.ended, node.launcher_s, node.paused_s) == (None, None, None, 0.0)
    assert (node.ok, node.reason, node.why, node.facts_time) == (False, "", "", None)


def test_node_gives_its_reason(tmp_path: Path) -> None:
    given = {"reason": "stalled", "why": "rank 1", "ended": 5, "launcher_s": 3}
    (node,) = Evidence(tmp_path).node(0, ok=False, **given).result().nodes
    assert node.launcher_s == node.torchrun_s == 3.0  # one value by two names
    assert (node.reason, node.why, node.ended) == ("stalled", "rank 1", 5.0)


@pytest.mark.parametrize(
    ("stopped", "requeue", "read"),
    [
        (True, True, (True, True)),
        (True, None, (True, False)),
        (False, True, (False, False)),
        (1, True, (False, False)),
        (True, "yes", (True, False)),
    ],
)
def test_only_ranks_that_stopped_requeue_their_job(
    tmp_path: Path, stopped: Any, requeue: Any, read: tuple[bool, bool]
) -> None:
    place = Evidence(tmp_path).node(0, ok=True, stopped=stopped, requeue=requeue).dir
    node = read_node_result(place, 0)
    assert (node.stopped, node.requeues) == read


def test_measurements_are_those_of_one_kind(tmp_path: Path) -> None:
    """In order, as the rank recorded them."""
    evidence = Evidence(tmp_path)
    for what, size in (("pair", 1), (["pair"], 2), ("collective", 3), ("pair", 4)):
        evidence.rank(0, ("measured", {"what": what, "size": size}))
    (rank,) = evidence.result().ranks
    assert [record["size"] for record in rank.measured("pair")] == [1, 4]


@pytest.mark.parametrize("wrong", [None, True, "nan", ["stalled"], {}])
def test_wrong_values_of_the_abort_flag_are_missing(wrong: Any) -> None:
    """A flag without a reason ended nothing."""
    names = ("node_rank", "time", "reason", "node", "why")
    flag = AbortFlag.from_record({name: [wrong] for name in names})
    assert flag == AbortFlag(None, "unknown", None, "", "") == AbortFlag.from_record({})
