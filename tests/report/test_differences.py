"""In which facts nodes differ."""

from __future__ import annotations

from pytest_clustersmoke.report.differences import UNKNOWN, differences

from .. import records


def test_equal_nodes_differ_in_nothing() -> None:
    """Nodes that tell the same facts, and one that tells none, give no difference."""
    silent = {**records.facts(4), "facts": {}}
    assert differences([*map(records.facts, range(4)), silent]) == []  # type: ignore[list-item]


def test_the_odd_node_is_named_last() -> None:
    """The value that most nodes have comes first, with its nodes."""
    nodes = [records.facts(0), records.facts(1), records.facts(2, kernel="5.10.0")]
    assert differences(nodes) == [
        {"fact": "kernel", "values": {"6.1.0": ["node0", "node1"], "5.10.0": ["node2"]}}
    ]


def test_packages_gpus_and_ports_are_compared() -> None:
    """A package that is missing, another driver, a port at half its rate."""
    ports = [{"hca": "mlx5_0", "rate": "400 Gb/sec"}]
    slow = [{"hca": "mlx5_0", "rate": "200 Gb/sec"}]
    gpus = [{"name": "NVIDIA H100", "driver_version": "535.1"}]
    one = records.facts(0, rdma_ports=ports)
    other = records.facts(1, rdma_ports=slow, gpus=gpus, packages={})
    found = {item["fact"]: item["values"] for item in differences([one, other])}
    assert found["RDMA ports"] == {"mlx5_0 200 Gb/sec": ["node1"], "mlx5_0 400 Gb/sec": ["node0"]}
    assert found["driver"] == {"535.1": ["node1"], "550.54.15": ["node0"]}
    assert found["package torch"] == {"2.5.1": ["node0"], UNKNOWN: ["node1"]}


def test_hostile_facts_are_cleaned() -> None:
    """Facts of the wrong kind are no crash, and escapes in them are none in the record."""
    odd = records.facts(1, kernel="\x1b[2J", packages=["x"], gpus="many", rdma_ports=[1])
    found = {item["fact"]: item["values"] for item in differences([records.facts(0), odd])}
    assert all("\x1b" not in value for values in found.values() for value in values)
    assert "kernel" in found
