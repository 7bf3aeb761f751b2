"""NCCL's transports against the cluster's expectation; what the logs do not tell is no pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_clustersmoke.evidence import Unmeasured
from pytest_clustersmoke.result import PhaseResult
from pytest_clustersmoke.transports import kind

from .evidence import Evidence, make_profile

INIT = "h:1:2 [0] NCCL INFO comm 0x5f rank {} nranks {} cudaDev 0 busId 1000 - Init COMPLETE"


def edge(source: int, destination: int, transport: str) -> str:
    return f"h:1:2 [0] NCCL INFO Channel 00/0 : {source}[0] -> {destination}[1] via {transport}"


class Logs:
    """A phase of `nodes` nodes of two ranks, whose NCCL logs a test writes."""

    def __init__(self, folder: Path, nodes: int = 1, backend: str = "nccl") -> None:
        self.folder, self.nodes = folder, nodes
        self.evidence = Evidence(folder, nodes, 2).started(backend)

    def log(self, node: int, *lines: str, world: int | None = None) -> Logs:
        folder = self.evidence.dir.nccl_logs(node)
        folder.mkdir(parents=True, exist_ok=True)
        world = self.nodes * 2 if world is None else world
        text = "\n".join([INIT.format(0, world), *lines]) + "\n"
        (folder / f"h.{len(list(folder.iterdir()))}.log").write_text(text)
        return self

    def result(self, **expect: object) -> PhaseResult:
        profile = make_profile(self.folder, expect={"small": expect} if expect else {})
        return self.evidence.result(profile)


@pytest.fixture
def ring(tmp_path: Path) -> Logs:
    """Two nodes of two ranks, in a ring: P2P inside, InfiniBand between."""
    logs = Logs(tmp_path, 2)
    logs.log(0, edge(0, 1, "P2P/CUMEM"), edge(1, 2, "NET/IB/0/GDRDMA"))
    return logs.log(1, edge(2, 3, "P2P/CUMEM"), edge(3, 0, "NET/IB/1/GDRDMA"))


@pytest.mark.parametrize(
    ("transport", "is_kind"),
    [
        ("P2P/CUMEM", "P2P/CUMEM"),
        ("P2P/IPC/read", "P2P/IPC"),
        ("P2P/direct pointer", "P2P/direct pointer"),
        ("SHM/direct/direct", "SHM"),
        ("direct shared memory", "SHM"),
        ("NET/IB/0", "NET/IB"),
        ("NET/IB/0/GDRDMA", "NET/IB/GDRDMA"),
        ("NET/IB/1(4)/GDRDMA(PCI)/Shared", "NET/IB/GDRDMA"),
        ("NET/Socket/0", "NET/Socket"),
        ("NET/AWS Libfabric/2/GDRDMA", "NET/AWS Libfabric/GDRDMA"),
    ],
)
def test_kinds(transport: str, is_kind: str) -> None:
    """A kind is NCCL's name without device, role and suffixes, but for GPUDirect."""
    assert kind(transport) == is_kind


def test_edges_are_placed_by_evidence(ring: Logs) -> None:
    """Each edge is inside a node or between nodes as its ranks themselves say."""
    transports = ring.result().transports
    assert transports.kinds() == ["NET/IB/GDRDMA", "P2P/CUMEM"]
    assert {(e.source, e.destination) for e in transports.intra_node.edges()} == {(0, 1), (2, 3)}
    assert {(e.source, e.destination) for e in transports.inter_node.edges()} == {(1, 2), (3, 0)}


def test_expectations_that_are_met(ring: Logs) -> None:
    """Globs over kinds, on each side."""
    transports = ring.result(intra_node=["P2P/*"], inter_node=["NET/IB*"]).transports
    transports.intra_node.check()
    transports.inter_node.check()


def test_a_transport_that_is_not_expected(ring: Logs) -> None:
    """The failure names ranks, nodes, transport, expectation and the line of the log."""
    with pytest.raises(AssertionError) as failure:
        ring.result(inter_node=["NET/Socket"]).transports.inter_node.check()
    assert str(failure.value) == (
        "rank 1 (n0) -> rank 2 (n1): NET/IB/0/GDRDMA, expected NET/Socket: nccl/0000/h.0.log:3"
    )


def test_a_forbidden_transport(ring: Logs) -> None:
    """What is forbidden fails, whatever else is accepted."""
    result = ring.result(inter_node=["NET/*"], forbid=["NET/IB*"])
    with pytest.raises(AssertionError, match=r"forbidden by NET/IB\*"):
        result.transports.inter_node.check()


def test_gloo_has_no_transports(tmp_path: Path) -> None:
    """Under gloo nothing can be judged, and the reason says so."""
    result = Logs(tmp_path, backend="gloo").result(intra_node=["P2P/*"])
    with pytest.raises(Unmeasured, match="the ranks talked over gloo") as skipped:
        result.transports.intra_node.check()
    assert skipped.value.kind == "transports"


def test_no_logs_are_no_pass(tmp_path: Path) -> None:
    """NCCL without a line of log is not measured."""
    with pytest.raises(Unmeasured, match="logged no connection inside a node"):
        Logs(tmp_path).result(intra_node=["P2P/*"]).transports.intra_node.check()


def test_no_expectation_is_no_pass(ring: Logs) -> None:
    """A cluster that expects nothing has nothing to be judged by."""
    with pytest.raises(Unmeasured, match=r"cluster\.yaml expects nothing"):
        ring.result().transports.intra_node.check()


def test_a_node_without_edges_is_no_pass(tmp_path: Path) -> None:
    """Where one node's log is missing the others' good edges do not stand for it."""
    logs = Logs(tmp_path, 3)
    logs.log(0, edge(0, 1, "P2P/CUMEM"), edge(1, 2, "NET/IB/0"))
    transports = logs.result(intra_node=["P2P/*"], inter_node=["NET/IB*"]).transports
    with pytest.raises(Unmeasured, match=r"no connection inside a node of rank 2 \(n1\)"):
        transports.intra_node.check()
    with pytest.raises(Unmeasured, match=r"no connection between nodes of rank 4 \(n2\)"):
        transports.inter_node.check()


def test_a_bad_edge_is_told_though_another_node_is_silent(tmp_path: Path) -> None:
    """What is seen to be wrong is a failure, and not hidden behind what is not seen."""
    logs = Logs(tmp_path, 2).log(0, edge(0, 1, "NET/Socket/0"))
    with pytest.raises(AssertionError, match="NET/Socket/0, expected"):
        logs.result(intra_node=["P2P/*"]).transports.intra_node.check()


def test_a_rank_that_cannot_be_placed_is_no_pass(ring: Logs) -> None:
    """An edge of a rank that left no start is judged by nobody."""
    ring.evidence.dir.rank_events(3).unlink()
    ring.evidence.rank(3, ("group", {"backend": "nccl"}))
    with pytest.raises(Unmeasured, match=r"rank 3 of .* has no known node"):
        ring.result(intra_node=["P2P/*"]).transports.intra_node.check()


def test_edges_of_another_communicator_are_no_pass(tmp_path: Path) -> None:
    """Ranks of a smaller communicator are other ranks: nothing is judged by their numbers."""
    logs = Logs(tmp_path, 2).log(0, edge(0, 1, "P2P/CUMEM"), world=2)
    with pytest.raises(Unmeasured, match="whose edges these are is not known"):
        logs.result(intra_node=["P2P/*"]).transports.intra_node.check()
    assert logs.result().transport_summary() == "unknown"


@pytest.mark.parametrize(
    "line",
    [
        "h:1:2 [0] NCCL INFO Channel 00/08 : 0 1 2 3",
        "h:1:2 [0] NCCL INFO Using network IB",
        "h:1:2 [0] NCCL INFO Connected all rings",
        "x" * 10_000,
        "\x00\ufffd",
    ],
)
def test_lines_that_are_no_edges(tmp_path: Path, line: str) -> None:
    """A ring's list, a network's name and noise are no connections."""
    logs = Logs(tmp_path).log(0, line, edge(0, 1, "P2P/CUMEM"))
    assert logs.result().transports.kinds() == ["P2P/CUMEM"]


def test_a_summary_in_a_few_words(ring: Logs, tmp_path: Path) -> None:
    """The table shows all kinds, or gloo."""
    assert ring.result().transport_summary() == "NET/IB/GDRDMA, P2P/CUMEM"
    (tmp_path / "other").mkdir()
    assert Logs(tmp_path / "other", backend="gloo").result().transport_summary() == "gloo"


@pytest.mark.parametrize(
    ("direct", "inter", "met"),
    [
        ("required", "NET/IB/0/GDRDMA", True),
        ("required", "NET/IB/0", False),
        ("forbidden", "NET/IB/0/GDRDMA", False),
        ("forbidden", "NET/IB/0", True),
        ("any", "NET/IB/0", True),
    ],
)
def test_gpudirect_is_as_expected(tmp_path: Path, direct: str, inter: str, met: bool) -> None:
    """`gpudirect` holds for every edge between nodes."""
    logs = Logs(tmp_path, 2)
    logs.log(0, edge(0, 1, "P2P/CUMEM"), edge(1, 2, inter))
    logs.log(1, edge(2, 3, "P2P/CUMEM"), edge(3, 0, inter))
    result = logs.result(inter_node=["NET/*"], gpudirect=direct)
    if met:
        result.transports.inter_node.check()
        assert result.judged == {"transports"}
    else:
        with pytest.raises(AssertionError, match=f"GPUDirect RDMA is {direct}"):
            result.transports.inter_node.check()


def test_the_rdma_device_is_as_expected(tmp_path: Path) -> None:
    """`hca` is compared with the name that each log gives to the device's number; a device whose
    name no log gives is not measured."""
    using = "h:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]{}:1/RoCE [RO]; OOB ib0:1<0>"
    logs = Logs(tmp_path, 2)
    logs.log(0, using.format("mlx5_7"), edge(0, 1, "P2P/CUMEM"), edge(1, 2, "NET/IB/0"))
    logs.log(1, using.format("bnxt_1"), edge(2, 3, "P2P/CUMEM"), edge(3, 0, "NET/IB/1"))
    with pytest.raises(AssertionError, match="by bnxt_1, expected mlx5_"):
        logs.result(inter_node=["NET/IB*"], hca="mlx5_*").transports.inter_node.check()
    logs.result(inter_node=["NET/IB*"], hca="*").transports.inter_node.check()
    logs.log(1, edge(3, 0, "NET/IB/5"))
    with pytest.raises(Unmeasured, match="RDMA device"):
        logs.result(inter_node=["NET/IB*"], hca="*").transports.inter_node.check()


def test_a_log_that_is_no_file(ring: Logs) -> None:
    """A directory in the place of a log is not measured, and nothing is waited for."""
    (ring.evidence.dir.nccl_logs(0) / "odd.log").mkdir()
    with pytest.raises(Unmeasured, match="is no file"):
        ring.result(inter_node=["NET/*"]).transports.inter_node.check()
