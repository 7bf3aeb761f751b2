"""Phases that the scheduler asks to stop: they save, are requeued, and go on, on a real Slurm."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_clustersmoke.evidence.phase_result import PhaseResult
from pytest_clustersmoke.evidence.telemetry import read_events
from tests.rank.conftest import PROGRAMS
from tests.support.harness import Outcome, RunningPytest, Suite

pytestmark = pytest.mark.lab


def add_phase(suite: Suite, steps: int, pause_s: float, **marker: Any) -> None:
    args = {"steps": steps, "pause_s": pause_s, "precision": "fp32"}
    script = str(PROGRAMS / "resumed.py")
    values = {"nodes": 2, "resume": True, **marker}
    suite.phase("long", script=script, args=args, base="Resumed", **values)


def wait_for_step(suite: Suite, running: RunningPytest, attempt: int, step: int) -> None:
    """Wait until an attempt has marked this step, counted from the first of all."""

    def look() -> bool:
        place = suite.run_dir().phase("long")
        attempts = {each.attempt: each for each in place.attempts()}
        if attempt not in attempts:
            return False
        mark = read_events(attempts[attempt].rank_events(0)).last("step") or {}
        return bool(mark.get("step", 0) >= step)

    running.wait_for(f"step {step} of attempt {attempt}", look)


def check_parts(outcome: Outcome, steps: int) -> tuple[PhaseResult, ...]:
    """All attempts; their losses are those of one training, with no step twice or left out."""
    assert outcome.ret == 0, outcome.output
    phase = outcome.evidence("long")
    assert len(phase.losses) == steps
    return (*phase.earlier, phase)


def test_phase_that_slurm_asks_to_stop_is_requeued_and_goes_on(lab_suite: Suite) -> None:
    """The signal reaches every process of the step; the ranks agree on a step, twice: once in the
    attempt after a stop of the phase's own."""
    add_phase(lab_suite, steps=20, pause_s=0.3, resume=4)
    with lab_suite.started() as running:
        for attempt, step in ((1, 7), (10, 13)):  # the first stops by itself
            wait_for_step(lab_suite, running, attempt, step)
            (job,) = lab_suite.slurm("squeue", "-h", "-o", "%i", "-t", "R").split()
            lab_suite.slurm("scancel", "--signal=USR1", job)
        outcome = running.wait()
    attempts = check_parts(outcome, steps=20)
    assert [attempt.directory.attempt for attempt in attempts] == [0, 1, 10, 20]
    assert [event["phase"] for event in outcome.events("requeued")] == ["long", "long"]


@pytest.mark.slow
def test_phase_near_its_time_limit_is_requeued_and_goes_on(lab_suite: Suite) -> None:
    """Slurm sends the signal up to a minute early: here after 16 to 30 s of one minute."""
    lab_suite.profile["limits"] |= {"stop_before_s": 40}
    lab_suite.profile["slurm"] |= {"time": 1}
    add_phase(lab_suite, steps=50, pause_s=0.8)
    attempts = check_parts(lab_suite.run_apart(), steps=50)
    assert len(attempts) > 1


@pytest.mark.slow
def test_phase_that_is_requeued_without_warning_is_not_resumed(lab_suite: Suite) -> None:
    """A node may have failed. The job is cancelled, and the run proves nothing."""
    add_phase(lab_suite, steps=12, pause_s=0.3)
    with lab_suite.started() as running:
        wait_for_step(lab_suite, running, attempt=0, step=3)
        (job,) = lab_suite.slurm("squeue", "-h", "-o", "%i", "-t", "R").split()
        lab_suite.slurm("scontrol", "requeue", job)
        outcome = running.wait()
    assert outcome.phase("long")["outcome"] == "preempted", outcome.output
    assert outcome.record()["verdict"] == "INCONCLUSIVE"
    assert outcome.events("requeued") == []
    assert lab_suite.slurm("squeue", "-h", "-j", job, "-o", "%T").split() == []
