"""Parsing of what `sbatch --test-only` prints."""

from __future__ import annotations

from datetime import datetime

import pytest

from pytest_clustersmoke.jobs.slurm_jobs import parse_test_only


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
