"""Edges of a job merged into links: what is merged, what differs, what is asymmetric."""

from __future__ import annotations

import io

import pytest

from pytest_clustersmoke.cli.job_transports import JobTransports
from pytest_clustersmoke.evidence.nccl.log_reader import Reader

SEND = "a:1:9 [0] NCCL INFO Channel {channel:02d}/0 : 0[0] -> 1[0] [send] via NET/{nic}"
RECEIVE = "b:1:9 [0] NCCL INFO Channel {channel:02d}/0 : 0[0] -> 1[0] [receive] via NET/{nic}"


def job(*lines: str) -> JobTransports:
    reader = Reader()
    reader.stream(io.BytesIO("\n".join([*lines, ""]).encode()), "x.log")
    return JobTransports(reader.log())


def test_both_ends_of_an_edge_are_one_link() -> None:
    """The link has the channels and roles of all lines and the place of the first; equal kinds are
    not asymmetric."""
    (link,) = job(
        RECEIVE.format(channel=3, nic="IB/0"),
        SEND.format(channel=3, nic="IB/0"),
        SEND.format(channel=1, nic="IB/0"),
    ).links
    assert (link.channels, link.roles, link.connections) == ((1, 3), ("receive", "send"), (0,))
    assert str(link.where) == "x.log:1"
    assert link.asymmetric is False
    assert link.certain


@pytest.mark.parametrize(
    ("sent", "received", "asymmetric"),
    [
        ("IB/0/GDRDMA", "IB/1", True),
        ("IB/0", "Socket/0", True),
        ("IB/0/GDRDMA", "IB/1/GDRDMA", False),
        ("IB/0(4)/GDRDMA/Shared", "IB/0/GDRDMA/Shared", False),
    ],
)
def test_ends_of_different_kinds_are_asymmetric(sent: str, received: str, asymmetric: bool) -> None:
    """Ends may differ in NIC number and PXN proxy, but not in network or GPUDirect RDMA."""
    transports = job(SEND.format(channel=0, nic=sent), RECEIVE.format(channel=0, nic=received))
    assert [link.asymmetric for link in transports.links] == [asymmetric] * 2
    assert transports.asymmetric == ([(0, 1)] if asymmetric else [])


def test_ends_are_compared_by_channel() -> None:
    """A sender that uses two kinds is asymmetric only where the receiver nic another of them."""
    transports = job(
        SEND.format(channel=0, nic="IB/0"),
        SEND.format(channel=1, nic="IB/0/GDRDMA"),
        RECEIVE.format(channel=0, nic="IB/0"),
        RECEIVE.format(channel=1, nic="IB/0/GDRDMA"),
    )
    assert [link.asymmetric for link in transports.links] == [False, False]


def test_link_logged_by_one_end_is_not_compared() -> None:
    """P2P is logged by its sender only, and one log of a NET edge may be missing: no comparison."""
    transports = job(
        SEND.format(channel=0, nic="IB/0"),
        "a:1:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[1] via P2P/CUMEM",
    )
    assert [link.asymmetric for link in transports.links] == [None, None]


def test_nics_are_kept_per_end() -> None:
    """A NIC's number is an index into its logger's own list; the ends may use different names."""
    (link,) = job(
        "a:1:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB ib0:10.0.0.1<0>",
        "b:1:9 [0] NCCL INFO NET/IB : Using [0]mlx5_7:1/IB [RO]; OOB ib0:10.0.0.2<0>",
        SEND.format(channel=0, nic="IB/0"),
        RECEIVE.format(channel=0, nic="IB/0"),
    ).links
    assert (link.sender_nics, link.receiver_nics) == (("mlx5_0",), ("mlx5_7",))
    assert link.nics == ("mlx5_0", "mlx5_7")


def test_nodes_are_counted_by_placement_if_nccl_does_not() -> None:
    """Before NCCL 2.20.3 no line counts nodes: host names are counted if every rank has one."""
    lines = [
        f"{host}:1:9 [0] NCCL INFO comm 0x1 rank {rank} nranks 2 cudaDev 0 busId 18000 - "
        "Init COMPLETE"
        for rank, host in enumerate("ab")
    ]
    both, half = job(*lines), job(lines[0])
    assert both.nodes(both.log.communicators[0]) == 2
    assert half.nodes(half.log.communicators[0]) is None
