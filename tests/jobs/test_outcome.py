"""Outcomes of jobs: what a job's own files and the scheduler's state can and cannot prove."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from pytest_clustersmoke.diagnose import diagnose
from pytest_clustersmoke.evidence.finding import Finding
from pytest_clustersmoke.evidence.run_directory import create_phase, write_json
from pytest_clustersmoke.evidence.scheduler_record import (
    JobState,
    NodeStatus,
    ScheduledJob,
    SchedulerRecord,
)
from pytest_clustersmoke.jobs.job_watch import read_messages
from pytest_clustersmoke.jobs.outcome import (
    CLUSTER_STATES,
    NOT_STARTED,
    OUT_OF_TIME,
    REQUEUED,
    Judgement,
    job_times,
    judge_job,
    judge_refusal,
)
from pytest_clustersmoke.jobs.slurm_jobs import parse_scheduled_job
from tests.support.evidence import Evidence

INTERRUPTED = Judgement("cancelled", "the run was interrupted")


def ended(raw: str, reason: str = "") -> JobState:
    return JobState("ended", raw, reason)


@pytest.mark.parametrize("state", [ended("COMPLETED"), ended("TIMEOUT"), ended("NODE_FAIL"), None])
def test_proven_success_passes(tmp_path: Path, state: JobState | None) -> None:
    """All nodes ok and all ranks done: no state of the scheduler changes that."""
    assert judge_job(Evidence(tmp_path, 2, 2).done().result(), state).outcome == "passed"


def test_completed_alone_does_not_pass(tmp_path: Path) -> None:
    """COMPLETED without results does not pass."""
    judged = judge_job(Evidence(tmp_path).result(), ended("COMPLETED"))
    assert judged.outcome == "failed"
    assert judged.reason == "the job ended as COMPLETED before our launcher started"


def test_unfinished_rank_does_not_pass(tmp_path: Path) -> None:
    """All nodes ok, one rank without its `done`: failed."""
    evidence = Evidence(tmp_path, 1, 2).started().node(0, ok=True)
    evidence.rank(0, ("done", {"seconds": 1}))
    judged = judge_job(evidence.result(), ended("COMPLETED"))
    assert (judged.outcome, judged.reason) == ("failed", "only 1 of 2 ranks finished")


def test_node_without_a_result_does_not_pass(tmp_path: Path) -> None:
    """All ranks done, one node without a result: failed, and that node is named."""
    evidence = Evidence(tmp_path, 2, 1).started().each("done").node(0, ok=True)
    judged = judge_job(evidence.result(), ended("FAILED"))
    assert judged.outcome == "failed" and "left no result" in judged.reason


def test_killed_launcher_is_named_with_its_node(tmp_path: Path) -> None:
    """srun says which task was killed; a node that wrote its result was not, whatever srun says of
    the end of its task."""
    evidence = Evidence(tmp_path, 2, 1).started().node(0, ok=False, reason="terminated")
    evidence.dir.node(1).mkdir(parents=True, exist_ok=True)
    write_json(evidence.dir.node_facts(1), {"node": "n1", "host": "h"})
    evidence.dir.submitit.mkdir()
    log = evidence.dir.submitit / "7_0_log.err"
    log.write_text("srun: error: n1: task 1: Killed\nsrun: error: n0: task 0: Killed\n")
    SchedulerRecord(messages=read_messages(evidence.dir)).write(evidence.dir.scheduler)
    judged = judge_job(evidence.result(), ended("FAILED"))
    reason = "n1 left no result: the launcher on n1 was killed (SIGKILL)"
    assert judged.reason == f"the job ended as FAILED, and {reason}"
    (finding,) = diagnose(evidence.result(), judged)
    assert finding.hosts == ("n1",)
    assert finding.evidence[0].text == "srun: error: n1: task 1: Killed"


@pytest.mark.parametrize("ok", ["true", 1, [True], None])
def test_only_true_counts_as_ok(tmp_path: Path, ok: object) -> None:
    """A node's `ok` of another type counts as missing."""
    evidence = Evidence(tmp_path).started().each("done").node(0, ok=ok)
    assert judge_job(evidence.result(), ended("COMPLETED")).outcome == "failed"


def test_empty_spec_does_not_pass(tmp_path: Path) -> None:
    """Zero nodes do not count as all nodes ok."""
    evidence = Evidence(tmp_path)
    evidence.dir.spec.unlink()
    assert judge_job(evidence.result(), ended("COMPLETED")).outcome != "passed"


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
def test_schedulers_state_decides_without_results(tmp_path: Path, raw: str, outcome: str) -> None:
    """Without results the scheduler's state decides the outcome."""
    judged = judge_job(Evidence(tmp_path).result(), ended(raw))
    assert judged.outcome == outcome


def test_deadline_while_running_is_a_failure(tmp_path: Path) -> None:
    """A job that started before its deadline has failed; it does not count as never run."""
    evidence = Evidence(tmp_path)
    evidence.dir.claim.touch()
    assert judge_job(evidence.result(), ended("DEADLINE")).outcome == "failed"


def test_node_failure_outranks_the_reasons_of_other_nodes(tmp_path: Path) -> None:
    """The surviving nodes blame the network; the scheduler knows that a node died."""
    evidence = Evidence(tmp_path, 2).node(0, ok=False, reason="rank_error", why="connection reset")
    assert judge_job(evidence.result(), ended("NODE_FAIL")).outcome == "cluster_failed"


def test_reason_comes_from_the_first_failing_node(tmp_path: Path) -> None:
    """The reason of a FAILED job is that of the first failing node, not of a node it aborted."""
    evidence = Evidence(tmp_path, 2)
    evidence.node(0, ok=False, reason="aborted", why="n1: rank 1 died")
    evidence.node(1, ok=False, reason="rank_died", why="rank 1 died")
    judged = judge_job(evidence.result(), ended("FAILED"))
    assert (judged.outcome, judged.reason) == ("failed", "n1: rank 1 died")


@pytest.mark.parametrize("state", [None, JobState("unknown", "")])
def test_unknown_job_without_results_is_lost(tmp_path: Path, state: JobState | None) -> None:
    """A job that vanished without results is lost, never passed."""
    assert judge_job(Evidence(tmp_path).result(), state).outcome == "lost"


@pytest.mark.parametrize(
    ("reason", "outcome", "words"),
    [
        ("terminated", "lost", "the job was ended by SIGTERM from outside, and the scheduler last"),
        ("rank_died", "failed", "n0: rank 0 died"),
    ],
)
def test_job_that_still_runs_for_the_scheduler_has_not_failed_by_it(
    reason: str, outcome: str, words: str, tmp_path: Path
) -> None:
    """A state that is no end does not say who ended the job; a node's own reason does."""
    evidence = Evidence(tmp_path).node(0, ok=False, reason=reason, why="rank 0 died")
    judged = judge_job(evidence.result(), JobState("running", "RUNNING"))
    assert judged.outcome == outcome and judged.reason.startswith(words)


def test_unknown_job_with_results_is_judged_by_them(tmp_path: Path) -> None:
    """Results come first and need no scheduler."""
    evidence = Evidence(tmp_path).node(0, ok=False, reason="stalled", why="rank 0 made no progress")
    assert judge_job(evidence.result(), None).outcome == "failed"


def test_jobs_cancelled_by_this_run(tmp_path: Path) -> None:
    """A job cancelled after too long a wait has never run; an interrupted one is cancelled."""
    result = Evidence(tmp_path).result()
    for ours in (Judgement("never_ran", "queue: too long"), INTERRUPTED):
        assert judge_job(result, ended("CANCELLED"), ours) == ours


def test_result_outranks_our_cancellation(tmp_path: Path) -> None:
    """A phase that had passed when the run was interrupted stays passed."""
    assert judge_job(Evidence(tmp_path).done().result(), None, INTERRUPTED).outcome == ("passed")


def test_failed_setup_line_is_the_reason(tmp_path: Path) -> None:
    """A job whose setup failed is failed, for that reason."""
    evidence = Evidence(tmp_path)
    evidence.dir.setup_failed.write_text("1\tmodule load cuda\n")
    judged = judge_job(evidence.result(), ended("FAILED"))
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
def test_suspended_job_is_not_measured(
    ok: bool, paused_s: object, outcome: str, tmp_path: Path
) -> None:
    """The times of a suspended job are worthless, and a long suspension may have made ranks fail,
    since their own time limits kept running. Their messages are still reported."""
    evidence = Evidence(tmp_path).started().each("done")
    evidence.node(0, ok=ok, reason="rank_error", why="rank 0: timeout", paused_s=paused_s)
    judged = judge_job(evidence.result(), ended("COMPLETED" if ok else "FAILED"))
    assert judged.outcome == outcome
    assert ("suspended for 7" in judged.reason) is (outcome == "preempted")
    assert ("timeout" in judged.reason) is not ok


NOTICE = datetime(2026, 1, 2, 3, 9, 4)


@pytest.mark.parametrize(
    ("why", "ended_s", "started", "outcome"),
    [
        ({"reason": "terminated", "why": "SIGTERM"}, 0.5, "03:04:05", "preempted"),
        ({"reason": "rank_error", "why": "rank 0: lost its peer"}, 0.5, "03:04:05", "preempted"),
        ({"reason": "rank_error", "why": "rank 0: timeout"}, -2.0, "03:04:05", "failed"),
        ({"reason": "rank_error", "why": "rank 0: timeout"}, 300.0, "03:12:00", "failed"),
    ],
)
def test_job_that_ends_at_the_notice_of_a_preemption_did_not_fail(
    why: dict[str, str], ended_s: float, started: str, outcome: str, tmp_path: Path
) -> None:
    """In its grace time a job gets SIGTERM, and Slurm calls it FAILED. What failed before the
    notice, or after a later start, is a failure."""
    evidence = Evidence(tmp_path).started()
    evidence.node(0, ok=False, ended=NOTICE.timestamp() + ended_s, **why)
    shown = (
        f"JobState=FAILED Reason=NonZeroExitCode ExitCode=1:0 StartTime=2026-01-02T{started} "
        f"NodeList=n0 Partition=low PreemptTime={NOTICE.isoformat()}\n"
    )
    SchedulerRecord(parse_scheduled_job(shown)).write(evidence.dir.scheduler)
    assert judge_job(evidence.result(), ended("FAILED")).outcome == outcome


@pytest.mark.parametrize(
    ("resume", "steps", "again"),
    [
        (True, 8, "steps 1 to 8 of 14 again"),
        (4, 1, "step 1 of 14 again"),
        (True, 0, ""),
        (0, 8, ""),
    ],
)
def test_phase_that_could_not_save_says_which_steps_are_done_again(
    resume: object, steps: int, again: str, tmp_path: Path
) -> None:
    """Without grace a preemption leaves no time to save; the phase's reason and finding name the
    steps that its next job repeats."""
    evidence = Evidence(tmp_path, 1, 2).started().each("step", step=steps, steps=14)
    write_json(evidence.dir.spec, {**evidence.result().spec, "resume": resume})
    shown = "JobState=PREEMPTED ExitCode=0:0 NodeList=n0 Partition=low\n"
    SchedulerRecord(parse_scheduled_job(shown)).write(evidence.dir.scheduler)
    judged = judge_job(evidence.result(), ended("PREEMPTED"))
    assert judged.outcome == "preempted"
    (finding,) = diagnose(evidence.result(), judged)
    for text in (judged.reason, finding.cause):
        assert text.endswith(again) and ("again" in text) is bool(again), text


@pytest.mark.parametrize(
    ("ok", "paused_s", "outcome"),
    [(True, 7.0, "preempted"), (False, 7200.0, "failed"), (True, 0.0, "passed")],
)
def test_suspension_before_a_resume_is_reported(
    ok: bool, paused_s: float, outcome: str, tmp_path: Path
) -> None:
    """The part before the stop has no times worth reading. But its ranks saved and ended well, so
    the suspension excuses no rank that was started after it."""
    evidence = Evidence(tmp_path).started().each("done")
    evidence.node(0, ok=True, stopped=True, paused_s=paused_s)
    evidence.dir = replace(evidence.dir, attempt=1)
    create_phase(evidence.dir, 1)
    evidence.started().each("done")
    evidence.node(0, ok=ok, reason="rank_error", why="rank 0: timeout", paused_s=0.0)
    judged = judge_job(evidence.result(), ended("COMPLETED" if ok else "FAILED"))
    assert judged.outcome == outcome, judged
    assert ("suspended for 7 s" in judged.reason) is (outcome == "preempted")


def test_job_that_never_ran_has_no_run_time(tmp_path: Path) -> None:
    """Slurm says of a job that was cancelled while it waited that it began then."""
    state = replace(ended("CANCELLED"), submitted=100.0, started=110.0)
    result = Evidence(tmp_path).result()
    times = job_times(result, state, 100.0, "never_ran")
    assert times["queue_s"] == 10.0 and times["started"] is times["ended"] is times["run_s"] is None
    assert job_times(result, state, 100.0, "cancelled")["run_s"] is None
    assert job_times(result, replace(state, nodes="n1"), 100.0, "cancelled")["started"] == 110.0


def test_job_that_stopped_to_be_resumed_and_was_then_cancelled_has_not_failed(
    tmp_path: Path,
) -> None:
    """The run ended it between two attempts."""
    evidence = Evidence(tmp_path).started().each("done")
    evidence.node(0, ok=True, stopped=True)
    interrupted = Judgement("cancelled", "the run was interrupted")
    assert judge_job(evidence.result(), ended("CANCELLED"), interrupted) == interrupted
    assert judge_job(evidence.result(), ended("COMPLETED")).outcome == "failed"


@pytest.mark.parametrize("started_again", [False, True])
def test_job_that_is_requeued_between_two_attempts_has_not_failed(
    started_again: bool, tmp_path: Path
) -> None:
    """Nobody asked for that: the ranks stopped as planned, and the same job was to start them
    again. Slurm still shows the requeue, or its second start was refused."""
    evidence = Evidence(tmp_path).started().each("done")
    evidence.node(0, ok=True, stopped=True)
    state = JobState("pending", "PENDING", "BeginTime")
    if started_again:
        evidence.dir.started_again.touch()
        state = ended("FAILED")
    judged = judge_job(evidence.result(), state)
    assert (judged.outcome, judged.ended_by) == ("preempted", REQUEUED)


@pytest.mark.parametrize(
    ("ids", "outcome"),
    [
        (["nodes-unavailable"], "cluster_failed"),
        (["host-unreachable", "nodes-unavailable"], "cluster_failed"),
        (["nodes-unavailable", "too-many-nodes"], "never_ran"),
        (["host-in-use"], "never_ran"),
    ],
)
def test_preflight_blames_the_cluster_only_if_its_nodes_are_all_that_lacks(
    ids: list[str], outcome: str
) -> None:
    findings = [Finding(name, f"because of {name}", "wait") for name in ids]
    assert judge_refusal(findings) == Judgement(outcome, f"because of {ids[0]}")


def test_end_of_the_users_allocation_is_no_failure(tmp_path: Path) -> None:
    """A step that never started, or whose allocation was too short, says nothing about the
    cluster, whatever its nodes wrote as they were ended."""
    waiting = judge_job(Evidence(tmp_path / "a").result(), ended(NOT_STARTED, "no room"))
    assert waiting == Judgement("never_ran", "no room", NOT_STARTED)
    evidence = Evidence(tmp_path / "b").started().node(0, ok=False, reason="ranks", why="killed")
    cut = judge_job(evidence.result(), ended(OUT_OF_TIME, "too short"))
    assert cut == Judgement("cancelled", "too short", OUT_OF_TIME)


@pytest.mark.parametrize("down", [True, False])
def test_requeue_after_a_node_failed_is_a_failure_of_the_cluster(
    down: bool, tmp_path: Path
) -> None:
    """Slurm requeues the job of a phase with `resume` by itself then; the other nodes may blame a
    rank that lost its peers."""
    evidence = Evidence(tmp_path, nodes=2)
    evidence.dir.claim.touch()
    evidence.node(0, ok=False, reason="rank_error", why="rank 0: connection reset")
    state = "down*" if down else "idle"
    node = NodeStatus("n1", state, down=down, text=f"n1 {state}")
    SchedulerRecord(ScheduledJob(text="x"), (node,)).write(evidence.dir.scheduler)
    judged = judge_job(evidence.result(), JobState("pending", "PENDING", "BeginTime"))
    expected = ("cluster_failed", "NODE_FAIL") if down else ("failed", "")
    assert (judged.outcome, judged.ended_by) == expected
