"""Controllers of one run after each other: what the next one takes up, and what the one before it
no longer touches."""

from __future__ import annotations

import errno
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.config.phase import Phase
from pytest_clustersmoke.evidence import telemetry
from pytest_clustersmoke.evidence.locks import ControllerFence
from pytest_clustersmoke.evidence.run_directory import PhaseDir, RunDir, read_json, write_json
from pytest_clustersmoke.evidence.run_journal import FencedJournal, JournalledJob
from pytest_clustersmoke.evidence.scheduler_record import JobState
from pytest_clustersmoke.evidence.telemetry import EventWriter
from pytest_clustersmoke.jobs import job_watch
from pytest_clustersmoke.preflight.slurm_check import CheckResult
from pytest_clustersmoke.session import cancellation, earlier_jobs, job_session, lost_answers
from pytest_clustersmoke.session.job_session import JobSession, WatchFailed
from tests.support.job_run import WITHIN_S, JobRun, ignore, until


def stopped(session: JobSession) -> None:
    """Wait until a controller has seen that it has a successor."""
    with pytest.raises(WatchFailed, match="has taken this run over"):
        session.wait("a", ignore)
    session._thread.join()


def test_controller_with_a_successor_cancels_no_job(run: JobRun) -> None:
    """Neither as it stops nor at Ctrl-C; it writes no result and no line of the journal."""
    session = run.start("a", "b", limits={"max_jobs": 1, "poll_s": 0.05})
    until(lambda: ("submitted", "a") in run.events())
    ControllerFence(run.run)
    events = run.events()
    session.cancel()
    session.close()
    until(lambda: not session._thread.is_alive())
    assert run.backend.named("cancel") == run.backend.named("cancel_named") == []
    assert run.events() == events
    assert not run.result("a") and not run.result("b")


@pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE])
def test_controller_that_cannot_see_whether_it_has_a_successor_cancels_no_job(
    run: JobRun, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """The jobs may be the successor's. It watches them, and names them when it ends."""
    session = run.start("a", "b", limits={"max_jobs": 1, "poll_s": 0.05})
    until(lambda: ("submitted", "a") in run.events())
    run.show_states()
    ControllerFence(run.run)
    iterdir = Path.iterdir

    def fail(path: Path) -> Iterator[Path]:
        if path == run.run.root:
            raise OSError(error, os.strerror(error))
        return iterdir(path)

    monkeypatch.setattr(Path, "iterdir", fail)
    run.show_states()
    assert session._thread.is_alive()
    session.cancel()
    assert session.close().jobs == ("a",)
    until(lambda: not session._thread.is_alive())
    assert run.backend.named("cancel") == run.backend.named("cancel_named") == []
    assert not run.result("a") and ("closed", None) not in run.events()


def test_controller_with_a_successor_submits_nothing(run: JobRun) -> None:
    """It was asking Slurm about the phases. The successor's spec stays as it is."""

    def supersede(phases: Iterable[Phase], directory: RunDir) -> CheckResult:
        ControllerFence(directory)
        return CheckResult()

    stopped(run.start("a", check=supersede))
    assert run.submitted() == [] and not run.run.phase("a").spec.exists()


def test_controller_with_a_successor_withdraws_no_submission(run: JobRun) -> None:
    """The successor looks for the same job."""
    run.backend.silent["a"] = False
    session = run.start("a", limits={"poll_s": 0.05, "scheduler_patience_s": 60})
    until(lambda: run.backend.named("find"))
    ControllerFence(run.run)
    stopped(session)
    session.close()
    assert run.backend.named("cancel_named") == []
    assert not list(run.run.phase("a").root.glob("withdrawn.*"))


def test_successor_that_comes_before_sbatch_keeps_it_from_being_called(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the line `intent` and the submission."""

    def supersede(*_: Any, **__: Any) -> None:
        ControllerFence(run.run)

    monkeypatch.setattr(FencedJournal, "write", supersede)
    stopped(run.start("a"))
    assert run.submitted() == []


def test_journal_is_read_behind_the_fence(run: JobRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the controller before wrote until then counts: no phase is submitted by both."""
    first = run.start("a")
    first.cancel()
    first.join()  # it writes its last line after the result
    assert run.result("a")
    run.run.journal.write_text("")
    run.run.phase("a").result.unlink()

    class LateFence(ControllerFence):
        def __init__(self, directory: RunDir) -> None:
            journal = EventWriter(directory.journal)
            journal.write("intent", phase="a", token="t")
            journal.write("submitted", phase="a", job_id="a")
            journal.close()
            super().__init__(directory)

    monkeypatch.setattr(job_session, "ControllerFence", LateFence)
    run.backend.jobs["a"] = JobState("running", "RUNNING")
    session = run.attach()
    until(lambda: run.backend.named("states"))
    assert run.submitted() == [] and run.backend.named("adopt") == [("a",)]
    session.close()


def test_run_whose_journal_cannot_be_read_is_not_taken_up(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would look as if nothing had been submitted, and every phase would run twice."""
    run.start("a")
    until(lambda: ("submitted", "a") in run.events())

    def fail(path: Path, most_bytes: float = 0) -> Any:
        raise OSError(errno.ESTALE, "Stale file handle", str(path))

    monkeypatch.setattr(telemetry, "open_regular", fail)
    with pytest.raises(OSError, match="Stale file handle"):
        run.attach()
    assert run.backend.named("submit") == []


def test_result_that_a_job_wrote_itself_does_not_end_its_phase(run: JobRun) -> None:
    """The phase's directory is in the environment of its ranks, and `result.json` a usual name."""
    run.start("a")
    until(lambda: ("submitted", "a") in run.events())
    write_json(run.run.phase("a").result, {"outcome": "passed", "accuracy": 0.9})
    run.backend.jobs["a"] = JobState("running", "RUNNING")
    session = run.attach()
    until(lambda: run.backend.named("adopt") == [("a",)])
    assert session.outcomes == {}
    session.close()


def test_job_of_this_machine_keeps_its_name(run: JobRun) -> None:
    """It has the phase's name, in which `_` and a number begin no task of an array."""
    names = ("ddp_2gpu", "ddp_2node", "ddp_1")
    run.start(*names)
    until(lambda: ("submitted", names[-1]) in run.events())
    assert run.submitted() == [*names]
    run.attach()
    until(lambda: len(run.backend.named("adopt")) == len(names))
    assert run.backend.named("adopt") == [(name,) for name in names]


@pytest.mark.parametrize("answered", [False, True])
def test_task_of_an_array_keeps_its_index_when_another_has_ended(
    run: JobRun, answered: bool
) -> None:
    """Whether the journal has its id, another task's, or only a claim shows the array's."""
    names = ("a", "b", "c", "d")
    if answered:
        run.backend.array_id = "7"
    else:
        run.backend.silent["a"] = False
    run.start(*names, limits={"poll_s": 0.05, "scheduler_patience_s": 60})
    event = ("submitted", "d") if answered else ("unanswered", None)
    until(lambda: event in run.events())
    ControllerFence(run.run)
    run.sessions[0]._thread.join()
    lines = run.run.journal.read_text().splitlines(keepends=True)
    kept = [line for line in lines if '"submitted"' not in line or '"d"' in line]
    run.run.journal.write_text("".join(kept))
    journal = EventWriter(run.run.journal)
    journal.write("intent", phase="a", token="of a later submission")
    journal.write("submitted", phase="a", job_id="8")
    journal.write("ended", phase="a", job_id="8")
    journal.close()
    write_json(run.run.phase("a").result, {"outcome": "passed", "job_id": "8"})
    token = (read_json(run.run.phase("c").spec) or {})["token"]
    write_json(run.run.phase("c").claim, {"token": token, "job_id": "7_2", "node": "n0"})
    session = run.attach()
    until(lambda: len(session._watched) == 3)
    jobs = {name: job.job_id for name, job in session._watched.items()}
    assert jobs == {"b": "7_1", "c": "7_2", "d": "7_3"}


def test_last_task_of_an_array_keeps_its_id_in_a_journal_without_indices() -> None:
    """The journal did not always have them."""
    left = JournalledJob("d", "t", 1.0, job_id="7_3")
    assert earlier_jobs._complete_ids([left]) == [left]


@pytest.mark.parametrize(("nodes", "restored"), [(3, 3), ("many", 2), (None, 2)])
def test_test_of_an_isolation_whose_job_overwrote_its_spec_is_taken_up(
    run: JobRun, nodes: Any, restored: int
) -> None:
    """It has as many nodes as its phase then."""
    run.start("a", nodes=2)
    write_json(run.run.phase("a.isolate.1").spec, {} if nodes is None else {"nodes": nodes})
    test = earlier_jobs.restore_test(run.run, "a.isolate.1", run.phases[0])
    assert (test.name, test.nodes.value) == ("a.isolate.1", restored)


def test_job_that_slurmctld_sets_back_is_judged_alike_by_every_controller(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that attaches after slurmctld came back with a state from before the job's start has not
    seen its submission; the journal has it. The job was not requeued."""
    monkeypatch.setattr(job_watch, "VERDICT_GRACE_S", 0.0)
    run.start("a")
    until(lambda: run.submitted() == ["a"])
    run.backend.jobs["a"] = JobState("running", "RUNNING", submitted=100.0, started=103.0)
    until(lambda: ("queued", "a") in run.events())
    run.run.phase("a").claim.touch()
    run.backend.jobs["a"] = JobState("pending", "PENDING", submitted=100.0)
    last = run.attach()
    until(lambda: run.backend.named("states"))
    outside = {"ok": False, "node": "n0", "reason": "terminated", "why": "SIGTERM"}
    write_json(run.run.phase("a").node_result(0), outside)
    last.wait("a", ignore)
    reason = f"the job was ended by SIGTERM from outside, and {job_watch.OUTDATED}"
    assert (run.result("a")["outcome"], run.result("a")["reason"]) == ("lost", reason)


def test_result_of_a_phase_that_was_given_up_hides_no_job_of_it(run: JobRun) -> None:
    """An interrupted run has a result of each phase that it never submitted. The run that attaches
    submits it, and is killed: the next one awaits that job."""
    session = run.start("a", "b", limits={"max_jobs": 1, "poll_s": 0.05})
    until(lambda: ("submitted", "a") in run.events())
    session.close()
    assert run.result("b")["outcome"] == "cancelled"
    run.attach()
    until(lambda: ("submitted", "b") in run.events())
    assert run.result("b") == {}
    last = run.attach()
    until(lambda: run.backend.named("adopt") == [("b",)])
    run.passes("b")
    last.wait("b", ignore)
    assert last.outcomes["b"].outcome == "passed" and run.submitted() == []


def test_run_that_ends_before_it_took_its_jobs_up_leaves_them_open(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C comes while the run that attaches still starts: the jobs are named, and the run is not
    closed, so that a later command finds them."""
    run.start("a")
    until(lambda: ("submitted", "a") in run.events())
    monkeypatch.setattr(JobSession, "start", lambda session: None)
    left = run.attach().close()
    assert left.jobs == ("a",) and ("closed", None) not in run.events()


def test_interrupt_while_jobs_are_taken_up_changes_no_result(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shared directory is slow. A phase that had passed has passed; the job that runs is named,
    and no line says that it has ended. The thread that comes too late does nothing more."""
    first = run.start("a", "b")
    until(lambda: ("submitted", "b") in run.events())
    run.passes("a")
    first.wait("a", ignore)
    has_begun, may_go_on, sort_jobs = threading.Event(), threading.Event(), earlier_jobs.sort_jobs

    def sort_late(*known: Any) -> Any:
        has_begun.set()
        assert may_go_on.wait(WITHIN_S)
        return sort_jobs(*known)

    monkeypatch.setattr(job_session, "sort_jobs", sort_late)
    monkeypatch.setattr(cancellation, "CLOSE_S", 0.1)
    session = run.attach()
    assert has_begun.wait(WITHIN_S)
    events = run.events()
    session.cancel()
    assert session.close("the run was interrupted").jobs == ("b",)
    may_go_on.set()
    session._thread.join()
    assert run.events() == events and run.backend.named("adopt") == []
    assert run.result("a")["outcome"] == "passed" and run.result("b") == {}


def interrupt_unconfirmed(run: JobRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """End a run whose scheduler neither ends job `a` nor says how it is."""
    session = run.sessions[-1]
    monkeypatch.setattr(cancellation, "CANCEL_CONFIRM_S", 0.05)
    monkeypatch.setattr(run.backend, "cancel", lambda jobs: False)
    run.backend.jobs.pop("a", None)
    assert session.close().jobs == ("a",)
    assert run.result("a")["outcome"] == "cancelled" and ("closed", None) not in run.events()


def test_job_whose_end_was_not_confirmed_is_awaited_by_the_run_that_attaches(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have run on, although its phase has a result. So does one that attaches after that
    one was killed."""
    run.start("a", limits={"poll_s": 0.05})
    until(lambda: ("submitted", "a") in run.events())
    interrupt_unconfirmed(run, monkeypatch)
    run.backend.jobs["a"] = JobState("running", "RUNNING")
    for _ in range(2):
        session = run.attach()
        until(lambda: run.backend.named("adopt") == [("a",)])
        assert run.submitted() == [] and run.result("a") == {}
    run.passes("a")
    session.wait("a", ignore)
    assert session.outcomes["a"].outcome == "passed" and run.result("a")["outcome"] == "passed"
    session.close()
    last = run.attach()
    last.wait("a", ignore)
    assert run.backend.named("adopt") == [] and last.outcomes["a"].outcome == "passed"


def test_job_whose_end_was_not_confirmed_is_awaited_after_a_kill_before_the_last_line(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its phase has a result, and the journal does not have the line on it yet."""
    run.start("a", limits={"poll_s": 0.05})
    until(lambda: ("submitted", "a") in run.events())
    interrupt_unconfirmed(run, monkeypatch)
    *lines, last = run.run.journal.read_text().splitlines(keepends=True)
    assert '"ended"' in last and run.result("a")
    run.run.journal.write_text("".join(lines))
    run.backend.jobs["a"] = JobState("running", "RUNNING")
    run.attach()
    until(lambda: run.backend.named("adopt") == [("a",)])


def test_job_whose_end_was_not_confirmed_is_named_by_a_run_that_cannot_take_it_up(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shared directory fails as the run is attached: the run is not closed."""

    def fail(*_: Any) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    run.start("a", limits={"poll_s": 0.05})
    until(lambda: ("submitted", "a") in run.events())
    interrupt_unconfirmed(run, monkeypatch)
    monkeypatch.setattr(job_session, "sort_jobs", fail)
    session = run.attach()
    session._thread.join()
    assert session.close().jobs == ("a",) and ("closed", None) not in run.events()


def test_job_that_started_without_an_answer_and_was_not_ended_is_awaited(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had claimed its phase before its submission was withdrawn: it may run on."""
    give_up = lost_answers.withdraw

    def claim_before(directory: PhaseDir, token: str, why: str) -> None:
        write_json(directory.claim, {"token": token, "job_id": "a", "node": "n0"})
        give_up(directory, token, why)

    monkeypatch.setattr(lost_answers, "withdraw", claim_before)
    run.backend.silent["a"] = False
    run.start("a", limits={"poll_s": 0.05, "scheduler_patience_s": 60})
    until(lambda: ("unanswered", None) in run.events())
    interrupt_unconfirmed(run, monkeypatch)
    run.backend.jobs["a"] = JobState("running", "RUNNING")
    session = run.attach()
    until(lambda: run.backend.named("adopt") == [("a",)])
    run.passes("a")
    session.wait("a", ignore)
    assert session.outcomes["a"].outcome == "passed" and run.submitted() == []


@pytest.mark.parametrize(
    ("state", "ended", "left"),
    [
        (None, [], ("a",)),
        (JobState("running", "RUNNING", name="train-llm"), [], ()),
        (JobState("running", "RUNNING"), [("a",)], ()),
    ],
)
def test_job_of_an_earlier_controller_is_ended_only_once_the_scheduler_has_shown_it(
    run: JobRun,
    monkeypatch: pytest.MonkeyPatch,
    state: JobState | None,
    ended: list[tuple[str, ...]],
    left: tuple[str, ...],
) -> None:
    """Its id may be another job's by now. Where nobody says, it is named as one that may run."""
    monkeypatch.setattr(cancellation, "CANCEL_CONFIRM_S", 0.3)
    run.start("a", limits={"poll_s": 0.05})
    until(lambda: ("submitted", "a") in run.events())
    run.backend.jobs.pop("a")
    session = run.attach()
    until(lambda: run.backend.named("adopt"))
    if state is not None:
        run.backend.jobs["a"] = state
    session.cancel()
    assert session.close().jobs == left
    assert run.backend.named("cancel") == ended


@pytest.mark.parametrize("is_shown", [False, True])
def test_job_of_a_phase_that_is_over_is_ended_once_the_scheduler_shows_it(
    run: JobRun, monkeypatch: pytest.MonkeyPatch, is_shown: bool
) -> None:
    """A node of two failed, and the other writes nothing. The scheduler has not shown the job since
    the run was attached, and would run it until its time limit: where it shows it later, it is
    ended; else it is named."""
    monkeypatch.setattr(job_watch, "STRAGGLER_S", 0.0)
    monkeypatch.setattr(cancellation, "CANCEL_CONFIRM_S", 0.3)
    run.start("a", nodes=2, limits={"poll_s": 0.05})
    until(lambda: ("submitted", "a") in run.events())
    run.backend.jobs.pop("a")
    session = run.attach()
    until(lambda: run.backend.named("adopt"))
    run.fails("a")
    write_json(run.run.phase("a").last_job.abort, {"node_rank": 0, "node": "n0"})
    session.wait("a", ignore)
    assert run.backend.named("cancel") == []
    if is_shown:
        run.backend.jobs["a"] = JobState("running", "RUNNING")
    assert session.close().jobs == (() if is_shown else ("a",))
    assert run.backend.named("cancel") == ([("a",)] if is_shown else [])


def test_unanswered_job_after_a_phase_that_was_not_selected_is_awaited(run: JobRun) -> None:
    """Nothing holds it back: its order counts among the phases of the run only."""
    run.backend.silent["b"] = False
    run.start("b", after={"b": "a"})
    until(lambda: ("unanswered", None) in run.events())
    run.backend.silent["b"] = True
    session = run.attach()
    until(lambda: ("submitted", "b") in run.events())
    run.passes("b")
    session.wait("b", ignore)
    assert session.outcomes["b"].outcome == "passed"


@pytest.mark.parametrize("has_started", [False, True])
def test_job_behind_a_phase_that_failed_is_withdrawn_while_the_scheduler_is_silent(
    run: JobRun, has_started: bool
) -> None:
    """Its id may be another job's by now, so nobody cancels it: should it start, it ends by itself.
    One that has started may run on, and is named."""
    run.backend.chains = True
    first = run.start("a", "b", after={"b": "a"})
    until(lambda: ("submitted", "b") in run.events())
    ControllerFence(run.run)
    stopped(first)
    run.fails("a")
    run.backend.jobs.clear()
    job = run.run.phase("b").last_job
    token = (read_json(job.spec) or {})["token"]
    if has_started:
        write_json(job.claim, {"token": token, "job_id": "b", "node": "n0"})
    session = run.attach()
    session.wait("b", ignore)
    assert session.outcomes["b"].outcome == "never_ran" and run.backend.named("cancel") == []
    assert job.withdrawn(token).exists()
    assert session.close().jobs == (("b",) if has_started else ())


def test_limit_on_the_queue_counts_from_the_attachment(run: JobRun) -> None:
    """While nobody watched, nobody could keep it: a job that waited long is not ended at once."""
    limits = {"poll_s": 0.05, "queue_wait_s": 600}
    run.start("a", limits=limits)
    until(lambda: ("submitted", "a") in run.events())
    hour_ago = f'"time": {time.time() - 3600}'
    run.run.journal.write_text(re.sub(r'"time": [\d.]+', hour_ago, run.run.journal.read_text()))
    session = run.attach()
    until(lambda: len(run.backend.named("states")) > 3)
    assert session.outcomes == {} and run.backend.named("cancel") == []


def test_job_that_ended_meanwhile_is_judged_before_others_are_submitted(run: JobRun) -> None:
    """Slurm may have forgotten it, and would refuse a job that depends on it."""
    run.backend.chains = True
    limits = {"poll_s": 0.05, "max_jobs": 1}
    run.start("a", "b", after={"b": "a"}, limits=limits)
    until(lambda: run.submitted() == ["a", "b"])
    ControllerFence(run.run)  # the first one is gone
    text = run.run.journal.read_text().splitlines(keepends=True)
    run.run.journal.write_text("".join(line for line in text if '"phase": "b"' not in line))
    run.passes("a")
    run.backend.jobs["a"] = JobState("unknown", "")
    run.attach()
    until(lambda: run.submitted() == ["b"])
    assert run.backend.orders["b"] == ""


def test_jobs_left_to_the_scheduler_keep_the_limit(run: JobRun) -> None:
    """Also a phase that runs after another one has its place in a lane."""
    run.backend.chains = True
    session = run.start(
        *"abcd", after={"c": "a"}, detaches=True, limits={"max_jobs": 2, "poll_s": 0.05}
    )
    session.join()
    assert session.is_detachable and session.detach() == 4
    order = run.submitted()
    behind = {name: order[number - 2] if number >= 2 else "" for number, name in enumerate(order)}
    assert run.backend.lanes == behind and run.backend.orders["c"] == "a"


def test_array_left_to_the_scheduler_has_all_lanes(run: JobRun) -> None:
    """What comes behind waits for the whole array, whose tasks may end in any order."""
    run.backend.array_id = "7"
    session = run.start(
        *("x-1", "x-2", "x-3", "a"), sweep="x", detaches=True, limits={"max_jobs": 2}
    )
    session.join()
    assert run.backend.named("array") == [("2", "x-1", "x-2", "x-3")]
    assert run.backend.lanes["a"] == "7" and run.backend.lanes["x-1"] == ""


def test_run_whose_watch_has_failed_is_not_detached(run: JobRun) -> None:
    """Not every phase was submitted."""
    run.backend.submit = lambda *_: 1 / 0  # type: ignore[assignment,method-assign]
    session = run.start("a", detaches=True)
    with pytest.raises(WatchFailed):
        session.join()
    assert not session.is_detachable
