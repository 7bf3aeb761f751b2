"""When the scheduler is asked, and when a job is over."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from pytest_clustersmoke.evidence.run_directory import write_json
from pytest_clustersmoke.evidence.scheduler_record import (
    JobState,
    ScheduledJob,
    SchedulerRecord,
    read_scheduler_record,
)
from pytest_clustersmoke.jobs import job_watch
from pytest_clustersmoke.jobs.job_watch import Poller, Watched
from tests.fakes.backend import FakeBackend
from tests.support.evidence import Evidence


class Clock:
    """Monotonic time that only a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("pytest_clustersmoke.jobs.job_watch.time.monotonic", made.monotonic)
    return made


def watched(evidence: Evidence, name: str = "small") -> Watched:
    return Watched(name, name, evidence.dir, evidence.nodes, 1000.0)


def polls(backend: FakeBackend, job: Watched, clock: Clock, seconds: float) -> list[float]:
    """When the scheduler was asked in so many seconds of ticks."""
    poller, asked = Poller(backend, 2.0), []
    end = clock.now + seconds
    while clock.now < end:
        before = len(backend.calls)
        poller.poll([job])
        if len(backend.calls) > before:
            asked.append(clock.now)
        clock.now += 0.2
    return asked


def test_pending_jobs_are_asked_for_ever_more_rarely(tmp_path: Path, clock: Clock) -> None:
    """While all jobs are pending the questions grow rarer, to one in 15 s."""
    backend = FakeBackend()
    backend.jobs["small"] = JobState("pending", "PENDING")
    asked = polls(backend, watched(Evidence(tmp_path)), clock, 600)
    gaps = [later - sooner for sooner, later in pairwise(asked)]
    assert (
        gaps == sorted(gaps)
        or max(abs(a - b) for a, b in zip(gaps, sorted(gaps), strict=True)) < 0.3
    )
    assert gaps[0] < 1.5 and gaps[-1] == pytest.approx(15, abs=0.5)
    assert len(asked) < 50


def test_running_jobs_are_asked_for_regularly(tmp_path: Path, clock: Clock) -> None:
    """Once a job runs it is asked for at least every poll_s."""
    backend = FakeBackend()
    backend.jobs["small"] = JobState("running", "RUNNING")
    asked = polls(backend, watched(Evidence(tmp_path)), clock, 60)
    gaps = [later - sooner for sooner, later in pairwise(asked)]
    assert max(gaps) <= 2.5 and len(asked) < 40


def test_one_question_for_all_jobs(tmp_path: Path, clock: Clock) -> None:
    """Several jobs are asked for in one call, and none without jobs."""
    backend = FakeBackend()
    evidence = Evidence(tmp_path)
    Poller(backend, 2.0).poll([])
    Poller(backend, 2.0).poll([watched(evidence, "a"), watched(evidence, "b")])
    assert backend.calls == [("states", "a", "b")]


def test_a_claim_tells_of_a_start_before_the_scheduler(tmp_path: Path, clock: Clock) -> None:
    """The job's own claim makes it running, and the next question comes within poll_s."""
    evidence, backend = Evidence(tmp_path), FakeBackend()
    backend.jobs["small"] = JobState("pending", "PENDING")
    job, poller = watched(evidence), Poller(backend, 2.0)
    for _ in range(1000):
        poller.poll([job])
        clock.now += 0.2
    before = len(backend.calls)
    evidence.dir.claim(0).touch()
    job.look()
    assert job.running
    for _ in range(12):
        poller.poll([job])
        clock.now += 0.2
    assert len(backend.calls) > before


def test_results_of_all_nodes_end_a_job_that_succeeded(tmp_path: Path, clock: Clock) -> None:
    """Its own results are enough: the scheduler's word is not waited for."""
    evidence = Evidence(tmp_path, nodes=2)
    job = watched(evidence)
    assert not job.over()
    evidence.node(0, ok=True)
    assert not job.over()
    evidence.node(1, ok=True)
    assert job.over()


def test_a_failure_waits_a_while_for_the_schedulers_word(tmp_path: Path, clock: Clock) -> None:
    """A failed job may be a node failure: over with the scheduler's word, or after a bound."""
    evidence = Evidence(tmp_path).node(0, ok=False)
    job = watched(evidence)
    assert not job.over()
    clock.now += job_watch.VERDICT_GRACE_S + 0.1
    assert job.over()
    job = watched(evidence)
    job.hear(JobState("ended", "CANCELLED"))
    assert job.over()


def test_a_failed_nodes_name_is_waited_for_a_while(tmp_path: Path, clock: Clock) -> None:
    """Slurm knows at once that a node failed; which one srun writes to the job's log later."""
    evidence = Evidence(tmp_path).node(0, ok=False)
    job = watched(evidence)
    job.hear(JobState("ended", "NODE_FAIL"))
    assert not job.over()
    evidence.dir.submitit.mkdir()
    (evidence.dir.submitit / "7_0_log.err").write_text("srun: error: Node failure on n1\n")
    assert job.over()
    (evidence.dir.submitit / "7_0_log.err").write_text("")
    assert not job.over()
    clock.now += job_watch.NODE_NAMED_S + 0.1
    assert job.over()


def test_details_are_asked_of_all_nodes_that_the_job_had(tmp_path: Path, clock: Clock) -> None:
    """While it completes Slurm lists only those that are not done; a name that is no node's, since
    the job wrote it, is not passed on."""
    evidence = Evidence(tmp_path, nodes=3).node(0, ok=False).node(1, ok=False)
    write_json(evidence.dir.node_facts(2), {"node": "n2;reboot -f"})
    job = watched(evidence)
    job.hear(JobState("ended", "NODE_FAIL", "NodeDown", "n0"))
    backend = FakeBackend()
    backend.records["small"] = SchedulerRecord(ScheduledJob(ended="now", text="EndTime=now"))
    job.ask_details(backend, evidence.result())
    assert backend.named("details") == [("small", "NODE_FAIL", "n0,n0,n1")]
    assert read_scheduler_record(evidence.dir.scheduler).job.ended == "now"


def test_an_ended_job_gets_time_for_late_results(tmp_path: Path, clock: Clock) -> None:
    """A shared file system may show the result after the scheduler tells of the end."""
    for word, grace_s in (
        ("FAILED", job_watch.RESULT_GRACE_S),
        ("COMPLETED", job_watch.COMPLETED_GRACE_S),
    ):
        job = watched(Evidence(tmp_path))
        job.hear(JobState("ended", word))
        clock.now += grace_s - 0.1
        assert not job.over()
        clock.now += 0.2
        assert job.over()


def test_a_job_that_is_put_back_is_over_before_it_starts_again(
    tmp_path: Path, clock: Clock
) -> None:
    """Killed without a result and requeued, it would start minutes later: that is not waited for.
    A job that has never run, or whose nodes boot, is no such job."""
    job = watched(Evidence(tmp_path))
    for word in ("PENDING", "CONFIGURING"):
        job.hear(JobState("pending", word))
        clock.now += job_watch.RESULT_GRACE_S + 0.1
        assert not job.over()
    job.hear(JobState("running", "RUNNING"))
    job.hear(JobState("pending", "CONFIGURING"))
    clock.now += job_watch.RESULT_GRACE_S + 0.1
    assert not job.over()
    job.hear(JobState("running", "RUNNING"))
    job.hear(JobState("pending", "PENDING"))
    assert not job.over()
    clock.now += job_watch.RESULT_GRACE_S + 0.1
    assert job.over()


def test_a_forgotten_job_is_lost_after_a_while(tmp_path: Path, clock: Clock) -> None:
    """Unknown once is not lost; unknown for long is, and then it has no witness."""
    job = watched(Evidence(tmp_path))
    job.hear(JobState("unknown", ""))
    assert not job.over() and job.witness() is None
    job.hear(JobState("running", "RUNNING"))
    clock.now += job_watch.LOST_GRACE_S + 1
    assert not job.over()
    assert job.witness() is not None
    job.hear(JobState("unknown", ""))
    clock.now += job_watch.LOST_GRACE_S + 1
    assert job.over()


def test_no_answer_changes_nothing(tmp_path: Path, clock: Clock) -> None:
    """A scheduler that does not answer makes no job lost."""
    backend = FakeBackend()
    job = watched(Evidence(tmp_path))
    polls(backend, job, clock, 300)
    assert not job.over()


def test_stragglers_are_seen(tmp_path: Path, clock: Clock) -> None:
    """A job whose flag is up and whose nodes do not all end is straggling after a bound."""
    evidence = Evidence(tmp_path, nodes=2).node(0, ok=False)
    evidence.dir.abort.write_text("{}")
    job = watched(evidence)
    job.look()
    assert not job.straggling()
    clock.now += job_watch.STRAGGLER_S + 1
    assert job.straggling()
