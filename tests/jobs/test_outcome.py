"""How a job ended, from all witnesses: what each of them can and cannot say."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_clustersmoke.evidence.scheduler_record import JobState
from pytest_clustersmoke.jobs.outcome import CLUSTER_STATES, judge
from tests.support.evidence import Evidence


def ended(raw: str, reason: str = "") -> JobState:
    return JobState("ended", raw, reason)


@pytest.mark.parametrize("state", [ended("COMPLETED"), ended("TIMEOUT"), ended("NODE_FAIL"), None])
def test_proven_success_is_passed(tmp_path: Path, state: JobState | None) -> None:
    """All nodes ok and all ranks done: nothing that the scheduler says later changes it."""
    assert judge(Evidence(tmp_path, 2, 2).done().result(), state).outcome == "passed"


def test_completed_alone_is_nothing(tmp_path: Path) -> None:
    """COMPLETED without results is no pass."""
    judged = judge(Evidence(tmp_path).result(), ended("COMPLETED"))
    assert judged.outcome == "failed"
    assert judged.reason == "the job ended as COMPLETED before our launcher started"


def test_a_rank_that_was_never_done_is_no_pass(tmp_path: Path) -> None:
    """All nodes ok, one rank without its `done`: failed."""
    evidence = Evidence(tmp_path, 1, 2).started().node(0, ok=True)
    evidence.rank(0, ("done", {"seconds": 1}))
    judged = judge(evidence.result(), ended("COMPLETED"))
    assert (judged.outcome, judged.reason) == ("failed", "only 1 of 2 ranks finished")


def test_a_node_without_a_result_is_no_pass(tmp_path: Path) -> None:
    """All ranks done, one node silent: failed, and the silent node is named."""
    evidence = Evidence(tmp_path, 2, 1).started().each("done").node(0, ok=True)
    judged = judge(evidence.result(), ended("FAILED"))
    assert judged.outcome == "failed" and "left no result" in judged.reason


@pytest.mark.parametrize("ok", ["true", 1, [True], None])
def test_only_true_is_ok(tmp_path: Path, ok: object) -> None:
    """A node's `ok` of another kind counts as missing."""
    evidence = Evidence(tmp_path).started().each("done").node(0, ok=ok)
    assert judge(evidence.result(), ended("COMPLETED")).outcome == "failed"


def test_an_empty_spec_is_no_pass(tmp_path: Path) -> None:
    """Zero nodes are not `all nodes ok`."""
    evidence = Evidence(tmp_path)
    evidence.dir.spec.unlink()
    assert judge(evidence.result(), ended("COMPLETED")).outcome != "passed"


@pytest.mark.parametrize(
    ("raw", "outcome"),
    [
        *[(raw, "cluster_failed") for raw in sorted(CLUSTER_STATES)],
        ("PREEMPTED", "preempted"),
        ("CANCELLED", "cancelled"),
        ("TIMEOUT", "failed"),
        ("FAILED", "failed"),
        ("OUT_OF_MEMORY", "failed"),
        ("DEADLINE", "never_ran"),
    ],
)
def test_the_schedulers_word(tmp_path: Path, raw: str, outcome: str) -> None:
    """Without results of its own a job is what the scheduler says it was."""
    judged = judge(Evidence(tmp_path).result(), ended(raw))
    assert judged.outcome == outcome


def test_a_deadline_while_running_is_a_failure(tmp_path: Path) -> None:
    """A job that started and hit its deadline did not `never run`."""
    evidence = Evidence(tmp_path)
    evidence.dir.claim(0).touch()
    assert judge(evidence.result(), ended("DEADLINE")).outcome == "failed"


def test_a_node_failure_beats_its_victims_words(tmp_path: Path) -> None:
    """The surviving nodes blame the network; the scheduler knows that a node died."""
    evidence = Evidence(tmp_path, 2).node(0, ok=False, reason="rank_error", why="connection reset")
    assert judge(evidence.result(), ended("NODE_FAIL")).outcome == "cluster_failed"


def test_a_nodes_own_reason_wins_over_failed(tmp_path: Path) -> None:
    """FAILED is told by the reason that the first failing node wrote, not by an echo of it."""
    evidence = Evidence(tmp_path, 2)
    evidence.node(0, ok=False, reason="aborted", why="n1: rank 1 died")
    evidence.node(1, ok=False, reason="rank_died", why="rank 1 died")
    judged = judge(evidence.result(), ended("FAILED"))
    assert (judged.outcome, judged.reason) == ("failed", "n1: rank 1 died")


@pytest.mark.parametrize("state", [None, JobState("unknown", "")])
def test_a_forgotten_job_is_lost(tmp_path: Path, state: JobState | None) -> None:
    """A job that vanished without results is lost, never passed."""
    assert judge(Evidence(tmp_path).result(), state).outcome == "lost"


def test_a_forgotten_job_with_results_is_judged_by_them(tmp_path: Path) -> None:
    """Results are the first witness: they need no scheduler."""
    evidence = Evidence(tmp_path).node(0, ok=False, reason="stalled", why="rank 0 made no progress")
    assert judge(evidence.result(), None).outcome == "failed"


def test_what_we_ended_is_ours(tmp_path: Path) -> None:
    """A wait in the queue that we ended is never_ran; an interrupted run is cancelled."""
    result = Evidence(tmp_path).result()
    assert judge(result, ended("CANCELLED"), "queue: too long").outcome == "never_ran"
    assert judge(result, ended("CANCELLED"), "the run was interrupted").outcome == "cancelled"


def test_a_result_that_came_in_time_counts_over_our_cancelling(tmp_path: Path) -> None:
    """A phase that had passed when the run was interrupted has passed."""
    assert judge(Evidence(tmp_path).done().result(), None, "the run was interrupted").outcome == (
        "passed"
    )


def test_a_failed_setup_line(tmp_path: Path) -> None:
    """A job whose set-up failed is failed, with that as the reason."""
    evidence = Evidence(tmp_path)
    evidence.dir.setup_failed.write_text("1\tmodule load cuda\n")
    judged = judge(evidence.result(), ended("FAILED"))
    assert (judged.outcome, judged.reason) == ("failed", "a setup line failed")


@pytest.mark.parametrize(
    ("ok", "paused_s", "outcome"),
    [
        (True, 0.0, "passed"),
        (True, 7.0, "preempted"),
        (True, "nan", "passed"),
        (False, 0.0, "failed"),
        (False, 7.0, "failed"),
        (False, 7200.0, "preempted"),
    ],
)
def test_a_job_that_was_stopped_is_not_measured(
    ok: bool, paused_s: object, outcome: str, tmp_path: Path
) -> None:
    """Its times say nothing; and ranks may have failed by a standstill that was a long one, since
    limits of their own went on. What they said is told all the same."""
    evidence = Evidence(tmp_path).started().each("done")
    evidence.node(0, ok=ok, reason="rank_error", why="rank 0: timeout", paused_s=paused_s)
    judged = judge(evidence.result(), ended("COMPLETED" if ok else "FAILED"))
    assert judged.outcome == outcome
    assert ("suspended for 7" in judged.reason) is (outcome == "preempted")
    assert ("timeout" in judged.reason) is not ok
