"""Phases whose jobs the cluster took away: which run again, where, and how reports list them."""

from __future__ import annotations

import errno
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.finding import Finding
from pytest_clustersmoke.evidence.locks import ControllerFence
from pytest_clustersmoke.evidence.phase_attempts import PhaseAttempt, read_attempts
from pytest_clustersmoke.evidence.run_directory import RunDir, read_json
from pytest_clustersmoke.evidence.scheduler_record import (
    JobState,
    NodeStatus,
    ScheduledJob,
    SchedulerRecord,
)
from pytest_clustersmoke.evidence.telemetry import read_events
from pytest_clustersmoke.jobs import job_watch
from pytest_clustersmoke.jobs.outcome import Judgement, judge_attempts
from pytest_clustersmoke.session import job_end
from pytest_clustersmoke.session.job_session import JobSession
from pytest_clustersmoke.session.live.board import WatchFailed
from pytest_clustersmoke.session.phase_ledger import PhaseLedger, find_failed_nodes
from tests.support.job_run import JobRun, ignore, until

FINDING = Finding("node-down", "n1 went down", "look at it", hosts=("n1",))
FAILED = PhaseAttempt(1, "cluster_failed", "n1 went down", "7", ("n1", "n2"), ("n1",))
TAKEN = PhaseAttempt(1, "preempted", "somebody was more important", "7", ("n1", "n2"))
PASSED = Judgement("passed", "every node succeeded and every rank finished")


@pytest.fixture(autouse=True)
def names_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for srun to name the node that failed."""
    monkeypatch.setattr(job_watch, "NODE_NAMED_S", 0.05)


def limits(retries: int = 1, **more: Any) -> dict[str, Any]:
    return {"poll_s": 0.05, "retries": retries, **more}


def lose_node(
    run: JobRun, name: str, node: str = "n1", nodes: str = "n[1-2]", completing: str = ""
) -> None:
    """Let the job of a phase lose a node, once it was seen on its nodes."""
    run.backend.jobs[name] = JobState("running", "RUNNING", nodes=nodes)
    run.show_states()
    status = NodeStatus(node, "down*", down=True, reason="Not responding", text=f"{node} down")
    job = ScheduledJob(state="NODE_FAIL", nodes=nodes, text="JobState=NODE_FAIL")
    run.backend.records[name] = SchedulerRecord(job, (status,))
    run.run.phase(name).last_job.claim.touch()
    run.backend.jobs[name] = JobState("ended", "NODE_FAIL", nodes=completing or nodes)


def supersede_at_retry(
    run: JobRun, session: JobSession, monkeypatch: pytest.MonkeyPatch
) -> threading.Event:
    """Let another process take the run over just before the session submits a phase again; return
    the event of it. The journal's `retry` comes earlier: a test that attached then would be
    superseded itself."""
    superseded = threading.Event()

    def supersede(name: str) -> None:
        ControllerFence(run.run)
        superseded.set()

    monkeypatch.setattr(session.submitter, "try_again", supersede)
    return superseded


def preempt(run: JobRun, name: str) -> None:
    run.backend.jobs[name] = JobState("ended", "PREEMPTED", nodes="n1")


def attempts(run: JobRun, name: str) -> list[tuple[int, str]]:
    listed = run.result(name).get("attempts", [])
    return [(attempt["attempt"], attempt["outcome"]) for attempt in listed]


def test_job_takes_the_place_of_the_one_before_whatever_the_limits_are_now(run: JobRun) -> None:
    """A run is attached with fewer retries after its controller had begun the first of several
    jobs: the evidence of the next one is looked for in the newest directory."""
    run.start("a", limits=limits())
    until(lambda: run.submitted() == ["a"])
    fewer = run.profile.limits.model_copy(update={"retries": 0})
    assert PhaseLedger(run.run, fewer, avoids=True).directory(run.phases[0]).number == 1


@pytest.mark.parametrize(
    ("retried", "outcome", "severity"),
    [("fail", "cluster_failed", "failure"), ("pass", "passed", "warning")],
)
def test_phase_that_lost_a_node_is_tried_again_without_it(
    run: JobRun, retried: str, outcome: str, severity: str
) -> None:
    """The failure of the node is a finding on that node, whether the phase may pass or not."""
    session = run.start("a", nodes=2, limits=limits(retried=retried))
    until(lambda: run.submitted() == ["a"])
    lose_node(run, "a")
    until(lambda: run.submitted() == ["a", "a"])
    assert run.backend.avoided["a"] == ("n1",)
    assert "a" not in session.outcomes and not run.result("a")
    run.passes("a", nodes=2)
    session.wait("a", ignore)
    assert run.result("a")["outcome"] == session.results["a"].outcome == outcome
    assert attempts(run, "a") == [(1, "cluster_failed"), (2, "passed")]
    (finding,) = run.result("a")["findings"]
    assert (finding["id"], finding["hosts"], finding["severity"]) == ("node-down", ["n1"], severity)
    assert "attempt 1" in run.result("a")["reason"]


def test_each_attempt_has_token_claim_and_events_of_its_own(run: JobRun) -> None:
    """And the job that was taken away ends before it claims anything, should it start again."""
    session = run.start("a", limits=limits())
    until(lambda: run.submitted() == ["a"])
    lose_node(run, "a")
    until(lambda: run.submitted() == ["a", "a"])
    run.passes("a")
    session.wait("a", ignore)
    first, second = run.run.phase("a").jobs()
    tokens = [(read_json(job.spec) or {})["token"] for job in (first, second)]
    assert len({*tokens}) == 2
    assert first.withdrawn(tokens[0]).exists() and not second.withdrawn(tokens[1]).exists()
    assert not first.rank_events(0).exists() and second.rank_events(0).exists()
    assert session.results["a"].directory == second
    sent = [(event["token"], event["attempt"]) for event in _events(run, "intent")]
    assert sent == [(tokens[0], 1), (tokens[1], 2)]


def _events(run: JobRun, name: str) -> list[dict[str, Any]]:
    return [*read_events(run.run.journal).named(name)]


def test_preempted_phase_is_tried_again_anywhere(run: JobRun) -> None:
    """It is nobody's fault: the phase passes, without a finding, and the attempts are listed."""
    session = run.start("a", limits=limits())
    until(lambda: run.submitted() == ["a"])
    preempt(run, "a")
    until(lambda: run.submitted() == ["a", "a"])
    assert run.backend.avoided["a"] == ()
    run.passes("a")
    session.wait("a", ignore)
    assert run.result("a")["outcome"] == "passed" and run.result("a")["findings"] == []
    assert attempts(run, "a") == [(1, "preempted"), (2, "passed")]


@pytest.mark.parametrize("end", ["cancelled", "failed"])
def test_phase_that_ended_otherwise_is_not_tried_again(run: JobRun, end: str) -> None:
    """What a program did, or a person."""
    session = run.start("a", limits=limits())
    until(lambda: run.submitted() == ["a"])
    if end == "failed":
        run.fails("a")
    else:
        run.backend.jobs["a"] = JobState("ended", "CANCELLED")
    session.wait("a", ignore)
    assert session.outcomes["a"].outcome == end
    assert run.submitted() == ["a"] and attempts(run, "a") == []


def test_phase_is_tried_again_as_often_as_the_profile_says(run: JobRun) -> None:
    """All nodes that failed are left out; the last failure is the result."""
    session = run.start("a", limits=limits(2))
    for number in (1, 2, 3):
        until(lambda number=number: len(run.submitted()) == number)  # type: ignore[misc]
        lose_node(run, "a", f"n{number}", "n[1-9]")
    session.wait("a", ignore)
    assert run.submitted() == ["a", "a", "a"] and run.backend.avoided["a"] == ("n1", "n2")
    assert attempts(run, "a") == [(number, "cluster_failed") for number in (1, 2, 3)]
    assert session.outcomes["a"].outcome == "cluster_failed"


def test_no_phase_is_tried_again_by_default(run: JobRun) -> None:
    """And its files lie where those of a phase without attempts do."""
    session = run.start("a")
    until(lambda: run.submitted() == ["a"])
    lose_node(run, "a")
    session.wait("a", ignore)
    assert session.outcomes["a"].outcome == "cluster_failed"
    assert run.submitted() == ["a"] and run.run.phase("a").jobs() == []


def test_refusal_without_the_failed_node_says_so(run: JobRun) -> None:
    """There may be too few other nodes; the failure of the node remains the cause."""
    session = run.start("a", nodes=2, limits=limits(retried="pass"))
    until(lambda: run.submitted() == ["a"])
    run.backend.refusals["a"] = "Requested node configuration is not available"
    lose_node(run, "a")
    session.wait("a", ignore)
    result = run.result("a")
    assert result["outcome"] == "cluster_failed"
    assert "attempt 2 never ran: the scheduler refused the job (without n1)" in result["reason"]
    assert [finding["id"] for finding in result["findings"]] == ["node-down", "submission-refused"]


@pytest.mark.parametrize("unanswered", [False, True])
def test_phases_behind_a_retried_one_wait_for_it_again(run: JobRun, unanswered: bool) -> None:
    """With room for one job: the jobs that waited in the queue for the first could never start, so
    they are taken out, and submitted behind the next."""
    run.backend.chains = True
    if unanswered:
        run.backend.silent["b"] = False
    order = {"b": "a", "c": "b"}
    session = run.start("a", "b", "c", after=order, limits=limits(max_jobs=1))
    until(lambda: run.submitted()[:2] == ["a", "b"])
    if unanswered:
        until(lambda: run.backend.named("find"))
    else:
        until(lambda: run.submitted() == ["a", "b", "c"])
    specs = [run.run.phase(name).last_job for name in ("b", "c")]
    old = [(read_json(place.spec) or {}).get("token") for place in specs]
    run.backend.silent.clear()
    lose_node(run, "a")
    until(lambda: run.submitted().count("a") == 2)
    if not unanswered:
        assert {("b",), ("c",)} <= {*run.backend.named("cancel")}
    assert specs[0].withdrawn(str(old[0])).exists()
    until(lambda: run.submitted()[-3:] == ["a", "b", "c"])
    run.passes("a")  # which counts for nothing, since `retried` is `fail`
    session.wait("a", ignore)
    session.wait("c", ignore)
    assert session.outcomes["a"].outcome == "cluster_failed"
    assert [session.outcomes[name].outcome for name in ("b", "c")] == ["never_ran", "never_ran"]


def test_phases_behind_a_retried_one_run_once_it_has_passed(run: JobRun) -> None:
    """Each in the directory that it would have had."""
    run.backend.chains = True
    keys = limits(max_jobs=1, retried="pass")
    session = run.start("a", "b", after={"b": "a"}, limits=keys)
    until(lambda: run.submitted() == ["a", "b"])
    lose_node(run, "a")
    until(lambda: run.submitted() == ["a", "b", "a", "b"])
    for name in ("a", "b"):
        run.passes(name)
        session.wait(name, ignore)
    assert [session.outcomes[name].outcome for name in "ab"] == ["passed", "passed"]
    assert attempts(run, "b") == [] and [job.number for job in run.run.phase("b").jobs()] == [1]


def test_phase_that_has_started_behind_a_retried_one_runs_on(run: JobRun) -> None:
    """Its job saw the other one succeed; only the judgement on that was a preemption."""
    run.backend.chains = True
    session = run.start("a", "b", after={"b": "a"}, limits=limits(max_jobs=1))
    until(lambda: run.submitted() == ["a", "b"])
    run.run.phase("b").last_job.claim.write_text('{"token": "of its own"}')
    run.backend.jobs["b"] = JobState("running", "RUNNING")
    preempt(run, "a")
    until(lambda: _events(run, "retry"))
    run.passes("b")
    session.wait("b", ignore)
    until(lambda: run.submitted() == ["a", "b", "a"])
    run.passes("a")
    session.wait("a", ignore)
    assert [session.outcomes[name].outcome for name in "ab"] == ["passed", "passed"]


def test_phases_that_may_be_retried_are_a_job_each(run: JobRun) -> None:
    """Also the points of a sweep."""
    run.start("x-1", "x-2", *"abcd", sweep="x", limits=limits())
    until(lambda: len(run.submitted()) == 6)
    assert run.backend.named("array") == []


def test_interruption_of_a_retry_remembers_the_node_that_failed(run: JobRun) -> None:
    session = run.start("a", limits=limits(retried="pass"))
    until(lambda: run.submitted() == ["a"])
    lose_node(run, "a")
    until(lambda: run.submitted() == ["a", "a"])
    session.close()
    result = run.result("a")
    assert result["outcome"] == "cluster_failed"
    assert "attempt 2 cancelled: the run was interrupted" in result["reason"]
    assert result["findings"][0]["hosts"] == ["n1"]


@pytest.mark.parametrize("killed_at", ["retry", "resubmitted"])
def test_attached_run_goes_on_with_the_attempt_where_it_stood(
    run: JobRun, killed_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node failure that an earlier controller saw counts, and its nodes are left out."""
    first = run.start("a", limits=limits())
    until(lambda: run.submitted() == ["a"])
    if killed_at == "retry":  # before the next submission
        monkeypatch.setattr(first.submitter, "submit_next", lambda outcomes: False)
    lose_node(run, "a")
    until(lambda: _events(run, "retry"))
    if killed_at == "resubmitted":
        until(lambda: len(_events(run, "submitted")) == 2)
    session = run.attach()
    until(lambda: "a" in session._watched)
    expected = ["a"] if killed_at == "retry" else []
    assert run.submitted() == expected
    assert run.backend.avoided == dict.fromkeys(expected, ("n1",))
    run.passes("a")
    session.wait("a", ignore)
    assert attempts(run, "a") == [(1, "cluster_failed"), (2, "passed")]
    assert session.outcomes["a"].outcome == "cluster_failed"


def test_attached_run_lets_a_phase_run_on_that_started_behind_a_retried_one(run: JobRun) -> None:
    """Its job saw the one before succeed that it was submitted behind: it waits for no later one,
    and whether that passes is nothing to it."""
    run.backend.chains = True
    run.start("a", "b", after={"b": "a"}, limits=limits(max_jobs=2))
    until(lambda: run.submitted() == ["a", "b"])
    run.run.phase("b").last_job.claim.write_text('{"token": "of its own"}')
    run.backend.jobs["b"] = JobState("running", "RUNNING")
    preempt(run, "a")
    until(lambda: len(_events(run, "submitted")) == 3)
    session = run.attach()
    until(lambda: {*session._watched} == {"a", "b"})
    run.fails("a")
    run.backend.jobs["a"] = JobState("ended", "FAILED")
    session.wait("a", ignore)
    assert run.backend.named("cancel") == []
    run.passes("b")
    session.wait("b", ignore)
    assert [session.outcomes[name].outcome for name in "ab"] == ["failed", "passed"]


@pytest.mark.parametrize("submissions", [2, 3])
def test_attached_run_submits_a_phase_again_that_was_taken_out_of_the_queue(
    run: JobRun, submissions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited behind a job that was lost, and the controller was killed before it had submitted
    it behind the next one: nobody cancelled it."""
    run.backend.chains = True
    keys = limits(max_jobs=1, retried="pass")
    first = run.start("a", "b", after={"b": "a"}, limits=keys)
    until(lambda: run.submitted() == ["a", "b"])
    submit_next = first.submitter.submit_next

    def submit_until_killed(outcomes: Mapping[str, Judgement]) -> bool:
        return len(_events(run, "submitted")) < submissions and submit_next(outcomes)

    monkeypatch.setattr(first.submitter, "submit_next", submit_until_killed)
    lose_node(run, "a")
    until(lambda: run.backend.named("cancel") == [("b",)])
    until(lambda: len(_events(run, "submitted")) == submissions)
    session = run.attach()
    until(lambda: run.submitted()[-1:] == ["b"])
    assert run.backend.orders["b"] == "a"
    for name in ("a", "b"):
        run.passes(name)
        session.wait(name, ignore)
    assert [session.outcomes[name].outcome for name in "ab"] == ["passed", "passed"]


def test_attached_run_cancels_the_job_that_waited_behind_a_lost_one(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller was killed before it did: that job could never start, and would stay in the
    queue. It is submitted again behind the next one."""
    run.backend.chains = True
    first = run.start("a", "b", after={"b": "a"}, limits=limits(max_jobs=1, retried="pass"))
    until(lambda: run.submitted() == ["a", "b"])
    superseded = supersede_at_retry(run, first, monkeypatch)
    lose_node(run, "a")
    until(superseded.is_set)
    assert run.backend.named("cancel") == []
    run.attach()
    until(lambda: run.submitted() == ["a", "b"])
    assert run.backend.named("cancel") == [("b",)] and run.backend.orders["b"] == "a"


@pytest.mark.parametrize("max_jobs", [1, 2])
def test_attached_run_cancels_the_job_behind_a_lost_one_once_the_scheduler_answers(
    run: JobRun, max_jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then its id may be another job's, and it is neither withdrawn nor submitted again: it
    would stay in the queue."""
    run.backend.chains = True
    first = run.start("a", "b", after={"b": "a"}, limits=limits(max_jobs=max_jobs, retried="pass"))
    until(lambda: run.submitted() == ["a", "b"])
    superseded = supersede_at_retry(run, first, monkeypatch)
    lose_node(run, "a")
    until(superseded.is_set)
    waiting = run.backend.jobs["b"]
    run.backend.jobs.clear()
    run.attach()
    until(lambda: len(run.backend.named("states")) > 3)
    assert "b" not in run.submitted() and run.backend.named("cancel") == []
    assert not list(run.run.phase("b").root.glob("**/withdrawn.*"))
    run.backend.jobs["b"] = waiting
    until(lambda: run.submitted() == ["a", "b"])
    assert run.backend.named("cancel") == [("b",)] and run.backend.orders["b"] == "a"


def test_attached_run_that_may_not_retry_any_more_ends_the_phase(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the job that failed, since the profile has changed its mind."""
    first = run.start("a", limits=limits())
    until(lambda: run.submitted() == ["a"])
    monkeypatch.setattr(first.submitter, "submit_next", lambda outcomes: False)
    lose_node(run, "a")
    until(lambda: _events(run, "retry"))
    fewer = run.profile.limits.model_copy(update={"retries": 0})
    run.profile = run.profile.model_copy(update={"limits": fewer})
    session = run.attach()
    session.wait("a", ignore)
    assert run.submitted() == [] and run.result("a")["outcome"] == "cluster_failed"
    assert run.result("a")["findings"][0]["hosts"] == ["n1"]


def test_damaged_record_of_an_attempt_does_not_start_the_phase_anew(run: JobRun) -> None:
    """The journal says that the first job ended; without it, it is watched again."""
    run.start("a", limits=limits())
    until(lambda: run.submitted() == ["a"])
    lose_node(run, "a")
    until(lambda: len(_events(run, "submitted")) == 2)
    run.run.phase("a").job(1).ending.write_text("{")
    session = run.attach()
    until(lambda: "a" in session._watched)
    run.passes("a")
    session.wait("a", ignore)
    assert run.submitted() == []
    assert attempts(run, "a") == [(1, "lost"), (2, "passed")]
    assert session.outcomes["a"].outcome == "lost", "nobody knows how the first one ended"


def test_full_disk_at_a_retry_ends_the_phase_and_not_the_run(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what is known of its first job; the other phases go on."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    session = run.start("a", "b", limits=limits())
    until(lambda: len(run.submitted()) == 2)
    monkeypatch.setattr(PhaseAttempt, "write", refuse)
    lose_node(run, "a")
    session.wait("a", ignore)
    assert session.outcomes["a"].outcome == "cluster_failed"
    run.passes("b")
    session.wait("b", ignore)
    assert session.outcomes["b"].outcome == "passed"
    assert run.submitted() == ["a", "b"]


def test_job_whose_files_cannot_be_written_ends_its_phase_alone(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finding says where there is no room, and the node that failed before is remembered."""
    session = run.start("a", limits=limits())
    until(lambda: run.submitted() == ["a"])

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pytest_clustersmoke.session.submitter.create_phase", refuse)
    lose_node(run, "a")
    session.wait("a", ignore)
    found = [finding["id"] for finding in run.result("a")["findings"]]
    assert found == ["node-down", "shared-directory-full"]
    assert session.outcomes["a"].outcome == "cluster_failed"


def test_result_that_the_disk_does_not_take_is_handed_on(
    run: JobRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In memory, so that the run ends with its verdict."""
    session = run.start("a")
    handed: list[str] = []
    session.on_unwritten = lambda result: handed.append(result.outcome)
    until(lambda: run.submitted() == ["a"])

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(job_end, "write_json", refuse)
    run.passes("a")
    session.wait("a", ignore)
    assert session.results["a"].outcome == "passed" and handed == ["passed"]


@pytest.mark.parametrize(
    ("before", "last", "passes", "outcome"),
    [
        (FAILED, PASSED, False, "cluster_failed"),
        (FAILED, PASSED, True, "passed"),
        (TAKEN, PASSED, False, "passed"),
        (FAILED, Judgement("preempted", ""), True, "cluster_failed"),
        (FAILED, Judgement("never_ran", ""), True, "cluster_failed"),
        (FAILED, Judgement("failed", ""), True, "failed"),
        (TAKEN, Judgement("preempted", ""), True, "preempted"),
        (TAKEN, Judgement("cancelled", ""), False, "cancelled"),
        (PhaseAttempt(1, "lost", "damaged"), PASSED, True, "lost"),
    ],
)
def test_judgement_of_several_attempts(
    before: PhaseAttempt, last: Judgement, passes: bool, outcome: str
) -> None:
    """`retried` decides only where the last job passed after a node had failed."""
    assert judge_attempts([before], last, [], passes)[0].outcome == outcome


@pytest.mark.parametrize(
    ("allocated", "hosts", "failed"),
    [
        ("n[1-3]", ("n2",), ("n2",)),
        ("n[1-3]", (), ("n1", "n2", "n3")),
        ("n[1-3]", ("host-of-n2.example.org",), ("n1", "n2", "n3")),
        ("n[1,3]", ("n2",), ("n2",)),  # seen only when it was completing
        ("", ("n2",), ("n2",)),
        ("", ("n2 --wrap=evil",), ()),
    ],
)
def test_nodes_that_are_left_out_have_the_schedulers_names(
    allocated: str, hosts: tuple[str, ...], failed: tuple[str, ...]
) -> None:
    """All nodes of the job are, unless the failed one is known among them."""
    finding = Finding("node-down", "a node went down", "look", hosts=hosts)
    assert find_failed_nodes(allocated, 3, [finding]) == failed


def test_job_that_completes_is_known_by_all_of_its_nodes(run: JobRun) -> None:
    """The node that failed is the first that Slurm lists no more."""
    session = run.start("a", nodes=2, limits=limits())
    until(lambda: run.submitted() == ["a"])
    lose_node(run, "a", completing="n2")
    until(lambda: run.submitted() == ["a", "a"])
    assert run.backend.avoided["a"] == ("n1",)
    run.passes("a", nodes=2)
    session.wait("a", ignore)
    assert run.result("a")["attempts"][0]["nodes"] == ["n1", "n2"]


def test_record_of_an_attempt_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Of the jobs that another followed, a damaged record is a lost job; of the last it is none."""
    phase = RunDir(tmp_path / "run").phase("a")
    FAILED.write(phase)
    assert read_attempts(phase) == [FAILED]
    phase.job(2).root.mkdir()
    assert read_attempts(phase) == [FAILED]
    phase.job(1).ending.write_text("{")
    (lost,) = read_attempts(phase)
    assert (lost.number, lost.outcome) == (1, "lost")
    assert read_attempts(phase, before=1) == []


def test_controller_that_was_superseded_tries_nothing_again(run: JobRun) -> None:
    """The run has another controller, which sees to the phase."""
    session = run.start("a", limits=limits())
    until(lambda: run.submitted() == ["a"])
    run.run.controller(2).write_text("{}")
    run.run.phase("a").last_job.claim.touch()
    run.backend.jobs["a"] = JobState("ended", "NODE_FAIL", nodes="n1")
    with pytest.raises(WatchFailed, match="has taken this run over"):
        session.wait("a", ignore)
    assert run.submitted() == ["a"] and _events(run, "retry") == []
    assert run.run.phase("a").jobs() == [run.run.phase("a").job(1)]
