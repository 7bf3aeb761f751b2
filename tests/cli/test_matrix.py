"""The matrix of a communicator: a letter where a row's rank sends to a column's rank."""

from __future__ import annotations

import io
from pathlib import Path

from pytest_clustersmoke.cli.job_transports import JobTransports
from pytest_clustersmoke.cli.matrix import CODES, assign_letters, matrices
from pytest_clustersmoke.cli.subcommand import TextOutput
from pytest_clustersmoke.evidence.nccl.log_reader import Reader
from tests.evidence.nccl.job_logs import JobLogs


def drawn(job: JobTransports, width: int | None = None) -> list[str]:
    return list(matrices(job, TextOutput(width)))


def job(*lines: str) -> JobTransports:
    reader = Reader()
    reader.stream(io.BytesIO("\n".join([*lines, ""]).encode()), "x.log")
    return JobTransports(reader.log())


def read(logs: JobLogs, folder: Path) -> JobTransports:
    reader = Reader()
    for path in logs.write(folder):
        reader.file(path)
    return JobTransports(reader.log())


def test_small_job_is_drawn_node_by_node(tmp_path: Path) -> None:
    """Two nodes of two in a ring: P2P inside, InfiniBand across the stroke between the nodes."""
    lines = drawn(read(JobLogs(2, 2, channels=1), tmp_path))
    assert lines[0] == "G NET/IB/GDRDMA; P P2P/CUMEM; * several kinds; . no edge logged"
    assert lines[3:] == [
        "         0 1|2 3",
        "k001  0  \\ P|G .",
        "      1  P \\|G .",
        "        ----|---",
        "k002  2  G .|\\ P",
        "      3  G .|P \\",
    ]


def test_many_ranks_take_one_character_each(tmp_path: Path) -> None:
    """512 ranks: a row has a character per rank, and a stroke between each two of the 64 nodes."""
    lines = drawn(read(JobLogs(64, 8, channels=1), tmp_path))
    rows = [line for line in lines if "\\" in line]
    assert len(rows) == 512
    assert {len(row) for row in rows} == {len("k001    0  ") - 1 + 512 + 63}


def test_matrix_wider_than_the_terminal_has_a_hint(tmp_path: Path) -> None:
    """A matrix cannot be wrapped; the hint says how to see whole lines."""
    transports = read(JobLogs(2, 8, channels=1), tmp_path)
    assert any("less -S" in line for line in drawn(transports, 40))
    assert not any("less -S" in line for line in drawn(transports, 80))


def test_several_kinds_in_a_cell_are_marked() -> None:
    """A pair with collectives over P2P and send/recv over SHM gets a star."""
    head = "k1:1:9 [0] NCCL INFO Channel 00/"
    lines = drawn(
        job(f"{head}0 : 0[0] -> 1[1] via P2P/IPC", f"{head}1 : 0[0] -> 1[1] via SHM/direct/direct")
    )
    assert "k1  0  \\ *" in lines


def test_communicators_are_drawn_one_by_one() -> None:
    """Each has its own matrix, since rank numbers repeat."""
    lines = [
        f"k1:{pid}:9 [0] NCCL INFO comm 0x1 rank {pid % 2} nranks 2 cudaDev 0 busId {pid} "
        f"commId 0x{pid // 2} - Init COMPLETE"
        for pid in (2, 3, 4, 5)
    ]
    edges = [f"k1:{pid}:9 [0] NCCL INFO Channel 00 : 0[2] -> 1[3] via P2P/IPC" for pid in (2, 4)]
    text = "\n".join(drawn(job(*lines, *edges)))
    assert "communicator 0, " in text
    assert "communicator 1, " in text


def test_every_kind_has_a_letter_of_its_own() -> None:
    """Known kinds have fixed letters; networks of other names get free ones."""
    kinds = [*CODES, "NET/AWS Libfabric/GDRDMA", "NET/AWS Libfabric", "NET/FastSocket"]
    codes = assign_letters(kinds)
    assert len(set(codes.values())) == len(kinds)
    assert codes["NET/AWS Libfabric/GDRDMA"].isupper()


def test_too_many_ranks_are_not_drawn() -> None:
    """A matrix grows with the square of its ranks."""
    lines = [
        f"k1:{n}:9 [0] NCCL INFO Channel 00 : {2 * n}[0] -> {2 * n + 1}[1] via P2P/IPC"
        for n in range(1, 1100)
    ]
    assert "2,198 ranks are too many to draw (at most 2,048); --json lists all edges" in drawn(
        job(*lines)
    )


def test_ranks_without_a_line_are_left_out() -> None:
    """Only one node of a communicator of 1000 ranks has a log: the ranks in it are drawn."""
    head = "k1:1:9 [0] NCCL INFO "
    text = drawn(
        job(
            f"{head}comm 0x1 rank 0 nranks 1000 cudaDev 0 busId 1000 commId 0xa - Init START",
            f"{head}Channel 00/0 : 0[0] -> 7[7] via P2P/CUMEM",
        )
    )
    assert "(998 ranks without a log line left out)" in text
