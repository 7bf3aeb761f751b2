"""Phases whose jobs a real Slurm takes away, and jobs that it does not start in time."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_clustersmoke.evidence.run_directory import PhaseDir
from pytest_clustersmoke.evidence.telemetry import read_events
from tests.faults.watched_phase import bring_back
from tests.support.harness import IDLE, Outcome, RunningPytest, Suite, properties
from tests.support.killed import KILLER, attach
from tests.support.waiting import wait_for

pytestmark = pytest.mark.lab

# Waits to be struck in its first job, and ends soon in any other, unless it is to wait in all.
PROGRAM = f"""
import os, runpy, sys

waits = os.environ["CLUSTERSMOKE_PHASE_DIR"].endswith("/attempt-1") or "--wait" in sys.argv
sys.argv[1:] = ["--seconds", "600" if waits else "0.2"]
runpy.run_path({str(IDLE)!r}, run_name="__main__")
"""


@pytest.fixture
def retried(lab_suite: Suite) -> Suite:
    """A suite whose phases are tried again once."""
    lab_suite.profile["limits"] |= {"retries": 1, "max_jobs": 1}
    return lab_suite


def add_phase(
    suite: Suite, nodes: int = 1, waits: bool = False, resume: bool = False, base: str = ""
) -> None:
    script = suite.path / "first_waits.py"
    script.write_text(PROGRAM)
    keys: dict[str, Any] = {"nodes": nodes, "args": {"wait": waits}, "resume": resume}
    suite.phase("small", base=base, script=str(script), **keys)


def first_job(suite: Suite, running: RunningPytest) -> tuple[str, str]:
    """The id of the phase's first job and the name of its node, once its rank trains."""
    directory = suite.run_dir().phase("small").job(1)

    def find_step() -> bool:
        return read_events(directory.rank_events(0)).last("step") is not None

    running.wait_for("a step", find_step)
    claim = read_events(directory.node_events(0)).last("claim") or {}
    node = str(claim["node"])
    return str(claim["job_id"]), node


@contextlib.contextmanager
def node_down(suite: Suite, node: str) -> Iterator[None]:
    suite.slurm("scontrol", "update", f"nodename={node}", "state=down", "reason=staged")
    try:
        yield
    finally:
        bring_back(suite, node)


def lose_node(suite: Suite, *words: str) -> tuple[Outcome, str]:
    """Run the suite, whose first job loses its node; return the node as well."""
    with suite.started(*words) as running:
        _, node = first_job(suite, running)
        with node_down(suite, node):
            return running.wait(), node


def attempts(outcome: Outcome) -> list[str]:
    return [attempt["outcome"] for attempt in outcome.phase("small")["attempts"]]


def test_phase_that_lost_its_node_passes_on_another_and_still_fails_the_run(retried: Suite) -> None:
    """The node is named, left out of the next job, and every report lists both jobs."""
    add_phase(retried)
    outcome, node = lose_node(retried)
    assert outcome.ret == 1, outcome.output
    phase = outcome.phase("small")
    assert phase["outcome"] == "cluster_failed" and attempts(outcome) == [
        "cluster_failed",
        "passed",
    ]
    assert outcome.finding("small")["hosts"] == [node]
    first, second = phase["attempts"]
    assert first["nodes"] == first["failed_nodes"] == [node]
    assert second["nodes"] != [node] and second["job_id"] == phase["job_id"] != first["job_id"]
    case = properties(outcome.files.report / "junit.xml")["test_small.TestSmall::job"]
    assert case["attempt.1.outcome"] == "cluster_failed" and case["attempt.1.nodes"] == node
    assert case["attempt.2.job_id"] == second["job_id"]
    assert f"small: attempt 1 (job {first['job_id']} on {node}): cluster failed" in outcome.output
    assert "small: attempt 2" in outcome.output
    assert 'data-list="attempts"' in (outcome.files.report / "index.html").read_text()
    script = outcome.evidence("small").directory.batch_script
    assert f"#SBATCH --exclude={node}\n" in script.read_text()
    assert script.parent.name == "attempt-2"
    assert (outcome.files.report / "phases/small/attempt-1/attempt.json").exists()


@pytest.mark.slow
def test_run_may_pass_on_another_node_where_the_profile_says_so(retried: Suite) -> None:
    """Phases behind it run then, with room for one job; the verdict and the phase name the node."""
    retried.profile["limits"] |= {"retried": "pass"}
    add_phase(retried)
    retried.phase("second", script=str(IDLE), args={"seconds": 0.2}, after="small")
    outcome, node = lose_node(retried)
    assert outcome.ret == 0, outcome.output
    record = outcome.record()
    assert record["verdict"] == "FIT"
    assert f"passed on a later attempt: small after a failure of {node}" in record["sentence"]
    assert outcome.phase("second")["outcome"] == "passed"
    (finding,) = outcome.phase("small")["findings"]
    assert (finding["hosts"], finding["severity"]) == ([node], "warning")
    assert "passed on attempt 2" in outcome.output


def test_preempted_phase_is_tried_again_and_passes(retried: Suite) -> None:
    """A requeue that the job did not ask for is nobody's fault."""
    add_phase(retried)
    with retried.started() as running:
        job, _ = first_job(retried, running)
        retried.slurm("scontrol", "update", f"jobid={job}", "requeue=1")
        retried.slurm("scontrol", "requeue", job)
        outcome = running.wait()
    assert outcome.ret == 0, outcome.output
    assert attempts(outcome) == ["preempted", "passed"]
    assert outcome.phase("small")["findings"] == []
    assert "small after a preemption" in outcome.record()["sentence"]
    retried.check_queue(outcome)


@pytest.mark.slow
@pytest.mark.parametrize("base", ["", "Resumed"])
def test_phase_that_needs_the_failed_node_says_that_it_gets_no_other(
    retried: Suite, base: str
) -> None:
    """Both nodes of the cluster are needed; the failure of the one remains the cause. So it does
    where Slurm requeues the job, because the phase can be resumed."""
    add_phase(retried, nodes=2, resume=bool(base), base=base)
    outcome, node = lose_node(retried)
    assert outcome.ret == 1, outcome.output
    assert attempts(outcome) == ["cluster_failed", "never_ran"]
    assert f"(without {node})" in outcome.phase("small")["reason"]
    assert outcome.finding("small")["id"] == "node-down"


@pytest.mark.slow
@pytest.mark.parametrize("event", ["retry:1", "intent:2", "submitted:2"])
def test_attached_run_remembers_the_node_that_failed(retried: Suite, event: str) -> None:
    """Wherever in the retry its controller was killed, the phase ran twice and no more."""
    add_phase(retried)
    (retried.path / "conftest.py").write_text(KILLER)
    with retried.started(KILL_AT=event) as running:
        _, node = first_job(retried, running)
        with node_down(retried, node):
            assert running.process.wait(60) == -signal.SIGKILL, running.output()
            outcome = attach(retried)
    assert outcome.ret == 1, outcome.output
    assert attempts(outcome) == ["cluster_failed", "passed"]
    assert outcome.finding("small")["hosts"] == [node]
    assert claims(retried.run_dir().phase("small")) == [1, 1]


@pytest.mark.slow
def test_attached_run_submits_again_what_waited_for_the_retry(retried: Suite) -> None:
    """Its controller was killed just after it took that job out of the queue."""
    retried.profile["limits"] |= {"retried": "pass"}
    add_phase(retried)
    retried.phase("second", script=str(IDLE), args={"seconds": 0.2}, after="small")
    (retried.path / "conftest.py").write_text(KILLER)
    with retried.started(KILL_AT="held:1") as running:
        _, node = first_job(retried, running)
        journal = retried.run_dir().journal
        both = ("small", "second")
        running.wait_for(
            "the job that waits",
            lambda: tuple(e["phase"] for e in read_events(journal).named("submitted")) == both,
        )
        with node_down(retried, node):
            assert running.process.wait(60) == -signal.SIGKILL, running.output()
            outcome = attach(retried)
    assert outcome.ret == 0, outcome.output
    assert attempts(outcome) == ["cluster_failed", "passed"]
    assert outcome.phase("second")["outcome"] == "passed"
    assert claims(retried.run_dir().phase("second")) == [1]
    retried.check_queue(outcome)


def claims(phase: PhaseDir) -> list[int]:
    """How often each job of a phase started."""
    return [len([*read_events(job.node_events(0)).named("claim")]) for job in phase.jobs()]


@pytest.mark.slow
@pytest.mark.parametrize("event", ["retry:1", "submitted:2"])
def test_reaped_run_is_reported_with_the_node_that_failed(retried: Suite, event: str) -> None:
    """The next run reports it: its retry was ended, and the node had failed nevertheless."""
    add_phase(retried, waits=True)
    (retried.path / "conftest.py").write_text(KILLER)
    with retried.started(KILL_AT=event) as running:
        _, node = first_job(retried, running)
        with node_down(retried, node):
            assert running.process.wait(60) == -signal.SIGKILL, running.output()
    run = retried.run_dir()
    reaped = retried.run_apart("--cluster-reap", run.run_id)
    assert reaped.ret == 0, reaped.output
    retried.profile["limits"] |= {"retries": 0}
    retried.phase("small", script=str(IDLE), args={"seconds": 0.1})
    after = retried.run_apart()
    assert after.ret == 0, after.output
    report = retried.reports / run.run_id / "report.json"
    wait_for("the report of the reaped run", report.exists)
    record = json.loads(report.read_text())
    (phase,) = record["phases"]
    assert (record["verdict"], phase["outcome"]) == ("UNFIT", "cluster_failed")
    assert phase["findings"][0]["hosts"] == [node]
    ended = [attempt["outcome"] for attempt in phase.get("attempts", ())]
    assert ended == ([] if event == "retry:1" else ["cluster_failed", "cancelled"])


def test_job_that_slurm_expects_to_start_later_is_not_waited_for(lab_suite: Suite) -> None:
    """With --cluster-wait 0: it is cancelled, which Slurm confirms, and the queue's reason and
    estimate are in the report; nothing failed, so the exit status is 6."""
    lab_suite.profile["phases"]["small"] = {"slurm": {"begin": "now+1hour"}}
    lab_suite.phase("small", script=str(IDLE))
    lab_suite.phase("second", script=str(IDLE), args={"seconds": 0.1})
    outcome = lab_suite.run_apart("--cluster-wait", "0")
    assert outcome.ret == 6, outcome.output
    phase = outcome.phase("small")
    assert phase["outcome"] == "never_ran" and phase["scheduler_state"] == "CANCELLED"
    assert "cannot start within 60 s (BeginTime)" in phase["reason"]
    assert "the scheduler expects it to start at 20" in phase["reason"]
    assert outcome.phase("second")["outcome"] == "passed"
    lab_suite.check_queue(outcome)
