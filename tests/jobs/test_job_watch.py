"""When the scheduler is polled, and when a job is over."""

from __future__ import annotations

import errno
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence import job_results, phase_result
from pytest_clustersmoke.evidence.run_directory import read_json, write_json
from pytest_clustersmoke.evidence.scheduler_record import (
    NODE_FAILED,
    OUT_OF_MEMORY,
    JobState,
    ScheduledJob,
    SchedulerRecord,
    read_scheduler_record,
)
from pytest_clustersmoke.evidence.telemetry import EventWriter
from pytest_clustersmoke.jobs import job_watch
from pytest_clustersmoke.jobs.job_watch import WatchedJob
from pytest_clustersmoke.jobs.outcome import judge_job
from pytest_clustersmoke.jobs.poller import Poller
from pytest_clustersmoke.jobs.slurm_jobs import parse_sinfo
from tests.fakes.backend import FakeBackend
from tests.support.evidence import Evidence


class Clock:
    """Monotonic time that only the test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("pytest_clustersmoke.jobs.job_watch.time.monotonic", clock.monotonic)
    return clock


def watched(evidence: Evidence, name: str = "small") -> WatchedJob:
    return WatchedJob(name, name, evidence.dir, evidence.nodes, 1000.0)


def polls(backend: FakeBackend, job: WatchedJob, clock: Clock, seconds: float) -> list[float]:
    """Poll for this many seconds; return when the scheduler was asked."""
    poller, asked = Poller(backend, 2.0), []
    end = clock.now + seconds
    while clock.now < end:
        before = len(backend.calls)
        poller.poll([job])
        if len(backend.calls) > before:
            asked.append(clock.now)
        clock.now += 0.2
    return asked


def test_jobs_that_start_and_end_all_the_time_cost_no_more_polls(
    tmp_path: Path, clock: Clock
) -> None:
    """Each start and end asks for a poll soon, which is one for all of them, every `poll_s`."""
    backend, job = FakeBackend(), watched(Evidence(tmp_path))
    poller, asked = Poller(backend, 2.0), list[float]()
    for _ in range(300):
        poller.poll_soon()
        poller.poll([job])
        clock.now += 0.2
        if len(backend.calls) > len(asked):
            asked.append(clock.now)
    assert len(asked) >= 20
    assert min(later - sooner for sooner, later in pairwise(asked)) > 1.9


def test_pending_jobs_are_polled_more_and_more_rarely(tmp_path: Path, clock: Clock) -> None:
    """While all jobs are pending the polls become rarer, down to one per 15 s."""
    backend = FakeBackend()
    backend.jobs["small"] = JobState("pending", "PENDING")
    asked = polls(backend, watched(Evidence(tmp_path)), clock, 600)
    gaps = [later - sooner for sooner, later in pairwise(asked)]
    assert (
        gaps == sorted(gaps)
        or max(abs(a - b) for a, b in zip(gaps, sorted(gaps), strict=True)) < 0.3
    )
    assert gaps[0] == pytest.approx(2, abs=0.3) and gaps[-1] == pytest.approx(15, abs=0.5)
    assert len(asked) < 50


def test_running_jobs_are_polled_regularly(tmp_path: Path, clock: Clock) -> None:
    """A running job is polled at least every poll_s."""
    backend = FakeBackend()
    backend.jobs["small"] = JobState("running", "RUNNING")
    asked = polls(backend, watched(Evidence(tmp_path)), clock, 60)
    gaps = [later - sooner for sooner, later in pairwise(asked)]
    assert max(gaps) <= 2.5 and len(asked) < 40


def test_one_poll_for_all_jobs(tmp_path: Path, clock: Clock) -> None:
    """One call covers several jobs; without jobs there is none."""
    backend = FakeBackend()
    evidence = Evidence(tmp_path)
    Poller(backend, 2.0).poll([])
    Poller(backend, 2.0).poll([watched(evidence, "a"), watched(evidence, "b")])
    assert backend.calls == [("states", "a", "b")]


def test_claim_shows_the_start_before_the_scheduler(tmp_path: Path, clock: Clock) -> None:
    """A job with a claim counts as running, and the next poll comes within poll_s."""
    evidence, backend = Evidence(tmp_path), FakeBackend()
    backend.jobs["small"] = JobState("pending", "PENDING")
    job, poller = watched(evidence), Poller(backend, 2.0)
    for _ in range(1000):
        poller.poll([job])
        clock.now += 0.2
    before = len(backend.calls)
    evidence.dir.claim.touch()
    job.check_files()
    assert job.running
    for _ in range(12):
        poller.poll([job])
        clock.now += 0.2
    assert len(backend.calls) > before


def test_results_of_all_nodes_end_a_successful_job(tmp_path: Path, clock: Clock) -> None:
    """Its own results are enough, without the scheduler's state."""
    evidence = Evidence(tmp_path, nodes=2)
    job = watched(evidence)
    assert not job.is_over()
    evidence.node(0, ok=True)
    assert not job.is_over()
    evidence.node(1, ok=True)
    assert job.is_over()


def test_results_of_nodes_are_read_once(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collection takes those that the watch has read. A result that cannot be read yet is read
    again."""
    evidence = Evidence(tmp_path, nodes=2).node(0, ok=True).node(1, ok=True)
    whole = evidence.dir.node_result(1).read_text()
    evidence.dir.node_result(1).write_text(whole[:9])
    job = watched(evidence)
    assert not job.is_over() and not job.has_succeeded()
    evidence.dir.node_result(1).write_text(whole)
    assert job.is_over() and job.has_succeeded()
    reads: list[Path] = []

    def read(path: Path, *most_bytes: int) -> dict[str, Any] | None:
        reads.append(path)
        return read_json(path, *most_bytes)

    monkeypatch.setattr(job_results, "read_json", read)
    monkeypatch.setattr(phase_result, "read_json", read)
    assert job.is_over() and job.has_succeeded()
    result = phase_result.collect_phase(evidence.dir, job.results)
    assert all(node.ok for node in result.nodes)
    assert not {evidence.dir.node_result(node) for node in (0, 1)} & set(reads)


def test_failure_waits_a_while_for_the_schedulers_state(tmp_path: Path, clock: Clock) -> None:
    """A failure may be a node failure: the job is over with the scheduler's state or later."""
    evidence = Evidence(tmp_path).node(0, ok=False)
    job = watched(evidence)
    assert not job.is_over()
    clock.now += job_watch.VERDICT_GRACE_S + 0.1
    assert job.is_over()
    job = watched(evidence)
    job.record_state(JobState("ended", "CANCELLED"))
    assert job.is_over()


def test_name_of_failed_node_is_waited_for(tmp_path: Path, clock: Clock) -> None:
    """Slurm reports a node failure at once, but srun logs the node's name later."""
    evidence = Evidence(tmp_path, nodes=2).node(0, ok=False).node(1, ok=False)
    job = watched(evidence)
    job.record_state(JobState("ended", "NODE_FAIL"))
    assert not job.is_over()
    evidence.dir.submitit.mkdir()
    (evidence.dir.submitit / "7_0_log.err").write_text("srun: error: Node failure on n1\n")
    assert job.is_over()
    (evidence.dir.submitit / "7_0_log.err").write_text("")
    assert not job.is_over()
    clock.now += job_watch.NODE_NAMED_S + 0.1
    assert job.is_over()


def test_nodes_that_survive_another_have_time_to_write_what_they_saw(
    tmp_path: Path, clock: Clock
) -> None:
    """Two of four failed. The others first end their ranks, and a shared file system may show their
    results later; but they are not waited for as long as they like."""
    evidence = Evidence(tmp_path, nodes=4).started()
    evidence.dir.submitit.mkdir()
    log = "srun: error: Node failure on n[1-2]\n"
    (evidence.dir.submitit / "7_0_log.err").write_text(log)
    job = watched(evidence)
    job.record_state(JobState("ended", "NODE_FAIL"))
    clock.now += job_watch.NODE_NAMED_S - 0.1
    evidence.node(0, ok=False)
    assert not job.is_over()
    evidence.node(3, ok=False)
    assert job.is_over() and job.results.keys() == {0, 3}
    job = watched(Evidence(tmp_path / "silent", nodes=2).started())
    job.record_state(JobState("ended", "NODE_FAIL"))
    clock.now += job_watch.NODE_NAMED_S - 0.1
    assert not job.is_over()
    clock.now += 0.2
    assert job.is_over()


def test_result_after_the_failure_of_another_node_may_be_shown_later(
    tmp_path: Path, clock: Clock
) -> None:
    """Also where the node that failed for Slurm, whose daemon was killed, goes on to write."""
    evidence = Evidence(tmp_path, nodes=2).started().node(0, ok=False)
    evidence.dir.submitit.mkdir()
    (evidence.dir.submitit / "7_0_log.err").write_text("srun: error: Node failure on n1\n")
    job = watched(evidence)
    job.record_state(JobState("ended", "NODE_FAIL"))
    clock.now += job_watch.RESULT_GRACE_S - 0.1
    assert not job.is_over()
    clock.now += 0.2
    assert job.is_over()


def test_failure_of_the_only_node_is_judged_at_once(tmp_path: Path, clock: Clock) -> None:
    """Nobody has to name it, and what it has not written is lost."""
    job = watched(Evidence(tmp_path).started())
    job.record_state(JobState("ended", "NODE_FAIL"))
    assert not job.is_over()
    clock.now += job_watch.NODE_FAILED_GRACE_S + 0.1
    assert job.is_over()


def test_failure_of_the_node_with_srun_is_judged_once_all_others_have_written(
    tmp_path: Path, clock: Clock
) -> None:
    """Nobody is left to name it: srun ran on the first node."""
    evidence = Evidence(tmp_path, nodes=3).started().node(1, ok=False)
    job = watched(evidence)
    job.record_state(JobState("ended", "NODE_FAIL"))
    clock.now += job_watch.NODE_FAILED_GRACE_S + 0.1
    assert not job.is_over()
    evidence.node(2, ok=False)
    assert job.is_over()
    job = watched(evidence)
    job.record_state(JobState("ended", "NODE_FAIL"))
    assert not job.is_over()


def test_details_cover_all_nodes_of_the_job(tmp_path: Path, clock: Clock) -> None:
    """While a job completes Slurm lists only the nodes that are not done. A string that the job
    wrote and that is not a valid node name is not passed on."""
    evidence = Evidence(tmp_path, nodes=3).node(0, ok=False).node(1, ok=False)
    write_json(evidence.dir.node_facts(2), {"node": "n2;reboot -f"})
    job = watched(evidence)
    job.record_state(JobState("ended", "NODE_FAIL", "NodeDown", "n0"))
    backend = FakeBackend()
    backend.records["small"] = SchedulerRecord(ScheduledJob(ended=5.0, text="EndTime=now"))
    job.save_details(backend, evidence.result())
    assert backend.named("details") == [("small", "NODE_FAIL", "n0,n0,n1")]
    assert read_scheduler_record(evidence.dir.scheduler).job.ended == 5.0


def test_slurms_messages_in_the_log_are_saved(tmp_path: Path, clock: Clock) -> None:
    """Even if Slurm itself no longer knows anything about the job."""
    evidence = Evidence(tmp_path).node(0, ok=False)
    evidence.dir.submitit.mkdir()
    log = evidence.dir.submitit / "7_0_log.err"
    log.write_text("noise\nsrun: error: Node failure on n1\n")
    job = watched(evidence)
    job.record_state(JobState("ended", "NODE_FAIL", "NodeDown", "n0"))
    job.save_details(FakeBackend(), evidence.result())
    (message,) = read_scheduler_record(evidence.dir.scheduler).logged(NODE_FAILED)
    assert (message.node, message.file, message.number) == ("n1", str(log), 2)


@pytest.mark.parametrize(
    ("line", "node"),
    [
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.", ""),
        ("slurmstepd-n1: error: Detected 2 oom-kill event(s) in step 7.0 cgroup.", "n1"),
        ("slurmstepd: error: Exceeded step memory limit at some point.", ""),
        ("srun: error: n1: tasks 0,2-3: Out Of Memory", "n1"),
    ],
)
def test_memory_kills_in_the_log_are_saved(tmp_path: Path, line: str, node: str) -> None:
    """Even if nobody may ask the scheduler, because the run was interrupted."""
    evidence = Evidence(tmp_path).node(0, ok=False)
    evidence.dir.submitit.mkdir()
    (evidence.dir.submitit / "7_0_log.err").write_text(f"{line}\n")
    watched(evidence).save_details(None, evidence.result())
    (message,) = read_scheduler_record(evidence.dir.scheduler).logged(OUT_OF_MEMORY)
    assert (message.node, message.text) == (node, line)


def test_ended_job_gets_time_for_late_results(tmp_path: Path, clock: Clock) -> None:
    """A shared file system may show the result after the scheduler reports the end."""
    for raw, grace_s in (
        ("FAILED", job_watch.RESULT_GRACE_S),
        ("COMPLETED", job_watch.COMPLETED_GRACE_S),
    ):
        job = watched(Evidence(tmp_path))
        job.record_state(JobState("ended", raw))
        clock.now += grace_s - 0.1
        assert not job.is_over()
        clock.now += 0.2
        assert job.is_over()


def test_requeued_job_is_over_before_it_restarts(tmp_path: Path, clock: Clock) -> None:
    """A job that was killed without a result and requeued would start minutes later; nobody waits
    for that. A job that has never run, or whose nodes boot, does not count as requeued."""
    job = watched(Evidence(tmp_path))
    for raw in ("PENDING", "CONFIGURING"):
        job.record_state(JobState("pending", raw))
        clock.now += job_watch.RESULT_GRACE_S + 0.1
        assert not job.is_over()
    job.record_state(JobState("running", "RUNNING"))
    job.record_state(JobState("pending", "CONFIGURING"))
    clock.now += job_watch.RESULT_GRACE_S + 0.1
    assert not job.is_over()
    job.record_state(JobState("running", "RUNNING"))
    job.record_state(JobState("pending", "PENDING"))
    assert not job.is_over()
    clock.now += job_watch.RESULT_GRACE_S + 0.1
    assert job.is_over()


WAITS = JobState("pending", "PENDING", "JobArrayTaskLimit", submitted=100.0)
RUNS = JobState("running", "RUNNING", nodes="n0", submitted=100.0, started=103.0)
ENDED_OUTSIDE = "the job was ended by SIGTERM from outside"
UNHEARD = parse_sinfo("n0|unknown|Unknown|Unknown|none")


@pytest.fixture
def set_back(tmp_path: Path, clock: Clock) -> tuple[Evidence, WatchedJob]:
    """A job that runs, while slurmctld comes back with the state that it had before, and has not
    heard of the node yet."""
    evidence = Evidence(tmp_path).started()
    evidence.dir.claim.touch()
    job = watched(evidence)
    for state in (WAITS, RUNS, WAITS):
        job.record_state(state)
        clock.now += job_watch.RESULT_GRACE_S + 0.1
    SchedulerRecord(nodes=UNHEARD).write(evidence.dir.scheduler)
    return evidence, job


def test_running_job_that_slurmctld_shows_as_pending_passes(
    set_back: tuple[Evidence, WatchedJob], clock: Clock
) -> None:
    """A slurmctld that was killed shows what it last saved. The job's result is its truth."""
    evidence, job = set_back
    assert not job.is_over() and not job.has_left_queue and job.may_end
    clock.now += job_watch.FORGOTTEN_LOOK_S
    assert not job.is_over()
    evidence.done()
    assert job.is_over() and job.has_succeeded()
    assert judge_job(evidence.result(), job.last_state()).outcome == "passed"


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("rank_died", ("failed", "n0: rank 0 died")),
        (
            "terminated",
            ("lost", f"the job was ended by SIGTERM from outside, and {job_watch.OUTDATED}"),
        ),
    ],
)
def test_job_that_slurmctld_shows_as_pending_was_not_requeued(
    reason: str,
    expected: tuple[str, str],
    set_back: tuple[Evidence, WatchedJob],
    clock: Clock,
) -> None:
    """Its own reason counts, and no node failed that slurmctld has not heard of yet."""
    evidence, job = set_back
    evidence.node(0, ok=False, reason=reason, why="rank 0 died")
    assert not job.is_over()
    clock.now += job_watch.VERDICT_GRACE_S + 1
    assert job.is_over()
    judged = judge_job(evidence.result(), job.last_state())
    assert (judged.outcome, judged.reason) == expected


def test_second_start_after_slurmctld_was_set_back_does_not_end_the_first(
    set_back: tuple[Evidence, WatchedJob], clock: Clock
) -> None:
    """The second one ends at the claim of the first, whose ranks go on."""
    evidence, job = set_back
    again = replace(RUNS, started=109.0)
    job.record_state(again)
    evidence.dir.started_again.touch()
    job.record_state(replace(again, kind="ended", raw="FAILED"))
    clock.now += job_watch.RESULT_GRACE_S + 0.1
    assert not job.is_over() and job.has_left_queue
    evidence.done()
    assert job.is_over() and job.has_succeeded()


def test_job_that_slurmctld_has_set_back_and_whose_ranks_are_silent_is_over(
    set_back: tuple[Evidence, WatchedJob], clock: Clock
) -> None:
    """It may have been killed; it is cancelled, since it could start a second time."""
    job = set_back[1]
    assert lost_after_s(job, clock) < 130
    assert job.may_run and job.last_state() == JobState("unknown", "", job_watch.OUTDATED)


@pytest.mark.parametrize("node", ["down*", "idle"])
def test_requeue_is_a_new_submission(node: str, tmp_path: Path, clock: Clock) -> None:
    """Slurm changes the time of submission of a job that it requeues."""
    evidence = Evidence(tmp_path).started()
    evidence.dir.claim.touch()
    job = watched(evidence)
    job.record_state(WAITS)
    job.record_state(RUNS)
    job.record_state(replace(WAITS, reason="BeginTime", submitted=140.0))
    clock.now += job_watch.RESULT_GRACE_S + 0.1
    assert job.is_over()
    nodes = parse_sinfo(f"n0|{node}|2026-01-01T00:00:00|root|Not responding")
    SchedulerRecord(nodes=nodes).write(evidence.dir.scheduler)
    judged = judge_job(evidence.result(), job.last_state())
    assert judged.outcome == ("cluster_failed" if node == "down*" else "preempted")


def test_results_seen_after_a_requeue_still_ask_for_it(tmp_path: Path, clock: Clock) -> None:
    """A shared file system may show the nodes' results after the scheduler reports the requeue."""
    evidence = Evidence(tmp_path)
    job = watched(evidence)
    job.resumes = True
    job.record_state(JobState("running", "RUNNING"))
    job.record_state(JobState("pending", "PENDING"))
    assert job.restarts == 0 and not job.is_over()
    clock.now += job_watch.RESULT_GRACE_S - 0.1
    evidence.node(0, ok=True, stopped=True, requeue=True)
    job.record_state(JobState("pending", "PENDING"))
    assert job.restarts == 1 and not job.is_over()


@pytest.mark.parametrize("submitted", [100.0, 140.0])
def test_requeue_that_an_earlier_controller_saw_is_waited_for(
    submitted: float, tmp_path: Path, clock: Clock
) -> None:
    """The job waits for its restart as the last controller journalled it, or was requeued after
    that one was killed. It was not set back: its ranks had saved, and it asked for the requeue."""
    evidence = Evidence(tmp_path).node(0, ok=True, stopped=True, requeue=True)
    evidence.dir.claim.touch()
    job = watched(evidence)
    job.resumes, job.is_sure, job.submitted = True, False, submitted
    job.check_files()
    for _ in range(3):
        job.record_state(replace(WAITS, reason="BeginTime", submitted=140.0))
        clock.now += 600
        assert not job.is_over() and job.restarts == 1 and job.is_sure
    assert job.was_requeued and not job.running and job.unknown_since is None
    job.record_state(replace(RUNS, submitted=140.0))
    assert job.running and job.directory == evidence.dir.restarted(1)


def test_restart_that_no_controller_saw_counts(tmp_path: Path, clock: Clock) -> None:
    """The next one is after it, not the same again."""
    evidence = Evidence(tmp_path).node(0, ok=True, stopped=True, requeue=True)
    evidence.dir.claim.touch()
    again = evidence.dir.restarted(1)
    again.node_result(0).parent.mkdir(parents=True)
    again.claim.touch()
    job = watched(evidence)
    job.resumes, job.is_sure = True, False
    job.check_files()
    job.record_state(replace(RUNS, submitted=140.0))
    assert job.directory == again and job.restarts == 1
    write_json(again.node_result(0), {"ok": True, "stopped": True, "requeue": True})
    job.record_state(replace(WAITS, submitted=180.0))
    assert job.directory == evidence.dir.restarted(2) and job.restarts == 2
    assert not job.is_over()


def test_unknown_job_is_lost_after_a_while(tmp_path: Path, clock: Clock) -> None:
    """A job unknown once is not lost; one that stays unknown is, and has no last state."""
    job = watched(Evidence(tmp_path))
    job.record_state(JobState("unknown", ""))
    assert not job.is_over() and job.last_state() is None
    job.record_state(JobState("running", "RUNNING"))
    clock.now += job_watch.COMPLETED_GRACE_S + 1
    assert not job.is_over()
    assert job.last_state() is not None
    job.record_state(JobState("unknown", ""))
    assert not job.is_over()
    clock.now += job_watch.COMPLETED_GRACE_S + 1
    assert job.is_over()


def forgotten(evidence: Evidence) -> WatchedJob:
    """A job that has started and that the scheduler no longer knows."""
    evidence.dir.claim.touch()
    limits = {"init": 120.0, "first_step": 300.0, "train_step": 90.0}
    job = replace(watched(evidence), timeout_s=3600.0, stage_limits_s=limits)
    job.record_state(JobState("running", "RUNNING"))
    job.record_state(JobState("unknown", ""))
    return job


def lost_after_s(job: WatchedJob, clock: Clock) -> float:
    begun = clock.now
    while not job.is_over():
        clock.now += 1.0
        assert clock.now - begun < 5000
    return clock.now - begun


@pytest.mark.parametrize(
    ("events", "limit_s"),
    [
        ([], 120),
        ([("stage", {"name": "train", "state": "begin"})], 300),
        ([("stage", {"name": "train", "state": "begin"}), ("step", {"step": 3})], 90),
    ],
)
def test_forgotten_job_is_watched_while_its_ranks_write(
    events: list[tuple[str, dict[str, Any]]], limit_s: float, tmp_path: Path, clock: Clock
) -> None:
    """A Slurm that lost its state knows nothing of a job that still trains. It is lost once a rank
    is silent for longer than its stage may take, and its node has not ended it in the time that
    NFS may need to show that. It may run even then."""
    evidence = Evidence(tmp_path).started()
    job = forgotten(evidence)
    for _ in range(60):
        evidence.rank(0, ("step", {"step": 1}))
        clock.now += 10
        assert not job.is_over()
    evidence.dir.rank_events(0).unlink()
    evidence.rank(0, *events)
    expected = pytest.approx(
        limit_s + job_watch.COMPLETED_GRACE_S, abs=3 * job_watch.FORGOTTEN_LOOK_S
    )
    assert lost_after_s(job, clock) == expected and job.may_run


def test_forgotten_job_whose_ranks_wait_for_a_cpu_is_not_lost(tmp_path: Path, clock: Clock) -> None:
    """Its node says so from time to time: there the ranks' limits are longer by that."""
    evidence = Evidence(tmp_path).started().rank(0, ("stage", {"name": "train", "state": "begin"}))
    job = forgotten(evidence)
    events = EventWriter(evidence.dir.node_events(0))
    for _ in range(10):
        events.write("queued", seconds=20.0)
        clock.now += 300
        assert not job.is_over()
    limit_s = 300 + job_watch.COMPLETED_GRACE_S
    assert lost_after_s(job, clock) < limit_s + 3 * job_watch.FORGOTTEN_LOOK_S


def test_forgotten_job_that_writes_a_trace_may_do_so_for_as_long_as_it_may_run(
    tmp_path: Path, clock: Clock
) -> None:
    """The limit of a step does not count meanwhile."""
    begun: list[tuple[str, dict[str, Any]]] = [
        ("stage", {"name": "train", "state": "begin"}),
        ("step", {"step": 3}),
    ]
    evidence = Evidence(tmp_path).started().rank(0, *begun, ("trace_write", {"state": "begin"}))
    assert lost_after_s(forgotten(evidence), clock) > 3600
    written = Evidence(tmp_path / "written").started()
    written.rank(0, *begun, *[("trace_write", {"state": state}) for state in ("begin", "end")])
    assert lost_after_s(forgotten(written), clock) < 90 + 2 * job_watch.COMPLETED_GRACE_S


def test_forgotten_job_is_lost_after_its_own_time_limit(tmp_path: Path, clock: Clock) -> None:
    """Even if something still writes its events."""
    evidence = Evidence(tmp_path).started()
    job, begun = forgotten(evidence), clock.now
    while not job.is_over():
        evidence.rank(0, ("step", {"step": 1}))
        clock.now += 20
        assert clock.now - begun < 2 * 3600
    assert clock.now - begun > 3600


def test_result_of_a_job_that_was_purged_before_it_was_seen_counts(
    tmp_path: Path, clock: Clock
) -> None:
    """A file system may show it half a minute later."""
    evidence = Evidence(tmp_path)
    job = watched(evidence)
    job.record_state(JobState("unknown", ""))
    for _ in range(5):
        assert not job.is_over()
        clock.now += job_watch.FORGOTTEN_LOOK_S
    evidence.done()
    assert job.is_over() and job.has_succeeded() and not job.may_run


OURS = ("clustersmoke-r1-small", "clustersmoke run=r1 phase=small token=a")


@pytest.mark.parametrize(
    ("name", "comment", "is_ours"),
    [
        (*OURS, True),
        (OURS[0], "", True),
        (OURS[0], "project 17", True),  # a site's own
        (OURS[0], f"{OURS[1]}; project 17", True),
        (OURS[0], OURS[1][:-1], True),  # a site's limit on the length of comments
        (OURS[0], OURS[1][:25], True),
        (OURS[0], OURS[1][:12], True),
        (OURS[0], "clustersmoke run=r2 phase=sm", False),
        (OURS[0], "clustersmoke run=r1 phase=large", False),
        ("", "", True),  # a backend that shows no names
        ("somebody-elses", "", False),
        ("somebody-elses", OURS[1], False),
        (OURS[0], OURS[1].replace("token=a", "token=b"), False),
    ],
)
def test_job_of_another_name_or_comment_says_nothing_about_ours(
    name: str, comment: str, is_ours: bool, tmp_path: Path, clock: Clock
) -> None:
    """A Slurm that lost its state counts from 1 again. That job is not cancelled, and nothing of it
    is taken for evidence."""
    evidence, backend = Evidence(tmp_path).started(), FakeBackend()
    evidence.dir.claim.touch()
    job = replace(watched(evidence), words=OURS)
    job.record_state(JobState("ended", "COMPLETED", name=name, comment=comment))
    job.save_details(backend, evidence.result())
    assert {name for name, *_ in backend.calls} == ({"details"} if is_ours else set())
    assert job.may_end == is_ours
    assert (job.ended_at is not None) == is_ours
    assert not job.is_over()
    clock.now += job_watch.COMPLETED_GRACE_S + 1
    assert job.is_over()
    if not is_ours:
        judged = judge_job(evidence.result(), job.last_state())
        reason = "the job left no result, and Slurm shows another job under this id"
        assert (judged.outcome, judged.reason) == ("lost", reason)


def test_unanswered_polls_change_nothing(tmp_path: Path, clock: Clock) -> None:
    """A scheduler that does not answer does not make a job lost."""
    backend = FakeBackend()
    job = watched(Evidence(tmp_path))
    polls(backend, job, clock, 300)
    assert not job.is_over()


@pytest.mark.parametrize("last", [None, "PENDING", "RUNNING"])
@pytest.mark.parametrize("reason", ["terminated", "rank_died"])
def test_answer_from_before_the_end_says_nothing_about_it(
    reason: str, last: str | None, tmp_path: Path, clock: Clock
) -> None:
    """Somebody cancels the job while squeue fails: nobody requeued it, and it did not fail. What
    its own nodes say stays."""
    evidence = Evidence(tmp_path).started()
    job = watched(evidence)
    if last:
        job.record_state(JobState("running" if last == "RUNNING" else "pending", last))
    clock.now += 60
    evidence.node(0, ok=False, reason=reason, why="rank 0 died")
    assert not job.is_over()
    clock.now += job_watch.VERDICT_GRACE_S + 1
    assert job.is_over()
    judged = judge_job(evidence.result(), job.last_state())
    silent = (
        "lost",
        "the job was ended by SIGTERM from outside, and the scheduler does not answer",
    )
    named = ("failed", "n0: rank 0 died")
    expected = silent if reason == "terminated" else named
    assert (judged.outcome, judged.reason) == expected


def test_requeue_that_the_scheduler_reports_after_the_end_counts(
    tmp_path: Path, clock: Clock
) -> None:
    """Also where it was never seen to run."""
    evidence = Evidence(tmp_path).started()
    job = watched(evidence)
    job.record_state(JobState("pending", "PENDING"))
    evidence.node(0, ok=False, reason="terminated", why="SIGTERM")
    assert not job.is_over()
    clock.now += 1
    job.record_state(JobState("pending", "PENDING"))
    assert judge_job(evidence.result(), job.last_state()).outcome == "preempted"


def test_straggling_job_is_detected(tmp_path: Path, clock: Clock) -> None:
    """A job with an abort flag whose nodes do not all end is straggling after a while."""
    evidence = Evidence(tmp_path, nodes=2).node(0, ok=False)
    evidence.dir.abort.write_text("{}")
    job = watched(evidence)
    job.check_files()
    assert not job.is_straggling()
    clock.now += job_watch.STRAGGLER_S + 1
    assert job.is_straggling()


@pytest.mark.parametrize(
    ("limit_s", "waited_s", "start_s", "reason"),
    [
        (None, 9999, None, ""),
        (30, 29, 9999, ""),
        (30, 31, None, "the job did not start within 30 s (Priority)"),
        (0, 59, 0.5, ""),
        (0, 61, None, "the job did not start within 60 s (Priority)"),
        (0, 1, 3600, "the job cannot start within 60 s (Priority); the scheduler expects it"),
    ],
)
def test_job_waits_in_the_queue_for_as_long_as_it_may(
    tmp_path: Path,
    clock: Clock,
    limit_s: float | None,
    waited_s: float,
    start_s: float | None,
    reason: str,
) -> None:
    """A limit of 0 is one cycle of the scheduler, or no wait where that expects a later start."""
    job = watched(Evidence(tmp_path))
    start = None if start_s is None else time.time() + start_s
    job.record_state(JobState("pending", "PENDING", "Priority", expected_start=start))
    clock.now += waited_s
    end = job.check_wait(limit_s, None)
    assert (end is None) is (reason == "")
    assert end is None or f"queue: {reason}" in end.reason


@pytest.mark.parametrize(
    ("log", "has_begun"),
    [
        ("7_0_log.out", False),
        ("81_0_log.out", False),
        ("8_1_0_log.out", False),  # a task of array 8
        ("8_0_log.out", True),
        ("small.0_0_log.out", True),  # of a virtual node
    ],
)
def test_log_of_another_job_starts_no_wait_of_this_one(
    log: str, has_begun: bool, tmp_path: Path, clock: Clock
) -> None:
    """The job of a submission whose answer was lost ends before its claim, and leaves a log in the
    directory of the job that was submitted after it. That one still waits, for as long as it may,
    and what Slurm said of the other says nothing about it."""
    evidence = Evidence(tmp_path)
    evidence.dir.submitit.mkdir()
    (evidence.dir.submitit / log).write_text("srun: error: Node failure on n1\n")
    job = replace(watched(evidence), job_id="8")
    job.record_state(JobState("pending", "PENDING", "Priority"))
    job.check_files()
    clock.now += 31
    assert job.running is has_begun and (job.check_wait(30, None) is None) is has_begun
    result = job.save_details(None, evidence.node(0, ok=False).result())
    assert bool(result.scheduler.logged(NODE_FAILED)) is has_begun


def test_estimate_of_the_preflight_counts_once_the_scheduler_shows_the_job(
    tmp_path: Path, clock: Clock
) -> None:
    """And its own later one, if it has any; a job that has started waits no more."""
    job, later = watched(Evidence(tmp_path)), time.time() + 3600
    assert job.check_wait(0, later) is None
    job.record_state(JobState("pending", "PENDING", "Resources"))
    assert job.check_wait(0, later) is not None
    job.record_state(JobState("running", "RUNNING"))
    assert job.check_wait(0, later) is None


def test_task_that_waits_for_its_turn_does_not_wait_in_the_queue(
    tmp_path: Path, clock: Clock
) -> None:
    """Whatever the scheduler expects: other jobs of the run come first."""
    job, later = watched(Evidence(tmp_path)), time.time() + 3600
    job.record_state(JobState("pending", "PENDING", job_watch.TURNS[0], expected_start=later))
    assert job.check_wait(0, None) is None


def test_full_disk_costs_no_word_of_the_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its details decide the outcome, also where they cannot be kept."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    evidence, backend = Evidence(tmp_path), FakeBackend()
    job = watched(evidence)
    job.record_state(JobState("ended", "NODE_FAIL", "NodeDown", "n0"))
    backend.records["small"] = SchedulerRecord(ScheduledJob(state="NODE_FAIL", text="x"))
    monkeypatch.setattr(SchedulerRecord, "write", refuse)
    result = job.save_details(backend, evidence.result())
    assert result.scheduler.job.state == "NODE_FAIL"
