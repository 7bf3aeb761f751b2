"""A Slurm that does not answer while a run submits its jobs: none is lost, doubled or denied."""

from __future__ import annotations

import pytest

from pytest_clustersmoke.evidence.telemetry import read_events
from pytest_clustersmoke.lab import Lab
from tests.support.harness import IDLE, Suite
from tests.support.labs import stopped_controller

pytestmark = pytest.mark.lab


def test_job_of_a_controller_that_hangs_is_found_and_runs_once(
    lab_suite: Suite, faults_lab: Lab
) -> None:
    """sbatch gives up; slurmctld serves the request once it goes on. The first job ends, and makes
    room for the second, once slurmctld hangs."""
    go = lab_suite.path / "go"
    lab_suite.profile["limits"] |= {"max_jobs": 1}
    lab_suite.phase("first", args={"wait_for": str(go)})
    lab_suite.phase("second", script=IDLE, args={"seconds": 1})
    with lab_suite.started() as running:
        running.wait_for_ranks("first")
        with stopped_controller(faults_lab):
            go.touch()
            journal = lab_suite.run_dir().journal
            running.wait_for("the lost answer", lambda: read_events(journal).last("unanswered"))
        outcome = running.wait()
    assert outcome.ret == 0, outcome.output
    assert "scheduler: no clear answer for second; looking for the job: sbatch " in outcome.output
    assert [event["phase"] for event in outcome.events("submitted")] == ["first", "second"]
    lab_suite.check_queue(outcome)
