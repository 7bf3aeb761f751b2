"""Runs without a process: what is left of them, who may touch them, and how they are reported."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.config.profile import Profile
from pytest_clustersmoke.evidence import telemetry
from pytest_clustersmoke.evidence.locks import ControllerFence, describe_run
from pytest_clustersmoke.evidence.run_directory import PhaseDir, RunDir, read_json, write_json
from pytest_clustersmoke.evidence.run_journal import read_journal
from pytest_clustersmoke.evidence.run_ownership import list_runs
from pytest_clustersmoke.evidence.telemetry import EventWriter
from pytest_clustersmoke.node import node_job
from pytest_clustersmoke.node.node_job import NodeFailed, NodeJob
from pytest_clustersmoke.session import dead_runs, lost_answers, reaper, unwatched_jobs
from pytest_clustersmoke.session.attachment import describe_start, find_attachment
from pytest_clustersmoke.session.dead_runs import report_dead_runs
from pytest_clustersmoke.session.job_end import judge_end
from pytest_clustersmoke.session.reaper import reap
from pytest_clustersmoke.session.unwatched_jobs import UnwatchedJobs
from pytest_clustersmoke.text import UsageProblems, format_here
from tests.fakes.slurm import FakeSlurm
from tests.support.evidence import Evidence, make_phase, make_profile

RUN_ID = "20261101-020000-abcdef"


class DeadRun:
    """A run of phases on a fake Slurm, whose process was killed; its directories are made by
    hand."""

    def __init__(self, folder: Path, profile: Profile, run_id: str = RUN_ID, **about: Any) -> None:
        self.run = RunDir(profile.shared_dir / run_id)
        self.run.root.mkdir(parents=True, mode=0o700)
        self.report = folder / "reports" / run_id
        described = {**describe_run(profile, run_id), "config": str(folder / "cluster.yaml")}
        values = {**described, "locks": True, "phases_chosen": ["a", "b", "c"]}
        values |= {"report": str(self.report), **about}
        write_json(self.run.run, values)
        write_json(RunDir(self.report).run, {**values, "evidence": str(self.run.root)})
        self.journal = EventWriter(self.run.journal)

    def submitted(self, phase: str, job_id: str = "") -> PhaseDir:
        """Write what the controller does at a submission; without an id, it had no answer."""
        directory = self.run.phase(phase)
        spec = {"phase": phase, "nodes": 1, "ranks_per_node": 1, "args": {}, "token": f"t{phase}"}
        write_json(directory.spec, spec)
        self.journal.write("intent", phase=phase, token=f"t{phase}")
        if job_id:
            self.journal.write("submitted", phase=phase, job_id=job_id)
        return directory

    def passes(self, phase: str) -> None:
        """Write the files of a job that passes."""
        evidence = Evidence(self.run.root / "unused")
        evidence.dir = self.run.phase(phase)
        evidence.done()

    def outcomes(self) -> dict[str, str]:
        """The outcome of each phase that has a result."""
        results = {name: read_json(self.run.phase(name).result) for name in "abc"}
        return {name: result["outcome"] for name, result in results.items() if result}


@pytest.fixture
def slurm(tmp_path: Path) -> FakeSlurm:
    """A Slurm that has no jobs."""
    fake = FakeSlurm(tmp_path)
    fake.answers("scontrol", err="slurm_load_jobs error: Invalid job id specified", rc=1)
    return fake


@pytest.fixture
def profile(tmp_path: Path) -> Profile:
    return make_profile(tmp_path, backend="slurm", phases=dict.fromkeys("abc"))


@pytest.fixture
def dead(tmp_path: Path, profile: Profile) -> DeadRun:
    return DeadRun(tmp_path, profile)


def has_jobs(slurm: FakeSlurm, *jobs: str, until_cancelled: bool = True) -> None:
    """Let Slurm list these jobs of the run as running, until scancel was called."""
    comment = f"clustersmoke run={RUN_ID} phase=x"
    listed = "".join(f"{job}|clustersmoke-{RUN_ID}-x|{comment}\\n" for job in jobs)
    states = "".join(
        f"{job}|RUNNING|None|n1|N/A|N/A|clustersmoke-{RUN_ID}-x|{comment}\\n" for job in jobs
    )
    gone = 'grep -q "^scancel" "$FAKE_SLURM/calls" && exit 0\n' if until_cancelled else ""
    slurm.folder.joinpath("squeue.answer").write_text(
        f"{gone}case $* in *%i?%j?%k*) printf '{listed}';; *) printf '{states}';; esac\n"
    )


def has_completed(slurm: FakeSlurm, job: str) -> None:
    """Let Slurm show that this job has completed."""
    words = f"clustersmoke-{RUN_ID}-a|clustersmoke run={RUN_ID} phase=a"
    shown = f"{job}|COMPLETED|None|n1|N/A|N/A|{words}\\n"
    slurm.folder.joinpath("squeue.answer").write_text(
        f"case $* in *%i?%j?%k*) ;; *) printf '{shown}';; esac\n"
    )


def report(tmp_path: Path, slurm: FakeSlurm, profile: Profile | None = None) -> list[str]:
    return list(report_dead_runs(tmp_path / "reports", slurm.environ, profile))


def test_silent_slurm_keeps_a_dead_run_alive(
    dead: DeadRun, slurm: FakeSlurm, profile: Profile, tmp_path: Path
) -> None:
    """Its jobs may run: it is neither reported nor closed, and the user reads why."""
    dead.submitted("a", "7")
    slurm.answers("squeue", err="slurm_load_jobs error: Unable to contact slurm controller", rc=1)
    (line,) = report(tmp_path, slurm, profile)
    assert line.startswith(f"cannot tell whether jobs are left of {RUN_ID}: `squeue ")
    (line,) = report(tmp_path, slurm)  # of `clustersmoke history`
    assert line.startswith(f"run {RUN_ID} is not reported yet, since its jobs may run: `squeue ")
    assert not read_journal(dead.run).closed and dead.outcomes() == {}
    assert not (dead.report / "report.json").exists()


def test_dead_run_whose_journal_cannot_be_read_is_left_as_it_is(
    dead: DeadRun, slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty journal would say that it has no jobs."""
    dead.submitted("a", "7")
    has_jobs(slurm, "7")

    def fail(path: Path, most_bytes: float = 0) -> Any:
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(telemetry, "open_regular", fail)
    (line,) = report(tmp_path, slurm)
    assert line.startswith(f"run {RUN_ID}: its report cannot be written now: ")
    monkeypatch.undo()
    assert dead.outcomes() == {} and not read_journal(dead.run).closed
    assert not (dead.report / "report.json").exists()


WEEK_H = 7 * 24


def fall_silent(dead: DeadRun, slurm: FakeSlurm, hours_ago: float) -> None:
    """Slurm does not answer, and the run's process gave its last sign of life so long ago."""
    slurm.answers("squeue", err="slurm_load_jobs error: Unable to contact slurm controller", rc=1)
    os.utime(dead.run.run, (when := time.time() - hours_ago * 3600, when))
    dead.run.silence.touch()
    os.utime(dead.run.silence, (when := time.time() - dead_runs.SILENCE_S - 1, when))


def test_question_without_an_answer_gives_up_no_job_that_may_wait_for_long(
    dead: DeadRun, slurm: FakeSlurm, profile: Profile, tmp_path: Path
) -> None:
    """The run's process died more than a week ago, and Slurm is restarted just now. It must have
    been silent for half an hour; an answer meanwhile counts."""
    waiting = dead.submitted("a", "7")
    fall_silent(dead, slurm, hours_ago=WEEK_H + 24)
    dead.run.silence.unlink()
    (line,) = report(tmp_path, slurm)
    since = dead.run.silence.stat().st_mtime
    assert line.endswith(f"it is reported from {format_here(since + dead_runs.SILENCE_S)} on")
    slurm.answers("squeue")
    has_jobs(slurm, "7")
    assert report(tmp_path, slurm) == [] and not dead.run.silence.exists()
    slurm.answers("squeue", err="slurm_load_jobs error: Unable to contact slurm controller", rc=1)
    (line,) = report(tmp_path, slurm)
    assert not waiting.withdrawn("ta").exists() and dead.outcomes() == {}
    fall_silent(dead, slurm, hours_ago=WEEK_H + 24)
    (line,) = report(tmp_path, slurm)
    assert dead.outcomes()["a"] == "never_ran" and waiting.withdrawn("ta").exists()


def start(directory: PhaseDir, hours_ago: float, timeout_h: float) -> None:
    """Write what a job does that started so long ago, and the time that it has."""
    spec = read_json(directory.spec) or {}
    write_json(directory.spec, {**spec, "timeout_s": timeout_h * 3600})
    when = time.time() - hours_ago * 3600
    write_json(directory.claim, {"token": spec["token"], "job_id": "7", "node": "n", "time": when})


def test_silent_slurm_does_not_keep_a_dead_run_for_longer_than_its_jobs_can_last(
    dead: DeadRun, slurm: FakeSlurm, profile: Profile, tmp_path: Path
) -> None:
    """A job that has started ends at its own limit. One that has not started a week after the run's
    process died is given up: it ends before it claims anything, should it start yet."""
    start(dead.submitted("a", "7"), hours_ago=26, timeout_h=1)
    waiting = dead.submitted("b", "8")
    fall_silent(dead, slurm, hours_ago=WEEK_H - 1)
    (line,) = report(tmp_path, slurm)
    reported_at = format_here(dead.run.run.stat().st_mtime + WEEK_H * 3600)
    assert line.endswith(f"if that lasts, it is reported from {reported_at} on")
    (line,) = report(tmp_path, slurm, profile)
    assert line.endswith(f"if that lasts, it is reported from {reported_at} on")
    assert not waiting.withdrawn("tb").exists() and dead.outcomes() == {}
    fall_silent(dead, slurm, hours_ago=WEEK_H + 1)
    (line,) = report(tmp_path, slurm)
    assert line.startswith(f"run {RUN_ID}: its controller was killed; its report is written now")
    assert dead.outcomes() == {"a": "lost", "b": "never_ran", "c": "never_ran"}
    assert waiting.withdrawn("tb").exists() and read_journal(dead.run).closed
    reasons = [(read_json(dead.run.phase(name).result) or {})["reason"] for name in "ab"]
    assert reasons[0] == "the job left no result, and the scheduler does not answer"
    assert reasons[1].startswith("the job had not started a week after the run's process ended")


def test_job_that_still_has_time_keeps_a_dead_run_open_while_slurm_is_silent(
    dead: DeadRun, slurm: FakeSlurm, tmp_path: Path
) -> None:
    """It may run, and pass; and so may one that starts just as it is given up."""
    directory = dead.submitted("a", "7")
    start(directory, hours_ago=WEEK_H, timeout_h=2 * WEEK_H)
    fall_silent(dead, slurm, hours_ago=WEEK_H + 1)
    (line,) = report(tmp_path, slurm)
    started = (read_json(directory.claim) or {})["time"]
    until = format_here(started + 2 * WEEK_H * 3600 + dead_runs.START_S)
    assert line.endswith(f"reported from {until} on")
    assert dead.outcomes() == {} and not read_journal(dead.run).closed
    dead.passes("a")
    (line,) = report(tmp_path, slurm)
    assert dead.outcomes() == {"a": "passed", "b": "never_ran", "c": "never_ran"}


def test_job_that_starts_as_it_is_given_up_is_not_called_one_that_never_ran(
    dead: DeadRun, slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had claimed its phase just before."""
    directory = dead.submitted("a", "7")
    fall_silent(dead, slurm, hours_ago=WEEK_H + 1)

    def start_before(place: PhaseDir, token: str, why: str) -> None:
        start(place, hours_ago=0, timeout_h=1)
        lost_answers.withdraw(place, token, why)

    monkeypatch.setattr(unwatched_jobs, "withdraw", start_before)
    assert report(tmp_path, slurm)[0].startswith(f"run {RUN_ID} is not reported yet")
    assert dead.outcomes() == {} and not read_journal(dead.run).closed
    dead.passes("a")
    report(tmp_path, slurm)
    assert dead.outcomes()["a"] == "passed" and directory.withdrawn("ta").exists()


def test_job_that_starts_as_it_is_given_up_keeps_the_others_of_its_run(
    dead: DeadRun, slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler starts jobs, so it may start those, too."""
    first, second = dead.submitted("a", "7"), dead.submitted("b", "8")
    fall_silent(dead, slurm, hours_ago=WEEK_H + 1)

    def start_before(place: PhaseDir, token: str, why: str) -> None:
        if place == second:
            start(place, hours_ago=0, timeout_h=1)
        lost_answers.withdraw(place, token, why)

    monkeypatch.setattr(unwatched_jobs, "withdraw", start_before)
    assert report(tmp_path, slurm)[0].startswith(f"run {RUN_ID} is not reported yet")
    assert dead.outcomes() == {} and not first.withdrawn("ta").exists()
    for name in ("a", "b"):
        dead.passes(name)
    report(tmp_path, slurm)
    assert dead.outcomes() == {"a": "passed", "b": "passed", "c": "never_ran"}


def test_job_that_saw_itself_given_up_although_it_was_kept_never_ran(
    dead: DeadRun, slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It started between its withdrawal and the start of the other. Nothing of it is at fault."""
    first, second = dead.submitted("a", "7"), dead.submitted("b", "8")
    fall_silent(dead, slurm, hours_ago=WEEK_H + 1)

    def start_both(place: PhaseDir, token: str, why: str) -> None:
        if place == second:
            spec = {**(read_json(first.spec) or {}), "phase_dir": str(first.root)}
            with pytest.raises(NodeFailed, match="was given up before this job started"):
                node_job._claim(NodeJob(spec, 0, "n0"), time.monotonic() + 20)
            start(place, hours_ago=0, timeout_h=1)
        lost_answers.withdraw(place, token, why)

    monkeypatch.setattr(unwatched_jobs, "withdraw", start_both)
    assert report(tmp_path, slurm)[0].startswith(f"run {RUN_ID} is not reported yet")
    assert dead.outcomes() == {} and not first.withdrawn("ta").exists()
    dead.passes("b")
    line = f"7|FAILED|NonZeroExitCode|n1|N/A|N/A|clustersmoke-{RUN_ID}-a|token=ta"
    slurm.answers("squeue", f"{line}\n")
    report(tmp_path, slurm)
    assert dead.outcomes() == {"a": "never_ran", "b": "passed", "c": "never_ran"}


def test_silent_slurm_is_asked_once_for_all_dead_runs(
    slurm: FakeSlurm, profile: Profile, tmp_path: Path
) -> None:
    """Each question may take seconds."""
    for number in range(5):
        DeadRun(tmp_path, profile, f"20261101-02000{number}-abcdef").submitted("a", "7")
    slurm.answers("squeue", err="Unable to contact slurm controller", rc=1)
    report(tmp_path, slurm, profile)
    assert slurm.commands() == ["squeue"]
    assert len(report(tmp_path, slurm)) == 5 and slurm.commands() == ["squeue"] * 2


def test_jobs_that_ended_later_keep_their_outcome(
    dead: DeadRun, slurm: FakeSlurm, tmp_path: Path
) -> None:
    """Results that came after the controller's death are read; a job without any is lost, and a
    phase that was never submitted never ran."""
    dead.submitted("a", "7")
    dead.passes("a")
    dead.submitted("b", "8")
    (line,) = report(tmp_path, slurm)
    assert line.startswith(f"run {RUN_ID}: its controller was killed; its report is written now")
    assert dead.outcomes() == {"a": "passed", "b": "lost", "c": "never_ran"}
    record = json.loads((dead.report / "report.json").read_text())
    assert {phase["phase"]: phase["outcome"] for phase in record["phases"]} == dead.outcomes()
    assert record["verdict"] == "INCONCLUSIVE" and read_journal(dead.run).closed


def test_job_that_has_just_completed_is_not_lost_before_its_results_can_be_seen(
    dead: DeadRun, slurm: FakeSlurm, tmp_path: Path
) -> None:
    """NFS may show them a minute later: the run is left to the next command."""
    directory = dead.submitted("a", "7")
    has_completed(slurm, "7")
    assert report(tmp_path, slurm) == [] and dead.outcomes() == {}
    dead.passes("a")
    report(tmp_path, slurm)
    assert dead.outcomes()["a"] == "passed" and directory.incomplete.exists()


def test_job_that_completed_a_minute_ago_without_results_is_judged(
    dead: DeadRun, slurm: FakeSlurm, tmp_path: Path
) -> None:
    directory = dead.submitted("a", "7")
    has_completed(slurm, "7")
    report(tmp_path, slurm)
    os.utime(directory.incomplete, (when := time.time() - 61, when))
    report(tmp_path, slurm)
    assert dead.outcomes()["a"] == "failed" and read_journal(dead.run).closed


def test_run_with_jobs_left_is_not_reported_by_any_command(
    dead: DeadRun, slurm: FakeSlurm, tmp_path: Path
) -> None:
    """Neither by `clustersmoke history` nor by a run of another profile."""
    dead.submitted("a", "7")
    has_jobs(slurm, "7")
    other = make_profile(tmp_path / "shared", shared_dir=str(tmp_path / "elsewhere"))
    assert report(tmp_path, slurm) == report(tmp_path, slurm, other) == []
    assert not read_journal(dead.run).closed and dead.outcomes() == {}


def test_job_whose_comment_a_site_replaced_is_left(
    dead: DeadRun, slurm: FakeSlurm, profile: Profile, tmp_path: Path
) -> None:
    """Its name shows whose it is, and its id is known."""
    dead.submitted("a", "7")
    state = f"7|RUNNING|None|n1|N/A|N/A|clustersmoke-{RUN_ID}-a|billed"
    listed = f"7|clustersmoke-{RUN_ID}-a|billed"
    slurm.folder.joinpath("squeue.answer").write_text(
        f"case $* in *%i?%j?%k*) echo '{listed}';; *) echo '{state}';; esac\n"
    )
    assert report(tmp_path, slurm) == [] and dead.outcomes() == {}
    (line,) = report(tmp_path, slurm, profile)
    assert line.startswith(f"run {RUN_ID} has 1 job left (7), and no process: ")


@pytest.mark.parametrize("about", [{"screen": {}}, {"proof": {}}], ids=["screen", "proof"])
def test_run_that_cannot_be_attached_is_only_to_be_ended(
    slurm: FakeSlurm, profile: Profile, tmp_path: Path, about: dict[str, Any]
) -> None:
    """Its nodes must be asked again, or its gates proven."""
    dead = DeadRun(tmp_path, profile, **about)
    dead.submitted("a", "7")
    has_jobs(slurm, "7")
    (line,) = report(tmp_path, slurm, profile)
    assert line.endswith(f" 1 job left (7), and no process: --cluster-reap {RUN_ID} ends it")


def test_job_of_another_submission_under_the_id_of_ours_is_not_ours(
    dead: DeadRun, slurm: FakeSlurm, tmp_path: Path
) -> None:
    """Slurm was set up anew, and another run of the same user's has that id: the dead run's job is
    gone."""
    dead.submitted("a", "7")
    comment = f"clustersmoke run={RUN_ID} phase=a token=another"
    state = f"7|RUNNING|None|n1|N/A|N/A|clustersmoke-{RUN_ID}-a|{comment}"
    slurm.folder.joinpath("squeue.answer").write_text(
        f"case $* in *%i?%j?%k*) ;; *) echo '{state}';; esac\n"
    )
    (line,) = report(tmp_path, slurm)
    assert line.startswith(f"run {RUN_ID}: its controller was killed")
    assert dead.outcomes()["a"] == "lost"


def test_detached_run_is_not_reported_before_it_is_attached(
    dead: DeadRun, slurm: FakeSlurm, profile: Profile, tmp_path: Path
) -> None:
    """Its jobs have ended, and its criteria are not judged yet."""
    dead.submitted("a", "7")
    dead.journal.write("detached")
    (line,) = report(tmp_path, slurm, profile)
    assert line.startswith(f"run {RUN_ID} is detached, and its jobs have ended")
    assert report(tmp_path, slurm) == [] and not read_journal(dead.run).closed


def test_run_that_ended_while_slurm_was_silent_is_named_until_its_job_has_ended(
    dead: DeadRun, slurm: FakeSlurm, profile: Profile, tmp_path: Path
) -> None:
    """Its phase has a result, and its job may run: it was not closed. Then it is, and Slurm is not
    asked about it again."""
    directory = dead.submitted("a", "7")
    write_json(directory.result, {"outcome": "cancelled"})
    write_json(dead.report / "report.json", {"run_id": RUN_ID})
    dead.journal.write("ended", phase="a", job_id="7", outcome="cancelled", confirmed=False)
    EventWriter(RunDir(dead.report).journal).close()
    has_jobs(slurm, "7")
    (line,) = report(tmp_path, slurm, profile)
    assert line.startswith(f"run {RUN_ID} has 1 job left (7), and no process")
    slurm.folder.joinpath("squeue.answer").write_text("")
    assert report(tmp_path, slurm, profile) == [] and read_journal(dead.run).closed
    asked = len(slurm.calls())
    assert report(tmp_path, slurm, profile) == [] and len(slurm.calls()) == asked


@pytest.mark.parametrize("is_attached", [False, True])
def test_job_whose_end_was_not_confirmed_keeps_a_run_without_a_report_open(
    dead: DeadRun, slurm: FakeSlurm, profile: Profile, tmp_path: Path, is_attached: bool
) -> None:
    """Its process was killed before it wrote the report, or one that attached the run was, which
    had removed the old one: the job is asked about, and named. Once Slurm has forgotten it, the
    phase is what its controller said of it."""
    directory = dead.submitted("a", "7")
    reason = "the run was interrupted; not confirmed that job 7 has ended"
    write_json(directory.result, {"outcome": "cancelled", "reason": reason})
    dead.journal.write("ended", phase="a", job_id="7", outcome="cancelled", confirmed=False)
    if is_attached:
        dead.journal.write("attached")
    slurm.answers("squeue")
    has_jobs(slurm, "7")
    assert report(tmp_path, slurm) == [] and not read_journal(dead.run).closed
    (line,) = report(tmp_path, slurm, profile)
    assert line.startswith(f"run {RUN_ID} has 1 job left (7), and no process")
    slurm.folder.joinpath("squeue.answer").write_text("")
    report(tmp_path, slurm)
    result = read_json(directory.result) or {}
    assert (result["outcome"], result["reason"]) == ("cancelled", reason)
    assert read_journal(dead.run).closed


def test_job_whose_end_was_not_confirmed_has_the_outcome_that_it_had(
    dead: DeadRun, slurm: FakeSlurm, tmp_path: Path
) -> None:
    """It ran on after its run was interrupted, and passed."""
    directory = dead.submitted("a", "7")
    write_json(directory.result, {"outcome": "cancelled", "reason": "the run was interrupted"})
    dead.journal.write("ended", phase="a", job_id="7", outcome="cancelled", confirmed=False)
    dead.passes("a")
    report(tmp_path, slurm)
    assert dead.outcomes()["a"] == "passed" and read_journal(dead.run).closed


def test_submission_without_an_answer_is_withdrawn_before_the_report(
    dead: DeadRun, slurm: FakeSlurm, tmp_path: Path
) -> None:
    """Slurm may serve it yet: what starts then ends at once."""
    directory = dead.submitted("a")
    report(tmp_path, slurm)
    assert directory.withdrawn("ta").exists() and read_journal(dead.run).closed
    assert dead.outcomes() == dict.fromkeys("abc", "never_ran")
    result = read_json(directory.result) or {}
    assert result["reason"] == unwatched_jobs.UNANSWERED.reason
    assert [finding["id"] for finding in result["findings"]] == ["submission-unanswered"]


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_run_directory_that_others_can_open_is_nobodys_run(
    dead: DeadRun, slurm: FakeSlurm, profile: Profile, tmp_path: Path, mode: int
) -> None:
    """Others may have written what it says: it is not listed, attached, reaped or reported."""
    dead.submitted("a", "7")
    has_jobs(slurm, "7")
    dead.run.root.chmod(mode)
    assert list(list_runs(profile.shared_dir)) == [] and report(tmp_path, slurm, profile) == []
    with pytest.raises(UsageProblems, match=f"not this user's alone: it is open .*{mode:o}"):
        find_attachment(profile, RUN_ID, takes_over=True)
    with pytest.raises(UsageProblems, match="not this user's alone"):
        reap(profile, slurm.environ, [RUN_ID], print)
    assert "scancel" not in slurm.commands()


def test_run_directory_of_another_user_is_nobodys_run(
    dead: DeadRun, profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.getuid", lambda: 12345)
    assert list(list_runs(profile.shared_dir)) == []
    with pytest.raises(UsageProblems, match="it belongs to user"):
        find_attachment(profile, RUN_ID, takes_over=True)


@pytest.mark.parametrize("word", [f"../shared/{RUN_ID}", f"x/../{RUN_ID}", f"./{RUN_ID}/", ".."])
def test_path_is_no_run_id(dead: DeadRun, slurm: FakeSlurm, profile: Profile, word: str) -> None:
    """It would lead to a directory that is not below the profile's own."""
    with pytest.raises(UsageProblems, match="there is no run"):
        find_attachment(profile, word, takes_over=True)
    with pytest.raises(UsageProblems, match="there is no run"):
        reap(profile, slurm.environ, [word], print)


def test_link_to_a_run_is_no_run(dead: DeadRun, profile: Profile, tmp_path: Path) -> None:
    """Whoever made it may point it elsewhere."""
    other = "20261101-020000-000000"
    (profile.shared_dir / other).symlink_to(dead.run.root)
    assert [run.run_id for run in list_runs(profile.shared_dir)] == [RUN_ID]
    with pytest.raises(UsageProblems, match="it is not a directory"):
        find_attachment(profile, other, takes_over=True)


def test_latest_is_the_newest_run_without_a_report(
    dead: DeadRun, profile: Profile, tmp_path: Path
) -> None:
    """Neither a run that has ended and was reported, nor a proof, nor one that was killed before it
    submitted anything: it has no jobs, and the one before may have some."""
    newer = DeadRun(
        tmp_path, profile, "20261102-020000-abcdef", report=str(tmp_path / "reports" / "newer")
    )
    newer.journal.write("closed")
    write_json(tmp_path / "reports" / "newer" / "report.json", {"run_id": newer.run.run_id})
    DeadRun(tmp_path, profile, "20261103-020000-abcdef", proof={})
    empty = DeadRun(tmp_path, profile, "20261104-020000-abcdef").run
    write_json(empty.run, describe_run(profile, empty.run_id))
    assert find_attachment(profile, "latest", takes_over=False).run == dead.run


def test_latest_is_the_one_that_began_last_also_when_clocks_go_back(
    dead: DeadRun, profile: Profile, tmp_path: Path
) -> None:
    """Its id has an earlier local time."""
    last = DeadRun(tmp_path, profile, "20261101-013000-abcdef")
    assert last.run.run_id < dead.run.run_id
    assert find_attachment(profile, "latest", takes_over=False).run == last.run


def test_run_that_was_killed_before_it_submitted_anything_is_not_attached(
    dead: DeadRun, profile: Profile
) -> None:
    """It noted neither phases nor profile, and no lock says whether its process lives."""
    write_json(dead.run.run, describe_run(profile, RUN_ID))
    with pytest.raises(UsageProblems, match="has not come as far as to submit anything") as refused:
        find_attachment(profile, RUN_ID, takes_over=True)
    assert "begin anew, without --cluster-attach" in str(refused.value)


def test_script_that_has_changed_since_a_run_began_is_named(
    tmp_path: Path, profile: Profile
) -> None:
    """Another program would be judged than the one that ran."""
    script = tmp_path / "train.py"
    script.write_text("steps = 3\n")
    phase = make_phase(profile, "a", script=script)
    began = describe_start(profile, [phase], [])
    DeadRun(tmp_path, profile, phases_chosen=["a"], **began)
    attachment = find_attachment(profile, RUN_ID, takes_over=False)
    assert list(attachment.find_changes(profile, [phase])) == []
    script.write_text("steps = 4\n")
    (problem,) = attachment.find_changes(profile, [phase])
    assert problem.what == f"phase a has changed since run {RUN_ID} began: its script"


def test_settings_of_phases_that_were_not_submitted_are_compared(
    tmp_path: Path, profile: Profile
) -> None:
    """--cluster-set is no part of a file; and what a retry means for the verdict must not change
    after it."""
    phase, other = make_phase(profile, "a"), make_phase(profile, "a", args={"steps": 10})
    DeadRun(tmp_path, profile, phases_chosen=["a"], **describe_start(profile, [phase], []))
    attachment = find_attachment(profile, RUN_ID, takes_over=False)
    (problem,) = attachment.find_changes(profile, [other])
    assert problem.what == f"phase a has changed since run {RUN_ID} began: args, args_from, argv"
    (problem,) = attachment.find_changes(profile, [make_phase(profile, "a", resume=2)])
    assert problem.what.endswith("began: resume")
    limits = profile.limits.model_copy(update={"retried": "pass", "queue_wait_s": 7.0})
    lenient = profile.model_copy(update={"limits": limits})
    (problem,) = attachment.find_changes(lenient, [phase])
    assert problem.what == f"the profile has changed since run {RUN_ID} began: limits.retried"


@pytest.mark.parametrize(
    "about", [{"phases_chosen": 7, "resolved": 7, "attached": 7}, {"resolved": {"profile": []}}]
)
def test_strange_values_in_run_json_are_no_traceback(
    tmp_path: Path, profile: Profile, about: dict[str, Any]
) -> None:
    """A run.json that was edited, or of another version."""
    DeadRun(tmp_path, profile, **about)
    attachment = find_attachment(profile, RUN_ID, takes_over=False)
    assert list(attachment.find_changes(profile, [])) or attachment.chosen == []


# --cluster-reap


def test_reaped_jobs_keep_their_outcome_and_the_others_are_cancelled(
    dead: DeadRun, slurm: FakeSlurm, profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that had passed has passed; what ran is cancelled by one scancel; a phase that was
    never submitted is cancelled, too."""
    monkeypatch.setattr(reaper, "POLL_S", 0.01)
    dead.submitted("a", "7")
    dead.passes("a")
    dead.submitted("b", "8")
    has_jobs(slurm, "8")
    said: list[object] = []
    assert reap(profile, slurm.environ, [RUN_ID], said.append) == 0
    assert said == [f"run {RUN_ID}: ended 1 job"]
    assert [call for call in slurm.calls() if call.startswith("scancel")] == ["scancel 8"]
    assert dead.outcomes() == {"a": "passed", "b": "cancelled", "c": "cancelled"}
    assert read_journal(dead.run).closed


def test_reaped_job_that_had_failed_is_not_called_cancelled(
    dead: DeadRun, slurm: FakeSlurm, profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its abort flag was up before: the reap ended what a failure had left."""
    monkeypatch.setattr(reaper, "POLL_S", 0.01)
    directory = dead.submitted("a", "7")
    directory.claim.touch()
    why = {"reason": "hang", "why": "no progress in `train` for 60 s"}
    write_json(directory.abort, {"node_rank": 0, "node": "n1", "time": 1.0, **why})
    write_json(directory.node_result(0), {"ok": False, "node": "n1", **why})
    has_jobs(slurm, "7")
    assert reap(profile, slurm.environ, [RUN_ID], print) == 0
    assert dead.outcomes()["a"] == "failed"


def test_reap_withdraws_submissions_without_an_answer(
    dead: DeadRun, slurm: FakeSlurm, profile: Profile
) -> None:
    """They may reach Slurm after it was asked. Their phases are cancelled, as the others."""
    directory = dead.submitted("a")
    assert reap(profile, slurm.environ, ["all"], print) == 0
    assert directory.withdrawn("ta").exists()
    assert dead.outcomes() == dict.fromkeys("abc", "cancelled")


def test_job_that_claims_as_its_submission_is_withdrawn_keeps_its_outcome(
    dead: DeadRun, slurm: FakeSlurm, profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looks for a claim first, and withdraws then, would never see it."""
    directory = dead.submitted("a")

    def claim_before(place: PhaseDir, token: str, why: str) -> None:
        write_json(directory.claim, {"token": token, "job_id": "7", "node": "n0"})
        dead.passes("a")
        lost_answers.withdraw(place, token, why)

    monkeypatch.setattr(unwatched_jobs, "withdraw", claim_before)
    assert reap(profile, slurm.environ, [RUN_ID], print) == 0
    result = read_json(directory.result) or {}
    assert (result["outcome"], result["job_id"]) == ("passed", "7")


def test_run_that_is_taken_over_while_it_is_judged_gets_no_more_results(
    dead: DeadRun, slurm: FakeSlurm, profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are the successor's, which may await its jobs again."""
    for name, job_id in (("a", "7"), ("b", ""), ("c", "9")):
        dead.submitted(name, job_id)

    def supersede(*values: Any) -> Any:
        ControllerFence(dead.run)
        return judge_end(*values)

    monkeypatch.setattr(unwatched_jobs, "judge_end", supersede)
    assert reap(profile, slurm.environ, [RUN_ID], print) == 1
    assert dead.outcomes() == {}


def test_reap_that_slurm_does_not_confirm_leaves_the_run_open(
    dead: DeadRun,
    slurm: FakeSlurm,
    profile: Profile,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """scancel fails, and the job runs on: it is named, and the status is 1."""
    for name in ("CONFIRM_S", "POLL_S"):
        monkeypatch.setattr(reaper, name, 0.05)
    dead.submitted("a", "7")
    has_jobs(slurm, "7", until_cancelled=False)
    slurm.answers("scancel", err="Kill job error", rc=1)
    assert reap(profile, slurm.environ, [RUN_ID], print) == 1
    assert f"run {RUN_ID}: not confirmed that 7 ended; ask again" in capsys.readouterr().out
    assert not read_journal(dead.run).closed and dead.outcomes() == {}


def test_reap_of_a_run_that_was_taken_over_meanwhile_ends_nothing(
    dead: DeadRun,
    slurm: FakeSlurm,
    profile: Profile,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line says so, and no traceback."""
    dead.submitted("a", "7")
    has_jobs(slurm, "7")
    expect_end = UnwatchedJobs.expect_end

    def supersede(jobs: UnwatchedJobs) -> None:
        ControllerFence(dead.run)
        expect_end(jobs)

    monkeypatch.setattr(UnwatchedJobs, "expect_end", supersede)
    assert reap(profile, slurm.environ, [RUN_ID], print) == 1
    assert "has taken this run over" in capsys.readouterr().out
    assert "scancel" not in slurm.commands()


@pytest.mark.parametrize(
    ("backend", "about", "why"),
    [
        ("slurm", {"here": True}, "ran as steps of an allocation"),
        ("local", {"host": "another"}, "runs on another itself"),
    ],
)
def test_run_whose_jobs_cannot_be_seen_is_not_reaped(
    tmp_path: Path,
    slurm: FakeSlurm,
    backend: str,
    about: dict[str, Any],
    why: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nobody could confirm that they ended."""
    profile = make_profile(tmp_path, backend=backend)
    dead = DeadRun(tmp_path, profile, **about)
    dead.submitted("a", "7")
    with pytest.raises(UsageProblems, match=why):
        reap(profile, slurm.environ, [RUN_ID], print)
    assert not read_journal(dead.run).closed
