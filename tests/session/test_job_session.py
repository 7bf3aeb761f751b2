"""One run: what is submitted when, how each job's end is told, what an interruption does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.config.phase import Phase
from pytest_clustersmoke.evidence.run_directory import (
    PhaseDir,
    RunDir,
    job_of,
    read_json,
    write_json,
)
from pytest_clustersmoke.evidence.scheduler_record import JobState
from pytest_clustersmoke.evidence.telemetry import SCHEMA, EventWriter, read_events
from pytest_clustersmoke.jobs import job_watch
from pytest_clustersmoke.session import job_session as module
from pytest_clustersmoke.session.job_session import Progress, Session, WatchFailed
from tests.fakes.backend import FakeBackend
from tests.support.evidence import make_phase, make_profile

WITHIN_S = 20.0


def ignore(progress: Progress) -> None:
    """Nobody listens."""


def until(holds: Callable[[], object]) -> None:
    """Wait for something that another thread does."""
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.005)


class Run:
    """A session over a fake backend."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.backend = FakeBackend()
        self.sessions: list[Session] = []

    def start(self, *names: str, gpus: int = 1, nodes: int = 1, **keys: Any) -> Session:
        keys.setdefault("limits", {"poll_s": 0.05})
        profile = make_profile(self.folder, phases=dict.fromkeys(names), **keys)
        phases = [make_phase(profile, name, gpus_per_node=gpus, nodes=nodes) for name in names]
        root = self.folder / "run1"
        root.mkdir()
        self.run = RunDir(root)
        session = Session(self.run, profile, phases, self.backend)
        self.sessions.append(session)
        session.start()
        return session

    def submitted(self) -> list[str]:
        return [name for (name,) in self.backend.named("submit")]

    def passes(self, name: str, nodes: int = 1) -> None:
        """The job did all it should."""
        directory = self.run.phase(name)
        for node in range(nodes):
            directory.claim(node).touch()
            writer = EventWriter(directory.rank_events(node))
            job = job_of(read_json(directory.spec) or {})
            writer.write("start", schema=SCHEMA, job=job, rank=node, node_rank=node)
            writer.write("done", seconds=1)
            writer.close()
            times = {"started": time.time() - 5, "ended": time.time(), "torchrun_s": 4.0}
            write_json(directory.node_result(node), {"ok": True, "node": f"n{node}", **times})

    def result(self, name: str) -> dict[str, Any]:
        return read_json(self.run.phase(name).result) or {}

    def events(self) -> list[tuple[str, Any]]:
        records = read_events(self.run.journal).records
        return [(one["event"], one.get("phase")) for one in records]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.setattr(module, "TICK_S", 0.01)
    for name in ("FIRST_POLL_S", "RESULT_GRACE_S", "LOST_GRACE_S", "VERDICT_GRACE_S"):
        monkeypatch.setattr(job_watch, name, 0.05)
    made = Run(tmp_path)
    yield made
    for session in made.sessions:
        session.close()
        until(lambda session=session: not session._thread.is_alive())  # type: ignore[misc]


def test_all_phases_are_submitted_before_any_result(run: Run) -> None:
    """Queue waits overlap: every phase is submitted while none has ended."""
    session = run.start("a", "b", "c")
    until(lambda: len(run.submitted()) == 3)
    assert session.outcomes == {}
    for name in ("c", "a", "b"):
        run.passes(name)
        session.wait(name, ignore)
    assert {name: one.outcome for name, one in session.outcomes.items()} == dict.fromkeys(
        "abc", "passed"
    )


def test_the_intent_is_journalled_before_the_submission(run: Run) -> None:
    """intent, then sbatch, then the id: a run that dies in between can be found again."""
    seen: list[Any] = []
    submit = run.backend.submit

    def noted(phase: Phase, directory: PhaseDir) -> str:
        seen.append(run.events())
        return submit(phase, directory)

    run.backend.submit = noted  # type: ignore[method-assign]
    session = run.start("a")
    until(lambda: ("submitted", "a") in run.events())
    assert seen == [[("intent", "a")]]
    run.passes("a")
    session.wait("a", ignore)
    assert run.events() == [("intent", "a"), ("submitted", "a"), ("ended", "a")]


def test_no_more_jobs_at_once_than_the_limit(run: Run) -> None:
    """limits.max_jobs jobs run; the next one is submitted when one has ended, in order."""
    session = run.start("a", "b", "c", limits={"max_jobs": 2, "poll_s": 0.05})
    until(lambda: len(run.backend.named("states")) > 3)
    assert run.submitted() == ["a", "b"]
    run.passes("b")
    session.wait("b", ignore)
    until(lambda: run.submitted() == ["a", "b", "c"])


def test_ranks_do_not_thrash_this_machine(run: Run) -> None:
    """Where ranks share cores, a second phase waits until both fit; a large one still runs."""
    run.backend.ranks_at_once = 3
    session = run.start("a", "b", "c", gpus=2)
    until(lambda: len(run.backend.named("states")) > 3)
    assert run.submitted() == ["a"]
    run.passes("a")
    run.run.phase("a").rank_events(1).write_bytes(run.run.phase("a").rank_events(0).read_bytes())
    session.wait("a", ignore)
    until(lambda: run.submitted() == ["a", "b"])


def test_a_refused_phase_is_a_finding_and_the_others_go_on(run: Run) -> None:
    """sbatch's own words stand in the finding; the phase never ran."""
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


def test_a_job_that_waits_too_long_never_ran(run: Run) -> None:
    """Past limits.queue_wait_s a pending job is cancelled, and has never run."""
    session = run.start("a", limits={"queue_wait_s": 0.1, "poll_s": 0.05})
    session.wait("a", ignore)
    assert run.backend.named("cancel") == [("a",)]
    assert run.result("a")["outcome"] == "never_ran"
    assert "did not start within 0.1 s" in run.result("a")["reason"]


def test_a_running_job_is_not_bound_by_the_queue_limit(run: Run) -> None:
    """The limit is for the queue alone."""
    session = run.start("a", limits={"queue_wait_s": 0.2, "poll_s": 0.05})
    until(lambda: run.submitted() == ["a"])
    run.backend.jobs["a"] = JobState("running", "RUNNING", nodes="n1")
    begun = time.monotonic()
    until(lambda: time.monotonic() - begun > 0.5)
    assert session.outcomes == {}
    run.passes("a")
    session.wait("a", ignore)
    assert session.outcomes["a"].outcome == "passed"


def test_a_vanished_job_is_lost(run: Run) -> None:
    """A job that the scheduler has forgotten, without results, is lost."""
    session = run.start("a")
    until(lambda: run.submitted() == ["a"])
    run.backend.jobs["a"] = JobState("unknown", "")
    session.wait("a", ignore)
    assert run.result("a")["outcome"] == "lost"
    assert run.result("a")["findings"][0]["id"] == "job-lost"


def test_a_late_result_counts(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler says COMPLETED before the file system shows the result: passed."""
    monkeypatch.setattr(job_watch, "RESULT_GRACE_S", 5.0)
    session = run.start("a")
    until(lambda: run.submitted() == ["a"])
    run.backend.jobs["a"] = JobState("ended", "COMPLETED")
    asked = len(run.backend.calls)
    until(lambda: len(run.backend.calls) > asked)
    run.passes("a")
    session.wait("a", ignore)
    assert run.result("a")["outcome"] == "passed"


def test_an_interruption_cancels_all_jobs_in_one_call(run: Run) -> None:
    """One call for all that run; what was never submitted is told so; one that passed stays."""
    session = run.start("a", "b", "c", "d", limits={"max_jobs": 3, "poll_s": 0.05})
    until(lambda: len(run.submitted()) == 3)
    run.passes("a")
    session.wait("a", ignore)
    until(lambda: len(run.submitted()) == 4)
    session.cancel()
    session.close()
    assert run.backend.named("cancel") == [("b", "c", "d")]
    outcomes = {name: one.outcome for name, one in session.outcomes.items()}
    assert outcomes == {"a": "passed", "b": "cancelled", "c": "cancelled", "d": "cancelled"}


def test_an_interruption_does_not_wait_for_a_slow_scheduler(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the watching thread waits for an answer, the jobs are cancelled all the same."""
    monkeypatch.setattr(module, "CLOSE_S", 0.2)
    asked, answer = threading.Event(), threading.Event()

    def slow(job_ids: object) -> dict[str, JobState]:
        asked.set()
        answer.wait(WITHIN_S)
        return {}

    session = run.start("a")
    until(lambda: run.submitted() == ["a"])
    monkeypatch.setattr(run.backend, "states", slow)
    assert asked.wait(WITHIN_S)
    session.cancel()
    until(lambda: run.backend.named("cancel"))
    assert session.close() == [] and run.backend.named("cancel") == [("a",)]
    answer.set()


def test_an_interruption_does_not_wait_for_a_slow_cancellation(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where even scancel does not answer, the end comes in its time; the command goes on alone."""
    monkeypatch.setattr(module, "CLOSE_S", 0.2)
    asked, answer = threading.Event(), threading.Event()

    def slow(job_ids: object) -> bool:
        asked.set()
        return answer.wait(WITHIN_S)

    session = run.start("a")
    until(lambda: run.submitted() == ["a"])
    monkeypatch.setattr(run.backend, "cancel", slow)
    session.cancel()
    assert asked.wait(WITHIN_S)
    began = time.monotonic()
    assert session.close() == []
    assert time.monotonic() - began < WITHIN_S / 2
    answer.set()


def test_a_submission_that_is_not_answered(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interruption while sbatch hangs ends the job by its name, and names the phase."""
    monkeypatch.setattr(module, "CLOSE_S", 0.2)
    asked, answer = threading.Event(), threading.Event()

    def slow(phase: Phase, directory: PhaseDir) -> str:
        asked.set()
        answer.wait(WITHIN_S)
        return "a"

    monkeypatch.setattr(run.backend, "submit", slow)
    session = run.start("a")
    assert asked.wait(WITHIN_S)
    session.cancel()
    assert session.close() == ["a"]
    assert run.backend.named("cancel_named") == [("a",)]
    answer.set()


def test_an_interruption_before_submission(run: Run) -> None:
    """A phase that was still waiting for room is cancelled, and its result says so."""
    session = run.start("a", "b", limits={"max_jobs": 1, "poll_s": 0.05})
    until(lambda: run.submitted() == ["a"])
    session.close()
    assert run.submitted() == ["a"]
    assert run.result("b")["reason"] == "the run was interrupted before it was submitted"


def test_an_interruption_is_over_in_time(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs that do not end when told keep nobody for longer than the bound."""
    monkeypatch.setattr(module, "CANCEL_CONFIRM_S", 0.3)
    run.backend.on_cancel = JobState("running", "COMPLETING")
    session = run.start("a")
    until(lambda: run.submitted() == ["a"])
    begun = time.monotonic()
    session.cancel()
    assert time.monotonic() - begun < 0.1
    session.close()
    assert time.monotonic() - begun < module.CLOSE_S + 1
    assert run.result("a")["outcome"] == "cancelled"


def test_a_watch_that_breaks_is_told_and_cancels(run: Run) -> None:
    """Whoever waits hears of it with its cause; no job is left."""
    session = run.start("a")
    until(lambda: run.submitted() == ["a"])
    run.backend.broken = RuntimeError("no such thing")
    with pytest.raises(WatchFailed, match="watching the jobs failed: no such thing"):
        session.wait("a", ignore)
    until(lambda: run.backend.named("cancel") == [("a",)])


def test_progress_is_told_once_each(run: Run) -> None:
    """Submitted, pending with the scheduler's reason, running with its nodes, the outcome."""
    told: list[str] = []
    session = run.start("a")
    listener = threading.Thread(
        target=session.wait, args=("a", lambda progress: told.append(progress.text))
    )
    listener.start()
    until(lambda: any("Priority" in text for text in told))
    run.backend.jobs["a"] = JobState("running", "RUNNING", nodes="n[1-2]")
    until(lambda: any("n[1-2]" in text for text in told))
    run.passes("a")
    listener.join(WITHIN_S)
    until(lambda: not listener.is_alive())
    assert len(told) == len(set(told)) and told[0] == "submitted as job a"


def test_times_are_kept_apart(run: Run) -> None:
    """Queue wait and run time come from the scheduler's clock and the nodes' own."""
    session = run.start("a")
    until(lambda: run.submitted() == ["a"])
    now = time.time()
    run.backend.jobs["a"] = JobState("running", "RUNNING", submitted=now - 30, started=now - 10)
    until(lambda: len(run.backend.named("states")) > 2)
    run.passes("a")
    session.wait("a", ignore)
    result = run.result("a")
    assert result["queue_s"] == pytest.approx(20, abs=0.1)
    assert result["run_s"] == pytest.approx(5, abs=0.5)
    assert result["torchrun_s"] == 4.0


def test_a_run_of_nothing_ends(run: Run) -> None:
    """Every phase done: the thread ends by itself, and closing again is harmless."""
    session = run.start("a")
    until(lambda: run.submitted() == ["a"])
    run.passes("a")
    session.wait("a", ignore)
    until(lambda: not session._thread.is_alive())
    session.close()
    session.close()
    assert run.backend.named("cancel") == []


def test_a_requeued_job_is_cancelled(run: Run) -> None:
    """A job that failed and waits in the queue again must not run a second time."""
    session = run.start("a")
    until(lambda: "a" in run.backend.directories)
    directory = run.run.phase("a")
    write_json(directory.node_result(0), {"ok": False, "reason": "node", "why": "gone"})
    directory.claim(0).touch()
    session.wait("a", ignore)
    assert run.backend.named("cancel") == [("a",)]
    assert run.result("a")["outcome"] != "passed"
