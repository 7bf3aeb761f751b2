"""Parsing of what Slurm prints about trial submissions, allocations and steps."""

from __future__ import annotations

from datetime import datetime

import pytest

from pytest_clustersmoke.jobs.slurm_jobs import (
    AllocatedNode,
    JobStep,
    parse_allocation,
    parse_sinfo,
    parse_step_end,
    parse_step_refusal,
    parse_steps,
    parse_test_only,
)


@pytest.mark.parametrize(
    "words",
    [
        "sbatch: Job 10 to start at 2026-11-21T22:35:52 using 1 processors on nodes node0 in "
        "partition main",
        # up to 20.02
        "sbatch: Job 10 to start at 2026-11-21T22:35:52 using 1 processors on node0",
    ],
)
def test_estimate_is_parsed(words: str) -> None:
    """The estimate says when and where the job might start."""
    trial = parse_test_only(0, f"{words}\n")
    assert trial.accepted is True and trial.nodes == "node0"
    assert trial.partition == ("main" if "partition" in words else "")
    assert trial.start == datetime(2026, 11, 21, 22, 35, 52).timestamp()


# As Slurm 22.05 printed them.
@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        (
            "sbatch: error: invalid partition specified: nope\n"
            "allocation failure: Invalid partition name specified",
            {"partition-unknown"},
        ),
        (
            "allocation failure: Required partition not available (inactive or drain)",
            {"partition-down"},
        ),
        (
            "allocation failure: Invalid account or account/partition combination specified",
            {"account-refused"},
        ),
        ("allocation failure: Invalid qos specification", {"qos-refused"}),
        (
            "sbatch: error: QOSMaxWallDurationPerJobLimit\n"
            "allocation failure: Job violates accounting/QOS policy (job submit limit, user's "
            "size and/or time limits)",
            {"time-over-limit"},
        ),
        ("sbatch: error: QOSMaxNodePerJobLimit", {"too-many-nodes"}),
        ("sbatch: error: QOSMaxGRESPerUser", {"too-many-gpus"}),
        ("allocation failure: Requested node configuration is not available", set()),
    ],
)
def test_refusal_names_its_cause(words: str, kinds: set[str]) -> None:
    """The message is kept without the command's own name, and its cause is recognised."""
    trial = parse_test_only(1, words)
    assert trial.accepted is False and trial.causes == kinds
    assert "sbatch" not in trial.message and "allocation failure" not in trial.message
    assert trial.no_nodes == ("node configuration" in words)


@pytest.mark.parametrize(
    "words",
    [
        "",
        "sbatch: error: Unable to contact slurm controller (connect failure)",
        "sbatch: error: Socket timed out on send/recv operation",
        "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying",
        "sbatch: error: Zero Bytes were transmitted or received",
        "allocation failure: Invalid authentication credential",
        # As Slurm 22.05 printed it on a machine that belongs to no cluster.
        "sbatch: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\n"
        "sbatch: error: fetch_config: DNS SRV lookup failed\n"
        "sbatch: error: _establish_config_source: failed to fetch config\n"
        "sbatch: fatal: Could not establish a configuration source",
        # The job could run but would have to wait (src/common/slurm_errno.c).
        "allocation failure: Requested nodes are busy",
        "allocation failure: Requested reservation is in use",
    ],
)
def test_unreachable_controller_refuses_nothing(words: str) -> None:
    """No answer says nothing about the job."""
    assert parse_test_only(1, words).accepted is None


# As Slurm 22.05 prints an allocation of which one node has more CPUs.
SHOWN = (
    "JobId=7 JobName=interactive UserId=ann(1001) GroupId=ann(1001) JobState=RUNNING Reason=None "
    "SubmitTime=2026-11-23T23:52:04 StartTime=2026-11-23T23:52:05 EndTime=2026-11-23T23:57:05 "
    "NodeList=node[0-2] BatchHost=node0 NumNodes=3 JOB_GRES=gpu:fake:6  "
    " Nodes=node[0-1] CPU_IDs=0-1 Mem=0 GRES=gpu:fake:2(IDX:0-1) "
    " Nodes=node2 CPU_IDs=0-2,5 Mem=0 GRES= MinCPUsNode=1 Command=(null)"
)


def test_allocation_is_parsed() -> None:
    """Whose it is, until when, and what it has of each node."""
    allocation = parse_allocation(SHOWN)
    assert (allocation.job_id, allocation.uid, allocation.runs) == ("7", 1001, True)
    assert allocation.ends == datetime(2026, 11, 23, 23, 57, 5).timestamp()
    assert allocation.nodes == (
        AllocatedNode("node0", 2, 2),
        AllocatedNode("node1", 2, 2),
        AllocatedNode("node2", 4, 0),
    )


def test_allocation_without_details_has_unknown_counts() -> None:
    """A job that waits, or a format that is not known, has no count that could refuse a phase."""
    allocation = parse_allocation("JobId=7 JobState=RUNNING EndTime=Unknown NodeList=n[1-2] X=1")
    assert allocation.nodes == (AllocatedNode("n1"), AllocatedNode("n2"))
    assert allocation.ends is None and allocation.uid is None
    assert not parse_allocation("").runs


def test_steps_that_slurm_starts_itself_are_left_out() -> None:
    """The shells of salloc and batch scripts use no resources."""
    text = "7.interactive|n0|interactive\n7.batch|n0|batch\n7.4294967290|n0|sh\n7.3|n[0-1]|a|b\n"
    assert parse_steps(text) == [JobStep("7.3", ("n0", "n1"), "a|b")]


ABORTED = "srun: Job step aborted: Waiting up to 4 seconds for job step to finish.\n"
CANCELLED = "slurmstepd-n2: error: *** STEP 2.2 ON n2 CANCELLED AT 2026-11-23T23:52:56 ***\n"
EXITED = "srun: error: n2: task 0: Exited with exit code 3\n"
TERMINATING = "srun: launch/slurm: _step_signal: Terminating StepId=2.2\n"


@pytest.mark.parametrize(
    ("log", "end"),
    [
        (CANCELLED + ABORTED + EXITED + TERMINATING, "CANCELLED"),
        (ABORTED + EXITED, "CANCELLED"),
        (EXITED + TERMINATING + CANCELLED, "FAILED"),  # srun itself ends the other tasks
        ("srun: error: n[1-2]: tasks 0-1: Killed\n", "FAILED"),
        ("anything else\n", ""),
    ],
)
def test_first_line_about_the_end_of_a_step_counts(log: str, end: str) -> None:
    """A step that Slurm ended is no failure of its tasks, which only follow."""
    assert parse_step_end(log) == end


def test_refusal_of_a_step_is_quoted() -> None:
    """srun's message, without its name."""
    words = "Unable to create step for job 1: More processors requested than permitted"
    assert parse_step_refusal(f"srun: error: {words}\n") == words
    assert parse_step_refusal(EXITED) == ""


@pytest.mark.parametrize(
    ("state", "is_down"),
    [
        ("down", True),
        ("down*", True),
        ("idle*", True),
        ("failing", True),
        ("idle", False),
        ("unknown", False),
        ("unk*", False),
        ("powering_down", False),
        ("drained+power_down", False),
    ],
)
def test_node_that_takes_no_job_need_not_be_down(state: str, is_down: bool) -> None:
    """One that slurmctld has not heard of since it was started again; one that saves power."""
    (node,) = parse_sinfo(f"node0|{state}|Unknown|Unknown|none")
    assert (node.down, node.unusable) == (is_down, state != "idle")
