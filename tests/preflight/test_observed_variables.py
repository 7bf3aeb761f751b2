"""Remarks after the job: the nodes' variables, configuration files and interfaces."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.phase_result import PhaseResult, find_unmatched_interfaces
from pytest_clustersmoke.evidence.run_directory import read_json, write_json
from pytest_clustersmoke.preflight import observed_variables as environment
from tests.preflight.profiles import CHECKED, NONE, gpu_profile
from tests.support.evidence import Evidence, make_phase

ETH = {"eth0": {"ipv4": ["10.0.0.1"], "ipv6": []}, "lo": {"ipv4": ["127.0.0.1"], "ipv6": []}}
IB = {"ibp65s0": {"ipv4": [], "ipv6": ["fe80::1"]}, "bond0": {"ipv4": [], "ipv6": []}}
ACTIVE = {"hca": "mlx5_0", "port": "1", "state": "4: ACTIVE"}
DOWN = {"hca": "mlx5_1", "port": "1", "state": "1: DOWN"}


class Ran:
    """A phase that has run: the facts of its nodes, and the remarks about it."""

    def __init__(self, folder: Path, *nodes: Mapping[str, Any], backend: str = "nccl") -> None:
        self.folder, self.count = folder, len(nodes)
        self.evidence = Evidence(folder, nodes=len(nodes), ranks_per_node=2).started(backend)
        for rank, facts in enumerate(nodes):
            write_json(self.evidence.dir.node_facts(rank), {"node": f"n{rank}", **facts})

    def result(self, variables: Mapping[str, str] = NONE, device: str = "cuda") -> PhaseResult:
        spec = read_json(self.evidence.dir.spec) or {}
        spec |= {"env_set": dict(variables), "device": device}
        write_json(self.evidence.dir.spec, spec)
        return self.evidence.result()

    def remarks(
        self,
        variables: Mapping[str, str] = NONE,
        shell: Mapping[str, str] = NONE,
        **keys: Any,
    ) -> list[str]:
        """The remarks, without the directory in them."""
        profile = gpu_profile(self.folder, variables, **keys)
        phase = make_phase(profile, nodes=self.count, gpus_per_node=2)
        lines = environment.remark_on_job(self.result(variables), phase, profile, shell)
        return [str(remark).replace(f"{self.folder}/", "") for remark in lines]


def saw(**variables: str) -> dict[str, Any]:
    """The facts of a node that saw these variables."""
    return {"variables": variables}


# Variables


def test_variable_set_by_setup_is_reported(tmp_path: Path) -> None:
    """The remark has its value, which a dry run cannot know; unknown names are reported too."""
    ran = Ran(tmp_path, saw(NCCL_ALGO="Ring", NCCL_FOO="1"), saw(NCCL_ALGO="Ring", NCCL_FOO="1"))
    assert ran.remarks() == [
        "note: every node: NCCL_ALGO=Ring was set by `setup` or a start-up file",
        "note: every node: NCCL_FOO=1 was set by `setup` or a start-up file",
        f"warning: every node: NCCL_FOO {CHECKED}; a plugin or another version may read it",
    ]


def test_leak_that_reached_the_nodes_is_reported(tmp_path: Path) -> None:
    """A variable of the shell is reported if it arrived, and not if `setup` unset it."""
    ran = Ran(tmp_path, saw(NCCL_ALGO="Ring"))
    assert ran.remarks(shell={"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"}) == [
        "warning: this shell: NCCL_ALGO=Ring reached n0, but the profile does not set it; "
        "`env.common.unset: [NCCL_ALGO]` keeps it out"
    ]


def test_job_without_node_facts_keeps_the_earlier_remarks(tmp_path: Path) -> None:
    """For a job that never ran, the remarks are those from before it."""
    ran = Ran(tmp_path, {}, {"variables": "none"})
    (remark,) = ran.remarks(shell={"NCCL_ALGO": "Ring"})
    assert "NCCL_ALGO=Ring reaches the nodes unless" in remark


def test_variable_that_differs_between_nodes_is_reported(tmp_path: Path) -> None:
    """Each value is listed with its nodes, and so are nodes without the variable."""
    ran = Ran(tmp_path, saw(NCCL_ALGO="Ring"), saw(NCCL_ALGO="Tree"), saw())
    assert (
        ran.remarks()[0]
        == "warning: the nodes: NCCL_ALGO differs between nodes: Ring on n0; Tree on "
        "n1; not set on n2"
    )


def test_nccl_variables_are_notes_after_gloo_ran(tmp_path: Path) -> None:
    """With `device: auto`, only the ranks know whether NCCL ran."""
    ran = Ran(tmp_path, saw(NCCL_FOO="1", GLOO_FOO="1"), backend="gloo")
    remarks = ran.remarks(shell={"NCCL_FOO": "1", "GLOO_FOO": "1"})
    assert [text.split()[0] for text in remarks if "NCCL_FOO" in text] == ["note:", "note:"]
    assert [text.split()[0] for text in remarks if "GLOO_FOO" in text] == ["warning:", "warning:"]


def test_two_nodes_with_one_name_stay_apart(tmp_path: Path) -> None:
    """The variables of both are reported."""
    ran = Ran(tmp_path, {**saw(NCCL_ALGO="Ring"), "node": "n"}, {**saw(), "node": "n"})
    assert ran.remarks()[0].endswith("NCCL_ALGO differs between nodes: Ring on n; not set on n")


def test_variable_of_the_profile_is_reported_once(tmp_path: Path) -> None:
    """It is judged once, with its line in cluster.yaml."""
    ran = Ran(tmp_path, saw(NCCL_TIMEOUT="600", NCCL_DEBUG="WARN", NCCL_DEBUG_FILE="/x"))
    (remark,) = ran.remarks({"NCCL_TIMEOUT": "600"})
    assert remark.startswith("note: cluster.yaml:") and "NCCL_TIMEOUT is not a variable" in remark


def test_contradiction_on_the_nodes_is_reported(tmp_path: Path) -> None:
    """It is reported once, with its nodes."""
    ran = Ran(tmp_path, saw(NCCL_P2P_DISABLE="1"), saw(), saw(NCCL_P2P_DISABLE="1"))
    expect = {"small": {"intra_node": ["P2P/*"]}}
    (remark,) = [text for text in ran.remarks(expect=expect) if "expected" in text]
    assert remark.startswith(
        "warning: n0, n2: NCCL_P2P_DISABLE=1 rules out everything that is expected: P2P/* inside "
        "a node (cluster.yaml:"
    )


def test_nccls_configuration_file_is_read(tmp_path: Path) -> None:
    """NCCL reads from it what the environment does not set; of two files the first wins."""
    files = {
        "/home/me/.nccl.conf": {"NCCL_ALGO": "Ring"},
        "/etc/nccl.conf": {
            "NCCL_ALGO": "Tree",
            "NCCL_IB_DISABLE": "1",
            "NCCL_NET": "Socket",
            "GLOO_SOCKET_IFNAME": "eth0",
        },
    }
    facts = {**saw(NCCL_NET="IB"), "nccl_conf": files}
    ran = Ran(tmp_path, facts, facts)
    remarks = ran.remarks({"NCCL_NET": "IB"}, expect={"small": {"inter_node": ["NET/IB*"]}})
    assert remarks[:2] == [
        "note: /home/me/.nccl.conf on every node: NCCL takes NCCL_ALGO=Ring from this file",
        "note: /etc/nccl.conf on every node: NCCL takes NCCL_IB_DISABLE=1 from this file",
    ]
    assert len(remarks) == 3 and remarks[2].startswith(
        "warning: every node: NCCL_IB_DISABLE=1 rules out everything that is expected: NET/IB*"
    )


@pytest.mark.parametrize(
    "facts",
    [
        {"variables": ["NCCL_ALGO"], "interfaces": 3, "rdma_ports": "x", "nccl_conf": []},
        {
            "variables": {"NCCL_ALGO": 3, "NCCL_SOCKET_IFNAME": ["eth0"], "PATH": "/bin"},
            "interfaces": {"eth0": None},
            "rdma_ports": [None, 3],
            "nccl_conf": {"/etc/nccl.conf": "NCCL_ALGO=Ring", "x": {"NCCL_ALGO": 3}},
        },
    ],
)
def test_malformed_facts_count_as_missing(tmp_path: Path, facts: dict[str, Any]) -> None:
    """A hostile file of facts gives no remark and no error."""
    assert Ran(tmp_path, facts, {}).remarks() == []


# Interfaces


def unmatched(folder: Path, variables: Mapping[str, str], *nodes: Mapping[str, Any]) -> list[str]:
    """Interfaces and ports that the profile's variables select but nodes do not have."""
    all_facts = [{"variables": dict(variables), **facts} for facts in nodes]
    return [
        str(mismatch)
        for mismatch in find_unmatched_interfaces(Ran(folder, *all_facts).result(variables))
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_SOCKET_IFNAME", "eth"),
        ("NCCL_SOCKET_IFNAME", "=eth0"),
        ("NCCL_SOCKET_IFNAME", "ib,eth0"),
        ("NCCL_SOCKET_IFNAME", "^lo,docker0"),
        ("NCCL_SOCKET_IFNAME", "^=eth"),
        ("NCCL_SOCKET_IFNAME", "x"),  # NCCL ignores a single character
        ("GLOO_SOCKET_IFNAME", "eth0"),
        ("GLOO_SOCKET_IFNAME", ""),
        ("NCCL_ALGO", "Ring"),
    ],
)
def test_interface_that_every_node_has_gives_no_remark(
    tmp_path: Path, name: str, value: str
) -> None:
    """On a cluster of equal nodes, pinning an interface is correct."""
    assert unmatched(tmp_path, {name: value}, {"interfaces": ETH}, {"interfaces": ETH}) == []


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("NCCL_SOCKET_IFNAME", "eth0", "selects no interface with an address"),
        ("NCCL_SOCKET_IFNAME", "=ibp65", "selects no interface with an address"),
        ("NCCL_SOCKET_IFNAME", "bond0", "selects no interface with an address"),
        ("NCCL_SOCKET_IFNAME", "^ib", "selects no interface with an address"),
        ("GLOO_SOCKET_IFNAME", "eth0", "names eth0, which does not exist or has no address"),
        (
            "GLOO_SOCKET_IFNAME",
            "ibp65s0,eth0",
            "names eth0, which does not exist or has no address",
        ),
    ],
)
def test_node_without_the_pinned_interface_is_named(
    tmp_path: Path, name: str, value: str, why: str
) -> None:
    """The remark has node, variable, value, source, and the node's own interfaces."""
    here = {"ipv4": ["10.0.0.2"], "ipv6": []}
    all_there = {"interfaces": {**ETH, **IB, "bond0": here, "ibp65": here}}
    assert unmatched(tmp_path, {name: value}, all_there, {"interfaces": IB}) == [
        f"n1: {name}={value} (the profile) {why}; it has ibp65s0, bond0"
    ]


def test_remark_has_the_line_and_all_its_nodes(tmp_path: Path) -> None:
    """Nodes with the same interfaces share a remark, with the variable's file:line."""
    pinned = saw(NCCL_SOCKET_IFNAME="eth0")
    ran = Ran(tmp_path, {**pinned, "interfaces": ETH}, *[{**pinned, "interfaces": IB}] * 6)
    (remark,) = ran.remarks({"NCCL_SOCKET_IFNAME": "eth0"})
    assert remark.startswith("warning: cluster.yaml:") and remark.endswith(
        "on n1, n2, n3, n4 and 2 more NCCL_SOCKET_IFNAME=eth0 selects no interface with an "
        "address; it has ibp65s0, bond0"
    )


def test_remark_names_the_shell_as_source(tmp_path: Path) -> None:
    """A leaked name has the shell as its source; any other has the node."""
    pinned = {**saw(NCCL_SOCKET_IFNAME="eth0"), "interfaces": IB}
    text = "on every node NCCL_SOCKET_IFNAME=eth0 selects no interface with an address; it has "
    for shell, source in (({"NCCL_SOCKET_IFNAME": "eth0"}, "this shell"), ({}, "set on the node")):
        (remark,) = [
            text for text in Ran(tmp_path, pinned, pinned).remarks(shell=shell) if "it has" in text
        ]
        assert remark == f"warning: {source}: {text}ibp65s0, bond0"


def test_interface_pinned_on_the_node_is_checked(tmp_path: Path) -> None:
    """NCCL's configuration file on the node counts as well."""
    facts = {"variables": {}, "interfaces": IB}
    conf = {"nccl_conf": {"/etc/nccl.conf": {"NCCL_SOCKET_IFNAME": "eth0"}}}
    (mismatch,) = find_unmatched_interfaces(Ran(tmp_path, {**facts, **conf}).result())
    assert (mismatch.node, mismatch.source, mismatch.available) == (
        "n0",
        "set on the node",
        ("ibp65s0", "bond0"),
    )


def test_nccl_interfaces_do_not_matter_without_nccl(tmp_path: Path) -> None:
    """Under gloo or on CPUs, NCCL's variables select nothing; gloo's still do."""
    both = {"NCCL_SOCKET_IFNAME": "eth0", "GLOO_SOCKET_IFNAME": "eth0"}
    facts = {"variables": both, "interfaces": IB}
    cpu = Ran(tmp_path / "a", facts).result(both, device="cpu")
    gloo = Ran(tmp_path / "b", facts, backend="gloo").result(both)
    for result in (cpu, gloo):
        assert [mismatch.name for mismatch in find_unmatched_interfaces(result)] == [
            "GLOO_SOCKET_IFNAME"
        ]


def test_loopback_between_machines_is_reported(tmp_path: Path) -> None:
    """Loopback reaches no other machine, but it connects virtual nodes of one machine."""

    def node(boot: str) -> dict[str, Any]:
        return {"interfaces": ETH, "boot_id": boot, "network_namespace": "net:[1]"}

    lo = {"GLOO_SOCKET_IFNAME": "lo"}
    why = "selects only loopback, which cannot reach another node"
    mismatches = unmatched(tmp_path / "a", lo, node("a"), node("b"))
    assert len(mismatches) == 2 and all(why in text for text in mismatches)
    assert unmatched(tmp_path / "b", lo, node("a"), node("a")) == []
    assert unmatched(tmp_path / "c", lo, node("a")) == []
    assert unmatched(tmp_path / "d", lo, node("a"), {"interfaces": ETH}) == []


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("mlx5_0", ""),
        ("=mlx5_0:1", ""),
        ("^mlx5_1", ""),
        ("mlx5_1", "selects no active RDMA port"),
        ("=mlx5_0:2", "selects no RDMA port"),
        ("bnxt", "selects no RDMA port"),
    ],
)
def test_hca_must_select_an_active_port(tmp_path: Path, value: str, why: str) -> None:
    """NCCL_IB_HCA must select a port of each node that is active."""
    mismatches = unmatched(tmp_path, {"NCCL_IB_HCA": value}, {"rdma_ports": [ACTIVE, DOWN]})
    there = "mlx5_0:1 (4: ACTIVE), mlx5_1:1 (1: DOWN)"
    assert mismatches == (
        [f"n0: NCCL_IB_HCA={value} (the profile) {why}; it has {there}"] if why else []
    )


def test_hca_does_not_matter_without_infiniband(tmp_path: Path) -> None:
    """A port is needed only if NCCL may use InfiniBand."""
    pinned = {"NCCL_IB_HCA": "mlx5_0"}
    none: dict[str, Any] = {"rdma_ports": []}
    assert unmatched(tmp_path / "a", {**pinned, "NCCL_IB_DISABLE": "1"}, none) == []
    assert unmatched(tmp_path / "b", {**pinned, "NCCL_NET": "Socket"}, none) == []
    (mismatch,) = unmatched(tmp_path / "c", pinned, none)
    assert mismatch == "n0: NCCL_IB_HCA=mlx5_0 (the profile) selects no RDMA port; it has none"
    assert unmatched(tmp_path / "d", pinned, {}) == []
