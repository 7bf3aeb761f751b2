"""What ports carried and counted during a phase, read from fake trees of sysfs."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.finding import Finding
from pytest_clustersmoke.node.checks.node_values import Node
from pytest_clustersmoke.node.checks.rail_checks import Traffic, check_traffic, read_traffic
from pytest_clustersmoke.node.health_readings import read_interfaces
from pytest_clustersmoke.node.port_counters import (
    BACKWARDS,
    MISSING,
    SATURATED,
    read_ports,
)
from tests.fakes.sysfs import FakePort, write_tree

GB = 10**9
RAILS = ("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3")
CHOSEN = dict.fromkeys(RAILS, 4)  # NCCL's connections


class Fabric:
    """Nodes of a job with four rails each, before and after it; a test changes what it needs."""

    def __init__(self, folder: Path, nodes: int = 4, each: int = 20 * GB) -> None:
        self.folder = folder
        self.before = [[FakePort(hca, 5 * GB, 7 * GB) for hca in RAILS] for _ in range(nodes)]
        self.after = [
            [FakePort(hca, 5 * GB + each, 7 * GB + each) for hca in RAILS] for _ in range(nodes)
        ]
        self.chosen: list[Mapping[str, int]] = [CHOSEN] * nodes
        self.ethernet = [0] * nodes
        self.sockets = [False] * nodes

    def add(self, node: int, rail: int, count: int) -> None:
        """Let a rail carry more each way, or less."""
        port = self.after[node][rail]
        assert port.sent is not None and port.received is not None
        port.sent, port.received = port.sent + count, port.received + count

    def traffic(self) -> list[Traffic]:
        found = []
        for node, pair in enumerate(zip(self.before, self.after, strict=True)):
            readings: dict[str, Any] = {}
            for when, ports in zip(("before", "after"), pair, strict=True):
                root = self.folder / f"{when}{node}"
                carried = self.ethernet[node] if when == "after" else 0
                write_tree(root, ports, {"eth0": (GB + carried, GB)})
                readings[when] = {"ports": read_ports(root), "interfaces": read_interfaces(root)}
            about = Node(node, f"n{node}", {})
            read = read_traffic(about, readings, self.chosen[node], self.sockets[node])
            assert read is not None
            found.append(read)
        return found

    def findings(self) -> list[Finding]:
        return list(check_traffic(self.traffic()))

    def named(self) -> list[tuple[str, str]]:
        return sorted((found.id, ",".join(found.hosts)) for found in self.findings())


def healthy(fabric: Fabric) -> Iterable[tuple[str, str]]:
    return ()


def dead_rail(fabric: Fabric) -> Iterable[tuple[str, str]]:
    """One port carries nothing, and its neighbour takes its traffic."""
    fabric.add(1, 2, -20 * GB)
    fabric.add(1, 3, 20 * GB)
    return [("rdma-rail-doubled", "n1"), ("rdma-rail-silent", "n1")]


def rail_doubled(fabric: Fabric) -> Iterable[tuple[str, str]]:
    """One port carries twice its share, and all others less."""
    for rail, part in enumerate((20, -7, -7, -6)):
        fabric.add(2, rail, part * GB)
    return [("rdma-rail-doubled", "n2")]


def reset(fabric: Fabric) -> Iterable[tuple[str, str]]:
    """The counters of one node were set to zero in between: they say nothing."""
    for port in fabric.after[1]:
        port.sent = port.received = 3 * GB
    return ()


def saturated(fabric: Fabric) -> Iterable[tuple[str, str]]:
    """Error counters that have been at their maximum for long."""
    for ports in (fabric.before[0], fabric.after[0]):
        ports[0].counters = {"symbol_error": 2**16 - 1, "link_downed": 2**8 - 1}
    return ()


def reaches_maximum(fabric: Fabric) -> Iterable[tuple[str, str]]:
    """One reached it during the job: the link went down at least so often."""
    fabric.after[0][0].counters = {"link_downed": 255}
    return [("rdma-link-went-down", "n0")]


def backwards(fabric: Fabric) -> Iterable[tuple[str, str]]:
    """One counter jumps backwards: its rail is left out, and the silent one is still seen."""
    fabric.after[3][0].sent = GB
    fabric.add(3, 1, -20 * GB)
    return [("rdma-rail-silent", "n3")]


def narrow_counters(fabric: Fabric) -> Iterable[tuple[str, str]]:
    """Counters of 32 bits stay at their maximum; those rails are not measured."""
    for ports in fabric.after:
        ports[1].sent = (2**32 - 1) * 4
    return ()


def shared_nic(fabric: Fabric) -> Iterable[tuple[str, str]]:
    """Two GPUs share a card on each node, as NCCL chose: it carries twice as much."""
    fabric.chosen = [{"mlx5_0": 8, "mlx5_1": 4, "mlx5_2": 4}] * 4
    for node in range(4):
        fabric.add(node, 0, 20 * GB)
        fabric.add(node, 3, -20 * GB)
    return ()


def other_traffic(fabric: Fabric) -> Iterable[tuple[str, str]]:
    """Storage goes through a rail of one node; another job through two rails of another."""
    fabric.add(0, 0, 400 * GB)
    fabric.add(1, 2, 900 * GB)
    fabric.add(1, 3, 800 * GB)
    return ()


def link_down(fabric: Fabric) -> Iterable[tuple[str, str]]:
    """A link went down and came back."""
    fabric.after[2][1].counters = {"link_downed": 1, "link_error_recovery": 2}
    return [("rdma-link-went-down", "n2"), ("rdma-port-errors", "n2")]


def unused_port_down(fabric: Fabric) -> Iterable[tuple[str, str]]:
    """Storage's port, which NCCL does not use, went down: a warning."""
    fabric.chosen = [dict.fromkeys(RAILS[:3], 4)] * 4
    fabric.after[2][3].counters = {"link_downed": 1}
    return [("rdma-port-errors", "n2")]


def sockets(fabric: Fabric) -> Iterable[tuple[str, str]]:
    """NCCL chose InfiniBand on all nodes; on one everything went over Ethernet."""
    for rail in range(4):
        fabric.add(1, rail, -20 * GB)
    fabric.ethernet[1] = 80 * GB
    return [("sockets-beside-infiniband", "n1")]


def chosen_sockets(fabric: Fabric) -> Iterable[tuple[str, str]]:
    """NCCL's own log says sockets."""
    fabric.chosen, fabric.sockets = [{}] * 4, [True] * 4
    fabric.ethernet = [80 * GB] * 4
    return [("sockets-beside-infiniband", f"n{node}") for node in range(4)]


def roce(fabric: Fabric) -> Iterable[tuple[str, str]]:
    """RoCE has no errors of InfiniBand; what it has is under hw_counters."""
    for ports in (*fabric.before, *fabric.after):
        for port in ports:
            port.layer, port.hardware = "Ethernet", {"rx_icrc_encapsulated": 0}
    fabric.after[0][3].hardware = {"rx_icrc_encapsulated": 4}
    return [("rdma-port-errors", "n0")]


def gone(fabric: Fabric) -> Iterable[tuple[str, str]]:
    """A card is not there any more: it is not measured, and no other is accused."""
    del fabric.after[0][2]
    return ()


def down_at_the_end(fabric: Fabric) -> Iterable[tuple[str, str]]:
    """A port that is down when the job ends, and whose count of that is saturated."""
    for ports in (fabric.before[1], fabric.after[1]):
        ports[2].counters = {"link_downed": 255}
    fabric.after[1][2].state = "1: DOWN"
    return [("rdma-link-went-down", "n1")]


def narrow_slot(fabric: Fabric) -> Iterable[tuple[str, str]]:
    """A card that came up with half of its lanes."""
    fabric.after[3][0].width = 8
    return [("pcie-link-narrow", "n3")]


CASES = (
    *(healthy, dead_rail, rail_doubled, reset, saturated, reaches_maximum, backwards),
    *(
        narrow_counters,
        shared_nic,
        other_traffic,
        link_down,
        unused_port_down,
        sockets,
        chosen_sockets,
        roce,
        gone,
    ),
    narrow_slot,
    down_at_the_end,
)


@pytest.mark.parametrize("stage", CASES, ids=lambda stage: stage.__name__)
def test_case_has_exactly_its_findings(stage: Any, tmp_path: Path) -> None:
    """On the node that is sick, and on no other."""
    fabric = Fabric(tmp_path)
    expected = stage(fabric)
    assert fabric.named() == sorted(expected), stage.__doc__


def test_rail_of_a_pair_of_nodes(tmp_path: Path) -> None:
    """Two nodes are enough to see a silent rail; other traffic on one of them is not named."""
    fabric = Fabric(tmp_path / "dead", nodes=2)
    assert [*dead_rail(fabric)] == fabric.named()
    busy = Fabric(tmp_path / "busy", nodes=2)
    busy.add(0, 1, 200 * GB)
    assert busy.named() == []


def test_finding_says_what_carried(tmp_path: Path) -> None:
    """Names, and shares."""
    fabric = Fabric(tmp_path)
    dead_rail(fabric)
    texts = {found.id: found.cause for found in fabric.findings()}
    assert texts["rdma-rail-silent"] == (
        "NCCL chose RDMA port mlx5_2:1, which carried nearly nothing (0.0% of its share); "
        "mlx5_0:1, mlx5_1:1, mlx5_3:1 carried the rest, and on other nodes this port does"
    )
    assert texts["rdma-rail-doubled"] == (
        "RDMA port mlx5_3:1 carried 2.0 times its share of the job's bytes; mlx5_2:1 carried "
        "nearly nothing"
    )


def test_data_is_counted_in_words_of_four_bytes(tmp_path: Path) -> None:
    """The kernel's unit, which many a script takes for bytes."""
    (traffic, *_) = Fabric(tmp_path, each=8 * GB).traffic()
    assert [port.sent.value for port in traffic.ports] == [8 * GB] * 4
    assert (
        tmp_path / "before0/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data"
    ).read_text() == f"{5 * GB // 4}\n"


def test_unmeasured_counters_have_their_reason(tmp_path: Path) -> None:
    """At the maximum, smaller than before, or not there."""
    fabric = Fabric(tmp_path, nodes=2)
    saturated(fabric)
    fabric.after[0][1].sent = 0
    fabric.after[0][2].received = None
    first, second, third, _ = fabric.traffic()[0].ports
    assert (first.counted["symbol_error"].value, first.counted["symbol_error"].why) == (
        None,
        SATURATED,
    )
    assert (second.sent.value, second.sent.why, second.bytes) == (None, BACKWARDS, None)
    assert (third.received.value, third.received.why) == (None, MISSING)
    assert first.counted["port_xmit_discards"].why == MISSING


@pytest.mark.parametrize("trees", [50, pytest.param(200, marks=pytest.mark.slow)])
def test_nothing_is_named_in_healthy_trees(trees: int, tmp_path: Path) -> None:
    """Nodes, rails, bytes, other traffic, resets and old counts are drawn; nothing is sick."""
    draw = random.Random(11)
    for trial in range(trees):
        nodes = draw.choice((2, 2, 3, 4))
        fabric = Fabric(tmp_path / str(trial), nodes, draw.choice((10**6, GB, 30 * GB)))
        storage = draw.randrange(4)
        for node in range(nodes):
            for rail in range(4):
                fabric.add(node, rail, int(draw.gauss(0, 0.02) * 10**6))
                old = draw.choice((0, 0, 7, 65535))
                for ports in (fabric.before[node], fabric.after[node]):
                    ports[rail].counters = {"symbol_error": old}
            if draw.random() < 0.3:
                fabric.add(node, storage, draw.randrange(500) * GB)
            if draw.random() < 0.1:
                for port in fabric.after[node]:
                    port.sent = port.received = draw.randrange(4) * GB
            if draw.random() < 0.1:
                del fabric.after[node][draw.randrange(4)]
            fabric.ethernet[node] = draw.choice((0, 10**6, 3 * GB))
        assert fabric.named() == [], trial


@pytest.mark.parametrize("readings", [None, {}, {"before": {}}, {"before": 3, "after": []}])
def test_readings_that_are_not_whole_say_nothing(readings: Any) -> None:
    """As of a node that died, or of a job that wrote them."""
    assert read_traffic(Node(0, "n0", {}), readings, CHOSEN) is None
    torn = {"before": {"ports": [{"hca": 1, "counters": []}]}, "after": {"ports": "x"}}
    read = read_traffic(Node(0, "n0", {}), torn, CHOSEN)
    assert read is not None and list(check_traffic([read, read])) == []
