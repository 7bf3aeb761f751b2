"""A transport that fell back to a slower one, in a whole run: submitted, launched and judged.

The ranks are fakes that log what NCCL would log: there is no NCCL without a GPU.
"""

from __future__ import annotations

import pytest

from tests.support.harness import Outcome, Suite, lines_with

INSIDE, BETWEEN = (
    "test_transports_inside_nodes_are_those_expected",
    "test_transports_between_nodes_are_those_expected",
)


@pytest.fixture
def transport_suite(suite: Suite) -> Suite:
    """A suite on a cluster that requires its transports."""
    suite.cluster(
        require=["transports"],
        expect={
            "small": {
                "intra_node": ["P2P/*"],
                "inter_node": ["NET/IB*"],
                "forbid": ["NET/Socket"],
                "gpudirect": "required",
                "hca": "mlx5_*",
            }
        },
    )
    return suite


def run(suite: Suite, fault: str) -> Outcome:
    suite.phase(
        base="TalkedInsideNodes, TalkedBetweenNodes",
        nodes=2,
        gpus_per_node=2,
        args={"nccl": fault},
    )
    return suite.run("-rs")


def test_healthy_cluster_is_fit(transport_suite: Suite) -> None:
    """Every connection is as expected: FIT, and the table shows the transports."""
    result = run(transport_suite, "none")
    assert result.ret == 0
    result.assert_outcomes(passed=4)
    assert lines_with(result, "NET/IB/GDRDMA, P2P/CUMEM")


@pytest.mark.parametrize(
    ("fault", "criterion", "words"),
    [
        ("socket", BETWEEN, "-> rank 2 (local1, GPU 0): NET/Socket/0, forbidden by NET/Socket: "),
        ("shm", INSIDE, "-> rank 3 (local1, GPU 1): SHM/direct/direct, expected P2P/*: "),
        ("no_gpudirect", BETWEEN, "NET/IB/1 (mlx5_1), GPUDirect RDMA is required: nccl/0001/"),
        ("ib_inside", INSIDE, "NET/IB/0/GDRDMA (mlx5_0), expected P2P/*: nccl/0000/"),
    ],
)
def test_fallback_is_unfit(transport_suite: Suite, fault: str, criterion: str, words: str) -> None:
    """The criterion inside or between nodes fails, with ranks, hosts, NIC and line; the job and the
    other criterion pass."""
    result = run(transport_suite, fault)
    assert result.ret == 1
    result.assert_outcomes(passed=3, failed=1)
    failed = [
        name
        for name, criterion in transport_suite.record()["phases"][0]["criteria"].items()
        if criterion["result"] == "failed"
    ]
    assert failed == [criterion]
    assert lines_with(result, words), result.stdout.str()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("no_edges", "NCCL logged no connection inside a node: NCCL connects only when"),
        ("no_log", "NCCL logged no connection inside a node: its logs are missing or empty"),
        ("lost_rank", "rank 3 of its communicator is not a known rank of the phase"),
    ],
)
def test_unknown_transports_are_inconclusive(
    transport_suite: Suite, fault: str, words: str
) -> None:
    """Neither criterion is measured, and the verdict says so with an exit status of its own."""
    result = run(transport_suite, fault)
    assert result.ret == 6
    result.assert_outcomes(passed=2, skipped=2)
    assert lines_with(result, words), result.stdout.str()
    assert (
        result.outlines[-1]
        == "INCONCLUSIVE: 1 of 1 phases finished (small: transports not measured)"
    )
