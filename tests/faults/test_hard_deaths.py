"""A rank, torchrun or a launcher is killed on one of two virtual nodes; a rank hangs."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.run_directory import PhaseDir
from pytest_clustersmoke.evidence.telemetry import read_events
from tests.faults.table.model import SMALL, STEP_LIMIT_S
from tests.faults.watched_phase import LONG, WatchedPhase
from tests.support.harness import IDLE, PROGRAMS, Outcome, Suite
from tests.support.load import load_factor

OVER_WITHIN_S = 10.0


def node_ends(phase: PhaseDir) -> dict[int, dict[str, Any]]:
    """The last event of each node that ended by itself."""
    ends = {node: read_events(phase.node_events(node)).last("node_end") for node in range(2)}
    return {node: event for node, event in ends.items() if event is not None}


def end_time(phase: PhaseDir) -> float:
    return max(float(event["time"]) for event in node_ends(phase).values())


def check_over(suite: Suite, phase: PhaseDir, since: float) -> None:
    """Its nodes have ended in time, in which work that waited for a core does not count."""
    assert suite.pressure.own_s(since, end_time(phase)) < OVER_WITHIN_S * load_factor()


def last_event_time(phase: PhaseDir, rank: int) -> float:
    return float(read_events(phase.rank_events(rank)).records[-1]["time"])


def dumped_ranks(phase: PhaseDir) -> set[int]:
    """The ranks whose stacks are in dumps/."""
    stacks = [path for path in phase.dumps.glob("rank_*.stack.txt") if path.stat().st_size]
    return {int(path.name[len("rank_") :][:5]) for path in stacks}


def kill_on_node(
    suite: Suite, pid_of: str, node: int, stopped: str = ""
) -> tuple[Outcome, PhaseDir, float]:
    """Run an idle phase on two nodes; once all ranks train, kill the process whose pid is in the
    node's event `pid_of`, and stop that of `stopped` before. Returns the outcome, the phase and the
    time of the kill."""
    phase = WatchedPhase.idle(suite, "idle", nodes=2)
    with suite.started() as running:
        phase.wait()
        pid = phase.pid(pid_of, node)
        if stopped:
            os.kill(phase.pid(stopped, node), signal.SIGSTOP)
        phase.strike(lambda: os.kill(pid, signal.SIGKILL))
        outcome = running.wait()
    return outcome, suite.run_dir().phase("idle"), phase.struck


@pytest.mark.slow
@pytest.mark.parametrize("how", ["exits-3", "killed"])
def test_rank_that_dies_is_named_and_its_victim_is_not(how: str, torch_suite: Suite) -> None:
    """Both nodes end within 10 s of the death; the finding and the reason name the dead rank."""
    args = {**SMALL, "how": how, "at_rank": 1}
    torch_suite.phase(
        "dies",
        base="Trained",
        body="pass",
        script=PROGRAMS / "ends.py",
        nodes=2,
        gpus_per_node=1,
        args=args,
    )
    outcome = torch_suite.run_apart()
    assert outcome.ret == 1, outcome.output
    phase = torch_suite.run_dir().phase("dies")
    assert len(node_ends(phase)) == 2
    check_over(torch_suite, phase, last_event_time(phase, 1))
    finding = outcome.finding("dies")
    assert (finding["id"], finding["ranks"], finding["hosts"]) == ("rank-died", [1], ["local1"])
    assert outcome.phase("dies")["reason"].startswith("rank 1 (local1) ended in stage train")


def test_surviving_ranks_are_dumped_before_they_are_ended(torch_suite: Suite) -> None:
    """One of four ranks is killed: the other three leave their stacks, on both nodes, and the phase
    ends within 10 s."""
    args = {**LONG, "die_rank": 3}
    torch_suite.phase("dies", script=IDLE, nodes=2, gpus_per_node=2, args=args)
    outcome = torch_suite.run_apart()
    assert outcome.ret == 1, outcome.output
    phase = torch_suite.run_dir().phase("dies")
    assert dumped_ranks(phase) == {0, 1, 2}
    assert "idle.py" in phase.rank_stack(0).read_text()
    check_over(torch_suite, phase, last_event_time(phase, 3))
    assert outcome.finding("dies")["ranks"] == [3]
    reasons = {node: event["reason"] for node, event in node_ends(phase).items()}
    assert reasons == {0: "aborted", 1: "rank_died"}


@pytest.mark.slow
def test_killed_torchrun_ends_its_phase(torch_suite: Suite) -> None:
    """Its ranks, which have sessions of their own, are ended, too; the node is named."""
    outcome, phase, killed = kill_on_node(torch_suite, "launcher_start", node=1)
    assert outcome.ret == 1, outcome.output
    check_over(torch_suite, phase, killed)
    finding = outcome.finding("idle")
    assert (finding["id"], finding["hosts"]) == ("torchrun-failed", ["local1"])


@pytest.mark.slow
@pytest.mark.parametrize("stopped", ["", "launcher_start"])
def test_killed_launcher_ends_its_phase(stopped: str, torch_suite: Suite) -> None:
    """The other node notices and dumps its ranks; what the dead launcher started is ended, also a
    torchrun that it held for the dumps and that hears no signal."""
    outcome, phase, killed = kill_on_node(torch_suite, "claim", node=1, stopped=stopped)
    assert outcome.ret == 1, outcome.output
    assert sorted(node_ends(phase)) == [0]
    check_over(torch_suite, phase, killed)
    assert 0 in dumped_ranks(phase)
    finding = outcome.finding("idle")
    assert (finding["id"], finding["hosts"]) == ("launcher-failed", ["local1"])


@pytest.mark.slow
def test_waiting_node_ends_when_the_other_cannot_start(torch_suite: Suite) -> None:
    """The setup of one virtual node fails: the other, which waits for its facts, ends at once."""
    torch_suite.profile["setup"] = ['test "$SUBMITIT_LOCAL_JOB_ID" != idle.1']
    torch_suite.phase("idle", script=IDLE, nodes=2, gpus_per_node=1, args=LONG)
    outcome = torch_suite.run_apart()
    assert outcome.ret == 1, outcome.output
    phase = torch_suite.run_dir().phase("idle")
    claimed = read_events(phase.node_events(0)).last("claim")
    assert claimed is not None
    check_over(torch_suite, phase, claimed["time"])
    finding = outcome.finding("idle")
    assert finding["id"] == "setup-line-failed"
    assert "idle.1" in finding["cause"]


@pytest.mark.slow
def test_hanging_rank_is_found_at_its_stage_limit_and_all_are_dumped(
    torch_suite: Suite,
) -> None:
    """All ranks of both nodes leave stacks and a readable flight recorder; the rank that the others
    wait for is named."""
    torch_suite.profile["stage_limits_s"] = {"train_step": STEP_LIMIT_S}
    args = {**SMALL, "how": "hangs", "at_rank": 2}
    torch_suite.phase(
        "hangs",
        base="Trained",
        body="pass",
        script=PROGRAMS / "ends.py",
        nodes=2,
        gpus_per_node=2,
        args=args,
    )
    outcome = torch_suite.run_apart()
    assert outcome.ret == 1, outcome.output
    phase = torch_suite.run_dir().phase("hangs")
    hung_since = min(last_event_time(phase, rank) for rank in range(4))
    assert end_time(phase) - hung_since >= STEP_LIMIT_S
    check_over(torch_suite, phase, hung_since + STEP_LIMIT_S)
    assert dumped_ranks(phase) == {0, 1, 2, 3}
    for rank in range(4):
        assert recorded_collectives(phase.rank_flight_recorder(rank))
    assert "in hangs" in phase.rank_stack(2).read_text()
    finding = outcome.finding("hangs")
    assert (finding["id"], finding["ranks"]) == ("hang", [2]), finding
    assert finding["evidence"][0]["file"] == str(phase.rank_stack(2).relative_to(phase.root))


def recorded_collectives(path: Path) -> list[dict[str, Any]]:
    """The collectives in a flight recorder's dump."""
    entries: list[dict[str, Any]] = json.loads(path.read_text())["entries"]
    return [entry for entry in entries if "all_reduce" in entry["profiling_name"]]
