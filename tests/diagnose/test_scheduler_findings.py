"""Findings of what the scheduler did to a job: from its fields, then from its log messages."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_clustersmoke.diagnose import diagnose
from pytest_clustersmoke.evidence.finding import Finding
from pytest_clustersmoke.evidence.run_directory import PhaseDir, create_phase
from pytest_clustersmoke.evidence.scheduler_record import DUPLICATE_JOB, JobState, SchedulerRecord
from pytest_clustersmoke.evidence.telemetry import EventWriter
from pytest_clustersmoke.jobs import slurm_jobs
from pytest_clustersmoke.jobs.job_watch import read_messages
from pytest_clustersmoke.jobs.outcome import Judgement, judge_job
from pytest_clustersmoke.jobs.slurm_records import add_zone
from tests.support.evidence import Evidence

SHOWN = (
    "JobId=7 JobState={} Partition=main TimeLimit=00:10:00 StartTime=2026-01-02T03:04:05 "
    "EndTime=2026-01-02T03:09:05 PreemptTime=2026-01-02T03:09:04 MinMemoryNode=4G"
)


def record(state: str, sinfo: str = "", squeue: str = "", sacct: str = "") -> SchedulerRecord:
    """What Slurm's commands printed about the job."""
    return SchedulerRecord(
        slurm_jobs.parse_scheduled_job(SHOWN.format(state)),
        slurm_jobs.parse_sinfo(sinfo),
        slurm_jobs.parse_accounting(sacct),
        slurm_jobs.parse_other_jobs(squeue),
    )


class ScheduledJob:
    """A training job on two nodes, and what the scheduler recorded about it."""

    def __init__(self, folder: Path) -> None:
        self.evidence = Evidence(folder, 2).started()
        for node in range(2):
            self.evidence.node(node, ok=False, reason="terminated", why="SIGTERM")
        self.record = SchedulerRecord()

    def recorded(
        self, state: str, sinfo: str = "", squeue: str = "", sacct: str = ""
    ) -> ScheduledJob:
        self.record = record(state, sinfo, squeue, sacct)
        return self

    def log(self, text: str) -> ScheduledJob:
        self.evidence.dir.submitit.mkdir(exist_ok=True)
        (self.evidence.dir.submitit / "7_log.err").write_text(text)
        return self

    def finding(self, state: JobState | None, ours: Judgement | None = None) -> tuple[str, Finding]:
        messages = read_messages(self.evidence.dir)
        replace(self.record, messages=messages).write(self.evidence.dir.scheduler)
        result = self.evidence.result()
        judged = judge_job(result, state, ours)
        return judged.outcome, diagnose(result, judged)[0]


@pytest.fixture
def job(tmp_path: Path) -> ScheduledJob:
    return ScheduledJob(tmp_path)


def test_node_that_is_down_is_named_with_slurms_reason(job: ScheduledJob) -> None:
    """Which node, since when, why; its line is the evidence."""
    down = "n1|down*|2026-01-02T03:09:00|slurm|Not responding\n"
    job.recorded("NODE_FAIL", f"n0|idle|Unknown|Unknown|none\n{down}")
    outcome, finding = job.finding(JobState("ended", "NODE_FAIL", "NodeDown"))
    assert (outcome, finding.id, finding.hosts) == ("cluster_failed", "node-down", ("n1",))
    assert f"n1 is down*: Not responding [slurm@{add_zone('2026-01-02T03:09:00')}]" in finding.cause
    assert finding.evidence[0].text == down.strip()
    lines = job.evidence.dir.scheduler.read_text().splitlines()
    assert down.strip() in lines[finding.evidence[0].line - 1]


def test_node_that_is_back_is_named_from_sruns_message(job: ScheduledJob) -> None:
    """It was down only briefly: sinfo no longer shows it."""
    job.recorded("NODE_FAIL", "n0|idle|Unknown|Unknown|none\nn1|idle|Unknown|Unknown|none\n")
    job.log("srun: error: Node failure on n1\nsrun: error: Node failure on elsewhere\n")
    _, finding = job.finding(JobState("ended", "NODE_FAIL", "NodeDown"))
    assert (finding.id, finding.hosts) == ("node-down", ("n1",))


@pytest.mark.parametrize(
    ("state", "since", "reason", "outcome"),
    [
        ("FAILED", "2026-01-02T03:09:00", "Duplicate jobid", "cluster_failed"),
        ("CANCELLED", "2026-01-02T03:09:00", "Duplicate jobid", "cluster_failed"),
        ("FAILED", "2026-01-02T03:09:00", "batch job complete failure", "cluster_failed"),
        ("FAILED", "2026-01-02T03:09:00", "maintenance", "failed"),
        ("CANCELLED", "2026-01-02T03:09:00", "maintenance", "cancelled"),
        ("FAILED", "2026-01-01T03:09:00", "Duplicate jobid", "failed"),
    ],
)
def test_node_that_could_not_launch_the_job_is_a_failure_of_the_cluster(
    state: str, since: str, reason: str, outcome: str, tmp_path: Path
) -> None:
    """slurmctld came back without its last seconds, gave the id of a job that still ran there
    again, and drained the node, which is not at fault; where the job must not be requeued, it
    cancels it. One that was drained before, or by hand, says nothing."""
    job = ScheduledJob(tmp_path / "other")
    job.evidence = Evidence(tmp_path, 2)
    job.recorded(state, f"n1|drained|{since}|root|{reason}\n")
    job.record = replace(job.record, job=replace(job.record.job, preempted=None))
    judged, finding = job.finding(JobState("ended", state))
    assert judged == outcome
    if outcome == "cluster_failed" and reason == DUPLICATE_JOB:
        assert (finding.id, finding.hosts) == ("node-drained", ("n1",))
        assert "still ran: n1 is drained: Duplicate jobid" in finding.cause
        assert "no node is at fault" in finding.fix
        assert "`scontrol update nodename=n1 state=resume`" in finding.fix
    elif outcome == "cluster_failed":
        assert (finding.id, finding.hosts) == ("node-down", ("n1",))
        assert finding.cause.startswith("a node could not launch the job: n1 is drained: batch job")


@pytest.mark.parametrize(("own_start_s", "outcome"), [(-3, "cluster_failed"), (1, "cancelled")])
def test_job_that_slurmctld_launched_again_while_it_ran_was_not_cancelled_by_somebody(
    own_start_s: int, outcome: str, tmp_path: Path
) -> None:
    """slurmctld came back without its last seconds, took the job for a pending one, launched it
    where it ran, and cancelled it. Then Slurm's start of the job is later than the job's own."""
    job = ScheduledJob(tmp_path / "other")
    job.evidence = Evidence(tmp_path, 1).started()
    job.recorded("CANCELLED", "n0|draining|2026-01-02T03:09:00|root|Duplicate jobid\n")
    job.record = replace(job.record, job=replace(job.record.job, preempted=None))
    by_slurm = job.record.job.started
    assert by_slurm is not None
    job.evidence.node(0, ok=False, reason="terminated", started=by_slurm + own_start_s)
    judged, finding = job.finding(JobState("ended", "CANCELLED"))
    assert judged == outcome
    assert (
        finding.id == {"cluster_failed": "node-drained", "cancelled": "cancelled-by-other"}[judged]
    )


def test_node_that_could_not_launch_is_not_blamed_for_the_failure_of_another(
    job: ScheduledJob,
) -> None:
    """The job ran until another node failed, which is back in service by now."""
    drained = "n0|drained|2026-01-02T03:09:00|slurm|batch job complete failure\n"
    job.recorded("NODE_FAIL", f"{drained}n1|idle|Unknown|Unknown|none\n")
    job.log("srun: error: Node failure on n1\n")
    _, finding = job.finding(JobState("ended", "NODE_FAIL", "NodeDown"))
    assert finding.hosts == ("n1",)
    assert finding.cause.startswith("a node went down while the job ran: n1 failed")


def test_each_node_that_could_not_launch_the_job_is_named_though_another_is_down(
    tmp_path: Path,
) -> None:
    job = ScheduledJob(tmp_path / "other")
    job.evidence = Evidence(tmp_path, 2)
    since = "2026-01-02T03:09:00"
    refuses = f"n0|drained|{since}|root|batch job complete failure\n"
    job.recorded("FAILED", f"{refuses}n1|down*|{since}|slurm|Not responding\n")
    job.record = replace(job.record, job=replace(job.record.job, preempted=None))
    _, finding = job.finding(JobState("ended", "FAILED", "NonZeroExitCode"))
    assert finding.hosts == ("n0",)
    assert finding.cause.startswith("a node could not launch the job: n0 is drained")


def test_only_node_of_a_job_is_named_though_it_is_back(tmp_path: Path) -> None:
    """Slurm's state shows that a node failed, and the job had no other."""
    job = ScheduledJob(tmp_path / "other")
    job.evidence = Evidence(tmp_path)
    job.recorded("NODE_FAIL", "n0|idle|Unknown|Unknown|none\n")
    _, finding = job.finding(JobState("ended", "NODE_FAIL"))
    assert (finding.id, finding.hosts) == ("node-down", ("n0",))
    assert "n0 failed, and is back in service by now" in finding.cause


def test_node_failure_without_a_named_node(job: ScheduledJob) -> None:
    """It is still a node failure, but no node is named."""
    _, finding = job.finding(JobState("ended", "NODE_FAIL", "NodeDown"))
    assert (finding.id, finding.hosts) == ("node-down", ())
    assert "Slurm does not say which" in finding.cause


def test_preempting_job_is_named(job: ScheduledJob) -> None:
    """Of the jobs on its nodes, only the one that started after the preemption."""
    others = "5|bob|main|a|2026-01-02T01:00:00|n0\n"
    job.recorded("PREEMPTED", squeue=others + "8|ann|high|gold|2026-01-02T03:09:06|n0\n")
    outcome, finding = job.finding(JobState("ended", "PREEMPTED"))
    assert (outcome, finding.id) == ("preempted", "preempted")
    assert "job 8 of ann (partition high, QOS gold)" in finding.cause and "bob" not in finding.cause


def test_requeue_and_preemption_are_distinguished(job: ScheduledJob) -> None:
    """Accounting or the job's log shows a preemption."""
    state = JobState("pending", "PENDING", "BeginTime")
    outcome, finding = job.finding(state)
    assert (outcome, finding.id) == ("preempted", "requeued")
    job.log("slurmstepd: error: *** JOB 7 ON n0 CANCELLED AT 2026 DUE TO PREEMPTION ***\n")
    assert job.finding(state)[1].id == "preempted"
    job.log("").recorded("PENDING", sacct="7|PREEMPTED|0:0|n0|2026-01-02T03:09:04\n")
    assert job.finding(state)[1].id == "preempted"


@pytest.mark.parametrize(
    ("uid", "words"),
    [
        ("4294967294", "by a user unknown on this machine (uid 4294967294)"),
        (str(os.getuid()), f"(uid {os.getuid()}, the user of this run)"),
    ],
)
def test_user_who_cancelled_is_named(uid: str, words: str, job: ScheduledJob) -> None:
    """By accounting's user id, and that it was not this run."""
    job.recorded("CANCELLED", sacct=f"7|CANCELLED by {uid}|0:0|n0|2026-01-02T03:09:04\n")
    outcome, finding = job.finding(JobState("ended", "CANCELLED"))
    assert (outcome, finding.id) == ("cancelled", "cancelled-by-other")
    assert words in finding.cause and finding.detail == {"uid": int(uid)}


def test_job_cancelled_by_this_run_blames_no_other_user(job: ScheduledJob) -> None:
    """An interrupted run keeps the general finding."""
    ours = Judgement("cancelled", "the run was interrupted")
    _, finding = job.finding(JobState("ended", "CANCELLED"), ours)
    assert finding.id == "job-cancelled"


def test_slurms_time_limit_is_reported_with_its_length(job: ScheduledJob) -> None:
    """No rank and no node is blamed for it; it says how far the ranks had got."""
    trains = ("stage", {"name": "train", "state": "begin"})
    job.evidence.rank(0, trains, ("step", {"step": 7, "steps": 20}))
    outcome, finding = job.recorded("TIMEOUT").finding(JobState("ended", "TIMEOUT", "TimeLimit"))
    assert (outcome, finding.id, finding.hosts, finding.ranks) == ("failed", "time-limit", (), ())
    began, ended = map(add_zone, ("2026-01-02T03:04:05", "2026-01-02T03:09:05"))
    spent = f"00:10:00 (from {began} to {ended})"
    where = "rank 0: train, after step 7 of 20; rank 1: init"
    assert finding.cause == f"Slurm ended the job at its time limit of {spent}; {where}"


@pytest.mark.parametrize(
    ("since", "identity"),
    [("2026-01-02T03:04:05", "prolog-failed"), ("2026-01-01T00:00:00", "cancelled-by-other")],
)
def test_cancelled_job_whose_prolog_drained_a_node(
    since: str, identity: str, job: ScheduledJob
) -> None:
    """A job that may not be requeued is CANCELLED when its prolog fails; a node that had been
    drained for it before is no witness."""
    job.recorded("CANCELLED", f"n1|drained|{since}|root|Prolog error\n")
    _, finding = job.finding(JobState("ended", "CANCELLED"))
    assert finding.id == identity
    assert ("n1" in finding.hosts) is (identity == "prolog-failed")


@pytest.mark.parametrize(
    ("line", "hosts"),
    [
        ("srun: error: Task launch for StepId=2.0 failed on node n1: Job prolog failed", ("n1",)),
        ("slurmstepd-n0: error: Prolog failure on node n1", ("n1",)),
        ("Error running slurm prolog: 1", ()),
    ],
)
def test_failed_prolog_in_slurms_messages(
    line: str, hosts: tuple[str, ...], job: ScheduledJob
) -> None:
    """The node may be back in service; the job's own log still shows it."""
    outcome, finding = job.log(line + "\n").finding(JobState("ended", "CANCELLED"))
    assert (outcome, finding.id, finding.hosts) == ("cluster_failed", "prolog-failed", hosts)


def test_job_held_after_its_launch_failed(job: ScheduledJob) -> None:
    """It will not start by itself; its prolog failed."""
    state = JobState("held", "PENDING", "launch failed requeued held")
    outcome, finding = job.finding(state)
    assert (outcome, finding.id) == ("cluster_failed", "prolog-failed")


def test_job_that_waited_for_drained_nodes_names_them(job: ScheduledJob) -> None:
    """By whom and why, from sinfo; a healthy partition leaves the general finding."""
    ours = Judgement("never_ran", "queue: the job did not start within 25 s")
    assert job.recorded("PENDING").finding(None, ours)[1].id == "job-never-ran"
    job.recorded("PENDING", "n1|drained|2026-01-01T00:00:00|ann|bad dimm\n")
    outcome, finding = job.finding(None, ours)
    assert (outcome, finding.id, finding.hosts) == ("never_ran", "node-drained", ("n1",))
    assert f"n1 is drained: bad dimm [ann@{add_zone('2026-01-01T00:00:00')}]" in finding.cause


def test_job_that_waited_for_a_node_that_is_down_accuses_no_other(job: ScheduledJob) -> None:
    """Those that an administrator keeps back are quoted, and are not failed nodes."""
    ours = Judgement("never_ran", "queue: the job did not start within 25 s")
    kept = "n1|drained|2026-01-01T00:00:00|ann|new firmware\nn2|reserved|Unknown|Unknown|none\n"
    down = "n3|down*|2026-01-02T03:09:00|slurm|Not responding\n"
    job.recorded("PENDING", f"{kept}{down}n4|powering_down|Unknown|Unknown|none\n")
    _, finding = job.finding(None, ours)
    assert (finding.id, finding.hosts) == ("node-down", ("n3",))
    assert "n1 is drained: new firmware" in finding.cause and "n2 is reserved" in finding.cause


def test_rank_killed_for_memory_is_named(tmp_path: Path) -> None:
    """Slurm names the node, the node's watch the rank; the limit is shown."""
    evidence = Evidence(tmp_path, 2).started()
    evidence.node(0, ok=False, reason="aborted", why="n1: rank 1 died")
    evidence.node(1, ok=False, reason="rank_died", why="rank 1 died", rank=1)
    seen = {"states": [{"rank": 1, "alive": False, "started": True}]}
    writer = evidence.dir.node_events(1)
    writer.parent.mkdir(parents=True, exist_ok=True)
    from pytest_clustersmoke.evidence.telemetry import EventWriter

    EventWriter(writer).write("ranks", **seen)
    evidence.dir.submitit.mkdir()
    words = "slurmstepd-n1: error: Detected 1 oom-kill event(s) in StepId=7.0. Some of your\n"
    (evidence.dir.submitit / "7_1_log.err").write_text(words)
    messages = read_messages(evidence.dir)
    replace(record("FAILED"), messages=messages).write(evidence.dir.scheduler)
    result = evidence.result()
    finding = diagnose(result, judge_job(result, JobState("ended", "FAILED", "NonZeroExitCode")))[0]
    assert (finding.id, finding.ranks, finding.hosts) == ("out-of-memory", (1,), ("n1",))
    assert "4G per node" in finding.cause
    assert finding.evidence[0].text == words.strip()


def test_rank_that_lost_the_killed_one_was_not_killed_for_memory(tmp_path: Path) -> None:
    """Slurm's message may name no node, and rank 0 aborts as soon as rank 1 is gone."""
    evidence = Evidence(tmp_path, 2).started()
    for node, code in enumerate((-6, -9)):
        evidence.node(node, ok=False, reason="rank_died", why=f"rank {node} died", rank=node)
        state = {"rank": node, "alive": False, "started": True, "exit_code": code}
        EventWriter(evidence.dir.node_events(node)).write("ranks", states=[state])
    evidence.dir.submitit.mkdir()
    words = "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks\n"
    (evidence.dir.submitit / "7_1_log.err").write_text(words)
    replace(record("FAILED"), messages=read_messages(evidence.dir)).write(evidence.dir.scheduler)
    result = evidence.result()
    found = diagnose(result, judge_job(result, JobState("ended", "FAILED", "NonZeroExitCode")))
    killed = [(each.ranks, each.hosts) for each in found if each.id == "out-of-memory"]
    assert killed == [((1,), ("n1",))]


def test_job_that_slurm_reports_out_of_memory(job: ScheduledJob) -> None:
    """Even without a message in its log or a dead rank."""
    outcome, finding = job.recorded("OUT_OF_MEMORY").finding(JobState("ended", "OUT_OF_MEMORY"))
    assert (outcome, finding.id, finding.ranks) == ("failed", "out-of-memory", ())


def test_suspension_before_a_resume_names_its_node_and_line(tmp_path: Path) -> None:
    """The node's events of that attempt say so; those of the last attempt do not."""
    evidence = Evidence(tmp_path, 2).started()
    for attempt in range(2):
        evidence.dir = replace(evidence.dir, attempt=attempt)
        create_phase(evidence.dir, 2)
        evidence.started().each("done")
        for node in range(2):
            paused_s = 7.0 if attempt == 0 and node == 1 else 0.0
            evidence.node(node, ok=True, stopped=attempt == 0, paused_s=paused_s)
    place = PhaseDir(evidence.dir.root).node_events(1)
    events = EventWriter(place)
    events.write("claim")
    events.write("paused", seconds=7.0)
    events.close()
    result = evidence.result()
    (finding, *_) = diagnose(result, judge_job(result, JobState("ended", "COMPLETED")))
    assert (finding.id, finding.hosts) == ("job-suspended", ("n1",))
    assert [(item.file, item.line, item.text) for item in finding.evidence] == [
        (str(place), 2, "paused for 7.0 s")
    ]


@pytest.mark.parametrize(
    "why",
    [
        "Zero Bytes were transmitted or received",
        "Unable to contact slurm controller (connect failure)",
        "Socket timed out on send/recv operation",
        "Connection reset by peer",
    ],
)
@pytest.mark.parametrize("state", [JobState("ended", "FAILED", "NonZeroExitCode"), None])
def test_job_whose_srun_had_no_answer_from_slurmctld_never_ran(
    tmp_path: Path, why: str, state: JobState | None
) -> None:
    """slurmctld was killed just then: neither the job nor a node of it failed, and its variables
    are its own, whatever srun says next."""
    job = ScheduledJob(tmp_path)
    job.evidence = Evidence(tmp_path / "job", 2)
    drained = slurm_jobs.parse_sinfo("n0|drained|2026-01-02T03:04:00|root|disk\n")
    job.record = SchedulerRecord(nodes=drained)
    job.log(
        f"srun: error: Unable to confirm allocation for job 168: {why}\n"
        "srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 168\n"
    )
    outcome, finding = job.finding(state)
    assert (outcome, finding.id, finding.hosts) == ("never_ran", "job-never-ran", ())
    assert finding.cause == "srun could not start the job on its nodes: slurmctld did not answer"
    assert "sinfo" in finding.fix and why in finding.evidence[0].text


def test_srun_that_slurmctld_refuses_is_a_failure(tmp_path: Path) -> None:
    """slurmctld answered."""
    job = ScheduledJob(tmp_path)
    job.evidence = Evidence(tmp_path / "job", 2)
    job.log(
        "srun: error: Unable to create step for job 7: Memory required by task is not available\n"
    )
    outcome, finding = job.finding(JobState("ended", "FAILED"))
    assert outcome == "failed" and "more memory" in finding.cause
