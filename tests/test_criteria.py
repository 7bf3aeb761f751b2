"""The base classes of criteria, judged on what a test says the nodes told."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_clustersmoke.criteria import Started
from pytest_clustersmoke.environment import unmatched_interfaces
from pytest_clustersmoke.evidence import Unmeasured
from pytest_clustersmoke.result import PhaseResult
from pytest_clustersmoke.rundir import write_json

from .evidence import Evidence

ETH = {"eth0": {"ipv4": ["10.0.0.1"], "ipv6": []}, "lo": {"ipv4": ["127.0.0.1"], "ipv6": []}}
IB = {"ibp65s0": {"ipv4": ["10.1.0.1"], "ipv6": []}, "lo": {"ipv4": ["127.0.0.1"], "ipv6": []}}


def ran(folder: Path, *interfaces: object) -> PhaseResult:
    """A phase over NCCL whose ranks all had NCCL_SOCKET_IFNAME=eth0."""
    evidence = Evidence(folder, nodes=len(interfaces)).started("nccl")
    for rank, one in enumerate(interfaces):
        facts = {"node": f"n{rank}", "variables": {"NCCL_SOCKET_IFNAME": "eth0"}}
        write_json(evidence.dir.node_facts(rank), {**facts, "interfaces": one})
    return evidence.result()


def test_a_pinned_interface_is_right_where_all_nodes_have_it(tmp_path: Path) -> None:
    """On equal nodes pinning an interface is nothing to complain of."""
    result = ran(tmp_path, ETH, ETH)
    Started().test_pinned_interfaces_are_on_every_node(result)
    assert unmatched_interfaces(result) == []


def test_a_pinned_interface_that_a_node_lacks_fails(tmp_path: Path) -> None:
    """The failure names the node, the variable, its value, and what the node has."""
    with pytest.raises(AssertionError) as failure:
        Started().test_pinned_interfaces_are_on_every_node(ran(tmp_path, ETH, IB))
    assert "n1: NCCL_SOCKET_IFNAME=eth0 (set on the node) selects no interface" in str(
        failure.value
    )
    assert "ibp65s0, lo" in str(failure.value) and "n0" not in str(failure.value)


def test_a_node_that_told_of_no_interfaces_is_no_pass(tmp_path: Path) -> None:
    """What is not known of one node is not judged."""
    with pytest.raises(Unmeasured, match="n1 told of no interfaces"):
        Started().test_pinned_interfaces_are_on_every_node(ran(tmp_path, ETH, None))
