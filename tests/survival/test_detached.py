"""Runs whose jobs are left to Slurm, and jobs that a dead run left: attached, or ended."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pytest_clustersmoke import lab
from pytest_clustersmoke.evidence.telemetry import read_events
from tests.support.harness import IDLE, Suite
from tests.support.killed import KILLER, attach, check_whole, kill_at
from tests.support.labs import stopped_controller
from tests.support.screens import on_node
from tests.support.strikes import StruckLab
from tests.support.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.lab


def jobs_in_queue(suite: Suite) -> list[str]:
    return suite.slurm("squeue", "-h", "-t", "PENDING,RUNNING", "-o", "%j").split()


def test_detached_run_is_kept_in_order_by_slurm_and_judged_later(lab_suite: Suite) -> None:
    """Status 6, since nothing is judged. At most `max_jobs` run at a time without any process of
    ours, and the run that attaches ends as any other."""
    lab_suite.profile["limits"] |= {"max_jobs": 1}
    lab_suite.phase("small", script=str(IDLE), args={"seconds": 2})
    lab_suite.phase("second", script=str(IDLE), args={"seconds": 1})
    detached = lab_suite.run_apart("--cluster-detach")
    assert detached.ret == 6, detached.output
    assert "detached: 2 jobs, nothing judged; attach with --cluster one --cluster-attach " in (
        detached.output
    )
    assert "4 skipped" in detached.output
    assert not (lab_suite.reports / "latest").exists()
    scripts = [lab_suite.run_dir().phase(name).batch_script for name in ("second", "small")]
    behind = ["#SBATCH --dependency=afterany:" in script.read_text() for script in scripts]
    assert behind == [False, True]
    wait_for("the last job", lambda: not jobs_in_queue(lab_suite))
    outcome = attach(lab_suite)
    check_whole(lab_suite, outcome, "small", "second")


@pytest.mark.slow
def test_detached_array_is_kept_in_order_by_slurm_and_judged_later(lab_suite: Suite) -> None:
    """At most `max_jobs` of its tasks run at a time, and a phase that asks for more waits for the
    whole array."""
    lab_suite.profile["limits"] |= {"max_jobs": 2}
    names = [f"p{number}" for number in range(4)]
    for name in names:
        lab_suite.phase(name, script=str(IDLE), args={"seconds": 2})
    lab_suite.profile["phases"].pop("small")  # the harness lists one
    lab_suite.phase("wide", script=str(IDLE), nodes=2, args={"seconds": 1})
    detached = lab_suite.run_apart("--cluster-detach")
    assert detached.ret == 6 and "detached: 5 jobs" in detached.output, detached.output
    run = lab_suite.run_dir()
    array = next(
        event["job_id"].partition("_")[0]
        for event in read_events(run.journal).named("submitted")
        if event["phase"] == "p0"
    )
    assert "#SBATCH --array=0-3%2\n" in run.phase("p0").batch_script.read_text()
    wide = run.phase("wide").batch_script.read_text()
    assert f"#SBATCH --dependency=afterany:{array}\n" in wide
    wait_for("the last job", lambda: not jobs_in_queue(lab_suite))
    check_whole(lab_suite, attach(lab_suite), *names, "wide")


@pytest.mark.parametrize(
    "event",
    [
        "submitted:2",
        *(
            pytest.param(event, marks=pytest.mark.slow)
            for event in ("intent:1", "queued:1", "ended:1", "judged:2")
        ),
    ],
)
def test_run_on_slurm_goes_on_after_its_controller_was_killed(lab_suite: Suite, event: str) -> None:
    """Jobs that Slurm has are taken up by their name, comment and token; no other is submitted."""
    lab_suite.phase("small", script=str(IDLE), args={"seconds": 2})
    lab_suite.phase("second", nodes=2)
    kill_at(lab_suite, event)
    outcome = attach(lab_suite)
    check_whole(lab_suite, outcome, "small", "second")
    lab_suite.check_queue(outcome)


@pytest.mark.slow
def test_run_that_was_killed_as_it_left_its_jobs_goes_on(lab_suite: Suite) -> None:
    """As one that said so."""
    lab_suite.phase("small", script=str(IDLE), args={"seconds": 1})
    lab_suite.phase("second", nodes=2)
    kill_at(lab_suite, "detached:1", "--cluster-detach")
    check_whole(lab_suite, attach(lab_suite), "small", "second")


@pytest.mark.slow
@pytest.mark.parametrize("event", ["intent:3", "submitted:1", "ended:2"])
def test_array_goes_on_after_its_controller_was_killed(lab_suite: Suite, event: str) -> None:
    """Before it was submitted, with the id of one task in the journal, and with some tasks over."""
    names = [f"p{number}" for number in range(4)]
    for name in names:
        lab_suite.phase(name, script=str(IDLE), args={"seconds": 1})
    lab_suite.profile["phases"].pop("small")  # the harness lists one
    kill_at(lab_suite, event)
    intents = read_events(lab_suite.run_dir().journal).named("intent")
    assert [intent["index"] for intent in intents] == [*range(3 if event == "intent:3" else 4)]
    outcome = attach(lab_suite)
    check_whole(lab_suite, outcome, *names)
    # What was not submitted yet is searched for, and submitted, one by one.
    is_array = {"_" in submitted["job_id"] for submitted in outcome.events("submitted")}
    assert is_array == {event != "intent:3"}
    lab_suite.check_queue(outcome)


@pytest.mark.slow
def test_phase_that_slurm_refuses_is_refused_after_its_controller_was_killed(
    lab_suite: Suite,
) -> None:
    """With Slurm's words; the other phase runs once."""
    lab_suite.profile["phases"]["small"] = {"slurm": {"partition": "nope"}}
    lab_suite.phase("small")
    lab_suite.phase("second", script=str(IDLE), args={"seconds": 1})
    kill_at(lab_suite, "refused:1")
    outcome = attach(lab_suite)
    assert outcome.ret == 6, outcome.output
    assert outcome.phase("small")["outcome"] == "never_ran"
    assert "nope" in outcome.finding("small")["cause"]
    assert outcome.phase("second")["outcome"] == "passed"
    lab_suite.check_queue(outcome)


@pytest.mark.slow
def test_lost_answer_is_looked_for_by_the_run_that_attaches(
    lab_suite: Suite, own_lab: lab.Lab
) -> None:
    """slurmctld serves the request once it goes on, when no process of the run lives."""
    go = lab_suite.path / "go"
    lab_suite.profile["limits"] |= {"max_jobs": 1}
    lab_suite.phase("first", args={"wait_for": str(go)})
    lab_suite.phase("second", script=str(IDLE), args={"seconds": 1})
    lab_suite.profile["phases"].pop("small")
    (lab_suite.path / "conftest.py").write_text(KILLER)
    with lab_suite.started(KILL_AT="unanswered:1") as running:
        running.wait_for_ranks("first")
        with stopped_controller(own_lab):
            go.touch()
            assert running.process.wait(PATIENCE_S) == -signal.SIGKILL, running.output()
    outcome = attach(lab_suite)
    check_whole(lab_suite, outcome, "first", "second")
    lab_suite.check_queue(outcome)


@contextmanager
def quick_purge(suite: Suite, running: lab.Lab) -> Iterator[None]:
    """Let slurmctld forget a job 2 s after its end. It looks once a minute."""
    files = StruckLab(running).record.files
    confs = [path for path in (files.slurm_conf, files.daemons_conf) if path.exists()]
    before = {path: path.read_text() for path in confs}
    try:
        for path, text in before.items():
            path.write_text(f"{text}MinJobAge=2\n")
        suite.slurm("scontrol", "reconfigure")
        yield
    finally:
        for path, text in before.items():
            path.write_text(text)
        suite.slurm("scontrol", "reconfigure")


@pytest.mark.slow
def test_job_that_slurm_has_forgotten_is_judged_by_its_own_result(
    lab_suite: Suite, own_lab: lab.Lab
) -> None:
    """It had ended and was purged while no process of the run lived."""
    lab_suite.phase("small", script=str(IDLE), args={"seconds": 1})
    with quick_purge(lab_suite, own_lab):
        kill_at(lab_suite, "submitted:1")
        (job,) = read_events(lab_suite.run_dir().journal).named("submitted")

        def is_forgotten() -> bool:
            try:
                lab_suite.slurm("scontrol", "show", "job", job["job_id"])
            except AssertionError as refusal:
                return "Invalid job id specified" in str(refusal)
            return False

        wait_for("slurmctld to forget the job", is_forgotten, poll_s=1.0)
        outcome = attach(lab_suite)
    check_whole(lab_suite, outcome, "small")
    assert [event["phase"] for event in outcome.events("submitted")] == ["small"]


@pytest.mark.slow
def test_job_of_a_killed_screen_is_named_and_ended(lab_suite: Suite, own_lab: lab.Lab) -> None:
    """The other node had answered; nothing but to end the screen is offered."""
    lab_suite.phase("small", script=str(IDLE), args={"seconds": 0.1})
    lab_suite.profile["setup"] = [on_node(own_lab.nodes[1], "sleep 600")]
    # The job of another test may complete yet, and a busy node is not screened.
    states = ("sinfo", "-h", "-N", "-o", "%T")
    wait_for("idle nodes", lambda: {*lab_suite.slurm(*states).split()} == {"idle"})
    kill_at(lab_suite, "screened:1", "--cluster-screen")
    (dead,) = lab_suite.runs()
    wait_for("one job", lambda: len(jobs_in_queue(lab_suite)) == 1)
    del lab_suite.profile["setup"]
    outcome = lab_suite.run_apart()
    assert outcome.ret == 0, outcome.output
    assert f"and no process: --cluster-reap {dead.name} ends it" in outcome.output
    reaped = lab_suite.run_apart("--cluster-reap", dead.name)
    assert reaped.ret == 0, reaped.output
    assert jobs_in_queue(lab_suite) == []


def test_jobs_of_a_dead_run_are_named_and_ended(lab_suite: Suite) -> None:
    """A new run says which jobs are left, and how to end them."""
    lab_suite.phase("small", script=str(IDLE), args={"seconds": 600})
    kill_at(lab_suite, "submitted:1")
    (dead,) = lab_suite.runs()
    wait_for("the job", lambda: jobs_in_queue(lab_suite))
    lab_suite.phase("small", script=str(IDLE), args={"seconds": 1})
    outcome = lab_suite.run_apart()
    assert outcome.ret == 0, outcome.output
    assert f"run {dead.name} has 1 job left (" in outcome.output
    assert f"--cluster-reap {dead.name} ends it" in outcome.output
    reaped = lab_suite.run_apart("--cluster-reap", dead.name)
    assert reaped.ret == 0, reaped.output
    assert f"run {dead.name}: ended 1 job" in reaped.output
    assert jobs_in_queue(lab_suite) == []
    assert read_events(dead / "journal.jsonl").last("closed") is not None
    again = lab_suite.run_apart("--cluster-reap", "all")
    assert again.ret == 0 and "one has no run without a process" in again.output
    reported = lab_suite.run_apart()
    assert f"run {dead.name}: its controller was killed, and --cluster-reap ended its jobs" in (
        reported.output
    )
    record = json.loads((lab_suite.reports / dead.name / "report.json").read_text())
    assert [phase["outcome"] for phase in record["phases"]] == ["cancelled"]
