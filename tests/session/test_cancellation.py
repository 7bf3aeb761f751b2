"""The end of a run whose scheduler does not answer, or does not agree."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.run_directory import delete_output
from pytest_clustersmoke.evidence.run_journal import read_journal
from pytest_clustersmoke.evidence.scheduler_record import JobState
from pytest_clustersmoke.jobs.backend import Submission, prepare_jobs
from pytest_clustersmoke.session import cancellation, job_session, submitter
from pytest_clustersmoke.session.cancellation import Leftover
from pytest_clustersmoke.session.job_end import write_result
from pytest_clustersmoke.session.job_session import JobSession
from pytest_clustersmoke.session.lost_answers import withdraw
from tests.support.job_run import WITHIN_S, JobRun, ignore, until
from tests.support.waiting import PATIENCE_S

NEVER_S = 2 * PATIENCE_S  # longer than `until` waits


class SilentCommand:
    """A command of the scheduler that does not answer before it is released."""

    def __init__(self) -> None:
        self.called, self.answer = threading.Event(), threading.Event()

    def __call__(self, *_: object) -> bool:
        self.called.set()
        return self.answer.wait(WITHIN_S)


@pytest.fixture
def scancel(run: JobRun, monkeypatch: pytest.MonkeyPatch) -> SilentCommand:
    command = SilentCommand()
    monkeypatch.setattr(run.backend, "cancel", command)
    return command


def has_closed(run: JobRun) -> bool:
    return ("closed", None) in run.events()


def end_jobs(run: JobRun) -> None:
    """End the jobs, and wait until that was accepted: a busy machine may take its time."""
    run.sessions[0].cancel()
    until(lambda: ("cancelled", None) in run.events())


def test_run_ends_while_scancel_does_not_answer(
    run: JobRun, scancel: SilentCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every phase has a result all the same; the job whose end nobody confirmed is named, and the
    run is not closed, so that the next one looks for it."""
    monkeypatch.setattr(cancellation, "SILENT_S", 0.2)
    run.backend.chains = True
    session = run.start("a", "b", limits={"max_jobs": 1, "poll_s": 0.05})
    until(lambda: ("submitted", "a") in run.events())
    session.cancel()
    assert scancel.called.wait(WITHIN_S)
    assert session.close() == Leftover(("a",))
    assert (run.result("a")["outcome"], run.result("a")["reason"]) == (
        "cancelled",
        "the run was interrupted; not confirmed that job a has ended",
    )
    assert run.result("a")["job_id"] == "a"
    assert run.result("b")["reason"] == "the run was interrupted before it was submitted"
    assert session.results.keys() == {"a", "b"} and not has_closed(run)
    scancel.answer.set()
    until(lambda: not session._thread.is_alive())
    ended = [phase for event, phase in run.events() if event == "ended"]
    assert sorted(ended) == ["a", "b"]  # the watch that comes too late writes nothing


def test_run_ends_while_squeue_does_not_answer(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """scancel was accepted: the job is not said to be left."""
    monkeypatch.setattr(cancellation, "CLOSE_S", 0.3)
    squeue = SilentCommand()
    session = run.start("a")
    until(lambda: ("submitted", "a") in run.events())
    monkeypatch.setattr(run.backend, "states", squeue)
    assert squeue.called.wait(WITHIN_S)
    session.cancel()
    until(lambda: ("cancelled", None) in run.events())
    assert not session.close() and has_closed(run)
    assert run.result("a")["reason"] == "the run was interrupted"
    monkeypatch.undo()
    squeue.answer.set()


def test_jobs_that_the_scheduler_forgets_as_they_are_cancelled_are_not_waited_for(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Slurm does with tasks of an array that had not started."""
    monkeypatch.setattr(cancellation, "CANCEL_CONFIRM_S", NEVER_S)
    run.backend.on_cancel = JobState("unknown", "", "Job 7_1 not found")
    session = run.start("a", "b")
    until(lambda: run.submitted() == ["a", "b"])
    session.cancel()
    until(lambda: not session._thread.is_alive())
    assert not session.close() and has_closed(run)
    assert {run.result(name)["outcome"] for name in "ab"} == {"cancelled"}


def test_job_that_had_not_started_has_its_result_while_another_still_ends(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing a hundred takes as long as a job may take to end."""
    monkeypatch.setattr(cancellation, "CANCEL_CONFIRM_S", NEVER_S)
    session = run.start("a", "b")
    run.run_job("b", nodes="n1")
    ending = JobState("running", "COMPLETING", nodes="n1")

    def cancel(jobs: Iterable[str]) -> bool:
        run.backend.jobs |= {"a": JobState("ended", "CANCELLED"), "b": ending}
        return True

    monkeypatch.setattr(run.backend, "cancel", cancel)
    session.cancel()
    until(lambda: run.result("a"))
    assert run.result("a")["outcome"] == "cancelled" and not run.result("b")
    run.backend.jobs["b"] = JobState("ended", "CANCELLED")
    until(lambda: not session._thread.is_alive())
    assert run.result("b")["outcome"] == "cancelled"


def test_job_that_slurm_did_not_agree_to_end_is_named(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """scancel fails at once, and the job runs on."""
    monkeypatch.setattr(cancellation, "CANCEL_CONFIRM_S", 0.1)
    monkeypatch.setattr(run.backend, "cancel", lambda job_ids: False)
    session = run.start("a", "b")
    until(lambda: ("submitted", "b") in run.events())
    run.backend.jobs["a"] = JobState("running", "RUNNING", nodes="n1")
    run.backend.jobs["b"] = JobState("ended", "FAILED")
    session.cancel()
    assert session.close() == Leftover(("a",)) and not has_closed(run)
    assert run.result("a")["reason"].endswith("not confirmed that job a has ended")


def test_second_signal_leaves_as_soon_as_scancel_has_started(
    run: JobRun, scancel: SilentCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before, and then without waiting for its answer."""
    for name, seconds in (("SILENT_S", 20.0), ("CLOSE_S", 20.0), ("HURRY_S", 0.1)):
        monkeypatch.setattr(cancellation, name, seconds)
    run.backend.chains = True
    session = run.start("a")
    until(lambda: ("submitted", "a") in run.events())
    left: list[Leftover] = []
    closing = threading.Thread(target=lambda: left.append(session.close()))
    with session._ending._ending:  # nothing gets as far as to call scancel
        session.cancel()
        session.hurry()
        closing.start()
        closing.join(0.3)
        assert closing.is_alive() and not scancel.called.is_set()
    began = time.monotonic()
    closing.join(WITHIN_S)
    assert scancel.called.is_set() and left == [Leftover(("a",))]
    assert time.monotonic() - began < 10
    scancel.answer.set()


def test_signal_handler_waits_for_no_lock(run: JobRun) -> None:
    """The main thread may hold any of them when the signal comes."""
    session = run.start("a")
    until(lambda: ("submitted", "a") in run.events())
    ending = session._ending
    with ending._ending, ending.asked._cond:  # type: ignore[attr-defined]
        handler = threading.Thread(target=session.cancel)
        handler.start()
        handler.join(WITHIN_S)
        assert not handler.is_alive()
    until(lambda: run.backend.named("cancel") == [("a",)])


def test_submission_on_its_way_is_withdrawn_by_an_interruption(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its job may start later: it ends before it claims anything. The phase has a result."""
    monkeypatch.setattr(cancellation, "CLOSE_S", 0.2)
    sbatch = SilentCommand()

    def submit(job: Submission, after: str) -> str:
        sbatch()
        return "a"

    monkeypatch.setattr(run.backend, "submit", submit)
    session = run.start("a")
    assert sbatch.called.wait(WITHIN_S)
    session.cancel()
    assert session.close() == Leftover(phases=("a",)) and not has_closed(run)
    assert list(run.run.phase("a").root.glob("withdrawn.*"))
    assert run.result("a")["outcome"] == "cancelled"
    assert run.result("a")["reason"].endswith("before the scheduler answered the submission")
    until(lambda: run.backend.named("cancel_named") == [("a",)])
    sbatch.answer.set()


def test_submission_on_its_way_is_named_where_nobody_can_tell_who_controls_the_run(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's directory cannot be listed as the run ends: it is not withdrawn."""
    monkeypatch.setattr(cancellation, "CLOSE_S", 0.2)
    sbatch, iterdir = SilentCommand(), Path.iterdir

    def fail(path: Path) -> Iterator[Path]:
        if path == run.run.root:
            raise OSError(errno.ESTALE, "Stale file handle")
        return iterdir(path)

    monkeypatch.setattr(run.backend, "submit", lambda job, after: sbatch() and "a")
    session = run.start("a")
    assert sbatch.called.wait(WITHIN_S)
    monkeypatch.setattr(Path, "iterdir", fail)
    assert session.close() == Leftover(phases=("a",)) and not has_closed(run)
    assert run.backend.named("cancel_named") == []
    assert not list(run.run.phase("a").root.glob("withdrawn.*"))
    sbatch.answer.set()


class SlowDirectory:
    """A function that writes to the shared directory, and is not through before it is released."""

    def __init__(self, write: Callable[..., Any]) -> None:
        self._write = write
        self.called, self.may_go_on = threading.Event(), threading.Event()

    def __call__(self, *args: Any) -> Any:
        self.called.set()
        assert self.may_go_on.wait(WITHIN_S)
        return self._write(*args)


def end_meanwhile(run: JobRun, slow: SlowDirectory) -> None:
    """End the run while its watch waits for the shared directory, which is released once the run
    has ended, or waits for it, too."""
    closing = threading.Thread(target=run.sessions[0].close)
    closing.start()
    closing.join(0.3)
    slow.may_go_on.set()
    closing.join()


def test_run_ends_with_the_result_that_its_watch_is_writing(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shared directory is slow, and the end does not wait for the watch: the phase would be
    none that is watched any more, and would have no result yet."""
    monkeypatch.setattr(cancellation, "CLOSE_S", 0.1)
    slow = SlowDirectory(write_result)
    monkeypatch.setattr(job_session, "write_result", slow)
    session = run.start("a", "b")
    until(lambda: run.submitted() == ["a", "b"])
    run.passes("a")
    assert slow.called.wait(WITHIN_S)
    end_meanwhile(run, slow)
    assert [session.results[name].outcome for name in "ab"] == ["passed", "cancelled"]
    ended = [phase for event, phase in run.events() if event == "ended"]
    assert sorted(ended) == ["a", "b"]


@pytest.mark.parametrize("step", ["prepare_jobs", "create_phase"])
def test_phase_that_was_being_submitted_as_the_run_ended_has_a_result(
    run: JobRun, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """It had left the queue, and had no job yet."""
    monkeypatch.setattr(cancellation, "CLOSE_S", 0.1)
    slow = SlowDirectory(getattr(submitter, step))
    monkeypatch.setattr(submitter, step, slow)
    session = run.start("a")
    assert slow.called.wait(WITHIN_S)
    end_meanwhile(run, slow)
    assert session.results["a"].outcome == "cancelled" and run.result("a")["outcome"] == "cancelled"


def test_run_that_has_ended_submits_nothing_more(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shared directory was slow as the phase was prepared: nobody would watch its job, or
    cancel it."""
    monkeypatch.setattr(cancellation, "CLOSE_S", 0.1)
    slow = SlowDirectory(prepare_jobs)
    monkeypatch.setattr(submitter, "prepare_jobs", slow)
    session = run.start("a")
    assert slow.called.wait(WITHIN_S)
    assert not session.close() and has_closed(run)
    events = run.events()
    slow.may_go_on.set()
    session._thread.join()
    assert run.submitted() == [] and run.events() == events


def test_lines_that_come_after_the_end_of_the_run_are_not_written(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch was waiting for squeue: a hundred lines on when jobs were queued would hide that
    the run is closed."""
    monkeypatch.setattr(cancellation, "CLOSE_S", 0.1)
    squeue = SilentCommand()
    session = run.start("a")
    until(lambda: ("submitted", "a") in run.events())
    session._watched["a"].submitted = 1.0
    monkeypatch.setattr(run.backend, "states", lambda job_ids: squeue() and {})
    assert squeue.called.wait(WITHIN_S)
    end_jobs(run)
    assert not session.close() and has_closed(run)
    events = run.events()
    squeue.answer.set()
    session._thread.join()
    session.journal.write("queued", phase="a")
    assert run.events() == events


def test_phase_that_was_being_tried_again_as_the_run_ended_has_a_result(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run waits until it is written down which job ended; the next one is never submitted."""
    monkeypatch.setattr(cancellation, "CLOSE_S", 0.1)
    slow = SlowDirectory(withdraw)
    monkeypatch.setattr(job_session, "withdraw", slow)
    session = run.start("a", limits={"poll_s": 0.05, "retries": 1})
    until(lambda: run.submitted() == ["a"])
    run.backend.jobs["a"] = JobState("ended", "PREEMPTED", nodes="n1")
    assert slow.called.wait(WITHIN_S)
    end_meanwhile(run, slow)
    assert session.results["a"].outcome == "cancelled" and has_closed(run)
    attempts = [(each["outcome"], each["job_id"]) for each in run.result("a")["attempts"]]
    assert attempts == [("preempted", "a"), ("cancelled", "")]
    session._thread.join()
    assert run.submitted() == ["a"] and run.events()[-1] == ("closed", None)


def test_phase_whose_result_had_no_room_is_judged_by_the_run_that_attaches(run: JobRun) -> None:
    """The journal had room for its end, and the controller was killed before the report."""
    session = run.start("a", "b")
    until(lambda: run.submitted() == ["a", "b"])
    run.passes("a")
    session.wait("a", ignore)
    until(lambda: ("ended", "a") in run.events())
    run.run.phase("a").result.unlink()
    session.detach()
    attached = run.attach()
    attached.wait("a", ignore)
    assert attached.outcomes["a"].outcome == "passed" and run.submitted() == []


def hang_at_result(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> tuple[JobSession, SlowDirectory]:
    """A session of two phases whose watch hangs as it writes the result of `a`."""
    hung = SlowDirectory(write_result)
    session = run.start("a", "b")
    until(lambda: run.submitted() == ["a", "b"])
    monkeypatch.setattr(job_session, "write_result", hung)
    run.passes("a")
    assert hung.called.wait(WITHIN_S)
    monkeypatch.setattr(job_session, "write_result", write_result)
    return session, hung


def test_run_ends_while_a_file_of_its_watch_hangs(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One server of a file system is down: the phase whose result it would hold has none, the run
    is not closed, and another command can judge the phase."""
    for name in ("CLOSE_S", "STEP_S"):
        monkeypatch.setattr(cancellation, name, 0.1)
    session, hung = hang_at_result(run, monkeypatch)
    end_jobs(run)
    assert session.close() == Leftover(phases=("a",)) and not has_closed(run)
    assert session.results.keys() == {"b"} and session.results["b"].outcome == "cancelled"
    hung.may_go_on.set()
    session._thread.join()
    attached = run.attach()
    attached.wait("a", ignore)
    assert attached.outcomes["a"].outcome == "passed" and not attached.close()


def test_phase_has_its_result_while_what_it_wrote_is_deleted(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint may be large: neither a criterion nor the end of the run waits for that."""
    slow = SlowDirectory(lambda phase: None)
    monkeypatch.setattr(job_session, "delete_output", slow)
    session = run.start("a")
    until(lambda: ("submitted", "a") in run.events())
    run.passes("a")
    session.wait("a", ignore)
    assert slow.called.wait(WITHIN_S)
    assert session.outcomes["a"].outcome == "passed" and ("ended", "a") in run.events()
    assert session._ending._stepping.acquire(timeout=WITHIN_S)
    session._ending._stepping.release()
    slow.may_go_on.set()


def test_watch_begins_no_other_step_once_the_run_ends_without_it(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run waits for the step that the watch is at. If that takes long, a hundred more would."""
    for name, seconds in (("CLOSE_S", 0.1), ("CANCEL_CONFIRM_S", 0.1), ("STEP_S", NEVER_S)):
        monkeypatch.setattr(cancellation, name, seconds)
    squeue = SilentCommand()
    session = run.start("a")
    until(lambda: ("submitted", "a") in run.events())
    monkeypatch.setattr(run.backend, "states", lambda job_ids: squeue() and {})
    assert squeue.called.wait(WITHIN_S)
    end_jobs(run)
    closing = threading.Thread(target=session.close)
    with session._ending._stepping:  # a step that takes long
        closing.start()
        until(lambda: session._ending._left is session._thread)
        squeue.answer.set()
        session._thread.join(WITHIN_S)
        assert not session._thread.is_alive() and closing.is_alive()
    closing.join()
    assert session.results["a"].outcome == "cancelled" and has_closed(run)


def test_passed_phase_is_not_lost_while_its_output_is_still_deleted(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large checkpoint takes long on a slow file system: its phase has its result before that."""
    for name in ("CLOSE_S", "STEP_S"):
        monkeypatch.setattr(cancellation, name, 0.1)
    slow = SlowDirectory(delete_output)
    monkeypatch.setattr(job_session, "delete_output", slow)
    session = run.start("a", "b")
    until(lambda: run.submitted() == ["a", "b"])
    run.passes("a")
    assert slow.called.wait(WITHIN_S)
    assert session.close() == Leftover() and has_closed(run)
    assert [session.results[name].outcome for name in "ab"] == ["passed", "cancelled"]
    slow.may_go_on.set()
    session._thread.join()


def test_second_signal_waits_less_for_a_file_that_hangs(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancellation, "CLOSE_S", 0.1)
    monkeypatch.setattr(cancellation, "STEP_S", NEVER_S)
    monkeypatch.setattr(cancellation, "HURRY_S", 0.1)
    session, hung = hang_at_result(run, monkeypatch)
    end_jobs(run)
    session.hurry()
    assert session.close() == Leftover(phases=("a",))
    hung.may_go_on.set()
    session._thread.join()


def test_phases_that_were_left_over_end_in_the_order_of_the_run(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They had left the queue together, and had no jobs yet."""
    monkeypatch.setattr(cancellation, "CLOSE_S", 0.1)
    names = [f"x-{number}" for number in range(8)]
    slow = SlowDirectory(prepare_jobs)
    monkeypatch.setattr(submitter, "prepare_jobs", slow)
    session = run.start(*names, sweep="x")
    assert slow.called.wait(WITHIN_S)
    assert not session.close()
    slow.may_go_on.set()
    session._thread.join()
    assert [phase for event, phase in run.events() if event == "ended"] == names


class ScancelThatFails:
    """A scancel that fails, as while slurmctld restarts, until it `works`."""

    def __init__(self, run: JobRun) -> None:
        self.works, self.asked, self._cancel = False, list[list[str]](), run.backend.cancel

    def __call__(self, job_ids: Iterable[str]) -> bool:
        self.asked.append([*job_ids])
        return self.works and self._cancel(self.asked[-1])


def keep_nodes(run: JobRun, monkeypatch: pytest.MonkeyPatch) -> ScancelThatFails:
    """Start two phases, and let the job of `a` fail, which Slurm still runs and does not end."""
    run.start("a", "b")
    run.run_job("a")
    scancel = ScancelThatFails(run)
    monkeypatch.setattr(run.backend, "cancel", scancel)
    run.fails("a")
    run.sessions[0].wait("a", ignore)
    return scancel


@pytest.mark.parametrize("by", ["scancel", "squeue"])
def test_failed_job_that_slurm_did_not_agree_to_end_is_ended_again(
    run: JobRun, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """It would keep its nodes. It is asked for until Slurm agrees, or shows that it has ended."""
    scancel = keep_nodes(run, monkeypatch)
    until(lambda: len(scancel.asked) > 2)
    assert ("confirmed", "a") not in run.events() and read_journal(run.run).jobs["a"].may_run
    if by == "scancel":
        scancel.works = True
    else:
        run.backend.jobs["a"] = JobState("ended", "FAILED")
    until(lambda: ("confirmed", "a") in run.events())
    assert not read_journal(run.run).jobs["a"].may_run
    run.show_states()
    asked = len(scancel.asked)
    run.show_states()
    assert len(scancel.asked) == asked and {*map(tuple, scancel.asked)} == {("a",)}
    run.passes("b")
    assert run.sessions[0].close() == Leftover() and has_closed(run)


def test_failed_job_that_slurm_never_agreed_to_end_is_named(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is not closed, so that the next one names it, too."""
    monkeypatch.setattr(cancellation, "CANCEL_CONFIRM_S", 0.05)
    keep_nodes(run, monkeypatch)
    run.passes("b")
    run.sessions[0].wait("b", ignore)
    assert run.sessions[0].close() == Leftover(("a",)) and not has_closed(run)
    journal = read_journal(run.run)
    assert [(job.phase, job.may_run) for job in journal.left] == [("a", True)]
    assert {name: run.result(name)["outcome"] for name in "ab"} == {"a": "failed", "b": "passed"}


def test_job_of_a_phase_that_runs_again_is_ended_again(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm has put the job that was preempted back into the queue, and does not end it. It is the
    phase's next job that counts; the run names the other."""
    monkeypatch.setattr(cancellation, "CANCEL_CONFIRM_S", 0.05)
    session = run.start("a", limits={"poll_s": 0.05, "retries": 1})
    run.run_job("a")
    run.run.phase("a").last_job.claim.touch()
    scancel = ScancelThatFails(run)
    monkeypatch.setattr(run.backend, "cancel", scancel)
    monkeypatch.setattr(run.backend, "_accept", lambda job: "second")
    run.backend.jobs["second"] = JobState("running", "RUNNING")
    run.backend.jobs["a"] = JobState("pending", "PENDING", "BeginTime")
    until(lambda: run.submitted() == ["a", "a"])
    until(lambda: len(scancel.asked) > 2)
    run.passes("a")
    session.wait("a", ignore)
    assert session.outcomes["a"].outcome == "passed"
    assert session.close() == Leftover(("a",)) and not has_closed(run)
    assert read_journal(run.run).jobs["a"].has_ended
