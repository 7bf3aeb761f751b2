"""What facts say against running on a node: each sickness by its id, and a healthy node by none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_clustersmoke.node import checks, node_facts
from pytest_clustersmoke.node.checks import FAILURE, WARNING, Check
from tests.fakes.nvidia_smi import gpu
from tests.support.node_facts import CPU, CUDA, node, port


def failed(*nodes: dict[str, Any], **spec: Any) -> list[Check]:
    """What the facts of these nodes fail, under the spec CUDA but for what is given."""
    return checks.failed(nodes, {**CUDA, "nodes": len(nodes), **spec})


def only(*nodes: dict[str, Any], **spec: Any) -> Check:
    (check,) = failed(*nodes, **spec)
    return check


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("device", ["cuda", "cpu", "auto"])
def test_healthy_nodes_fail_nothing(count: int, device: str) -> None:
    """Whatever their number, and whatever they train on."""
    assert failed(*(node(rank) for rank in range(count)), device=device) == []


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_this_machine_as_it_is_fails_nothing(device: str) -> None:
    """The real facts of where the tests run, limits of a container included."""
    here = json.loads(json.dumps(node_facts.gather_node_facts(0, "n0", device)))
    spec = {**CPU, "backend": "local", "device": device, "nodes": 2}
    found = checks.failed([here, {**here, "node": "n1"}], spec)
    assert [one for one in found if one.id not in ("tmp-full", "open-files-limit")] == []


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
def test_what_is_unknown_is_no_failure(value: Any) -> None:
    """Fields that a driver does not support, or that are of another kind, say nothing."""
    fields = [
        "ecc.errors.uncorrected.volatile.total",
        "retired_pages.pending",
        "remapped_rows.pending",
        "remapped_rows.failure",
        "mig.mode.current",
        "driver_version",
    ]
    sick = node(0)
    for one in sick["gpus"]:
        one.update(dict.fromkeys(fields, value))
    assert [one.id for one in failed(sick)] == []


@pytest.mark.parametrize("key", sorted(set(node()) - {"node", "cuda_visible_devices"}))
def test_facts_that_were_not_told_are_no_failure(key: str) -> None:
    """A node of which one thing is not known is judged by the others."""
    assert failed({**node(0), key: None}, node(1)) == []


HOSTILE: list[Any] = [
    None, True, -1, 10**400, "x" * 10_000, "\x1b[2J\x00", [None, 1, [], {}], [{"a": {}}], {"": []},
    [{"name": [], "uuid": {}, "hca": [], "state": [], "rate": {}}], {"error": [], "path": 7}, "nan",
]  # fmt: skip


@pytest.mark.parametrize("key", sorted(node()))
def test_hostile_facts_are_survived(key: str) -> None:
    """A fact of any shape raises nothing, and what is said of it is short, printable JSON."""
    for value in HOSTILE:
        for check in failed({**node(0), key: value}, node(1), node(2)):
            assert json.dumps(check.as_dict(), allow_nan=False)
            assert check.what.isprintable() and len(check.what) < 3000


def test_nodes_that_told_nothing_are_passed_over() -> None:
    """Facts that are missing make no node differ."""
    assert checks.failed([None, {}, node(2)], {**CUDA, "nodes": 3}) == []


# GPUs


def test_fewer_gpus_than_asked_for() -> None:
    """The count by nvidia-smi, what CUDA_VISIBLE_DEVICES leaves of it, and what was asked for."""
    check = only(node(cuda_visible_devices="1"))
    assert (check.id, check.severity) == ("gpus-missing", FAILURE)
    assert check.detail == {"seen": 1, "asked": 2}
    assert check.what == (
        "nvidia-smi lists 2 GPUs, and CUDA_VISIBLE_DEVICES='1' selects 1 of them; the phase needs 2"
    )


@pytest.mark.parametrize(
    ("found", "ids"),
    [
        ({"gpus": [gpu(0)], "cuda_visible_devices": None}, ["gpus-missing"]),
        ({"gpus": [], "cuda_visible_devices": None}, ["gpus-missing"]),
        ({"cuda_visible_devices": "0,7"}, ["gpus-missing"]),
        ({"gpus": [gpu(i) for i in range(8)], "cuda_visible_devices": "6,7"}, []),
        ({"gpus": [gpu(i) for i in range(8)], "cuda_visible_devices": None}, []),
        ({"cuda_visible_devices": "MIG-7,MIG-8"}, []),
    ],
)
def test_the_jobs_own_share_is_counted(found: dict[str, Any], ids: list[str]) -> None:
    """Not the node's GPUs: those that the job was given."""
    assert [one.id for one in failed(node(**found))] == ids


def test_a_node_without_any_sign_of_a_gpu() -> None:
    """No nvidia-smi proves nothing (torch may see GPUs); no driver and no device either does."""
    bare = {**node(), "gpus": None, "gpu_processes": None}
    assert failed(bare) == []
    assert only({**bare, "gpu_driver": False}).id == "gpus-missing"
    assert failed({**bare, "gpu_driver": False}, device="auto") == []
    assert failed({**bare, "gpu_driver": False}, device="cpu") == []


def test_a_driver_that_failed_is_told_in_its_words() -> None:
    """A failure where GPUs are needed, a warning where a CPU will do; and no guess about GPUs."""
    words = "exit status 9: NVIDIA-SMI has failed"
    sick = {**node(), "gpus": None, "gpu_tool_failed": words}
    check = only(sick)
    assert (check.id, check.severity) == ("gpu-driver-failed", FAILURE)
    assert check.what.endswith(words)
    assert only(sick, device="auto").severity == WARNING
    bare = {**sick, "gpu_on_bus": False}  # nvidia-smi where there is no GPU
    assert failed(bare, device="auto") == [] and only(bare).severity == FAILURE
    assert failed(sick, device="cpu") == []


def test_another_model_than_the_profiles() -> None:
    """A failure; where the profile names none, nodes that differ are a warning."""
    other = node(0, [gpu(0, name="NVIDIA A100"), gpu(1, name="NVIDIA A100")])
    check = only(other)
    assert (check.id, check.severity) == ("gpu-model-differs", FAILURE)
    assert "NVIDIA A100" in check.what and "NVIDIA H100 80GB HBM3" in check.what
    check = only({**other, "node": "n2"}, node(0), node(1), gpu="any")
    assert (check.nodes, check.severity) == ((0,), WARNING)
    assert failed(other, gpu="any") == []


@pytest.mark.parametrize("model", ["H100", "h100 80gb", "NVIDIA H100-80GB", "HBM3 H100"])
def test_a_model_in_fewer_words_is_the_same(model: str) -> None:
    """The profile's words are all in nvidia-smi's name; A10 is no A100."""
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
def test_errors_of_a_gpus_memory(field: str, value: str, identity: str) -> None:
    """Each is a failure that names the GPU by index and bus; those of other jobs' GPUs are not
    ours."""
    listed = [gpu(0), gpu(1, **{field: value})]
    check = only(node(0, listed))
    assert (check.id, check.severity) == (identity, FAILURE)
    assert "GPU 1 (NVIDIA H100 80GB HBM3, 00000000:02:00.0)" in check.what
    assert failed(node(0, listed, cuda_visible_devices="0"), ranks_per_node=1) == []
    assert failed(node(0, listed), device="cpu") == []


def test_others_on_our_gpus() -> None:
    """Who, with pid, name and memory: a failure under Slurm, a warning on one's own machine."""
    process = {"gpu": "GPU-0001", "pid": "4711", "name": "python", "memory": "70000 MiB"}
    busy = node(gpu_processes=[process])
    check = only(busy)
    assert (check.id, check.severity) == ("gpu-in-use", FAILURE)
    assert "pid 4711 python (70000 MiB on GPU-0001)" in check.what
    assert len(check.detail["processes"]) == 1
    assert only(busy, backend="local").severity == WARNING
    assert failed({**busy, "cuda_visible_devices": "0"}, ranks_per_node=1) == []


# The system


def test_shared_memory_that_is_full_or_small() -> None:
    """Full is a failure, a container's default a warning; only NCCL among GPUs needs it."""
    full = node(dev_shm_bytes=64 * 2**20, dev_shm_free_bytes=4096)
    check = only(full)
    assert (check.id, check.severity) == ("shm-full", FAILURE)
    assert "4 KiB free of 64 MiB" in check.what
    small = node(dev_shm_bytes=64 * 2**20, dev_shm_free_bytes=64 * 2**20)
    check = only(small)
    assert (check.id, check.severity) == ("shm-small", WARNING)
    assert failed(full, device="cpu") == failed(full, ranks_per_node=1) == []


def test_a_low_limit_on_locked_memory() -> None:
    """A warning where InfiniBand is expected and the process may not exceed the limit."""
    low = [node(rank, memlock_limit_bytes=65536) for rank in range(2)]
    found = failed(*low)
    assert [(one.id, one.severity) for one in found] == [("memlock-limit", WARNING)] * 2
    assert "64 KiB" in found[0].what
    assert failed(*low, interconnect="TCP over eth0") == []
    assert failed(low[0]) == []
    assert failed(*({**one, "may_lock_memory": True} for one in low)) == []
    off = {"NCCL_IB_DISABLE": "1"}
    assert failed(*({**one, "variables": off} for one in low)) == []
    assert failed(*({**one, "nccl_conf": {"/etc/nccl.conf": off}} for one in low)) == []


def test_a_low_limit_on_open_files() -> None:
    """A warning below Linux's own default."""
    check = only(node(open_files_limit=256))
    assert (check.id, check.severity) == ("open-files-limit", WARNING)


def test_directories_that_take_no_files() -> None:
    """No place for temporary files at all is a failure; where another is taken, a warning."""
    tmp = {"path": "/tmp/job.7", "error": "No such file or directory", "instead": "/tmp"}
    check = only(node(tmp=tmp))
    assert (check.id, check.severity) == ("tmp-not-writable", WARNING)
    assert "/tmp/job.7" in check.what and "/tmp is used instead" in check.what
    assert only(node(tmp={**tmp, "instead": None})).severity == FAILURE
    nearly = {"path": "/tmp", "error": None, "free_bytes": 10 * 2**20}
    assert (only(node(tmp=nearly)).id, only(node(tmp=nearly)).severity) == ("tmp-full", WARNING)
    build = {"path": "/scratch/k", "error": "cannot write to /scratch"}
    assert only(node(build_directory=build)).id == "build-directory-not-writable"


# RDMA ports


def test_a_port_that_is_down_on_one_node_alone() -> None:
    """A failure that names port and state; down everywhere is how the cluster is cabled."""
    down = [port(0), port(1, "1: DOWN")]
    check = only(node(0), node(1, rdma_ports=down), node(2))
    assert (check.id, check.nodes, check.severity) == ("rdma-port-down", (1,), FAILURE)
    assert check.detail == {"hca": "mlx5_1", "port": "1", "state": "1: DOWN"}
    assert check.file == checks.FACTS and check.fact == "rdma_ports"
    assert "RDMA port mlx5_1:1 is 1: DOWN" in check.what and "2 of the 2 other nodes" in check.what
    assert failed(*(node(rank, rdma_ports=down) for rank in range(3))) == []
    some = [node(0), node(1, rdma_ports=down), node(2, rdma_ports=down)]
    assert [(one.nodes, one.severity) for one in failed(*some)] == [
        ((1,), WARNING),
        ((2,), WARNING),
    ]


def test_ports_are_judged_where_infiniband_is_expected() -> None:
    """By `expect` where it names transports, else by the profile's interconnect."""
    down = [port(0), port(1, "1: DOWN")]
    nodes = [node(0), node(1, rdma_ports=down)]
    assert failed(*nodes, interconnect="TCP") == []
    assert failed(*nodes, inter_node=["NET/Socket"]) == []
    assert failed(*nodes, device="cpu") == []
    assert only(*nodes, interconnect="", inter_node=["NET/IB*"]).id == "rdma-port-down"
    pinned = {"NCCL_IB_HCA": "mlx5_0"}
    assert failed(*({**one, "variables": pinned} for one in nodes)) == []


def test_a_port_for_ethernet_beside_infiniband_is_none_of_ncclss() -> None:
    """Management ports of the same adapters may be as they like; alone they are RoCE, and count."""
    ethernet = port(2, "1: DOWN", link_layer="Ethernet")
    up = port(2, link_layer="Ethernet")
    assert failed(node(0, rdma_ports=[port(0), up]), node(1, rdma_ports=[port(0), ethernet])) == []
    assert only(node(0, rdma_ports=[up]), node(1, rdma_ports=[ethernet])).id == "rdma-port-down"


def test_ports_of_nodes_that_are_built_otherwise() -> None:
    """Where names differ and as many ports are up, one of a name is not the other's counterpart;
    where fewer are up, or the names are the same, it is."""
    one = node(0, rdma_ports=[port(0), port(1, "1: DOWN")])
    other = node(1, rdma_ports=[port(1), port(0, link_layer="Ethernet")])
    assert failed(one, other) == []
    none_up = node(0, rdma_ports=[port(0, "1: DOWN"), port(1, "1: DOWN")])
    assert (only(none_up, other).id, only(none_up, other).nodes) == ("rdma-port-down", (0,))
    crossed = [node(0, rdma_ports=[port(0), port(1, "1: DOWN")])]
    crossed += [node(1, rdma_ports=[port(0, "1: DOWN"), port(1)])]
    assert [check.id for check in failed(*crossed)] == ["rdma-port-down"] * 2


def test_a_node_without_ports_among_nodes_that_have_them() -> None:
    """Its adapter or driver is gone."""
    check = only(node(0), node(1, rdma_ports=[]))
    assert (check.id, check.nodes) == ("rdma-port-down", (1,)) and "mlx5_0, mlx5_1" in check.what


def test_a_port_that_runs_slower_than_the_others() -> None:
    """A warning with both rates: nodes may differ by plan."""
    slow = [port(0), port(1, rate="100 Gb/sec (1X NDR)")]
    check = only(node(0), node(1, rdma_ports=slow), node(2))
    assert (check.id, check.nodes, check.severity) == ("rdma-port-slow", (1,), WARNING)
    assert "100 Gb/sec (1X NDR)" in check.what and "400 Gb/sec" in check.what


# Alike


def test_versions_that_differ_name_the_odd_node_out() -> None:
    """With all in which it differs; a package that is missing differs, too."""
    odd = node(1, packages={"torch": "2.4.0"}, python="3.10.1")
    check = only(node(0), odd, node(2))
    assert (check.id, check.nodes, check.severity) == ("versions-differ", (1,), FAILURE)
    assert "torch 2.4.0 (the other nodes: 2.5.1)" in check.what
    assert "numpy not installed (the other nodes: 2.1.0)" in check.what
    assert "python 3.10.1" in check.what


def test_versions_of_two_nodes_name_both() -> None:
    """Either may be the wrong one."""
    check = only(node(0), node(1, torch_cuda="11.8"))
    assert check.nodes == (0, 1)
    assert check.what == "torch's CUDA differs: 11.8 on n1; 12.4 on n0"


def test_a_build_that_is_unknown_does_not_differ() -> None:
    """A torch for CPUs names no CUDA; its version tells the two apart."""
    assert failed(node(0), node(1, torch_cuda=None)) == []


def test_drivers_that_differ_are_a_warning() -> None:
    """An upgrade goes from node to node; where no GPU is used it does not matter."""
    other = node(2, [gpu(0, driver_version="535.1"), gpu(1, driver_version="535.1")])
    check = only(node(0), node(1), other)
    assert (check.id, check.nodes, check.severity) == ("driver-differs", (2,), WARNING)
    assert "535.1" in check.what and "550.90.12" in check.what
    assert failed(node(0), node(1), other, device="cpu") == []


def test_what_holds_of_several_nodes_is_told_once() -> None:
    """Checks are joined by their words, failures first."""
    found = checks.merged(failed(*(node(r, gpus=[], open_files_limit=9) for r in range(3))))
    assert [(one.id, one.nodes) for one in found] == [
        ("gpus-missing", (0, 1, 2)),
        ("open-files-limit", (0, 1, 2)),
    ]
