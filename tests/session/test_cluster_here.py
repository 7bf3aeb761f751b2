"""What `--cluster-here` refuses and shows before anything runs (Slurm's commands are fakes)."""

from __future__ import annotations

import os

import pytest

from tests.fakes.slurm import FakeSlurm
from tests.support.harness import FAKES, Suite, lines_with

SHOWN = (
    "JobId=7 UserId=ann({uid}) JobState={state} Reason=None EndTime=Unknown NodeList=n[0-1] "
    " Nodes=n[0-1] CPU_IDs=0-1 Mem=0 GRES=gpu:2 "
)
HERE = "--cluster-here"
WHERE_TO_RUN = (
    "expected a running allocation of this user; run pytest in one (`salloc --nodes=N ... pytest "
    "...`), or omit --cluster-here to submit jobs"
)


@pytest.fixture
def slurm(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """In allocation 7 of two nodes; the suite's cluster is a Slurm."""
    fake = FakeSlurm(suite.path)
    (suite.path / "bin" / "srun").symlink_to(FAKES / "slurm.sh")
    for name, value in {**fake.environ, "SLURM_JOB_ID": "7"}.items():
        monkeypatch.setenv(name, value)
    fake.answers("scontrol", SHOWN.format(uid=os.getuid(), state="RUNNING"))
    hardware = {"gpu": "A100", "device": "cpu", "gpus_per_node": 2}
    suite.cluster(backend="slurm", hardware=hardware, slurm={"cpus_per_task": 2})
    return fake


def test_cluster_without_slurm_has_no_allocation(suite: Suite) -> None:
    """The error names the backend."""
    suite.phase()
    assert suite.refused(HERE) == [
        "--cluster-here: the backend of `one` is `local`, which has no allocations; expected a "
        "cluster with Slurm; omit --cluster-here"
    ]


@pytest.mark.parametrize("value", ["", "nonsense"])
def test_run_outside_of_an_allocation_is_refused(
    value: str, suite: Suite, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says how to get one, and Slurm is not asked."""
    suite.phase()
    monkeypatch.setenv("SLURM_JOB_ID", value)
    assert suite.refused(HERE) == [
        f"--cluster-here: SLURM_JOB_ID names no allocation; {WHERE_TO_RUN}"
    ]
    assert slurm.calls() == []


def test_job_that_is_not_a_running_one_of_this_user_is_refused(
    suite: Suite, slurm: FakeSlurm
) -> None:
    """It has ended, it is somebody else's, or Slurm does not know it or does not answer."""
    suite.phase()
    job = "--cluster-here: job 7, which SLURM_JOB_ID names,"
    slurm.answers("scontrol", SHOWN.format(uid=os.getuid(), state="COMPLETED"))
    assert suite.refused(HERE) == [f"{job} is COMPLETED; {WHERE_TO_RUN}"]
    slurm.answers("scontrol", SHOWN.format(uid=os.getuid() + 1, state="RUNNING"))
    assert suite.refused(HERE) == [f"{job} belongs to the user {os.getuid() + 1}; {WHERE_TO_RUN}"]
    slurm.answers("scontrol", err="slurm_load_jobs error: Invalid job id specified", rc=1)
    assert suite.refused(HERE) == [f"{job} is unknown to Slurm; {WHERE_TO_RUN}"]
    slurm.answers("scontrol", err="Unable to contact slurm controller", rc=1)
    (line,) = suite.refused(HERE)
    assert line.startswith("--cluster-here: Slurm does not show job 7, which SLURM_JOB_ID names: ")
    assert "Unable to contact slurm controller" in line


def test_allocation_that_no_phase_fits_is_refused(suite: Suite, slurm: FakeSlurm) -> None:
    """Each phase is named, with its reason, its setting and what to ask for."""
    suite.phase(nodes=3)
    suite.phase("wide", gpus_per_node=4)
    no = "no selected phase fits allocation 7; phase"
    lines = suite.refused(
        HERE, "--cluster-set", "wide.gpus_per_node=2", "--cluster-set", "wide.slurm.cpus_per_task=9"
    )
    assert lines == [
        f"test_small.py:3: {no} `small`: it needs 3 nodes, and the allocation has 2; ask for "
        "a larger allocation (salloc --nodes=3)",
        f"--cluster-set: {no} `wide`: it needs 9 CPUs per node, and the allocation has 2 on "
        "n0, n1; ask for a larger allocation (salloc --cpus-per-task=9)",
    ]


def test_faults_are_not_staged_in_an_allocation(suite: Suite, slurm: FakeSlurm) -> None:
    """A fault may take its job down, and this one is the user's."""
    suite.phase()
    assert suite.refused(HERE, "--cluster-prove") == [
        "--cluster-prove does not run with --cluster-here: each fault is staged in a job of its "
        "own, which it may take down; omit one of them"
    ]


def test_dry_run_shows_the_srun_line_and_what_does_not_fit(suite: Suite, slurm: FakeSlurm) -> None:
    """Nothing is submitted; nodes are chosen only when the phase starts."""
    suite.phase(nodes=2)
    suite.phase("large", nodes=3)
    outcome = suite.run(HERE, "--cluster-dry-run")
    assert outcome.ret == 0, outcome.output
    first, _ = lines_with(outcome, "# srun ")
    assert "--jobid=7 --overlap" in first and "--nodelist=$NODES" in first
    (line,) = lines_with(outcome, "large does not fit")
    assert line == (
        "large does not fit allocation 7 and will not run: it needs 3 nodes, and the allocation "
        "has 2"
    )
    assert slurm.commands() == ["scontrol"]


def test_dry_run_outside_of_an_allocation_says_so(
    suite: Suite, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan is printed nevertheless."""
    suite.phase()
    monkeypatch.delenv("SLURM_JOB_ID")
    outcome = suite.run(HERE, "--cluster-dry-run")
    assert outcome.ret == 0, outcome.output
    (line,) = lines_with(outcome, "a run would be refused")
    assert "SLURM_JOB_ID names no allocation" in line
    assert "--jobid=$SLURM_JOB_ID" in outcome.output
