"""Checks of node facts: each fault has its id, and a healthy node fails no check."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.finding import Finding
from pytest_clustersmoke.evidence.run_directory import write_json
from pytest_clustersmoke.node import checks, node_facts
from pytest_clustersmoke.text import FAILURE, WARNING
from tests.fakes.nvidia_smi import gpu
from tests.support.node_facts import CPU, CUDA, node, port


def failed(*nodes: dict[str, Any], **spec: Any) -> list[Finding]:
    """The checks that these nodes fail, with the spec CUDA changed by `spec`."""
    return checks.find_failures(nodes, {**CUDA, "nodes": len(nodes), **spec})


def only(*nodes: dict[str, Any], **spec: Any) -> Finding:
    (check,) = failed(*nodes, **spec)
    return check


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("device", ["cuda", "cpu", "auto"])
def test_healthy_nodes_fail_nothing(count: int, device: str) -> None:
    """For any number of nodes, on any device."""
    assert failed(*(node(rank) for rank in range(count)), device=device) == []


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_this_machine_fails_nothing(device: str) -> None:
    """The real facts of the machine that runs the tests, limits of a container included."""
    here = json.loads(json.dumps(node_facts.gather_node_facts(0, "n0", device)))
    spec = {**CPU, "backend": "local", "device": device, "nodes": 2}
    problems = checks.find_failures([here, {**here, "node": "n1"}], spec)
    assert [check for check in problems if check.id not in ("tmp-full", "open-files-limit")] == []


UNKNOWN: list[Any] = [
    None,
    "[N/A]",
    "[Not Supported]",
    "[Unknown Error]",
    "N/A",
    "",
    7,
    [],
    {"a": 1},
]


@pytest.mark.parametrize("value", UNKNOWN, ids=str)
def test_unknown_gpu_field_is_not_a_failure(value: Any) -> None:
    """Fields that the driver does not support, or of another type, are unknown."""
    fields = [
        "ecc.errors.uncorrected.volatile.total",
        "retired_pages.pending",
        "remapped_rows.pending",
        "remapped_rows.failure",
        "mig.mode.current",
        "driver_version",
    ]
    sick = node(0)
    for row in sick["gpus"]:
        row.update(dict.fromkeys(fields, value))
    assert [check.id for check in failed(sick)] == []


@pytest.mark.parametrize("key", sorted(set(node()) - {"node", "cuda_visible_devices"}))
def test_missing_fact_is_not_a_failure(key: str) -> None:
    """A node with one missing fact is judged by the others."""
    assert failed({**node(0), key: None}, node(1)) == []


HOSTILE: list[Any] = [
    None, True, -1, 10**400, "x" * 10_000, "\x1b[2J\x00", [None, 1, [], {}], [{"a": {}}], {"": []},
    [{"name": [], "uuid": {}, "hca": [], "state": [], "rate": {}}], {"error": [], "path": 7}, "nan",
]  # fmt: skip


@pytest.mark.parametrize("key", sorted(node()))
def test_hostile_facts_do_no_harm(key: str) -> None:
    """A fact of any shape raises nothing, and its message is short, printable JSON."""
    for value in HOSTILE:
        for check in failed({**node(0), key: value}, node(1), node(2)):
            assert json.dumps(check.as_dict(), allow_nan=False)
            assert check.cause.isprintable() and len(check.cause) < 3000


def test_nodes_without_facts_are_ignored() -> None:
    """Missing facts make no node differ."""
    assert checks.find_failures([None, {}, node(2)], {**CUDA, "nodes": 3}) == []


# GPUs


def test_fewer_gpus_than_needed_fail() -> None:
    """The message has the count of nvidia-smi, of CUDA_VISIBLE_DEVICES, and of the phase."""
    check = only(node(cuda_visible_devices="1"))
    assert (check.id, check.severity) == ("gpus-missing", FAILURE)
    assert check.detail == {"seen": 1, "asked": 2}
    assert check.cause == (
        "nvidia-smi lists 2 GPUs, and CUDA_VISIBLE_DEVICES='1' selects 1 of them; the phase needs 2"
    )


@pytest.mark.parametrize(
    ("facts", "ids"),
    [
        ({"gpus": [gpu(0)], "cuda_visible_devices": None}, ["gpus-missing"]),
        ({"gpus": [], "cuda_visible_devices": None}, ["gpus-missing"]),
        ({"cuda_visible_devices": "0,7"}, ["gpus-missing"]),
        ({"gpus": [gpu(i) for i in range(8)], "cuda_visible_devices": "6,7"}, []),
        ({"gpus": [gpu(i) for i in range(8)], "cuda_visible_devices": None}, []),
        ({"cuda_visible_devices": "MIG-7,MIG-8"}, []),
    ],
)
def test_only_the_jobs_gpus_count(facts: dict[str, Any], ids: list[str]) -> None:
    """The node may have more GPUs than it gave to the job."""
    assert [check.id for check in failed(node(**facts))] == ids


def test_node_without_gpu_driver_and_device_fails() -> None:
    """Without nvidia-smi alone nothing is known, since torch may see GPUs."""
    bare = {**node(), "gpus": None, "gpu_processes": None}
    assert failed(bare) == []
    assert only({**bare, "gpu_driver": False}).id == "gpus-missing"
    assert failed({**bare, "gpu_driver": False}, device="auto") == []
    assert failed({**bare, "gpu_driver": False}, device="cpu") == []


def test_failed_driver_is_reported_with_its_error() -> None:
    """A failure if GPUs are needed, a warning if the ranks can use CPUs; no other check of GPUs
    fails."""
    words = "exit status 9: NVIDIA-SMI has failed"
    sick = {**node(), "gpus": None, "gpu_tool_failed": words}
    check = only(sick)
    assert (check.id, check.severity) == ("gpu-driver-failed", FAILURE)
    assert check.cause.endswith(words)
    assert only(sick, device="auto").severity == WARNING
    bare = {**sick, "gpu_on_bus": False}  # nvidia-smi where there is no GPU
    assert failed(bare, device="auto") == [] and only(bare).severity == FAILURE
    assert failed(sick, device="cpu") == []


def test_wrong_gpu_model_fails() -> None:
    """If the profile names no model, differing nodes are only a warning."""
    other = node(0, [gpu(0, name="NVIDIA A100"), gpu(1, name="NVIDIA A100")])
    check = only(other)
    assert (check.id, check.severity) == ("gpu-model-differs", FAILURE)
    assert "NVIDIA A100" in check.cause and "NVIDIA H100 80GB HBM3" in check.cause
    check = only({**other, "node": "n2"}, node(0), node(1), gpu="any")
    assert (check.hosts, check.severity) == (("n2",), WARNING)
    assert failed(other, gpu="any") == []


@pytest.mark.parametrize("model", ["H100", "h100 80gb", "NVIDIA H100-80GB", "HBM3 H100"])
def test_shortened_gpu_model_matches(model: str) -> None:
    """All words of the profile must be in nvidia-smi's name; A10 does not match A100."""
    assert failed(node(), gpu=model) == []
    assert only(node(), gpu="H10").id == only(node(), gpu="H100 PCIe").id == "gpu-model-differs"


@pytest.mark.parametrize(
    ("field", "value", "identity"),
    [
        ("ecc.errors.uncorrected.volatile.total", "3", "gpu-ecc-errors"),
        ("remapped_rows.failure", "Yes", "gpu-row-remap-failed"),
        ("remapped_rows.failure", "1", "gpu-row-remap-failed"),
        ("remapped_rows.pending", "Yes", "gpu-row-remap-pending"),
        ("remapped_rows.pending", "1", "gpu-row-remap-pending"),
        ("retired_pages.pending", "Yes", "gpu-page-retirement-pending"),
    ],
)
def test_memory_errors_of_a_gpu_fail(field: str, value: str, identity: str) -> None:
    """Each failure names the GPU by index and bus; GPUs of other jobs do not count."""
    listed = [gpu(0), gpu(1, **{field: value})]
    check = only(node(0, listed))
    assert (check.id, check.severity) == (identity, FAILURE)
    assert "GPU 1 (NVIDIA H100 80GB HBM3, 00000000:02:00.0)" in check.cause
    assert failed(node(0, listed, cuda_visible_devices="0"), ranks_per_node=1) == []
    assert failed(node(0, listed), device="cpu") == []


def test_processes_of_others_on_the_jobs_gpus_fail() -> None:
    """They are named with pid, name and memory; on the user's own machine it is a warning."""
    process = {"gpu": "GPU-0001", "pid": "4711", "name": "python", "memory": "70000 MiB"}
    busy = node(gpu_processes=[process])
    check = only(busy)
    assert (check.id, check.severity) == ("gpu-in-use", FAILURE)
    assert "pid 4711 python (70000 MiB on GPU-0001)" in check.cause
    assert len(check.detail["processes"]) == 1
    assert only(busy, backend="local").severity == WARNING
    assert failed({**busy, "cuda_visible_devices": "0"}, ranks_per_node=1) == []


# The system


def test_full_shared_memory_fails_and_small_warns() -> None:
    """A container's default is small; only NCCL between GPUs needs shared memory."""
    full = node(dev_shm_bytes=64 * 2**20, dev_shm_free_bytes=4096)
    check = only(full)
    assert (check.id, check.severity) == ("shm-full", FAILURE)
    assert "4 KiB free of 64 MiB" in check.cause
    small = node(dev_shm_bytes=64 * 2**20, dev_shm_free_bytes=64 * 2**20)
    check = only(small)
    assert (check.id, check.severity) == ("shm-small", WARNING)
    assert failed(full, device="cpu") == failed(full, ranks_per_node=1) == []


def test_low_limit_on_locked_memory_warns() -> None:
    """Only if InfiniBand is expected and the process may not exceed the limit."""
    low = [node(rank, memlock_limit_bytes=65536) for rank in range(2)]
    warnings = failed(*low)
    assert [(check.id, check.severity) for check in warnings] == [("memlock-limit", WARNING)] * 2
    assert "64 KiB" in warnings[0].cause
    assert failed(*low, infiniband=False) == []
    assert failed(low[0]) == []
    assert failed(*({**facts, "may_lock_memory": True} for facts in low)) == []
    off = {"NCCL_IB_DISABLE": "1"}
    assert failed(*({**facts, "variables": off} for facts in low)) == []
    assert failed(*({**facts, "nccl_conf": {"/etc/nccl.conf": off}} for facts in low)) == []


def test_low_limit_on_open_files_warns() -> None:
    """The bound is Linux's default."""
    check = only(node(open_files_limit=256))
    assert (check.id, check.severity) == ("open-files-limit", WARNING)


def test_unusable_directories_are_reported() -> None:
    """No directory for temporary files is a failure; using another one is a warning."""
    tmp = {"path": "/tmp/job.7", "error": "No such file or directory", "instead": "/tmp"}
    check = only(node(tmp=tmp))
    assert (check.id, check.severity) == ("tmp-not-writable", WARNING)
    assert "/tmp/job.7" in check.cause and "/tmp is used instead" in check.cause
    assert only(node(tmp={**tmp, "instead": None})).severity == FAILURE
    nearly = {"path": "/tmp", "error": None, "free_bytes": 10 * 2**20}
    assert (only(node(tmp=nearly)).id, only(node(tmp=nearly)).severity) == ("tmp-full", WARNING)
    build = {"path": "/scratch/k", "error": "cannot write to /scratch"}
    assert only(node(build_directory=build)).id == "build-directory-not-writable"


# RDMA ports


def test_rdma_port_down_on_one_node_fails() -> None:
    """The message names port and state; a port that is down everywhere is not cabled."""
    down = [port(0), port(1, "1: DOWN")]
    check = only(node(0), node(1, rdma_ports=down), node(2))
    assert (check.id, check.hosts, check.severity) == ("rdma-port-down", ("n1",), FAILURE)
    assert check.detail == {"hca": "mlx5_1", "port": "1", "state": "1: DOWN"}
    assert check.cause == "RDMA port mlx5_1:1 is 1: DOWN; it is ACTIVE on 2 of the 2 other nodes"
    assert failed(*(node(rank, rdma_ports=down) for rank in range(3))) == []
    some = [node(0), node(1, rdma_ports=down), node(2, rdma_ports=down)]
    assert [(check.hosts, check.severity) for check in failed(*some)] == [
        (("n1",), WARNING),
        (("n2",), WARNING),
    ]


def test_nodes_without_a_port_that_most_have_fail() -> None:
    """Several may have lost theirs; where half of the others have none, nobody knows."""
    with_port, without = [node(rank) for rank in range(4)], [node(4, rdma_ports=[])]
    (one,) = failed(*with_port, *without)
    assert one.hosts == ("n4",) and "every other node has one (mlx5_0" in one.cause
    found = failed(*with_port, *without, node(5, rdma_ports=[]))
    assert [check.hosts for check in found] == [("n4",), ("n5",)]
    assert "has no RDMA port; most nodes (4) have one (mlx5_0" in found[0].cause
    assert failed(node(0), *without, node(5, rdma_ports=[])) == []


def test_rdma_ports_are_checked_if_infiniband_is_expected() -> None:
    """Not on CPU, nor if the ranks' variables exclude the device or switch InfiniBand off."""
    down = [port(0), port(1, "1: DOWN")]
    nodes = [node(0), node(1, rdma_ports=down)]
    assert only(*nodes).id == "rdma-port-down"
    assert failed(*nodes, infiniband=False) == []
    assert failed(*nodes, device="cpu") == []
    pinned = {"NCCL_IB_HCA": "mlx5_0"}
    assert failed(*({**facts, "variables": pinned} for facts in nodes)) == []


def test_ethernet_ports_beside_infiniband_do_not_count() -> None:
    """They may be management ports of the same adapters; alone they are RoCE, and count."""
    ethernet = port(2, "1: DOWN", link_layer="Ethernet")
    up = port(2, link_layer="Ethernet")
    assert failed(node(0, rdma_ports=[port(0), up]), node(1, rdma_ports=[port(0), ethernet])) == []
    assert only(node(0, rdma_ports=[up]), node(1, rdma_ports=[ethernet])).id == "rdma-port-down"


def test_ports_of_nodes_built_differently_are_not_compared() -> None:
    """If names differ and as many ports are up, ports of the same name are not counterparts. If
    fewer are up, or the names are the same, they are."""
    here = node(0, rdma_ports=[port(0), port(1, "1: DOWN")])
    other = node(1, rdma_ports=[port(1), port(0, link_layer="Ethernet")])
    assert failed(here, other) == []
    none_up = node(0, rdma_ports=[port(0, "1: DOWN"), port(1, "1: DOWN")])
    assert (only(none_up, other).id, only(none_up, other).hosts) == ("rdma-port-down", ("n0",))
    crossed = [node(0, rdma_ports=[port(0), port(1, "1: DOWN")])]
    crossed += [node(1, rdma_ports=[port(0, "1: DOWN"), port(1)])]
    assert [check.id for check in failed(*crossed)] == ["rdma-port-down"] * 2


def test_node_without_rdma_ports_fails_if_the_others_have_some() -> None:
    """Its adapter or driver is missing."""
    check = only(node(0), node(1, rdma_ports=[]))
    assert (check.id, check.hosts) == ("rdma-port-down", ("n1",))
    assert "mlx5_0, mlx5_1" in check.cause


def test_node_with_fewer_rdma_ports_than_the_others_warns() -> None:
    """One of its adapters is gone from the bus, and the others' names may have moved up. Where more
    than one node in ten has fewer, the nodes may be built differently."""
    eight = [port(number) for number in range(8)]
    nodes = [node(rank, rdma_ports=eight) for rank in range(11)]
    check = only(*nodes, node(11, rdma_ports=eight[:7]))
    assert (check.id, check.hosts, check.severity) == ("rdma-port-down", ("n11",), WARNING)
    assert check.cause == (
        "shows 7 RDMA ports (mlx5_0, mlx5_1, mlx5_2, mlx5_3, mlx5_4, mlx5_5, mlx5_6); "
        "11 of the 11 other nodes have 8 or more that are ACTIVE"
    )
    assert "lspci" in check.fix
    fewer = [node(rank, rdma_ports=eight[:7]) for rank in range(11, 13)]
    assert [check.hosts for check in failed(*nodes, *fewer)] == [("n11",), ("n12",)]
    assert failed(*nodes, *fewer, node(13, rdma_ports=eight[:7])) == []
    spare = [*eight[:7], port(7, "1: DOWN")]  # not cabled anywhere
    assert failed(*(node(rank, rdma_ports=spare) for rank in range(3)), fewer[0]) == []


def test_slow_rdma_port_warns() -> None:
    """The warning has both rates; nodes may differ on purpose."""
    slow = [port(0), port(1, rate="100 Gb/sec (1X NDR)")]
    check = only(node(0), node(1, rdma_ports=slow), node(2))
    assert (check.id, check.hosts, check.severity) == ("rdma-port-slow", ("n1",), WARNING)
    assert "100 Gb/sec (1X NDR)" in check.cause and "400 Gb/sec" in check.cause


# Consistency


def test_node_with_other_versions_fails() -> None:
    """All its differences are named; a missing package counts as one."""
    odd = node(1, packages={"torch": "2.4.0"}, python="3.10.1")
    check = only(node(0), odd, node(2))
    assert (check.id, check.hosts, check.severity) == ("versions-differ", ("n1",), FAILURE)
    assert "torch 2.4.0 (most common: 2.5.1)" in check.cause
    assert "numpy not installed (most common: 2.1.0)" in check.cause
    assert "python 3.10.1" in check.cause


def test_two_nodes_with_different_versions_are_both_named() -> None:
    """Either may be the wrong one."""
    (check,) = checks.merge_findings(failed(node(0), node(1, torch_cuda="11.8")))
    assert check.hosts == ("n0", "n1")
    assert check.cause == "n0, n1: torch's CUDA differs: 11.8 on n1; 12.4 on n0"


def test_unknown_cuda_build_does_not_differ() -> None:
    """A CPU build of torch names no CUDA; its version shows the difference."""
    assert failed(node(0), node(1, torch_cuda=None)) == []


def test_different_drivers_warn() -> None:
    """A rolling upgrade goes from node to node; without GPUs it does not matter."""
    other = node(2, [gpu(0, driver_version="535.1"), gpu(1, driver_version="535.1")])
    check = only(node(0), node(1), other)
    assert (check.id, check.hosts, check.severity) == ("driver-differs", ("n2",), WARNING)
    assert "535.1" in check.cause and "550.90.12" in check.cause
    assert failed(node(0), node(1), other, device="cpu") == []


@pytest.mark.parametrize(
    ("key", "sick"),
    [
        ("rdma_ports", {"rdma_ports": [port(0), port(1, "1: DOWN")]}),
        ("interfaces", {"variables": {"NCCL_SOCKET_IFNAME": "nosuch0"}}),
    ],
)
def test_finding_quotes_the_fact_that_shows_it(
    key: str, sick: dict[str, Any], tmp_path: Path
) -> None:
    """The line of the node's facts; a node that judges itself quotes nothing."""
    interfaces = {"lo": {"ipv4": ["127.0.0.1"]}, "eth0": {"up": True, "ipv4": ["10.0.0.1"]}}
    nodes = [node(0, interfaces=interfaces), node(1, **{"interfaces": interfaces, **sick})]
    spec = {**CUDA, "nodes": 2}
    for rank, facts in enumerate(nodes):
        write_json(tmp_path / str(rank), facts)
    (found,) = checks.find_failures(nodes, spec, lambda rank: tmp_path / str(rank))
    (line,) = found.evidence
    assert line.file == str(tmp_path / "1") and line.text.startswith(f'"{key}":')
    assert Path(line.file).read_text().splitlines()[line.line - 1].strip() == line.text
    assert checks.find_failures(nodes, spec) == [replace(found, evidence=())]


def test_equal_problems_of_several_nodes_are_merged() -> None:
    """Checks with the same text become one, failures first."""
    nodes = (node(rank, gpus=[], open_files_limit=9) for rank in range(3))
    merged = checks.merge_findings(failed(*nodes))
    assert [(check.id, check.hosts) for check in merged] == [
        ("gpus-missing", ("n0", "n1", "n2")),
        ("open-files-limit", ("n0", "n1", "n2")),
    ]
