"""Ranks are placed on nodes by evidence; an edge is inside a node, between nodes or unknown."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pytest

from pytest_clustersmoke.cli.job_transports import JobTransports
from pytest_clustersmoke.cli.links import INTER, INTRA
from pytest_clustersmoke.cli.placement import HostNode, Placement, place
from pytest_clustersmoke.evidence.nccl.log_reader import Reader
from pytest_clustersmoke.evidence.nccl.nccl_log import (
    Communicator,
    Edge,
    Log,
    Member,
    NcclProcess,
    Where,
)


def process(host: str, pid: int = 1, scope: str = "") -> NcclProcess:
    return NcclProcess(scope, host, str(pid))


def communicator(
    hosts: Sequence[str | None], nodes: int | None = None, **members: Any
) -> Communicator:
    """A communicator with rank i on hosts[i]; None: nothing is known about the rank. `bus_id` and
    `local_rank` are lists with a value per rank."""
    known = {
        rank: Member(
            process(host, 100 + rank),
            bus_id=members.get("bus_id", [None] * len(hosts))[rank],
            local_rank=members.get("local_rank", [None] * len(hosts))[rank],
            started=True,
            complete=True,
        )
        for rank, host in enumerate(hosts)
        if host is not None
    }
    return Communicator(0, "0x1", len(hosts), nodes, known)


def edge(source: int, destination: int, wording: str = "P2P/CUMEM", **values: Any) -> Edge:
    defaults: dict[str, Any] = {
        "channels": (0,),
        "connection": 0,
        "role": "send",
        "logger": None,
        "nic": None,
        "where": Where("x.log", 1),
        "communicators": (0,),
    }
    return Edge(source, destination, wording, **{**defaults, **values})


def sides(placement: Placement, *pairs: tuple[int, int]) -> list[bool | None]:
    return [placement.same(*placement.ends(edge(*pair))) for pair in pairs]


# -- Ranks on nodes --------------------------------------------------------------------------------


def test_rank_is_on_the_host_of_its_init() -> None:
    """The host decides, not the rank's number: ranks that alternate between hosts are placed so."""
    placement = Placement(communicator(["a", "b", "a", "b"]))
    assert placement.ranks_of == {HostNode("", "a"): [0, 2], HostNode("", "b"): [1, 3]}
    assert sides(placement, (0, 2), (0, 1), (1, 2), (3, 1)) == [True, False, False, True]


@pytest.mark.parametrize(("role", "rank"), [("send", 0), ("receive", 1)])
def test_rank_without_init_is_on_the_host_of_its_edge(role: str, rank: int) -> None:
    """The line says whether the logger of an edge is its sender or its receiver."""
    line = edge(0, 1, "NET/IB/0", role=role, logger=process("a"))
    log = Log((), (Communicator(0, None, None, None, {}),), (line,), (), ())
    (placement,) = place(log)
    assert placement.nodes == {rank: HostNode("", "a")}


def test_transport_does_not_place_the_other_end() -> None:
    """P2P to a rank without a log places neither that rank on this node nor the edge inside it."""
    line = edge(0, 1, "P2P/CUMEM", logger=process("a"))
    log = Log((), (Communicator(0, None, None, None, {}),), (line,), (), ())
    (placement,) = place(log)
    assert placement.node(1) is None
    assert placement.same(*placement.ends(line)) is None


def test_p2p_between_hosts_is_between_nodes() -> None:
    """The transport's name does not decide: P2P between ranks of two hosts is between nodes."""
    placement = Placement(communicator(["a", "b"]))
    assert placement.same(*placement.ends(edge(0, 1, "P2P/CUMEM"))) is False


def test_ambiguous_edge_places_no_rank() -> None:
    """It may belong to two communicators, so its logger's rank is unknown; but the logger is
    certainly the edge's sender."""
    both = Communicator(0, None, 2, None, {}), Communicator(1, None, 2, None, {})
    line = edge(0, 1, logger=process("a"), communicators=(0, 1))
    first, second = place(Log((), both, (line,), (), ()))
    assert not first.nodes and not second.nodes
    assert first.ends(line) == (HostNode("", "a"), None)


def test_rank_claimed_by_two_hosts_has_no_node() -> None:
    """The evidence is contradictory: the rank is disputed, and the side of its edges unknown."""
    line = edge(0, 1, logger=process("b"))
    log = Log((), (communicator(["a", "a"]),), (line,), (), ())
    (placement,) = place(log)
    assert placement.node(0) is None
    assert placement.disputed == {0: [HostNode("", "a"), HostNode("", "b")]}
    assert placement.same(*placement.ends(line)) is None
    assert placement.doubts == ["processes on a and b logged as the same rank"]


# -- One name, several nodes -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "shared",
    [{"bus_id": ["18000", "3a000", "18000", "3a000"]}, {"local_rank": [0, 1, 0, 1]}],
    ids=["bus id", "localRank"],
)
def test_shared_gpu_or_local_rank_shows_two_nodes_of_one_name(shared: Any) -> None:
    """Edges within this host name are unknown; those to another name are still between nodes."""
    shared = {key: [*values, None] for key, values in shared.items()}
    placement = Placement(communicator(["twin"] * 4 + ["other"], **shared))
    assert sides(placement, (0, 1), (0, 2), (0, 4)) == [None, None, False]
    assert "several nodes have the name twin" in placement.doubts[0]
    assert placement.count is None


def test_more_nodes_than_names_make_names_ambiguous() -> None:
    """NCCL counts 4 nodes, but there are 2 names: each may be several nodes, so that edges within
    a name are unknown."""
    placement = Placement(communicator(["a", "a", "b", "b"], nodes=4))
    assert sides(placement, (0, 1), (2, 3), (0, 2)) == [None, None, False]


def test_name_of_one_rank_is_one_node() -> None:
    """With 3 nodes under 2 names, the name with a single rank cannot be the one shared by two."""
    placement = Placement(communicator(["a", "a", "b"], nodes=3))
    assert set(placement.ambiguous) == {HostNode("", "a")}


def test_extra_nodes_may_belong_to_ranks_without_lines() -> None:
    """With logs of one node of two, NCCL's count does not contradict the names."""
    placement = Placement(communicator(["a", "a", None, None], nodes=2))
    assert sides(placement, (0, 1), (1, 2)) == [True, None]


def test_name_that_explains_the_count_leaves_the_others_certain() -> None:
    """Equal bus ids show that `a` is two nodes; together with `b` these are the three that NCCL
    counts."""
    buses = ["18000", "18000", "18000", "3a000"]
    placement = Placement(communicator(["a", "a", "b", "b"], nodes=3, bus_id=buses))
    assert sides(placement, (0, 1), (2, 3)) == [None, True]


def test_node_directories_distinguish_nodes_of_one_name() -> None:
    """If the reader knows the node of each log, one host name can be two nodes."""
    members = {0: Member(process("h", 1, "0000")), 1: Member(process("h", 1, "0001"))}
    placement = Placement(Communicator(0, None, 2, 2, members))
    assert sides(placement, (0, 1)) == [False]
    assert placement.count == 2


# -- Several names, one node -----------------------------------------------------------------------


def test_fewer_nodes_than_names_make_names_ambiguous() -> None:
    """Containers on one node have their own names: edges between two names are unknown, those
    within a name are certain."""
    placement = Placement(communicator(["c1", "c1", "c2"], nodes=1))
    assert sides(placement, (0, 1), (0, 2)) == [True, None]
    assert "containers" in placement.doubts[0]


def test_equal_counts_of_nodes_and_names_leave_no_doubt() -> None:
    """NCCL's own count and the names agree."""
    placement = Placement(communicator(["a", "a", "b", "b"], nodes=2, bus_id=["1", "2", "1", "2"]))
    assert sides(placement, (0, 1), (1, 2)) == [True, False]
    assert placement.count == 2


# -- From the text of a log ------------------------------------------------------------------------

INIT = (
    "{host}:{pid}:9 [0] NCCL INFO comm 0x{rank} rank {rank} nranks 2 cudaDev 0 nvmlDev 0 "
    "busId {bus} commId 0x{id} - Init {state}"
)
EDGE = "{host}:{pid}:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0"


def job(*lines: str) -> JobTransports:
    reader = Reader()
    reader.stream(io.BytesIO("\n".join([*lines, ""]).encode()), "x.log")
    return JobTransports(reader.log())


def pair(id: str, *hosts: str, buses: tuple[str, str], pid: int = 10) -> list[str]:
    """The lines of two ranks that complete their init; the first connects to the second."""
    lines = [
        INIT.format(
            host=hosts[rank], pid=pid + rank, rank=rank, bus=buses[rank], id=id, state=state
        )
        for state in ("START", "COMPLETE")
        for rank in (0, 1)
    ]
    return [*lines[:2], EDGE.format(host=hosts[0], pid=pid), *lines[2:]]


def test_log_of_two_hosts_is_placed() -> None:
    """The edge is between nodes, although both hosts have a GPU with the same bus id."""
    (link,) = job(*pair("ab", "k1", "k2", buses=("18000", "18000"))).links
    assert link.placement == INTER
    assert link.ends == (HostNode("", "k1"), HostNode("", "k2"))


def test_log_of_one_host_with_one_gpu_twice_is_unknown() -> None:
    """Two ranks of one host name have the same bus id, as containers on two nodes may have: the
    side is unknown."""
    transports = job(*pair("ab", "k1", "k1", buses=("18000", "18000")))
    assert [link.placement for link in transports.links] == [None]
    assert "18000" in transports.placements[0].doubts[0]


def test_pair_can_be_inside_in_one_communicator_and_between_in_another() -> None:
    """Rank numbers belong to a communicator: merged over all, this edge has no side."""
    transports = job(
        *pair("ab", "k1", "k2", buses=("18000", "18000")),
        *pair("cd", "k3", "k3", buses=("18000", "3a000"), pid=30),
    )
    assert [
        link.placement for comm in transports.log.communicators for link in transports.of(comm)
    ] == [
        INTER,
        INTRA,
    ]
    (merged,) = transports.merged()
    assert merged.placement is None
    assert merged.ends == (None, None)
    assert merged.communicators == (0, 1)
    assert merged.certain
