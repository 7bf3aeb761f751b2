"""NCCL's transports against the cluster's expectation; incomplete logs do not pass."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_clustersmoke.criteria.phase_criteria import PhaseView
from pytest_clustersmoke.evidence.metric import BETWEEN, INSIDE, Unmeasured
from tests.fakes.nccl import healthy
from tests.support.evidence import Evidence, make_profile
from tests.support.nccl_phase import EXPECT, Changes, Job, swap


def judge(evidence: Evidence, folder: Path, **expect: object) -> PhaseView:
    return evidence.result(make_profile(folder, expect={"small": {**EXPECT, **expect}}))


@pytest.fixture
def job() -> Job:
    """Four nodes of two ranks, in a ring."""
    return Job(4, 2)


def test_healthy_job_passes_on_both_sides(job: Job, tmp_path: Path) -> None:
    """The ranks' own events decide whether an edge is inside a node or between nodes."""
    result = judge(job.stage(tmp_path), tmp_path, gpudirect="required", hca="mlx5_*")
    transports = result.transports
    transports.intra_node.check()
    transports.inter_node.check()
    assert result.judged == {INSIDE, BETWEEN}
    assert transports.kinds() == ["NET/IB/GDRDMA", "P2P/CUMEM"]
    inside = {(link.source, link.destination) for link in transports.intra_node.links()}
    assert inside == {(0, 1), (2, 3), (4, 5), (6, 7)}
    assert result.transport_summary() == "NET/IB/GDRDMA, P2P/CUMEM"


def test_ranks_are_placed_by_their_events(tmp_path: Path) -> None:
    """Even if they are assigned to the nodes in turn, which their numbers do not show."""
    job = Job(2, 2, nodes_of={0: 0, 1: 1, 2: 0, 3: 1})
    result = judge(job.stage(tmp_path), tmp_path)
    result.transports.inter_node.check()
    assert not result.transports.intra_node.links()  # a ring of 0, 1, 2, 3 never stays on a node
    with pytest.raises(Unmeasured, match="NCCL logged no connection inside a node"):
        result.transports.intra_node.check()


def test_two_nodes_with_one_host_name_stay_separate(job: Job, tmp_path: Path) -> None:
    """The node is the one whose launcher kept the log; a host's own name decides nothing."""
    result = judge(job.stage(tmp_path, hosts=["same"] * 4), tmp_path)
    result.transports.intra_node.check()
    result.transports.inter_node.check()
    assert len(result.transports.inter_node.links()) == 8


FALLBACKS: dict[str, tuple[Changes, dict[str, object], str, str]] = {
    "socket instead of InfiniBand": (
        {(3, 4): "NET/Socket/0"},
        {},
        "inter_node",
        "rank 3 (k1, GPU 1) -> rank 4 (k2, GPU 0): NET/Socket/0, expected NET/IB*: "
        "nccl/0001/k1.4003.log:5",
    ),
    "shared memory instead of P2P": (
        {(4, 5): "SHM/direct/direct"},
        {},
        "intra_node",
        "rank 4 (k2, GPU 0) -> rank 5 (k2, GPU 1): SHM/direct/direct, expected P2P/*: "
        "nccl/0002/k2.4004.log:5",
    ),
    "InfiniBand without GPUDirect RDMA": (
        {(5, 6): "NET/IB/1"},
        {"gpudirect": "required"},
        "inter_node",
        "rank 5 (k2, GPU 1) -> rank 6 (k3, GPU 0): NET/IB/1 (mlx5_1), GPUDirect RDMA is required: "
        "nccl/0002/k2.4005.log:5",
    ),
    "InfiniBand inside a node": (
        {(6, 7): "NET/IB/0/GDRDMA"},
        {"forbid": ["NET/Socket"]},
        "intra_node",
        "rank 6 (k3, GPU 0) -> rank 7 (k3, GPU 1): NET/IB/0/GDRDMA (mlx5_0), expected P2P/*: "
        "nccl/0003/k3.4006.log:5",
    ),
    "a forbidden network": (
        {(7, 0): "NET/Socket/1"},
        {"inter_node": ["NET/*"], "forbid": ["NET/Socket"]},
        "inter_node",
        "rank 7 (k3, GPU 1) -> rank 0 (k0, GPU 0): NET/Socket/1, forbidden by NET/Socket: "
        "nccl/0003/k3.4007.log:5",
    ),
    "GPUDirect RDMA where it must not be": (
        {},
        {"gpudirect": "forbidden"},
        "inter_node",
        "rank 1 (k0, GPU 1) -> rank 2 (k1, GPU 0): NET/IB/1/GDRDMA (mlx5_1), GPUDirect RDMA is "
        "forbidden: nccl/0000/k0.4001.log:5",
    ),
}


@pytest.mark.parametrize("name", FALLBACKS)
def test_fallback_fails_with_ranks_hosts_and_line(name: str, job: Job, tmp_path: Path) -> None:
    """One wrong edge among good ones fails its side, and only that."""
    changes, expect, side, words = FALLBACKS[name]
    job.wording = swap(job, changes)
    transports = judge(job.stage(tmp_path), tmp_path, **expect).transports
    with pytest.raises(AssertionError) as failure:
        getattr(transports, side).check()
    assert words in str(failure.value)
    if changes:
        assert len(str(failure.value).splitlines()) == 1
    other = {"inter_node": "intra_node", "intra_node": "inter_node"}[side]
    getattr(transports, other).check()


def test_end_without_gpudirect_is_named(job: Job, tmp_path: Path) -> None:
    """If only the receiver lacks GPUDirect RDMA, its log line is given."""
    job.wording = swap(job, {(1, 2): "NET/IB/0"}, role="receive")
    result = judge(job.stage(tmp_path), tmp_path, gpudirect="required")
    with pytest.raises(AssertionError) as failure:
        result.transports.inter_node.check()
    assert str(failure.value) == (
        "rank 1 (k0, GPU 1) -> rank 2 (k1, GPU 0): NET/IB/0 (mlx5_0), GPUDirect RDMA is required "
        "at the receiver: nccl/0001/k1.4002.log:6"
    )


def test_all_wrong_connections_are_listed(job: Job, tmp_path: Path) -> None:
    """Up to a limit, then the number of further ones; and that NCCL found no InfiniBand device."""
    job.using = dict.fromkeys(range(4), "NET/IB : No device found.")
    job.wording = lambda source, destination, role: "NET/Socket/0"
    job.per_node, job.nodes = 1, 12
    result = judge(job.stage(tmp_path), tmp_path)
    with pytest.raises(AssertionError) as failure:
        result.transports.inter_node.check()
    lines = str(failure.value).splitlines()
    assert lines[0] == "12 connections between nodes are not as cluster.yaml expects:"
    assert lines[-2:] == [
        "  ... and 4 more",
        "NCCL found no InfiniBand device on k0, k1, k2, k3",
    ]
    assert len(lines) == 1 + 8 + 2


@pytest.mark.parametrize(
    ("hca", "words"),
    [
        ("mlx5_*", "(bnxt_re1), expected mlx5_*"),
        ("bnxt*", "(mlx5_1), expected bnxt*"),
    ],
)
def test_node_with_another_hca_fails(job: Job, tmp_path: Path, hca: str, words: str) -> None:
    """Its own log gives the device's name."""
    job.using = {2: "NET/IB : Using [0]bnxt_re0:1/RoCE [1]bnxt_re1:1/RoCE; OOB ib0:10.0.0.1<0>"}
    result = judge(job.stage(tmp_path), tmp_path, hca=hca)
    with pytest.raises(AssertionError) as failure:
        result.transports.inter_node.check()
    assert words in str(failure.value).replace("mlx5_1 -> ", "").replace(" -> mlx5_1", "")


def test_hca_without_a_name_is_unmeasured(job: Job, tmp_path: Path) -> None:
    """A NIC number that no log names may be any device."""
    job.using = {1: "NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB ib0:10.0.0.1<0>"}
    with pytest.raises(Unmeasured, match=r"RDMA device of nccl/0001/k1\.\d+\.log:\d+ is not known"):
        judge(job.stage(tmp_path), tmp_path, hca="mlx5_*").transports.inter_node.check()


def test_nodes_with_one_rank_skip_the_inside(tmp_path: Path) -> None:
    """Without a pair of ranks on one node there is nothing to measure."""
    result = judge(Job(2, 1).stage(tmp_path), tmp_path, intra_node=[], hca="mlx5_*")
    with pytest.raises(pytest.skip.Exception, match="each node has one rank") as skipped:
        result.transports.intra_node.check()
    assert not isinstance(skipped.value, Unmeasured)
    result.transports.inter_node.check()
    assert result.judged == {BETWEEN}


def test_one_node_skips_between_nodes(tmp_path: Path) -> None:
    """Also if a cluster runs a phase of several nodes on one."""
    result = judge(Job(1, 2).stage(tmp_path), tmp_path)
    with pytest.raises(pytest.skip.Exception, match="the phase has one node") as skipped:
        result.transports.inter_node.check()
    assert not isinstance(skipped.value, Unmeasured)


def test_gloo_has_no_transports(job: Job, tmp_path: Path) -> None:
    """Under gloo nothing can be judged, and the reason says so."""
    result = judge(job.stage(tmp_path, backend="gloo"), tmp_path)
    with pytest.raises(Unmeasured, match="the ranks talked over gloo") as skipped:
        result.transports.intra_node.check()
    assert skipped.value.kind == "transports" and not result.judged
    assert result.transport_summary() == "gloo"


def test_missing_logs_are_unmeasured(job: Job, tmp_path: Path) -> None:
    """The reason says that the logs are missing."""
    result = judge(job.stage(tmp_path, silent=range(8)), tmp_path)
    with pytest.raises(Unmeasured, match=r"no connection inside a node: its logs are missing"):
        result.transports.intra_node.check()
    assert result.transport_summary() == "unknown"


def test_logs_without_edges_are_unmeasured(job: Job, tmp_path: Path) -> None:
    """Init, networks and devices prove no connection, `Using network IB` least of all."""
    job.wording = lambda source, destination, role: None
    transports = judge(job.stage(tmp_path), tmp_path).transports
    for side in (transports.intra_node, transports.inter_node):
        with pytest.raises(Unmeasured, match="connects only when a collective first needs"):
            side.check()


def test_missing_expectation_is_unmeasured(job: Job, tmp_path: Path) -> None:
    """A cluster that expects nothing cannot be judged."""
    result = job.stage(tmp_path).result(make_profile(tmp_path))
    with pytest.raises(Unmeasured, match=r"cluster\.yaml expects nothing"):
        result.transports.intra_node.check()


def test_rank_without_edges_is_unmeasured(job: Job, tmp_path: Path) -> None:
    """Good edges of other ranks do not replace those of a rank without any."""
    job.wording = swap(job, {(4, 5): None})
    transports = judge(job.stage(tmp_path), tmp_path).transports
    with pytest.raises(Unmeasured, match=r"inside a node for rank 4 \(k2, GPU 0\), rank 5 \(k2"):
        transports.intra_node.check()
    with pytest.raises(Unmeasured, match=r"no connection that rank 4 \(k2, GPU 0\) made"):
        transports.inter_node.check()


def test_unconnected_nodes_are_unmeasured(job: Job, tmp_path: Path) -> None:
    """Every node communicates, but no chain of connections links the two halves."""
    job.wording = swap(job, {(3, 4): None, (7, 0): None})
    with pytest.raises(Unmeasured, match="no connection between nodes for k2, k3"):
        judge(job.stage(tmp_path), tmp_path).transports.inter_node.check()


def test_end_that_logged_nothing_is_unmeasured(job: Job, tmp_path: Path) -> None:
    """Both ends log a network connection: without one log, that end's transport is unknown."""
    well = healthy(job)
    job.wording = lambda source, destination, role: (
        None if (source, role) == (5, "receive") else well(source, destination, role)
    )
    evidence = job.stage(tmp_path)
    with pytest.raises(Unmeasured, match=r"the receiver of rank 5 \(k2, GPU 1\) -> rank 6 \(k3"):
        judge(evidence, tmp_path).transports.inter_node.check()


@pytest.mark.parametrize(
    ("nodes", "per_node", "bad", "cut"),
    [
        (1, 4, {(1, 2): "SHM/direct/direct"}, [1]),
        (2, 2, {(1, 2): "NET/Socket/0"}, [1, 2]),
        (2, 4, {(1, 2): "SHM/direct/direct"}, [1]),
    ],
)
@pytest.mark.parametrize("completes", [True, False])
def test_log_that_stops_early_is_unmeasured(
    tmp_path: Path, nodes: int, per_node: int, bad: Changes, cut: list[int], completes: bool
) -> None:
    """As on a full disk: connections to a rank in other logs do not prove the ones that it made."""
    job = Job(nodes, per_node)
    job.wording = swap(job, bad)
    evidence = job.stage(tmp_path)
    for rank in cut:
        log = evidence.dir.nccl_logs(job.node(rank)) / f"k{job.node(rank)}.{4000 + rank}.log"
        lines = log.read_text().splitlines(keepends=True)
        kept = [line for line in lines if " via " not in line]
        log.write_text("".join(kept if completes else kept[:4]))
    transports = judge(evidence, tmp_path).transports
    side = transports.intra_node if nodes == 1 or per_node > 2 else transports.inter_node
    with pytest.raises(Unmeasured, match=r"logged no connection|its end is not in the log"):
        side.check()


def test_expectation_of_rdma_alone_is_judged(job: Job, tmp_path: Path) -> None:
    """`gpudirect` and `hca` are judged even if no transport is expected."""
    job.wording = swap(job, {(1, 2): "NET/IB/1"})
    expect = {"intra_node": [], "inter_node": [], "gpudirect": "required"}
    with pytest.raises(AssertionError, match=r"NET/IB/1 \(mlx5_1\), GPUDirect RDMA is required"):
        judge(job.stage(tmp_path), tmp_path, **expect).transports.inter_node.check()


def test_wrong_edge_fails_despite_missing_logs(job: Job, tmp_path: Path) -> None:
    """Missing evidence does not hide a visible failure."""
    job.wording = swap(job, {(0, 1): "NET/Socket/0"})
    with pytest.raises(AssertionError, match=r"NET/Socket/0, expected P2P/\*"):
        judge(job.stage(tmp_path, silent=[7]), tmp_path).transports.intra_node.check()


def test_rank_without_events_is_placed_by_its_log(job: Job, tmp_path: Path) -> None:
    """If NCCL numbers all other ranks as their events do, the last one is known by elimination."""
    transports = judge(job.stage(tmp_path, unknown=[6]), tmp_path).transports
    transports.inter_node.check()
    assert transports.nodes[6] == 3


def test_rank_that_cannot_be_placed_is_unmeasured(job: Job, tmp_path: Path) -> None:
    """A rank without events and log has no node, so its edges cannot be judged."""
    result = judge(job.stage(tmp_path, unknown=[6], silent=[6]), tmp_path)
    with pytest.raises(Unmeasured, match=r"rank 6 \(unknown\) has no known node"):
        result.transports.inter_node.check()


def test_process_that_is_not_a_rank_is_unmeasured(job: Job, tmp_path: Path) -> None:
    """The log of another process is not taken for the rank's own."""
    evidence = job.stage(tmp_path)
    evidence.rank(6, ("start", {"rank": 6, "node_rank": 3, "node": "k3", "pid": 1}))
    with pytest.raises(Unmeasured, match=r"edges cannot be placed, the first .*: rank 6 of its"):
        judge(evidence, tmp_path).transports.inter_node.check()


def test_forbidden_network_fails_even_if_unplaced(job: Job, tmp_path: Path) -> None:
    """A forbidden transport is wrong on either side."""
    job.wording = swap(job, {(5, 6): "NET/Socket/0"})
    evidence = job.stage(tmp_path)
    evidence.rank(6, ("start", {"rank": 6, "node_rank": 3, "node": "k3", "pid": 1}))
    with pytest.raises(AssertionError, match="ranks 5 -> 6 of a communicator: NET/Socket/0"):
        judge(evidence, tmp_path, forbid=["NET/Socket"]).transports.inter_node.check()


def test_edges_of_a_smaller_communicator_are_resolved(tmp_path: Path) -> None:
    """In a communicator of ranks 2 and 3 NCCL calls them 0 and 1: the edge is between 2 and 3."""
    evidence = Job(2, 2).stage(tmp_path)
    for rank, number in ((2, 0), (3, 1)):
        head = f"k1:{4000 + rank}:77 [{number}] NCCL INFO "
        ids = f"comm 0x9{rank} rank {number} nranks 2 cudaDev {number} nvmlDev {number}"
        log = evidence.dir.nccl_logs(1) / f"k1.{4000 + rank}.log"
        edge = (
            f"{head}Channel 00/0 : {number}[{number}] -> {1 - number}[{1 - number}] via SHM/direct"
        )
        whole = f"{head}{ids} busId {number + 1}8000 commId 0xabc - Init"
        with log.open("a") as stream:
            stream.write(f"{whole} START\n{edge}\n{whole} COMPLETE\n")
    with pytest.raises(AssertionError) as failure:
        judge(evidence, tmp_path).transports.intra_node.check()
    assert "rank 2 (k1, GPU 0) -> rank 3 (k1, GPU 1): SHM/direct, expected" in str(failure.value)
    assert "rank 0" not in str(failure.value)


def test_torn_connection_line_is_unmeasured(job: Job, tmp_path: Path) -> None:
    """It is unknown which connection the line was about."""
    evidence = job.stage(tmp_path)
    log = evidence.dir.nccl_logs(0) / "k0.4000.log"
    with log.open("a") as stream:
        stream.write("k0:4000:54000 [0] NCCL INFO Channel 03/0 : 0[0] -> 2[0] [send] via NET/\n")
    with pytest.raises(Unmeasured, match="in an unknown form: 1, the first at nccl/0000/k0"):
        judge(evidence, tmp_path).transports.inter_node.check()


@pytest.mark.parametrize("fault", ["directory", "fifo", "binary"])
def test_unreadable_log_is_unmeasured(fault: str, job: Job, tmp_path: Path) -> None:
    """Another kind of file in place of a log is unmeasured, and never waited for."""
    evidence = job.stage(tmp_path)
    path = evidence.dir.nccl_logs(0) / "odd.log"
    if fault == "directory":
        path.mkdir()
    elif fault == "fifo":
        os.mkfifo(path)
    else:
        path.write_bytes(bytes(10_000))
    with pytest.raises(Unmeasured, match=r"odd\.log is "):
        judge(evidence, tmp_path).transports.inter_node.check()


def test_nvls_counts_as_p2p(job: Job, tmp_path: Path) -> None:
    """Ranks that use NVLink SHARP connect no pairs: if P2P is expected, they count as connected."""
    inside = {(rank, rank + 1): None for rank in (0, 2, 4, 6)}
    job.wording = swap(job, inside)
    evidence = job.stage(tmp_path)
    for rank in range(8):
        log = evidence.dir.nccl_logs(rank // 2) / f"k{rank // 2}.{4000 + rank}.log"
        head = f"k{rank // 2}:{4000 + rank}:9 [{rank % 2}] NCCL INFO "
        with log.open("a") as stream:
            stream.write(f"{head}Connected NVLS tree\n")
    result = judge(evidence, tmp_path)
    result.transports.intra_node.check()
    assert result.transport_summary() == "NET/IB/GDRDMA, NVLS"
    with pytest.raises(AssertionError, match=r"rank 3 \(k1, GPU 1\): NVLS, forbidden by NVLS"):
        judge(evidence, tmp_path, forbid=["NVLS"]).transports.intra_node.check()
    with pytest.raises(Unmeasured, match="no connection inside a node"):
        judge(evidence, tmp_path, intra_node=["SHM"]).transports.intra_node.check()


def test_collnet_connects_nodes_if_expected(tmp_path: Path) -> None:
    """A CollNet connection names no peer and counts only if the cluster names its kind."""
    job = Job(2, 1, wording=lambda source, destination, role: None)
    evidence = job.stage(tmp_path)
    for rank in range(2):
        head = f"k{rank}:{4000 + rank}:9 [0] NCCL INFO "
        with (evidence.dir.nccl_logs(rank) / f"k{rank}.{4000 + rank}.log").open("a") as stream:
            stream.write(f"{head}CollNet 00/0 : {rank} [send] via COLLNET/SHARP/0/GDRDMA\n")
    judge(evidence, tmp_path, inter_node=["COLLNET/*"]).transports.inter_node.check()
    with pytest.raises(Unmeasured, match="no connection between nodes"):
        judge(evidence, tmp_path).transports.inter_node.check()
    with pytest.raises(AssertionError, match=r"rank 0 \(k0, GPU 0\): COLLNET/SHARP/0/GDRDMA, forb"):
        judge(evidence, tmp_path, forbid=["COLLNET/*"]).transports.inter_node.check()
