"""Faults of nodes and of the scheduler, staged on a real Slurm: each has a finding of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke import lab
from tests.faults import staged
from tests.faults.table import SCHEDULER, Fault
from tests.faults.table.lab import MEMORY, NO_NODE_LEFT
from tests.faults.watched_phase import WatchedPhase
from tests.support.harness import IDLE, Outcome, Suite
from tests.support.labs import kill_daemon, running_lab
from tests.support.leftovers import none_left

pytestmark = pytest.mark.lab

NODES = 12
DRAINED, DRAINED_NODE, DRAINED_S = "drained_while_it_runs", "node11", 25
UNLIMITED = lab.find_obstacle(memory=True)
LIMITED = UNLIMITED is None
NEEDS_LIMITS = pytest.mark.skipif(not LIMITED, reason=f"no real limit on memory: {UNLIMITED}")
FAULTS = [*SCHEDULER, *([MEMORY] if LIMITED else [])]


@pytest.fixture(scope="module")
def own_lab() -> Iterator[lab.Lab]:
    """A Slurm whose nodes may be taken down, and whose jobs' memory is limited."""
    with running_lab(lab.LabSettings(name="struck", nodes=NODES, memory=LIMITED)) as running:
        yield running


Struck = tuple[Outcome, dict[str, WatchedPhase]]


@pytest.fixture(scope="module")
def struck(tmp_path_factory: pytest.TempPathFactory, own_lab: lab.Lab) -> Iterator[Struck]:
    """One run of all phases at once; a fault is staged in each while it trains."""
    with none_left() as (marker, _):
        suite = Suite(tmp_path_factory.mktemp("struck"), marker, real_torchrun=True)
        suite.use_slurm(own_lab.slurm_conf)
        suite.profile["limits"] |= {"max_jobs": len(FAULTS) + 1}
        for fault in FAULTS:
            staged.add(fault, suite)
        slurm = {"nodelist": DRAINED_NODE, "exclusive": True}
        suite.profile["phases"][DRAINED] = {"slurm": slurm}
        suite.phase(DRAINED, script=IDLE, nodes=1, args={"seconds": DRAINED_S})
        phases = {fault.name: WatchedPhase(suite, fault.name, fault.nodes) for fault in FAULTS}
        phases[DRAINED] = WatchedPhase(suite, DRAINED)
        acts = strikes(suite, phases, own_lab)
        with suite.started() as running:
            for name, act in acts.items():
                phases[name].wait()
                phases[name].strike(act)
            outcome = running.wait(240)
        yield outcome, phases


def strikes(
    suite: Suite, phases: dict[str, WatchedPhase], own: lab.Lab
) -> dict[str, Callable[[], object]]:
    """Phase name -> what stages its fault; the other faults are staged by the phases themselves."""

    def update(*words: str) -> str:
        return suite.slurm("scontrol", "update", *words)

    def requeue() -> None:
        job = phases["requeued"].job
        update(f"jobid={job}", "requeue=1")
        suite.slurm("scontrol", "requeue", job)

    high = ("-p", "high", "-w", "node2", "--exclusive", "-o", "/dev/null", "--wrap=sleep 3")
    return {
        DRAINED: lambda: update(f"nodename={DRAINED_NODE}", "state=drain", "reason=staged"),
        "node_dead": lambda: kill_daemon(own, "slurmd-node10"),
        "node_down": lambda: update("nodename=node1", "state=down", "reason=staged: no power"),
        "preempted": lambda: suite.slurm("sbatch", "--parsable", *high),
        "requeued": requeue,
        "cancelled_by_other": lambda: suite.slurm("scancel", phases["cancelled_by_other"].job),
        "time_limit_of_slurm": lambda: update(
            f"jobid={phases['time_limit_of_slurm'].job}", "EndTime=now+2seconds"
        ),
    }


@pytest.mark.parametrize(
    "fault",
    [*SCHEDULER, pytest.param(MEMORY, marks=NEEDS_LIMITS)],
    ids=lambda fault: fault.name,
)
def test_fault_of_the_scheduler_is_named(
    fault: Fault, struck: Struck, record_property: Callable[[str, object], None]
) -> None:
    """Outcome, finding, host and the scheduler's own text are those of the fault, within 10 s of
    the scheduler knowing it."""
    outcome, phases = struck
    phase = phases[fault.name]
    # A phase that was not struck has a rank that recorded when it staged its fault.
    since = phase.ended_in_slurm() if phase.struck else None
    staged.check(fault, outcome, record_property, since)


def test_findings_point_to_the_scheduler_record(struck: Struck) -> None:
    """Each finding has evidence, from the file in which the scheduler's answers are recorded."""
    outcome, _ = struck
    for fault in SCHEDULER:
        evidence: list[dict[str, Any]] = outcome.finding(fault.name)["evidence"]
        assert evidence, fault.name
        recorded = [item for item in evidence if item["file"].endswith("scheduler.jsonl")]
        if fault.name != "time_limit_of_ours":
            assert recorded, (fault.name, evidence)


def test_job_on_a_node_drained_while_it_runs_passes(struck: Struck) -> None:
    """It runs to its end, without a finding."""
    outcome, phases = struck
    phase = outcome.phase(DRAINED)
    assert (phase["outcome"], phase["findings"]) == ("passed", [])
    done = outcome.evidence(DRAINED).ranks[0].events.last("done")
    assert done is not None and phases[DRAINED].struck < done["time"]
    state_now = (
        phases[DRAINED].suite.slurm("sinfo", "-h", "-n", DRAINED_NODE, "-o", "%T").split()[0]
    )
    assert state_now.startswith("drain")


def test_job_without_a_node_left_names_the_drained_node(
    own_lab: lab.Lab,
    struck: Struck,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """It is not submitted, and the finding says which node is drained."""
    with none_left() as (marker, _):
        suite = Suite(tmp_path, marker, real_torchrun=True)
        suite.use_slurm(own_lab.slurm_conf)
        suite.profile["limits"] |= {"queue_wait_s": 10}
        staged.add(NO_NODE_LEFT, suite)
        outcome = suite.run_apart()
    staged.check(NO_NODE_LEFT, outcome, record_property)
    assert not outcome.events("submitted")
