"""Ctrl-C on a Slurm that does not answer, and with many jobs."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from pytest_clustersmoke import lab
from pytest_clustersmoke.evidence.telemetry import read_events
from tests.support.harness import IDLE, RunningPytest, Suite
from tests.support.killed import KILLER, attach, kill_at
from tests.support.labs import stopped_controller
from tests.support.load import load_factor
from tests.support.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.lab
LONG = {"seconds": 600}
# From the signal to the end of pytest, on a machine that does nothing else.
GONE_WITHIN_S = 2.5
HUNDRED_GONE_WITHIN_S = 2.0  # where Slurm answers


def end_within(running: RunningPytest, seconds: float, signals: int = 1) -> None:
    """Interrupt pytest so often; it must end in this time, without that in which work waited for a
    core."""
    factor, sent = load_factor(), time.time()
    for _ in range(signals):
        running.interrupt(signal.SIGINT)
        time.sleep(0.1)  # two signals at once are one
    running.process.wait(PATIENCE_S)
    ended = time.time()
    print(f"pytest gone after {ended - sent:.2f} s, load {os.getloadavg()[0]:.1f}")
    own_s = running.suite.pressure.own_s(sent, ended)
    assert own_s < seconds * max(factor, load_factor()), running.output()


def jobs_in_queue(suite: Suite) -> list[str]:
    return suite.slurm("squeue", "-h", "-r", "-o", "%i").split()


@pytest.mark.parametrize("signals", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_interrupted_run_leaves_a_silent_slurm_and_names_its_jobs(
    lab_suite: Suite, own_lab: lab.Lab, signals: int
) -> None:
    """With the line that ends them, which does so once Slurm answers; nothing is said to have
    ended that may run."""
    lab_suite.phase("small", script=str(IDLE), args=LONG)
    lab_suite.phase("second", script=str(IDLE), args=LONG)
    with lab_suite.started() as running:
        for name in ("small", "second"):
            running.wait_for_ranks(name)
        with stopped_controller(own_lab):
            end_within(running, GONE_WITHIN_S, signals)
        outcome = running.wait()
    assert outcome.ret == pytest.ExitCode.INTERRUPTED, outcome.output
    jobs = [event["job_id"] for event in outcome.events("submitted")]
    run_id = outcome.record()["run_id"]
    todo = f"--cluster one --cluster-reap {run_id} ends what is left"
    assert f"not confirmed that these have ended: jobs {', '.join(sorted(jobs))}; {todo}" in (
        outcome.output
    )
    for phase in outcome.record()["phases"]:
        assert phase["outcome"] == "cancelled" and phase["job_id"] in jobs
        assert "not confirmed that job" in phase["reason"]
    assert not outcome.events("closed")
    reaped = lab_suite.run_apart("--cluster-reap", run_id)
    assert reaped.ret == 0, reaped.output
    assert jobs_in_queue(lab_suite) == []
    assert read_events(lab_suite.run_dir().journal).last("closed")


@pytest.mark.slow
@pytest.mark.parametrize("event", ["cancelled:1", "ended:1"])
def test_run_that_is_killed_as_it_cancels_its_jobs_is_reported_as_cancelled(
    lab_suite: Suite, event: str
) -> None:
    """By the run that attaches it: its jobs were ended on purpose, and nothing is submitted."""
    lab_suite.phase("small", script=str(IDLE), args=LONG)
    lab_suite.phase("second", script=str(IDLE), args=LONG)
    (lab_suite.path / "conftest.py").write_text(KILLER)
    with lab_suite.started(KILL_AT=event) as running:
        for name in ("small", "second"):
            running.wait_for_ranks(name)
        running.interrupt(signal.SIGINT)
        assert running.process.wait(PATIENCE_S) == -signal.SIGKILL, running.output()
    outcome = attach(lab_suite)
    outcomes = [phase["outcome"] for phase in outcome.record()["phases"]]
    assert outcomes == ["cancelled", "cancelled"], outcome.output
    assert len(outcome.events("submitted")) == 2 and outcome.events("closed")
    assert jobs_in_queue(lab_suite) == []


@pytest.mark.slow
def test_run_that_is_killed_before_slurm_confirms_an_end_awaits_its_job_again(
    lab_suite: Suite, own_lab: lab.Lab
) -> None:
    """Its phase had no result yet; slurmctld serves `scancel` once it goes on."""
    lab_suite.phase("small", script=str(IDLE), args=LONG)
    (lab_suite.path / "conftest.py").write_text(KILLER)
    with lab_suite.started(KILL_AT="unconfirmed:1") as running:
        running.wait_for_ranks("small")
        with stopped_controller(own_lab):
            running.interrupt(signal.SIGINT)
            assert running.process.wait(PATIENCE_S) == -signal.SIGKILL, running.output()
    outcome = attach(lab_suite)
    assert outcome.phase("small")["outcome"] == "cancelled", outcome.output
    assert len(outcome.events("submitted")) == 1 and outcome.events("closed")
    assert jobs_in_queue(lab_suite) == []


@pytest.mark.slow
def test_reaping_that_is_killed_is_done_again(lab_suite: Suite) -> None:
    lab_suite.phase("small", script=str(IDLE), args=LONG)
    kill_at(lab_suite, "submitted:1")
    run_id = lab_suite.run_dir().run_id
    kill_at(lab_suite, "cancelled:1", "--cluster-reap", run_id)
    reaped = lab_suite.run_apart("--cluster-reap", run_id)
    assert reaped.ret == 0, reaped.output
    assert jobs_in_queue(lab_suite) == []
    assert read_events(lab_suite.run_dir().journal).last("closed")


@pytest.mark.slow
def test_interrupted_run_of_a_hundred_jobs_ends_them_with_one_scancel(
    lab_suite: Suite, tmp_path: Path
) -> None:
    """All are gone from the queue, and pytest is back, in the time that one job takes."""
    lab_suite.profile["limits"] |= {"max_jobs": 100}
    for number in range(100):
        lab_suite.phase(f"p{number:03d}", script=str(IDLE), args=LONG, file=f"test_{number}.py")
    with lab_suite.started() as running:
        running.wait_for("a hundred jobs", lambda: len(jobs_in_queue(lab_suite)) == 100)
        first = list(lab_suite.shared.glob("*/phases/*/ranks/*.jsonl"))
        wait_for("a rank", lambda: first or list(lab_suite.shared.glob("*/phases/*/ranks/*.jsonl")))
        end_within(running, HUNDRED_GONE_WITHIN_S)
        left = jobs_in_queue(lab_suite)
        outcome = running.wait()
    assert outcome.ret == pytest.ExitCode.INTERRUPTED, outcome.output
    (cancelled,) = outcome.events("cancelled")
    (closed,) = outcome.events("closed")
    print(f"scancel accepted, then closed after {closed['time'] - cancelled['time']:.2f} s")
    assert left == []
    assert {phase["outcome"] for phase in outcome.record()["phases"]} == {"cancelled"}
