"""`--cluster-here` on a real Slurm: phases run as steps of an allocation, and never end it."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_clustersmoke.config.hostlist import expand_hostlist
from pytest_clustersmoke.lab import Lab
from tests.faults.table.model import SMALL
from tests.faults.watched_phase import WatchedPhase, bring_back
from tests.support.harness import IDLE, PROGRAMS, Suite
from tests.support.waiting import wait_for

pytestmark = pytest.mark.lab

SHORT = {"seconds": 1}
HERE = "--cluster-here"


@pytest.fixture
def here_suite(
    tmp_path: Path, leftovers: tuple[str, Callable[[], list[str]]], faults_lab: Lab
) -> Suite:
    """An empty suite on the lab; its phases take part in no queue."""
    suite = Suite(tmp_path, leftovers[0], real_torchrun=True)
    suite.use_slurm(faults_lab.slurm_conf)
    return suite


def options_of(nodes: int, *more: str) -> list[str]:
    return [f"--nodes={nodes}", "--cpus-per-task=2", "--gpus-per-node=2", *more]


@contextmanager
def allocation(suite: Suite, nodes: int, *more: str) -> Iterator[str]:
    """An allocation that no shell holds; its id."""
    answer = subprocess.run(
        ["salloc", "--no-shell", *options_of(nodes, *more)],
        env=suite.environ(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    match = re.search(r"Granted job allocation (\d+)", answer.stderr)
    assert match, answer
    try:
        yield match[1]
    finally:
        suite.slurm("scancel", match[1])


def steps_of(suite: Suite, job: str) -> list[str]:
    return suite.slurm("squeue", "-h", "-s", "-j", job, "-o", "%i %j").splitlines()


def state_of(suite: Suite, job: str) -> str:
    return suite.slurm("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").strip()


def test_phases_run_as_steps_on_nodes_of_their_own(here_suite: Suite) -> None:
    """Inside salloc, two phases run at the same time, until both do; a third waits for their nodes,
    and one that needs more nodes than there are never runs. No job is submitted."""
    go = here_suite.path / "go"
    here_suite.phase("a", args={"wait_for": str(go)}, nodes=2)
    here_suite.phase("b", args={"wait_for": str(go)}, gpus_per_node=2)
    here_suite.phase("c", script=IDLE, args=SHORT, nodes=2, launcher="srun")
    here_suite.phase("too_large", script=IDLE, nodes=4)
    with here_suite.started(HERE, inside=["salloc", *options_of(3)]) as running:
        for name in ("a", "b"):
            running.wait_for_ranks(name, 2)
        go.touch()
        outcome = running.wait()
    assert outcome.ret == 6, outcome.output
    a, b, c, too_large = (outcome.phase(name) for name in ("a", "b", "c", "too_large"))
    assert [phase["outcome"] for phase in (a, b, c, too_large)] == [*["passed"] * 3, "never_ran"]
    assert a["started"] < b["ended"] and b["started"] < a["ended"]
    hosts = {name: {node.name for node in outcome.evidence(name).nodes} for name in ("a", "b", "c")}
    assert [len(hosts[name]) for name in ("a", "b", "c")] == [2, 1, 2]
    assert not hosts["a"] & hosts["b"]
    assert c["started"] >= a["ended"] and c["queue_s"] > b["queue_s"]
    finding = outcome.finding("too_large")
    assert finding["id"] == "allocation-too-small"
    assert "it needs 4 nodes, and the allocation has 3" in finding["cause"]
    (job,) = {phase["job_id"].partition(".")[0] for phase in (a, b, c)}
    assert a["job_id"] == f"{job}.a"
    assert f"salloc: Granted job allocation {job}" in outcome.output


@pytest.mark.slow
def test_interrupt_ends_the_steps_and_not_the_allocation(here_suite: Suite) -> None:
    """Ctrl-C ends running and waiting phases, also the step that a launcher started; the allocation
    goes on, without a step."""
    phases = [WatchedPhase.idle(here_suite, name) for name in ("first", "second")]
    here_suite.phase("waits", script=IDLE, nodes=2)
    with (
        allocation(here_suite, 2) as job,
        here_suite.started(
            HERE, "--cluster-set", "first.launcher=srun", SLURM_JOB_ID=job
        ) as running,
    ):
        for phase in phases:
            phase.wait()
        assert len(steps_of(here_suite, job)) == 3
        running.interrupt(signal.SIGINT)
        outcome = running.wait()
        assert outcome.ret == 2, outcome.output
        for name in ("first", "second", "waits"):
            assert outcome.phase(name)["outcome"] == "cancelled"
        wait_for("the end of every step", lambda: not steps_of(here_suite, job), 10)
        assert state_of(here_suite, job) == "RUNNING"


@pytest.mark.slow
def test_cancelled_steps_and_a_cancelled_allocation_are_no_failures(here_suite: Suite) -> None:
    """A step that somebody cancels is cancelled, and the others go on. Once the allocation is
    cancelled, so is the phase that runs, and the one that waits never ran."""
    struck, runs = (WatchedPhase.idle(here_suite, name) for name in ("struck", "runs"))
    here_suite.phase("waits", script=IDLE, nodes=2)
    with (
        allocation(here_suite, 2) as job,
        here_suite.started(HERE, SLURM_JOB_ID=job) as running,
    ):
        struck.wait()
        runs.wait()
        (step,) = [line for line in steps_of(here_suite, job) if line.endswith("-struck")]
        struck.strike(lambda: here_suite.slurm("scancel", step.split()[0]))
        result = struck.directory().result
        running.wait_for("the end of `struck`", result.exists)
        assert len(steps_of(here_suite, job)) == 1
        here_suite.slurm("scancel", job)
        outcome = running.wait()
    assert outcome.ret == 6, outcome.output
    assert outcome.phase("struck")["outcome"] == "cancelled"
    assert f"allocation {job} goes on" in outcome.phase("struck")["reason"]
    assert outcome.finding("struck")["id"] == "cancelled-by-other"
    assert outcome.phase("runs")["outcome"] == "cancelled"
    assert f"CANCELLED (with allocation {job})" in outcome.phase("runs")["reason"]
    waits = outcome.phase("waits")
    reason = f"allocation {job} ended (CANCELLED) before the phase started"
    assert (waits["outcome"], waits["reason"]) == ("never_ran", reason)


@pytest.mark.slow
def test_failed_phase_is_its_own_fault_and_the_next_one_does_not_run(here_suite: Suite) -> None:
    """A rank that ends with an error fails its phase, though srun then ends the step; the phase
    that runs after it never runs; a third one does."""
    ends = {**SMALL, "how": "exits-3", "at_rank": 0, "when": "step"}
    here_suite.phase("first", script=PROGRAMS / "ends.py", args=ends, nodes=2)
    here_suite.phase("second", script=IDLE, after="first")
    here_suite.phase("third", script=IDLE, args=SHORT)
    with (
        allocation(here_suite, 2) as job,
        here_suite.started(HERE, SLURM_JOB_ID=job) as running,
    ):
        outcome = running.wait()
    assert outcome.ret == 1, outcome.output
    assert outcome.phase("first")["outcome"] == "failed"
    assert outcome.finding("first")["ranks"] == [0]
    assert outcome.phase("second")["outcome"] == "never_ran"
    assert "first failed" in outcome.phase("second")["reason"]
    assert outcome.phase("third")["outcome"] == "passed"


@pytest.mark.slow
def test_lost_node_of_the_allocation_is_a_failure_of_the_cluster(here_suite: Suite) -> None:
    """The allocation goes on without the node (--no-kill); the phase on it has failed with it, and
    one that still fits runs."""
    lost = WatchedPhase.idle(here_suite, "lost", nodes=2)
    here_suite.phase("next", script=IDLE, args=SHORT)
    here_suite.phase("too_large", script=IDLE, args=SHORT, nodes=2)
    with (
        allocation(here_suite, 2, "--no-kill") as job,
        here_suite.started(HERE, SLURM_JOB_ID=job) as running,
    ):
        lost.wait()
        down = lost.node_name(1)
        state = ("state=down", "reason=staged")
        lost.strike(lambda: here_suite.slurm("scontrol", "update", f"nodename={down}", *state))
        outcome = running.wait()
        bring_back(here_suite, down)
    assert outcome.ret == 1, outcome.output
    assert outcome.phase("lost")["outcome"] == "cluster_failed"
    finding = outcome.finding("lost")
    assert (finding["id"], finding["hosts"]) == ("node-down", [down])
    assert outcome.phase("next")["outcome"] == "passed"
    too_large = outcome.phase("too_large")
    assert too_large["outcome"] == "never_ran"
    assert too_large["reason"] == "it needs 2 nodes, and the allocation has 1"


@pytest.mark.slow
def test_nodes_of_the_users_own_steps_are_not_used(here_suite: Suite) -> None:
    """A phase waits until the step that the user runs beside it has ended; pytest-xdist changes
    nothing."""
    here_suite.phase("small", script=IDLE, args=SHORT, nodes=2)
    with allocation(here_suite, 2) as job:
        own = subprocess.Popen(
            ["srun", f"--jobid={job}", "--nodes=1", "--ntasks=1", "sleep", "600"],
            env=here_suite.environ(),
            stderr=subprocess.DEVNULL,
        )
        wait_for("the user's step", lambda: steps_of(here_suite, job))
        with here_suite.started(HERE, "-n", "2", SLURM_JOB_ID=job) as running:
            words = "too few nodes of the allocation are free"
            running.wait_for("the reason", lambda: words in running.output())
            (step,) = steps_of(here_suite, job)
            here_suite.slurm("scancel", step.split()[0])
            own.wait()
            outcome = running.wait()
    assert outcome.ret == 0, outcome.output
    assert len(expand_hostlist(outcome.phase("small")["scheduler_nodes"])) == 2


@pytest.mark.slow
def test_time_limit_of_the_allocation_is_no_failure(here_suite: Suite) -> None:
    """The phase that runs is cancelled with it, and the one that waits never ran. Their own limit
    is the default, which nobody chose; otherwise they would not fit."""
    del here_suite.profile["slurm"]["time"]
    phase = WatchedPhase.idle(here_suite, "runs")
    here_suite.phase("waits", script=IDLE)
    with (
        allocation(here_suite, 1, "--time=1") as job,
        here_suite.started(HERE, SLURM_JOB_ID=job) as running,
    ):
        phase.wait()
        outcome = running.wait()
    assert outcome.ret == 6, outcome.output
    runs, waits = (outcome.phase(name) for name in ("runs", "waits"))
    assert runs["outcome"] == "cancelled"
    assert runs["reason"] == f"allocation {job} ended at its time limit"
    assert outcome.finding("runs")["id"] == "job-cancelled"
    reason = f"allocation {job} ended (TIMEOUT) before the phase started"
    assert (waits["outcome"], waits["reason"]) == ("never_ran", reason)
