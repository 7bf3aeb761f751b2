"""Checks of interfaces: selected ones that do not exist, and ones that are down on one node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.finding import Finding
from pytest_clustersmoke.evidence.phase_result import collect_phase
from pytest_clustersmoke.evidence.run_directory import PhaseDir
from pytest_clustersmoke.node import checks, network_facts, node_facts
from pytest_clustersmoke.text import FAILURE, WARNING
from tests.support.harness import FAKE_TORCHRUN, Suite
from tests.support.node_facts import CUDA, node, port

LO = {"up": True, "speed_mbit": 0, "physical": False, "ipv4": ["127.0.0.1"], "ipv6": []}
GLOO, SOCKET, HCA = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA"


def adapter(*addresses: str, up: bool = True, **more: Any) -> dict[str, Any]:
    return {
        "up": up,
        "speed_mbit": 1000,
        "physical": True,
        "ipv4": [*addresses],
        "ipv6": [],
        **more,
    }


def at(rank: int, variables: dict[str, str] | None = None, **interfaces: Any) -> dict[str, Any]:
    """A separate machine with loopback and these interfaces, by default eth0."""
    others = interfaces or {"eth0": adapter(f"10.0.0.{rank + 1}")}
    return node(
        rank,
        boot_id=f"boot {rank}",
        network_namespace="net:[1]",
        interfaces={"lo": LO, **others},
        variables=variables or {},
    )


def found(*nodes: dict[str, Any], **spec: Any) -> list[tuple[str, tuple[str, ...], str]]:
    return [(check.id, check.hosts, check.severity) for check in raw(*nodes, **spec)]


def raw(*nodes: dict[str, Any], **spec: Any) -> list[Finding]:
    return checks.find_failures(nodes, {**CUDA, "nodes": len(nodes), **spec})


# Interfaces that variables select


@pytest.mark.parametrize(
    ("name", "value", "device"),
    [
        (SOCKET, "eth", "cuda"),
        (SOCKET, "=eth0", "cuda"),
        (SOCKET, "ib,eth0", "cuda"),
        (SOCKET, "^lo,docker", "cuda"),
        (SOCKET, "x", "cuda"),
        (HCA, "mlx5_0:1", "cuda"),
        (HCA, "^mlx5_1", "cuda"),
        (GLOO, "eth0", "cpu"),
        (GLOO, "eth0", "cuda"),
        (GLOO, "", "cpu"),
    ],
)
@pytest.mark.parametrize("count", [1, 2])
def test_selected_interface_on_every_node_passes(
    name: str, value: str, device: str, count: int
) -> None:
    """Each value is parsed as NCCL and gloo parse it."""
    assert found(*(at(rank, {name: value}) for rank in range(count)), device=device) == []


@pytest.mark.parametrize("value", ["nosuch0", "eth0,nosuch0", "=eth0", "eth"])
def test_missing_interface_of_gloo_fails(value: str) -> None:
    """gloo takes whole names and fails at the first one missing, even with one rank."""
    pinned = {GLOO: value}
    assert found(at(0, pinned), device="cpu", ranks_per_node=1) == [
        ("interface-missing", ("n0",), FAILURE)
    ]
    (check,) = raw(at(0), at(1, pinned), device="cpu")
    assert check.hosts == ("n1",)
    assert check.cause.startswith(f"{GLOO}={value} (set on the node) names ")
    assert check.cause.endswith("which does not exist or has no address; it has lo, eth0")
    assert check.detail == {"variable": GLOO, "value": value} and GLOO in check.fix
    (check,) = raw(at(0, pinned), device="cpu", env_set=pinned)
    assert f"{GLOO}={value} (the profile) names" in check.cause


@pytest.mark.parametrize("value", ["nosuch", "=eth", "=nosuch0", "^lo,eth", "^=lo,eth0"])
def test_nccl_list_that_selects_nothing_fails(value: str) -> None:
    """NCCL fails in its bootstrap, also between the GPUs of one node."""
    pinned = {SOCKET: value}
    assert found(at(0), at(1, pinned)) == [("interface-missing", ("n1",), FAILURE)]
    assert found(at(0, pinned)) == [("interface-missing", ("n0",), FAILURE)]
    conf = {"nccl_conf": {"/etc/nccl.conf": pinned}}
    assert found({**at(0), **conf}) == [("interface-missing", ("n0",), FAILURE)]


def test_selected_interface_without_an_address_fails() -> None:
    """A name without an address cannot be used."""
    bare = at(1, {SOCKET: "ens1"}, eth0=adapter("10.0.0.2"), ens1=adapter(up=False))
    assert found(at(0, {SOCKET: "eth0"}), bare)[0] == ("interface-missing", ("n1",), FAILURE)


def test_problem_that_may_not_end_the_job_is_at_most_a_warning() -> None:
    """The ranks may never use the interface, or may work without it."""
    socket, gloo, hca = {SOCKET: "nosuch"}, {GLOO: "nosuch"}, {HCA: "mlx5_7:1"}
    assert found(at(0, socket), device="cpu") == []
    auto = {"device": "auto", "gpu": "any"}
    warned = [("interface-missing", ("n0",), WARNING)]
    assert found(at(0, socket), **auto) == []  # torch may see no GPU
    assert found(at(0, gloo)) == found(at(0, gloo), **auto) == warned
    assert found(at(0, {**socket, **gloo}), **auto) == [("interface-missing", ("n0",), FAILURE)]
    none = {"gpus": None, "gpu_processes": None, "gpu_driver": False}
    assert found({**at(0, gloo), **none}, **auto)[0][2] == FAILURE
    assert found(at(0, socket), ranks_per_node=1) == warned
    assert found(at(0, {**socket, "NCCL_COMM_ID": "10.0.0.1:4000"})) == warned
    assert found(at(0, {"NCCL_OOB_NET_IFNAME": "nosuch"})) == []
    assert found(at(0, hca)) == []
    on_both = [at(0, hca), at(1, hca)]
    assert [row[::2] for row in found(*on_both)] == [("interface-missing", WARNING)] * 2
    off = {**hca, "NCCL_IB_DISABLE": "1"}
    assert found(at(0, off), at(1, off)) == []


def test_selected_port_that_is_down_is_reported_once() -> None:
    """If the other nodes show that a port is down or missing, that is the finding."""
    pinned = {HCA: "mlx5_0:1"}
    down = {**at(1, pinned), "rdma_ports": [port(0, "1: DOWN"), port(1)]}
    assert [row[:2] for row in found(at(0, pinned), down)] == [("rdma-port-down", ("n1",))]


def test_loopback_between_machines_fails() -> None:
    """Loopback reaches no other machine; between virtual nodes of one machine it works."""
    lo = {GLOO: "lo", SOCKET: "=lo"}
    assert found(at(0, lo), at(1, lo), device="cpu") == [
        ("interface-missing", (f"n{rank}",), FAILURE) for rank in range(2)
    ]
    assert "selects only loopback" in raw(at(0, lo), at(1, lo), device="cpu")[0].cause
    assert [row[2] for row in found(at(0, lo), at(1, lo)) if row[2] == FAILURE] == [FAILURE] * 2
    assert found(at(0, lo)) == []
    here = {"boot_id": "one"}
    assert found({**at(0, lo), **here}, {**at(1, lo), **here}) == []


# Interfaces that are down


def rails(rank: int, up: bool = True, variables: Any = None, **more: Any) -> dict[str, Any]:
    """A machine with eth0, and ens1 up or down."""
    eth0, ens1 = adapter(f"10.0.0.{rank + 1}"), adapter(f"10.1.0.{rank + 1}", up=up)
    return at(rank, variables, **{"eth0": eth0, "ens1": ens1, **more})


def test_interface_down_on_one_node_warns() -> None:
    """If it is down on a second node of three, or on all, the cause is how they are cabled."""
    (check,) = raw(rails(0), rails(1, up=False), rails(2))
    assert (check.id, check.hosts, check.severity) == ("interface-down", ("n1",), WARNING)
    assert check.cause == "ens1 is down; it is up on each of the 2 other nodes"
    assert check.detail == {"interfaces": ["ens1"]}
    assert found(rails(0), rails(1, up=False), rails(2, up=False)) == []
    assert found(*(rails(rank, up=False) for rank in range(3))) == []
    assert found(rails(0)) == []


def test_interface_down_on_one_in_ten_nodes_warns_on_each() -> None:
    """Two of 64 lost a link; eight of 64 may be cabled differently."""
    nodes = [rails(rank, up=rank > 1) for rank in range(64)]
    assert found(*nodes) == [("interface-down", (f"n{rank}",), WARNING) for rank in range(2)]
    assert raw(*nodes)[0].cause == "ens1 is down; it is up on 62 of the 63 other nodes"
    assert found(*(rails(rank, up=rank > 6) for rank in range(64))) != []
    assert found(*(rails(rank, up=rank > 7) for rank in range(64))) == []
    pinned = [rails(rank, up=rank > 1, variables={SOCKET: "=ens1"}) for rank in range(64)]
    assert found(*pinned) == [("interface-down", (f"n{rank}",), FAILURE) for rank in range(2)]


@pytest.mark.parametrize(
    "more",
    [
        {"docker0": adapter("172.17.0.1", up=False, physical=False)},  # no container runs there
        {"docker0": adapter("172.17.0.1", up=False, physical=None)},
        {"ens2": adapter(up=False)},  # a spare one, which no other node has
        {"enp9": adapter("10.1.0.2"), "ens1": adapter(up=False)},  # the same link, renamed
    ],
)
def test_differently_built_nodes_cause_no_warning(more: dict[str, Any]) -> None:
    """Bridges and tunnels come and go, and names differ: the same number of links is enough."""
    other: dict[str, Any] = {"docker0": adapter("172.17.0.1", physical=False)}
    assert found(rails(0, **other), rails(1, **more), rails(2, **other)) == []


def test_unused_interface_may_be_down() -> None:
    """On the other nodes it is up, but has no address, or only a link-local one."""
    unused: dict[str, Any] = {"ens1": adapter()}
    assert found(rails(0, **unused), rails(1, ens1=adapter(up=False))) == []
    own_link: dict[str, Any] = {"ens1": adapter("169.254.0.4", ipv6=["fe80::1%ens1"])}
    assert found(rails(0, **own_link), rails(1, up=False)) == []


@pytest.mark.parametrize(
    ("variables", "device", "severity"),
    [
        ({SOCKET: "=ens1"}, "cuda", FAILURE),
        ({SOCKET: "ens"}, "cuda", FAILURE),
        ({GLOO: "ens1"}, "cpu", FAILURE),
        ({SOCKET: "=ens1"}, "cpu", WARNING),
        ({GLOO: "ens1"}, "cuda", WARNING),
        ({SOCKET: "ens1,eth0"}, "cuda", WARNING),
        ({SOCKET: "^lo,docker"}, "cuda", WARNING),
        ({SOCKET: "eth0"}, "cuda", WARNING),
    ],
)
def test_selected_interface_that_is_down(
    variables: dict[str, str], device: str, severity: str
) -> None:
    """A failure if the ranks can use no other one, and it is up on every other node."""
    nodes = [rails(rank, up=rank != 1, variables=variables) for rank in range(3)]
    assert found(*nodes, device=device) == [("interface-down", ("n1",), severity)]
    down = [rails(rank, up=False, variables=variables) for rank in range(3)]
    assert found(*down, device=device) == found(down[0], device=device) == []
    if severity == FAILURE:
        ((name, value),) = variables.items()
        problem = f"{name}={value} selects ens1, which is down; it is up on the other node"
        assert raw(nodes[0], nodes[1], device=device)[0].cause == problem


def test_state_of_loopback_does_not_matter() -> None:
    """Virtual nodes of one machine can use it even if its state is recorded as down."""
    odd = {"lo": {**LO, "up": False}}
    pinned = {GLOO: "lo"}
    same_host = {"boot_id": "one"}
    nodes = [{**at(rank, pinned, **(odd if rank else {})), **same_host} for rank in range(2)]
    assert found(*nodes, device="cpu") == []


@pytest.mark.parametrize("key", ["up", "physical", "ipv4", "ipv6"])
@pytest.mark.parametrize("value", [None, "", 7, [], [None], {}, "yes"])
def test_unknown_property_of_an_interface_is_not_a_failure(key: str, value: Any) -> None:
    """Facts of another type leave an interface unknown, and unknown is not a failure."""
    odd = rails(1, variables={SOCKET: "ens1"})
    odd["interfaces"]["ens1"][key] = value
    if (key, value) == ("ipv4", []):
        odd["interfaces"]["ens1"]["ipv6"] = ["fd00::2"]
    assert found(rails(0), odd, rails(2)) == []


@pytest.mark.parametrize(
    "interfaces",
    [None, 7, [], {}, {"eth0": None}, {"": {}}, {"\x1b[2J" + "x" * 9999: {"up": False}},
     {str(i): adapter(up=False) for i in range(999)}],
    ids=range(8),
)  # fmt: skip
def test_hostile_interfaces_do_no_harm(interfaces: Any) -> None:
    """They raise nothing, and their messages are short, printable JSON."""
    for variables in ({}, {GLOO: "\x1b[2J", SOCKET: "=" + "y" * 9999}, {HCA: ","}):
        odd = {**rails(1, variables=variables), "interfaces": interfaces}
        for device in ("cpu", "cuda"):
            for check in raw(rails(0), odd, rails(2), device=device):
                assert json.dumps(check.as_dict(), allow_nan=False)
                assert check.cause.isprintable() and len(check.cause) < 3000


# On this machine


def test_adapters_are_distinguished_from_bridges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only an adapter has a link to its device, and only a bond has a directory `bonding`."""
    for path in ("eth0/device", "bond0/bonding", "docker0/bridge"):
        (tmp_path / path).mkdir(parents=True)
    monkeypatch.setattr(network_facts, "NETWORK", tmp_path)
    known = {
        name: network_facts._is_physical(name) for name in ("eth0", "bond0", "docker0", "gone")
    }
    assert known == {"eth0": True, "bond0": True, "docker0": False, "gone": False}
    monkeypatch.undo()
    loopback = node_facts.gather_node_facts(0, "n0", "cpu")["interfaces"]["lo"]
    assert loopback["physical"] is False and loopback["up"] is True


def test_missing_interface_ends_the_job_before_torchrun(suite: Suite) -> None:
    """A real run on two virtual nodes, one of which selects an interface that it does not have."""
    on_node_1 = 'if [ "$SUBMITIT_LOCAL_JOB_ID" = small.1 ]; then export GLOO_SOCKET_IFNAME=no0; fi'
    env = {"common": {"set": {"PYTHONPATH": str(FAKE_TORCHRUN), suite.marker: "1"}}}
    suite.cluster(setup=[on_node_1], env=env)
    suite.phase(nodes=2)
    assert suite.run().ret == 1
    (record,) = suite.record()["phases"]
    (finding,) = record["findings"]
    assert (finding["id"], finding["hosts"]) == ("interface-missing", ["local1"])
    assert "GLOO_SOCKET_IFNAME=no0 (set on the node) names no0" in finding["cause"]
    assert finding["evidence"][0]["file"].endswith("0001/facts.json")
    assert finding["evidence"][0]["text"].startswith('"interfaces"')
    (run,) = (path for path in suite.runs() if path.is_dir())
    result = collect_phase(PhaseDir(run / "phases" / "small"))
    assert not any(result.directory.launcher_log(rank).exists() for rank in range(2))
