"""What `expect` of cluster.yaml accepts, for everything that asks."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_clustersmoke.config.expectations import Expectation
from pytest_clustersmoke.evidence.transport_rule import TransportRule, matches


def rule(inside: bool = False, **expect: Any) -> TransportRule:
    return TransportRule.of(Expectation.model_validate(expect), inside=inside)


@pytest.mark.parametrize(
    ("wording", "glob", "met"),
    [
        ("P2P/CUMEM", "P2P/*", True),
        ("P2P/direct pointer/read", "P2P/direct pointer", True),
        ("SHM/direct/direct", "SHM", True),
        ("direct shared memory", "SHM", True),
        ("NET/IB/0/GDRDMA", "NET/IB*", True),
        ("NET/IB/0/GDRDMA", "NET/IB", False),
        ("NET/IB/3", "NET/IB", True),
        ("NET/IB/3", "NET/IB/3", True),
        ("NET/AWS Libfabric/1(2)/GDRDMA/Shared", "NET/AWS Libfabric/GDRDMA", True),
        ("NET/Socket/0", "NET/IB*", False),
    ],
)
def test_globs_match_kinds_or_wordings(wording: str, glob: str, met: bool) -> None:
    """A glob of cluster.yaml matches a transport's kind, or NCCL's whole wording."""
    assert matches(wording, glob) is met


@pytest.mark.parametrize(
    ("expect", "wording", "reason"),
    [
        ({"inter_node": ("NET/IB*",)}, "NET/IB/0", ""),
        ({"inter_node": ("NET/IB*",)}, "NET/Socket/0", "expected NET/IB*"),
        ({"forbid": ("NET/Socket",)}, "NET/Socket/0", "forbidden by NET/Socket"),
        ({"gpudirect": "required"}, "NET/IB/0", "GPUDirect RDMA is required at the sender"),
        ({"gpudirect": "forbidden"}, "NET/IB/0", ""),
        ({}, "NET/Socket/0", ""),
    ],
)
def test_refusal_names_the_reason(expect: dict[str, Any], wording: str, reason: str) -> None:
    """Forbidden transports come first, then those expected, then GPUDirect RDMA."""
    assert rule(**expect).refuse(wording, " at the sender") == reason


def test_gpudirect_and_devices_concern_only_connections_between_nodes() -> None:
    expect: dict[str, Any] = {"gpudirect": "required", "hca": "mlx5_*"}
    assert rule(inside=True, **expect).is_empty and not rule(**expect).is_empty
    assert rule(**expect).refuse_devices(["mlx5_0+mlx5_1"]) == ""
    assert rule(**expect).refuse_devices(["mlx5_0+eth1"]) == "expected mlx5_*"
    assert rule(inside=True, **expect).refuse_devices(["eth1"]) == ""


@pytest.mark.parametrize(
    ("globs", "interconnect", "expected"),
    [
        ((), "InfiniBand, 400 Gbit/s", True),
        ((), "TCP", False),
        (("NET/IB*",), "", True),
        (("NET/Socket",), "InfiniBand", False),
    ],
)
def test_infiniband_is_expected(globs: tuple[str, ...], interconnect: str, expected: bool) -> None:
    """`expect` decides if it names transports, otherwise the profile's interconnect."""
    assert rule(inter_node=globs).expects_infiniband(interconnect) is expected
