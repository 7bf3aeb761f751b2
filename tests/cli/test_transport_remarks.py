"""Remarks on unusual transports come first, with ranks, hosts and log lines."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from pytest_clustersmoke.cli.job_transports import JobTransports
from pytest_clustersmoke.cli.transport_remarks import list_examples, remarks
from pytest_clustersmoke.evidence.nccl.log_reader import Reader
from pytest_clustersmoke.text import ranges
from tests.evidence.nccl.job_logs import JobLogs, Pair

INFO = "k1:1:9 [0] NCCL INFO "


def job(*lines: str) -> JobTransports:
    reader = Reader()
    reader.stream(io.BytesIO("\n".join([*lines, ""]).encode()), "x.log")
    return JobTransports(reader.log())


def remarks_text(job: JobTransports) -> str:
    """All remarks as text."""
    return "\n".join("\n  ".join([remark.cause, *list_examples(remark)]) for remark in remarks(job))


@pytest.fixture
def healthy(tmp_path: Path) -> JobLogs:
    return JobLogs(2, 8, channels=8)


def read(logs: JobLogs, folder: Path) -> JobTransports:
    reader = Reader()
    for path in logs.write(folder):
        reader.file(path, path.name)
    return JobTransports(reader.log())


def test_healthy_job_has_no_remarks(healthy: JobLogs, tmp_path: Path) -> None:
    """Two nodes of eight ranks, with P2P inside and GPUDirect RDMA between, give no remark."""
    assert remarks_text(read(healthy, tmp_path)) == ""


@pytest.mark.parametrize(
    ("pair", "transport", "text", "example"),
    [
        (
            (0, 1),
            "NET/IB/0",
            "NET inside a node: 1 of 32 pairs",
            "0 (k001, GPU 0) -> 1 (k001, GPU 1): NET/IB/0: k001.4000.log:",
        ),
        (
            (0, 9),
            "NET/Socket/0",
            "NET/Socket alongside NET/IB/GDRDMA: 1 of 32 pairs",
            "0 (k001, GPU 0) -> 9 (k002, GPU 1): NET/Socket/0: k001.4000.log:",
        ),
        (
            (0, 9),
            "NET/IB/3",
            "NET/IB without GPUDirect RDMA alongside NET/IB/GDRDMA: 1 of 32 pairs",
            "0 (k001, GPU 0) -> 9 (k002, GPU 1): NET/IB/3: k001.4000.log:",
        ),
        (
            (2, 3),
            "SHM/direct/direct",
            "SHM inside a node, where most are P2P/CUMEM: 1 of 32 pairs",
            "2 (k001, GPU 2) -> 3 (k001, GPU 3): SHM/direct/direct: k001.4002.log:",
        ),
        (
            (0, 9),
            "SHM/direct/direct",
            "only MNNVL joins nodes): 1 of ",
            "0 (k001, GPU 0) -> 9 (k002, GPU 1): SHM/direct/direct: k001.4000.log:",
        ),
    ],
    ids=["net inside", "socket", "no gpudirect", "shm", "shm between"],
)
def test_unusual_pair_is_named(
    healthy: JobLogs, tmp_path: Path, pair: Pair, transport: str, text: str, example: str
) -> None:
    """The remark counts pairs; its example has both ranks, their hosts and GPUs, and the line."""
    healthy.overrides[pair] = transport
    output = remarks_text(read(healthy, tmp_path))
    assert text in output
    assert example in output


def test_mnnvl_between_nodes_is_no_remark(healthy: JobLogs, tmp_path: Path) -> None:
    """Multi-node NVLink is P2P between nodes."""
    healthy.overrides[0, 9] = "P2P/MNNVL"
    assert remarks_text(read(healthy, tmp_path)) == ""


def test_asymmetric_ends_are_named_with_their_roles() -> None:
    """The sender uses GPUDirect RDMA, the receiver does not: both lines are shown."""
    transports = job(
        "9[1a000] -> 2[6b000] [send] via NET/IB/0/GDRDMA",
        "9[1a000] -> 2[6b000] [receive] via NET/IB/1",
    )
    assert "two ends use different transports: 1 of 1 pair" in remarks_text(transports)
    assert "9 -> 2: NET/IB/1 (receive): x.log:2" in remarks_text(transports)


def test_incomplete_init_names_its_ranks() -> None:
    """This remark comes first: the job hung in a rank that started its init and did not end it."""
    line = INFO + "comm 0x1 rank 1 nranks 2 cudaDev 0 nvmlDev 3 busId 1000 commId 0xa - Init START"
    first = remarks(job(line))[0]
    assert first.cause == "communicator 0: init started and did not complete on 1 rank: 1"
    assert [*list_examples(first)] == ["1 (k1, GPU 3)"]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([], "is this a rank's log, and was NCCL_DEBUG=INFO set?"),
        (["NCCL version 2.20.5+cuda12.4"], "NCCL_DEBUG=INFO logs edges"),
        (["k1:1:9 [0] init.cc:3 NCCL WARN No device"], "NCCL_DEBUG=INFO logs edges"),
        ([INFO + "P2P Chunksize set to 131072"], "they may be an excerpt"),
        ([INFO + "Using network IB"], "NCCL_DEBUG_SUBSYS hides them"),
        ([INFO + "Using network IB"], "it may have failed, or the log may be cut"),
        (["NCCL version 2.22.3+cuda12.6", INFO + "Using network IB"], "NCCL_RUNTIME_CONNECT=0"),
        (
            [INFO + "comm 0x1 rank 0 nranks 1 cudaDev 0 busId 1000 - Init COMPLETE"],
            "communicators of one rank have no edges",
        ),
    ],
)
def test_log_without_edges_has_possible_reasons(lines: list[str], reason: str) -> None:
    """Each reason that the log does not rule out; none is a verdict."""
    text = remarks_text(job(*lines))
    assert "no edges" in text
    assert reason in text


def test_log_of_nccl_is_not_denied() -> None:
    """Whatever its lines are about."""
    text = remarks_text(job(*[INFO + "Trees [0] 3/-1/-1->2->5"] * 9))
    assert "no NCCL output" not in text and "logged no line" not in text


def test_lazy_connection_is_not_suggested_before_nccl_2_22() -> None:
    """NCCL 2.21 connects edges during init."""
    text = remarks_text(job("NCCL version 2.21.5+cuda12.4", INFO + "Using network IB"))
    assert "NCCL_RUNTIME_CONNECT" not in text


def test_different_networks_and_devices_are_named() -> None:
    """One node without InfiniBand makes all nodes use sockets."""
    text = remarks_text(
        job(
            INFO + "Using network IB",
            INFO + "comm 0x1 rank 0 nranks 2 cudaDev 0 busId 1000 - Init COMPLETE",
            INFO.replace("k1", "k2") + "NET/IB : No device found.",
            INFO.replace("k1", "k2") + "Using network Socket",
        )
    )
    assert "processes chose different networks\n  IB: k1\n  Socket: k2" in text
    assert "NET/IB found no device on 1 of 2 hosts: k2" in text


def test_different_versions_are_named() -> None:
    """A job with two versions of NCCL."""
    assert "NCCL versions differ: 2.19.3, 2.20.5" in remarks_text(
        job("NCCL version 2.20.5+cuda12.4", "NCCL version 2.19.3+cuda12.3")
    )


def test_ranks_without_a_line_are_counted_not_listed() -> None:
    """The ranks are given as spans, since a hostile log may claim millions of ranks."""
    line = INFO + "comm 0x1 rank 5 nranks 9999999 cudaDev 0 busId 1000 - Init COMPLETE"
    assert "ranks 0-4, 6-9999998 (9,999,998 of 9,999,999)" in remarks_text(job(line))


def test_pairs_of_unknown_side_have_a_reason() -> None:
    """Pairs are counted; the reason is why a node is ambiguous, or that a rank has no line."""
    text = remarks_text(job(INFO + "Channel 00 : 0[0] -> 1[1] via P2P/IPC"))
    assert "unknown whether inside a node or between nodes: 1 of 1 pair" in text
    assert "an end has no line that is certainly its own" in text
    comm = "comm 0x1 rank {0} nranks 2 cudaDev 0 busId 1000 commId 0xa - Init COMPLETE"
    twins = [INFO.replace(":1:", f":{rank}:") + comm.format(rank) for rank in (0, 1)]
    text = remarks_text(job(*twins, INFO + "Channel 00 : 0[1000] -> 1[1000] via P2P/IPC"))
    assert "2 ranks of k1 have the GPU with bus id 1000" in text


def test_torn_lines_are_counted_with_their_places() -> None:
    """The edge of a line that was cut is missing, which the report must say."""
    text = remarks_text(job(INFO + "Channel 00/0 : 0[0] -> 1[1] via P2P/CUM"))
    assert "1 line cut or torn; their edges are missing\n  x.log:1" in text


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([3], "3"), ([0, 1, 2, 5, 7, 8], "0-2, 5, 7-8")]
)
def test_ranges_are_short(numbers: list[int], text: str) -> None:
    """Consecutive numbers are joined."""
    assert ranges(numbers) == text
