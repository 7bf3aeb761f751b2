"""The jobs of one run: submission, the end of each job, interruption."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

import pytest

from pytest_clustersmoke.evidence.run_directory import (
    RunDir,
    read_json,
    write_json,
)
from pytest_clustersmoke.evidence.scheduler_record import JobState
from pytest_clustersmoke.jobs import job_watch
from pytest_clustersmoke.jobs.backend import Submission, Unanswered
from pytest_clustersmoke.jobs.slurm_backend import SlurmBackend
from pytest_clustersmoke.node.abort_flag import raise_flag
from pytest_clustersmoke.preflight.slurm_check import SlurmCheck
from pytest_clustersmoke.session import (
    cancellation,
    job_end,
    job_session,
    lost_answers,
    phase_queue,
)
from pytest_clustersmoke.session.cancellation import Leftover
from pytest_clustersmoke.session.job_session import JobSession, WatchFailed
from pytest_clustersmoke.session.phase_queue import PhaseQueue
from tests.fakes.slurm import FakeSlurm
from tests.support.evidence import make_phase, make_profile
from tests.support.job_run import WITHIN_S, JobRun, ignore, until


def test_all_phases_are_submitted_before_any_result(run: JobRun) -> None:
    """Queue waits overlap: every phase is submitted while none has ended."""
    session = run.start("a", "b", "c")
    until(lambda: len(run.submitted()) == 3)
    assert session.outcomes == {}
    for name in ("c", "a", "b"):
        run.passes(name)
        session.wait(name, ignore)
    assert {
        name: judgement.outcome for name, judgement in session.outcomes.items()
    } == dict.fromkeys("abc", "passed")


def test_intent_is_journalled_before_submission(run: JobRun) -> None:
    """intent, then sbatch, then the id: a job of a killed run can be found."""
    events_at_submission: list[Any] = []
    submit = run.backend.submit

    def submit_and_note(job: Submission, after: str = "") -> str:
        events_at_submission.append(run.events())
        return submit(job, after)

    run.backend.submit = submit_and_note  # type: ignore[method-assign]
    session = run.start("a")
    until(lambda: ("submitted", "a") in run.events())
    assert events_at_submission == [[("intent", "a")]]
    run.passes("a")
    session.wait("a", ignore)
    assert run.events() == [("intent", "a"), ("submitted", "a"), ("ended", "a")]


def test_max_jobs_limits_the_jobs_at_once(run: JobRun) -> None:
    """limits.max_jobs jobs run; the next one is submitted when one has ended, in order."""
    session = run.start("a", "b", "c", limits={"max_jobs": 2, "poll_s": 0.05})
    until(lambda: len(run.backend.named("states")) > 3)
    assert run.submitted() == ["a", "b"]
    run.passes("b")
    session.wait("b", ignore)
    until(lambda: run.submitted() == ["a", "b", "c"])


def test_local_phases_wait_until_their_ranks_fit(run: JobRun) -> None:
    """A second phase waits until both fit; one that is too large still runs alone."""
    run.backend.ranks_at_once = 3
    session = run.start("a", "b", "c", gpus=2)
    until(lambda: len(run.backend.named("states")) > 3)
    assert run.submitted() == ["a"]
    run.passes("a")
    run.run.phase("a").rank_events(1).write_bytes(run.run.phase("a").rank_events(0).read_bytes())
    session.wait("a", ignore)
    until(lambda: run.submitted() == ["a", "b"])


def test_phase_starts_once_the_one_before_it_has_passed(run: JobRun) -> None:
    """A phase that waits does not keep those behind it from starting."""
    session = run.start("second", "first", "other", after={"second": "first"})
    until(lambda: len(run.backend.named("states")) > 3)
    assert run.submitted() == ["first", "other"]
    run.passes("first")
    until(lambda: run.submitted() == ["first", "other", "second"])
    assert run.backend.orders["second"] == ""
    run.passes("second")
    session.wait("second", ignore)
    assert session.outcomes["second"].outcome == "passed"


def test_points_of_a_sweep_are_submitted_as_one_array(run: JobRun) -> None:
    """Once as many of them as can run at a time have room; other phases wait for room, as ever."""
    session = run.start("a", "x-1", "x-2", "x-3", "b", sweep="x", limits={"max_jobs": 3})
    run.show_states()
    assert run.submitted() == ["a"]
    run.passes("a")
    session.wait("a", ignore)
    until(lambda: len(run.submitted()) == 4)
    assert run.backend.named("array") == [("3", "x-1", "x-2", "x-3")]
    run.show_states()
    assert run.submitted()[4:] == []
    run.passes("x-1")
    session.wait("x-1", ignore)
    until(lambda: run.submitted()[4:] == ["b"])
    run.passes("x-2")
    session.wait("x-2", ignore)
    assert session.outcomes["x-2"].outcome == "passed"


def test_points_of_a_refused_array_are_submitted_one_by_one(run: JobRun) -> None:
    """Arrays may be disabled there; a point that is refused by itself has the scheduler's words."""
    run.backend.refusals["x-1"] = "no such partition"
    session = run.start("x-1", "x-2", sweep="x")
    session.wait("x-1", ignore)
    assert "no such partition" in session.outcomes["x-1"].reason
    until(lambda: run.submitted()[-1] == "x-2")
    run.passes("x-2")
    session.wait("x-2", ignore)
    assert session.outcomes["x-2"].outcome == "passed"
    assert len(run.backend.named("array")) == 1


def test_four_phases_that_ask_for_the_same_are_submitted_as_one_array(run: JobRun) -> None:
    """First, so that it has all the room. Slurm starts a task whenever another ends, so that other
    phases wait until fewer are left than may run at a time, also in a run that is attached."""
    phases = ("x-1", *"abcd")
    session = run.start(*phases, sweep="x", limits={"max_jobs": 3, "poll_s": 0.05})
    until(lambda: len(run.submitted()) == 4)
    assert run.backend.named("array") == [("3", "a", "b", "c", "d")]
    specs = [read_json(run.run.phase(name).spec) or {} for name in "abcd"]
    assert len({spec["token"] for spec in specs}) == 1
    for name in "cd":
        run.backend.jobs[name] = JobState("pending", "PENDING", job_watch.TURNS[0])
    run.show_states()
    session = run.attach()
    run.passes("a")
    session.wait("a", ignore)
    run.show_states()
    assert run.submitted() == []
    run.passes("b")
    session.wait("b", ignore)
    until(lambda: run.submitted() == ["x-1"])
    for name in "cd":
        run.passes(name)
        session.wait(name, ignore)
        assert session.outcomes[name].outcome == "passed"


@pytest.mark.parametrize(
    "keys", [{"nodes": 2}, {"resume": True}, {"after": dict.fromkeys("abcd", "e")}]
)
def test_phases_that_need_a_job_of_their_own_are_in_no_array(run: JobRun, keys: Any) -> None:
    """Those of several nodes, those that may be requeued, those that wait for another."""
    run.backend.chains = True
    run.start("e", "a", "b", "c", "d", **keys)
    until(lambda: len(run.submitted()) == 5)
    assert run.backend.named("array") == []


def test_three_phases_that_ask_for_the_same_are_a_job_each(run: JobRun) -> None:
    run.start("a", "b", "c")
    until(lambda: len(run.submitted()) == 3)
    assert run.backend.named("array") == []


def test_phases_are_a_job_each_where_an_array_would_be_slower(run: JobRun) -> None:
    """Where other jobs have taken some of the room, since nothing would widen the array later."""
    profile = make_profile(run.folder, phases=dict.fromkeys("abcd"), limits={"max_jobs": 4})
    queue = PhaseQueue(
        {name: make_phase(profile, name) for name in "abcd"}, run.backend, profile.limits
    )
    taken = [queue.take({}, {}, unknown) for unknown in (1, 2, 0)]
    assert [[phase.name for phase in phases] for phases in taken] == [["a"], ["b"], ["c"]]
    queue = PhaseQueue(
        {name: make_phase(profile, name) for name in "abcd"}, run.backend, profile.limits
    )
    assert [phase.name for phase in queue.take({}, {}, 0)] == ["a", "b", "c", "d"]


def test_refused_array_of_phases_is_submitted_phase_by_phase(run: JobRun) -> None:
    """Arrays may be disabled, or larger than a limit on submitted jobs allows: each phase gets an
    answer of its own, and the user reads why."""
    run.backend.refusals["a"] = "Invalid job array specification"
    session = run.start("a", "b", "c", "d")
    said: list[str] = []
    session.wait("a", lambda progress: said.append(f"{progress.phase}: {progress.text}"))
    assert "Invalid job array specification" in session.outcomes["a"].reason
    until(lambda: run.submitted() == ["a", "a", "b", "c", "d"])
    assert (
        "scheduler: it refuses a job array (Invalid job array specification); "
        "each phase is submitted by itself"
    ) in said


@pytest.mark.parametrize("chains", [True, False])
def test_phase_after_a_failed_one_never_runs(run: JobRun, chains: bool) -> None:
    """Nor does the phase after that. Each says which one did not pass."""
    run.backend.chains = chains
    session = run.start("a", "b", "c", after={"b": "a", "c": "b"})
    until(lambda: len(run.submitted()) == (3 if chains else 1))
    if chains:  # Slurm may cancel it before this run has judged the other phase
        run.backend.jobs["b"] = JobState("ended", "CANCELLED")
        until(lambda: len(run.backend.named("states")) > 3)
        assert "b" not in session.outcomes
    run.fails("a")
    for name in ("b", "c"):
        session.wait(name, ignore)
        assert session.outcomes[name].outcome == "never_ran"
    assert run.result("b")["reason"] == "a failed, and this phase runs only after it has passed"
    assert run.result("c")["reason"] == "b never ran, and this phase runs only after it has passed"
    assert [finding["id"] for finding in run.result("b")["findings"]] == ["job-never-ran"]
    assert run.submitted() == (["a", "b", "c"] if chains else ["a"])


def test_job_that_waits_in_the_queue_for_another_needs_no_room(run: JobRun) -> None:
    """It is submitted at once, after the other's job, and the limits count from when it may run."""
    run.backend.chains = True
    limits = {"max_jobs": 1, "queue_wait_s": 600, "poll_s": 0.05}
    session = run.start("a", "b", "c", after={"b": "a"}, limits=limits)
    run.run_job("a")
    waiting = run.watched("b")
    long_ago = waiting.submitted_at = time.monotonic() - 3600
    run.show_states()
    assert run.submitted() == ["a", "b"] and run.backend.orders["b"] == "a"
    assert session.outcomes == {} and run.backend.named("cancel") == []
    run.passes("a")
    until(lambda: waiting.submitted_at > long_ago)
    waiting.submitted_at = long_ago
    session.wait("b", ignore)
    assert "did not start within 600 s" in run.result("b")["reason"]
    until(lambda: run.submitted() == ["a", "b", "c"])


def test_job_after_one_that_has_passed_already_has_no_dependency(run: JobRun) -> None:
    """Also where the scheduler could wait for it: a rerun comes after the other job, whose id the
    scheduler may have forgotten."""
    run.backend.chains = True
    session = run.start("a", "b", after={"b": "a"}, history_check="confirm")
    until(lambda: run.submitted() == ["a", "b"])
    for name in ("a", "b"):
        run.passes(name)
        session.wait(name, ignore)
    rerun = run.run.request_rerun("b", 1)
    until(lambda: run.submitted() == ["a", "b", rerun])
    run.passes(rerun)
    session.wait(rerun, ignore)
    assert run.backend.orders == {"a": "", "b": "a", rerun: ""}
    assert session.outcomes[rerun].outcome == "passed"


def test_order_counts_only_among_the_phases_of_the_run(run: JobRun) -> None:
    """A phase after one that was not selected starts at once."""
    run.start("b", after={"b": "a"})
    until(run.submitted)
    assert run.submitted() == ["b"] and run.backend.orders["b"] == ""


def test_refused_phase_is_a_finding_and_the_others_continue(run: JobRun) -> None:
    """The finding quotes sbatch; the phase never ran."""
    run.backend.refusals["a"] = "sbatch: error: Invalid qos specification"
    session = run.start("a", "b")
    session.wait("a", ignore)
    result = run.result("a")
    assert result["outcome"] == "never_ran" and result["job_id"] == ""
    assert result["findings"][0]["id"] == "submission-refused"
    assert "Invalid qos specification" in result["findings"][0]["cause"]
    until(lambda: "b" in run.backend.directories)
    run.passes("b")
    session.wait("b", ignore)
    assert session.outcomes["b"].outcome == "passed"
    assert run.events().count(("refused", "a")) == 1
    assert [*run.run.phase("a").root.glob("withdrawn.*")]  # should it start all the same


def test_job_that_exceeds_the_queue_limit_never_ran(run: JobRun) -> None:
    """After limits.queue_wait_s a pending job is cancelled, and never ran."""
    session = run.start("a", limits={"queue_wait_s": 0.1, "poll_s": 0.05})
    session.wait("a", ignore)
    assert run.backend.named("cancel") == [("a",)]
    assert run.result("a")["outcome"] == "never_ran"
    assert "did not start within 0.1 s" in run.result("a")["reason"]


def test_queue_limit_does_not_end_a_running_job(run: JobRun) -> None:
    """The limit applies to the queue only."""
    session = run.start("a", limits={"queue_wait_s": 600, "poll_s": 0.05})
    run.run_job("a", nodes="n1")
    run.watched("a").submitted_at -= 3600
    run.show_states()
    assert session.outcomes == {} and run.backend.named("cancel") == []
    run.passes("a")
    session.wait("a", ignore)
    assert session.outcomes["a"].outcome == "passed"


@pytest.mark.parametrize(
    ("began", "outcome", "why"),
    [(False, "never_ran", "`setup`, or the start of Python,"), (True, "lost", "stands still")],
)
def test_job_that_runs_for_longer_than_its_phase_may_take_is_ended(
    run: JobRun, monkeypatch: pytest.MonkeyPatch, began: bool, outcome: str, why: str
) -> None:
    """Its node would have ended it. The time of a suspension does not count."""
    monkeypatch.setattr(job_end, "SETUP_S", -(10.0**6))
    session = run.start("a", "b", "c")
    until(lambda: len(run.submitted()) == 3)
    if began:
        run.run.phase("a").claim.touch()
    run.backend.jobs["b"] = JobState("running", "SUSPENDED")
    run.backend.jobs["a"] = JobState("running", "RUNNING", nodes="n7")
    session.wait("a", ignore)
    assert run.backend.named("cancel") == [("a",)]
    result = run.result("a")
    assert result["outcome"] == outcome and why in result["reason"]
    assert "job a has run on n7 for " in result["reason"]
    assert [*session.outcomes] == ["a"]


def test_failed_node_is_named_before_the_others_have_written_what_they_saw(run: JobRun) -> None:
    """They have some seconds for that; whoever watches the run does not wait for it."""
    session = run.start("a", nodes=2)
    run.run_job("a", nodes="n[0-1]")
    directory = run.run.phase("a")
    directory.claim.touch()
    directory.submitit.mkdir(exist_ok=True)
    (directory.submitit / "a_0_log.err").write_text("srun: error: Node failure on n1\n")
    run.backend.jobs["a"] = JobState("ended", "NODE_FAIL", nodes="n[0-1]")
    said: list[tuple[str, bool]] = []
    session.wait("a", lambda news: said.append((news.text, bool(session.outcomes))))
    assert ("node n1 failed, the others end", False) in said
    assert said[-1][0].startswith("cluster failed")


def test_vanished_job_is_lost(run: JobRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that the scheduler has forgotten, without results, is lost. It is cancelled, since it
    may run after all."""
    monkeypatch.setattr(job_watch, "COMPLETED_GRACE_S", 0.05)
    session = run.start("a")
    until(lambda: run.submitted() == ["a"])
    run.backend.jobs["a"] = JobState("unknown", "")
    session.wait("a", ignore)
    assert run.result("a")["outcome"] == "lost"
    assert run.result("a")["findings"][0]["id"] == "job-lost"
    assert run.backend.named("cancel") == [("a",)]


def test_job_that_another_one_replaced_is_lost_and_the_other_goes_on(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm lost its state, and gave the id to somebody else's job: that one is not cancelled, not
    even when the run is interrupted."""
    monkeypatch.setattr(job_watch, "COMPLETED_GRACE_S", 0.05)
    session = run.start("a", "b")
    until(lambda: len(run.submitted()) == 2)
    other = run.watched("b")
    run.backend.jobs["a"] = JobState("pending", "PENDING", name="train-llm")
    session.wait("a", ignore)
    assert run.result("a")["outcome"] == "lost"
    assert "Slurm shows another job under this id" in run.result("a")["findings"][0]["cause"]
    run.backend.jobs["b"] = JobState("running", "RUNNING", name="train-llm")
    until(lambda: not other.is_ours)
    session.close()
    assert run.backend.named("cancel") == []


def test_job_ended_from_outside_while_the_scheduler_is_silent_is_lost(run: JobRun) -> None:
    """It was seen to run, then squeue fails: nothing shows that it failed, or was requeued."""
    session = run.start("a")
    run.run_job("a")
    del run.backend.jobs["a"]
    run.run.phase("a").claim.touch()
    failure = {"ok": False, "node": "n0", "reason": "terminated", "why": "SIGTERM"}
    write_json(run.run.phase("a").node_result(0), failure)
    session.wait("a", ignore)
    reason = "the job was ended by SIGTERM from outside, and the scheduler does not answer"
    assert (run.result("a")["outcome"], run.result("a")["reason"]) == ("lost", reason)
    assert [finding["id"] for finding in run.result("a")["findings"]] == ["job-lost"]


def test_failed_job_that_the_scheduler_still_runs_is_cancelled(run: JobRun) -> None:
    """Its nodes have ended, and srun waits for one whose slurmstepd was killed."""
    session = run.start("a")
    run.run_job("a")
    run.fails("a")
    session.wait("a", ignore)
    assert run.result("a")["outcome"] == "failed"
    assert run.backend.named("cancel") == [("a",)]


def test_job_that_overwrites_its_spec_costs_its_own_phase_alone(run: JobRun) -> None:
    """The watch goes on, and so does the other phase; the finding names the file."""
    session = run.start("a", "b")
    until(lambda: run.submitted() == ["a", "b"])
    spec = run.run.phase("a").spec
    write_json(spec, {"phase": "a"})
    for name in "ab":
        run.passes(name)
        session.wait(name, ignore)
    assert session.outcomes["a"].outcome != "passed" and session.outcomes["b"].outcome == "passed"
    (finding,) = run.result("a")["findings"]
    assert finding["id"] == "spec-overwritten"
    assert finding["evidence"][0]["file"] == spec.name  # in the phase's folder of the report


def test_late_result_counts(run: JobRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler says COMPLETED before the file system shows the result: passed."""
    monkeypatch.setattr(job_watch, "RESULT_GRACE_S", WITHIN_S)
    session = run.start("a")
    until(lambda: run.submitted() == ["a"])
    run.backend.jobs["a"] = JobState("ended", "COMPLETED")
    calls = len(run.backend.calls)
    until(lambda: len(run.backend.calls) > calls)
    run.passes("a")
    session.wait("a", ignore)
    assert run.result("a")["outcome"] == "passed"


def test_interruption_cancels_all_jobs_in_one_call(run: JobRun) -> None:
    """Phases that were never submitted are cancelled, too; one that passed stays."""
    session = run.start("a", "b", "c", "d", nodes=2, limits={"max_jobs": 3, "poll_s": 0.05})
    until(lambda: len(run.submitted()) == 3)
    run.passes("a", nodes=2)
    session.wait("a", ignore)
    until(lambda: ("submitted", "d") in run.events())
    session.cancel()
    session.close()
    assert run.backend.named("cancel") == [("b", "c", "d")]
    outcomes = {name: judgement.outcome for name, judgement in session.outcomes.items()}
    assert outcomes == {"a": "passed", "b": "cancelled", "c": "cancelled", "d": "cancelled"}


def test_interruption_does_not_wait_for_a_slow_scheduler(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jobs are cancelled while the watch thread waits for an answer."""
    monkeypatch.setattr(cancellation, "CLOSE_S", 0.2)
    called, answer = threading.Event(), threading.Event()

    def slow(job_ids: object) -> dict[str, JobState]:
        called.set()
        answer.wait(WITHIN_S)
        return {}

    session = run.start("a")
    until(lambda: run.submitted() == ["a"])
    monkeypatch.setattr(run.backend, "states", slow)
    assert called.wait(WITHIN_S)
    session.cancel()
    until(lambda: ("cancelled", None) in run.events())
    assert not session.close() and run.backend.named("cancel") == [("a",)]
    answer.set()


def test_interruption_does_not_wait_for_a_slow_cancellation(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If scancel does not answer, the run ends in time; the command continues alone."""
    monkeypatch.setattr(cancellation, "CLOSE_S", 0.2)
    called, answer = threading.Event(), threading.Event()

    def slow(job_ids: object) -> bool:
        called.set()
        return answer.wait(WITHIN_S)

    session = run.start("a")
    until(lambda: run.submitted() == ["a"])
    monkeypatch.setattr(run.backend, "cancel", slow)
    session.cancel()
    assert called.wait(WITHIN_S)
    began = time.monotonic()
    assert session.close() == Leftover(("a",))
    assert time.monotonic() - began < WITHIN_S / 2
    answer.set()


def test_unanswered_submission_is_cancelled_by_name(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interruption while sbatch hangs cancels the job by name, and returns the phase."""
    monkeypatch.setattr(cancellation, "CLOSE_S", 0.2)
    called, answer = threading.Event(), threading.Event()

    def slow(job: Submission, after: str) -> str:
        called.set()
        answer.wait(WITHIN_S)
        return "a"

    monkeypatch.setattr(run.backend, "submit", slow)
    session = run.start("a")
    assert called.wait(WITHIN_S)
    session.cancel()
    assert session.close() == Leftover(phases=("a",))
    until(lambda: run.backend.named("cancel_named") == [("a",)])
    answer.set()


def test_job_of_a_lost_answer_is_found_and_watched(run: JobRun) -> None:
    """sbatch timed out, but Slurm has the job."""
    run.backend.silent["a"] = False
    session = run.start("a")
    until(lambda: len(run.backend.named("find")) > 1)
    assert run.submitted() == ["a"]
    run.backend.silent["a"] = True
    until(lambda: "a" in run.backend.jobs)
    run.passes("a")
    session.wait("a", ignore)
    assert session.outcomes["a"].outcome == "passed"
    assert [name for name, _ in run.events()][:3] == ["intent", "unanswered", "submitted"]


@pytest.mark.parametrize("accepts", [True, False])
def test_job_that_sbatch_was_still_asking_to_be_accepted_is_submitted_again(
    run: JobRun, monkeypatch: pytest.MonkeyPatch, accepts: bool
) -> None:
    """Slurm could not accept it so far, and does not have it. The first submission is withdrawn, in
    case that it comes to the queue late. If Slurm never accepts it, the reason has its words."""
    for module, name in ((lost_answers, "ABSENT_S"), (phase_queue, "FIRST_RETRY_S")):
        monkeypatch.setattr(module, name, 0.05)
    monkeypatch.setattr(lost_answers, "FIRST_LOOK_S", 0.01)
    words, submit = "sbatch did not answer within 60 s (it printed 'retrying')", run.backend.submit
    tokens: list[str] = []

    def ask(job: Submission, after: str = "") -> str:
        tokens.append(job.token)
        if accepts and len(tokens) == 3:
            return submit(job, after)
        raise Unanswered(words, refused_so_far=True)

    monkeypatch.setattr(run.backend, "submit", ask)
    patience_s = 60 if accepts else 0.5
    session = run.start("a", limits={"poll_s": 0.05, "scheduler_patience_s": patience_s})
    if accepts:
        until(lambda: ("submitted", "a") in run.events())
        run.passes("a")
    session.wait("a", ignore)
    judged = session.outcomes["a"]
    assert judged.outcome == ("passed" if accepts else "never_ran")
    assert accepts or words in judged.reason
    directory = run.run.phase("a")
    assert len({*tokens}) == len(tokens) > 1
    assert all(directory.withdrawn(token).exists() for token in tokens[:-1])


def test_job_whose_claim_is_seen_is_watched(run: JobRun) -> None:
    """It runs while the scheduler still does not answer: the claim has its id."""
    run.backend.silent["a"] = False
    session = run.start("a")
    until(lambda: len(run.backend.named("find")) > 1)
    directory = run.run.phase("a")
    token = (read_json(directory.spec) or {})["token"]
    write_json(directory.claim, {"token": "of another submission", "job_id": "6"})
    asked = len(run.backend.named("find"))
    until(lambda: len(run.backend.named("find")) > asked)
    assert ("submitted", "a") not in run.events()
    write_json(directory.claim, {"token": token, "job_id": "7"})
    until(lambda: ("submitted", "a") in run.events())
    run.passes("a")
    session.wait("a", ignore)
    assert run.result("a")["job_id"] == "7"
    assert run.backend.named("adopt") == [("7",)]  # so that it knows its name and comment
    assert session.outcomes["a"].outcome == "passed"


RUN_NODE = """
import json, sys
from pytest_clustersmoke.node.node_job import run_node
run_node(json.load(sys.stdin))
"""


def test_job_that_is_not_found_is_given_up(run: JobRun) -> None:
    """It may start later all the same: its name is cancelled, and what starts ends at once."""
    run.backend.silent["a"] = False
    session = run.start("a", limits={"poll_s": 0.05, "scheduler_patience_s": 0.2})
    session.wait("a", ignore)
    result = run.result("a")
    assert result["outcome"] == "never_ran"
    assert result["reason"].startswith("no job was found within 0.2 s after this: sbatch: error: ")
    assert [finding["id"] for finding in result["findings"]] == ["submission-unanswered"]
    assert run.backend.named("cancel_named") == [("a",)]
    spec = read_json(run.run.phase("a").spec) or {}
    node = subprocess.run(  # of its own: a node changes the signals of its process
        [sys.executable, "-c", RUN_NODE],
        input=json.dumps(spec),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "NodeFailed: phase a was given up before this job started" in node.stderr
    assert not run.run.phase("a").claim.exists()


def test_full_disk_does_not_keep_an_unanswered_job_from_its_end(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cancelled by its name, and the other phases go on."""

    def fail(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(lost_answers, "write_atomically", fail)
    run.backend.silent["a"] = False
    session = run.start("a", "b", limits={"poll_s": 0.05, "scheduler_patience_s": 0.2})
    session.wait("a", ignore)
    assert run.result("a")["outcome"] == "never_ran"
    assert run.backend.named("cancel_named") == [("a",)]
    run.passes("b")
    session.wait("b", ignore)
    assert session.outcomes["b"].outcome == "passed"


def test_unanswered_job_is_given_up_by_an_interruption(run: JobRun) -> None:
    """It was not found yet, and may come to the queue: it is named, and the run is not closed."""
    run.backend.silent["a"] = False
    session = run.start("a")
    until(lambda: run.backend.named("find"))
    assert session.close() == Leftover(phases=("a",)) and ("closed", None) not in run.events()
    assert run.result("a")["outcome"] == "cancelled"
    assert run.backend.named("cancel_named") == [("a",)]
    assert list(run.run.phase("a").root.glob("withdrawn.*"))


def test_scheduler_that_cannot_accept_jobs_now_is_asked_again(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The phase keeps its turn, and the user reads one line."""
    monkeypatch.setattr(phase_queue, "FIRST_RETRY_S", 0.05)
    run.backend.busy["a"] = 2
    session = run.start("a", "b", limits={"max_jobs": 1, "poll_s": 0.05})
    until(lambda: "a" in run.backend.jobs)
    assert run.submitted() == ["a", "a", "a"]
    said: list[str] = []
    run.passes("a")
    session.wait("a", lambda progress: said.append(f"{progress.phase}: {progress.text}"))
    (line,) = [line for line in said if line.startswith("scheduler: ")]
    assert line.endswith("temporarily unable to accept job); trying again for up to 300 s")


def test_scheduler_that_never_accepts_jobs_is_given_up(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each phase with its last words."""
    monkeypatch.setattr(phase_queue, "FIRST_RETRY_S", 0.05)
    run.backend.busy["a"] = 10**9
    session = run.start("a", limits={"poll_s": 0.05, "scheduler_patience_s": 0.3})
    session.wait("a", ignore)
    assert run.result("a")["outcome"] == "never_ran"
    assert "temporarily unable" in run.result("a")["reason"]


def test_phase_not_yet_submitted_is_cancelled_by_an_interruption(run: JobRun) -> None:
    """Its result says so."""
    session = run.start("a", "b", limits={"max_jobs": 1, "poll_s": 0.05})
    until(lambda: run.submitted() == ["a"])
    session.close()
    assert run.submitted() == ["a"]
    assert run.result("b")["reason"] == "the run was interrupted before it was submitted"


def test_interruption_ends_within_its_time_limit(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs that do not end when cancelled are not waited for longer than the limit. `cancel`, which
    a signal handler calls, returns while scancel runs."""
    monkeypatch.setattr(cancellation, "CANCEL_CONFIRM_S", 0.3)
    run.backend.on_cancel = JobState("running", "COMPLETING")
    session = run.start("a")
    until(lambda: run.submitted() == ["a"])
    returned, end, waits = threading.Event(), run.backend.cancel, list[bool]()

    def scancel(job_ids: Iterable[str]) -> bool:
        waits.append(returned.wait(WITHIN_S))
        return end(job_ids)

    run.backend.cancel = scancel  # type: ignore[method-assign]
    session.cancel()
    returned.set()
    session.close()
    assert waits and all(waits)
    assert not session._thread.is_alive()  # the end did not go on without it
    assert run.result("a")["outcome"] == "cancelled"


def test_error_in_the_watch_thread_is_raised_and_cancels_jobs(run: JobRun) -> None:
    """`wait` raises it with its cause; no job is left."""
    session = run.start("a")
    until(lambda: run.submitted() == ["a"])
    run.backend.broken = RuntimeError("no such thing")
    with pytest.raises(WatchFailed, match="watching the jobs failed: no such thing"):
        session.wait("a", ignore)
    until(lambda: run.backend.named("cancel") == [("a",)])


def test_each_change_is_reported_once(run: JobRun) -> None:
    """Submitted, pending with the scheduler's reason, running with its nodes, the outcome."""
    texts: list[str] = []
    session = run.start("a")
    listener = threading.Thread(
        target=session.wait, args=("a", lambda progress: texts.append(progress.text))
    )
    listener.start()
    until(lambda: any("Priority" in text for text in texts))
    run.backend.jobs["a"] = JobState("running", "RUNNING", nodes="n[1-2]")
    until(lambda: any("n[1-2]" in text for text in texts))
    run.passes("a")
    listener.join(WITHIN_S)
    until(lambda: not listener.is_alive())
    assert len(texts) == len(set(texts)) and texts[0] == "submitted as job a"


def test_queue_time_and_run_time_are_separate(run: JobRun) -> None:
    """Queue wait and run time come from the scheduler's clock and the nodes' own."""
    session = run.start("a")
    job, now = run.watched("a"), time.time()
    run.backend.jobs["a"] = JobState("running", "RUNNING", submitted=now - 30, started=now - 10)
    until(lambda: job.running)
    run.passes("a")
    session.wait("a", ignore)
    result = run.result("a")
    assert result["queue_s"] == pytest.approx(20, abs=0.1)
    assert result["run_s"] == pytest.approx(5, abs=0.5)
    assert result["torchrun_s"] == 4.0


def test_thread_ends_after_the_last_phase(run: JobRun) -> None:
    """The thread ends by itself, and closing twice is harmless."""
    session = run.start("a")
    until(lambda: run.submitted() == ["a"])
    run.passes("a")
    session.wait("a", ignore)
    until(lambda: not session._thread.is_alive())
    session.close()
    session.close()
    assert run.backend.named("cancel") == []


def test_requested_rerun_is_submitted_once(run: JobRun) -> None:
    """It is a job of its own; a request for a phase that never ran, or a fourth, is ignored."""
    session = run.start("a", history_check="confirm")
    until(lambda: run.submitted() == ["a"])
    run.passes("a")
    session.wait("a", ignore)
    for phase, number in (("b", 1), ("a", 4), ("a", 1), ("a", 1)):
        run.run.request_rerun(phase, number)
    until(lambda: run.submitted() == ["a", "a.confirm1"])
    run.passes("a.confirm1")
    session.wait("a.confirm1", ignore)
    assert session.results["a.confirm1"].outcome == "passed"
    assert run.submitted() == ["a", "a.confirm1"]


def test_rerun_is_cancelled_with_the_run(run: JobRun) -> None:
    """As any job is, whether it was submitted or not."""
    session = run.start("a", history_check="confirm", limits={"poll_s": 0.05, "max_jobs": 1})
    until(lambda: run.submitted() == ["a"])
    run.passes("a")
    session.wait("a", ignore)
    names = [run.run.request_rerun("a", number) for number in (1, 2)]
    until(lambda: run.submitted() == ["a", "a.confirm1"] and names[1] in session.phases)
    session.cancel()
    for name in names:
        session.wait(name, ignore)
    assert [session.outcomes[name].outcome for name in names] == ["cancelled", "cancelled"]


def test_reruns_need_the_profiles_consent(run: JobRun) -> None:
    """A file that a job leaves there starts nothing."""
    session = run.start("a", "b")
    until(lambda: len(run.submitted()) == 2)
    run.passes("a")
    session.wait("a", ignore)
    run.run.request_rerun("a", 1)
    run.passes("b")
    session.wait("b", ignore)
    until(lambda: not session._thread.is_alive())
    assert run.submitted() == ["a", "b"]


def test_requeued_job_is_cancelled(run: JobRun) -> None:
    """A failed job that is requeued must not run a second time."""
    session = run.start("a")
    until(lambda: "a" in run.backend.directories)
    directory = run.run.phase("a")
    write_json(directory.node_result(0), {"ok": False, "reason": "node", "why": "gone"})
    directory.claim.touch()
    session.wait("a", ignore)
    assert run.backend.named("cancel") == [("a",)]
    assert run.result("a")["outcome"] != "passed"


def test_state_that_our_own_cancellation_made_is_an_interruption(run: JobRun) -> None:
    """The scheduler's answer, which was on its way, already has the cancelled job."""
    answer = run.backend.states

    def interrupt(job_ids: Iterable[str]) -> dict[str, JobState]:
        if run.sessions and not run.backend.named("cancel"):
            run.sessions[0].cancel()
            until(lambda: run.backend.named("cancel"))
            run.fails("a")  # its node was asked to end
        return answer(job_ids)

    session = run.start("a")
    until(lambda: run.submitted() == ["a"])
    run.backend.states = interrupt  # type: ignore[method-assign]
    session.wait("a", ignore)
    assert session.outcomes["a"].outcome == "cancelled"
    assert session.outcomes["a"].reason == "the run was interrupted"


@pytest.mark.parametrize(("failed_first", "outcome"), [(True, "failed"), (False, "cancelled")])
def test_failure_before_an_interruption_stays_one(
    run: JobRun, failed_first: bool, outcome: str
) -> None:
    """A node that was asked to end raises the abort flag as well: that is the interruption."""
    end, cause = run.backend.cancel, {"reason": "node", "why": "it is broken", "rank": None}

    def raise_abort() -> None:
        raise_flag(run.run.phase("a"), 0, "n0", cause)
        run.fails("a")

    def cancel(job_ids: Iterable[str]) -> bool:
        if not failed_first:
            raise_abort()
        return end(job_ids)

    session = run.start("a", nodes=2)
    until(lambda: run.submitted() == ["a"])
    run.backend.cancel = cancel  # type: ignore[method-assign]
    if failed_first:
        raise_abort()
    session.cancel()
    session.wait("a", ignore)
    assert session.outcomes["a"].outcome == outcome, session.outcomes["a"]
    assert ("broken" in session.outcomes["a"].reason) is failed_first


@pytest.mark.parametrize("nodes", [1, 2])
def test_scheduler_hardly_notices_twenty_phases(run: JobRun, nodes: int) -> None:
    """One squeue every `poll_s` serves all jobs. Phases of one node are an array, which takes one
    submission; those of two are a job each. Besides, a run asks less than ten questions."""
    slurm = FakeSlurm(run.folder)
    slurm.accept_jobs()
    ids = [*range(1, 21), *(f"1_{task}" for task in range(20))]
    slurm.answers("squeue", "".join(f"{job}|RUNNING|None|n1|N/A|N/A||\n" for job in ids))
    names, poll_s = [f"p{number}" for number in range(20)], 0.3
    limits = {"max_jobs": 20, "poll_s": poll_s}
    keys = {"backend": "slurm", "phases": dict.fromkeys(names), "limits": limits}
    profile = make_profile(run.folder, **keys)
    phases = [make_phase(profile, name, nodes=nodes) for name in names]
    run.run = RunDir(run.folder / "run1")
    run.run.root.mkdir()
    backend = SlurmBackend(profile, slurm.environ)
    check = SlurmCheck(profile, backend, slurm.environ)
    session = JobSession(run.run, profile, phases, backend, check)
    run.sessions.append(session)
    begun = time.monotonic()
    session.start()
    until(lambda: sum(event == "submitted" for event, _ in run.events()) == 20)
    until(lambda: slurm.commands().count("squeue") >= 3)
    for name in names:
        run.passes(name, nodes)
        session.wait(name, ignore)
        assert session.outcomes[name].outcome == "passed"
    seconds, calls = time.monotonic() - begun, slurm.calls()
    polls = slurm.commands().count("squeue")
    submissions = sum(call.startswith("sbatch --parsable") for call in calls)
    assert submissions == (1 if nodes == 1 else 20)
    assert sum("--test-only" in call for call in calls) == 1
    assert len(calls) - polls < 10 + submissions
    assert polls <= seconds / poll_s + 1


@pytest.mark.parametrize("starts", [True, False])
def test_job_that_starts_while_its_wait_ends_runs_on(run: JobRun, starts: bool) -> None:
    """One that does not is cancelled, and its phase ends once the scheduler shows that."""
    asked: list[str] = []

    def cancel_pending(job_id: str) -> bool:
        asked.append(job_id)
        if starts:
            run.backend.jobs[job_id] = JobState("running", "RUNNING", nodes="n1")
        return True

    run.backend.cancel_pending = cancel_pending  # type: ignore[attr-defined]
    session = run.start("a", limits={"queue_wait_s": 0.2, "poll_s": 0.05})
    until(lambda: asked)
    polls = len(run.backend.named("states"))
    until(lambda: len(run.backend.named("states")) > polls + 3)
    assert session.outcomes == {}
    if starts:
        run.passes("a")
    else:
        run.backend.jobs["a"] = JobState("ended", "CANCELLED")
    session.wait("a", ignore)
    assert session.outcomes["a"].outcome == ("passed" if starts else "never_ran")
    assert run.backend.named("cancel") == []


def test_cancellation_that_is_never_confirmed_is_said(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is given up: should it start, it ends at once."""
    monkeypatch.setattr(job_session, "WAIT_CONFIRM_S", 0.2)
    run.backend.cancel_pending = lambda job_id: False  # type: ignore[attr-defined]
    run.backend.on_cancel = JobState("pending", "PENDING")
    session = run.start("a", limits={"queue_wait_s": 0.1, "poll_s": 0.05})
    session.wait("a", ignore)
    assert "has not confirmed that it is cancelled" in run.result("a")["reason"]
    directory = run.run.phase("a")
    assert directory.withdrawn((read_json(directory.spec) or {})["token"]).exists()
