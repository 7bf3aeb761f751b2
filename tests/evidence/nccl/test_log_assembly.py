"""Observations are assembled without mixing processes."""

from __future__ import annotations

import io

import pytest

from pytest_clustersmoke.evidence.nccl.log_reader import Reader
from pytest_clustersmoke.evidence.nccl.nccl_log import Edge

EDGE = "Channel 00/0 : 0[0] -> 1[0] [send] via"


def edges(*lines: str) -> tuple[Edge, ...]:
    reader = Reader()
    reader.stream(io.BytesIO("\n".join(lines).encode()), "log")
    return reader.log().edges


@pytest.mark.parametrize(
    ("using", "edge", "nic"),
    [
        ("h:1:2 [0] NCCL INFO ", "h:1:9 [0] NCCL INFO ", "mlx5_1"),
        ("h:7:2 [0] NCCL INFO ", "h:1:9 [0] NCCL INFO ", None),
        ("NCCL INFO ", "h:1:9 [0] NCCL INFO ", None),
        ("NCCL INFO ", "NCCL INFO ", "mlx5_1"),
    ],
)
def test_nic_name_comes_from_its_own_process(using: str, edge: str, nic: str) -> None:
    """A list of NICs is used for edges of its process, a list without a header for edges without
    one."""
    devices = f"{using}NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB ib0:10.0.0.1<0>"
    (result,) = edges(devices, f"{edge}{EDGE} NET/IB/1/GDRDMA")
    assert result.nic == nic


def test_an_infiniband_plugin_lists_its_nics_as_ib() -> None:
    """`NET/IBext_v8/1` is looked up in the list that the plugin printed under NET/IB; devices of
    other networks are not."""
    head = "h:1:2 [0] NCCL INFO "
    devices = f"{head}NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_1:1/IB/SHARP [RO]; OOB ib0:1<0>"
    (plugin,) = edges(devices, f"{head}{EDGE} NET/IBext_v8/1/GDRDMA")
    (other,) = edges(devices, f"{head}{EDGE} NET/AWS Libfabric/1/GDRDMA")
    assert (plugin.nic, other.nic) == ("mlx5_1", None)


@pytest.mark.parametrize(
    "label",
    [
        '"2024-05-05T00:00:01Z","',
        "2024-05-05T00:00:01Z,",
        "time=12:00:01 msg=",
        'level=info msg="',
        "a|",
        "[rank0]",
        "[1,0]<stdout>",
        "(worker 3)",
    ],
)
def test_a_label_without_a_space_is_not_the_host(label: str) -> None:
    """Text that log stores and launchers put right before a header is not part of it."""
    (edge,) = edges(f"{label}nA:100:101 [0] NCCL INFO {EDGE} NET/IB/0\n")
    assert edge.logger is not None and edge.logger.host == "nA"


@pytest.mark.parametrize(
    "torn",
    [
        "Channel 00/0 : 0[0] -> 3[3] [send] via NET/IB/122] via P2P/CUMEM",
        "Channel 00/0 : 5[5] -> 5[5] via P2P/IPC",
    ],
)
def test_impossible_edge_is_torn(torn: str) -> None:
    """A device whose digits run into other text, or a rank that connects to itself, is torn."""
    whole = f"h:1:2 [0] NCCL INFO {EDGE} NET/IB/12"
    results = edges(f"h:1:2 [0] NCCL INFO {torn}", whole, "")
    assert [(edge.source, edge.destination) for edge in results] == [(0, 1)]
