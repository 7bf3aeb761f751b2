"""Real logs: samples, every launcher's prefix, torn, glued, cut and huge lines, non-text."""

from __future__ import annotations

import gzip
import io
import json
import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.nccl import log_reader
from pytest_clustersmoke.evidence.nccl.log_reader import Reader, Unreadable
from pytest_clustersmoke.evidence.nccl.nccl_log import Log, NcclProcess, Where
from tests.evidence.nccl import large
from tests.evidence.nccl.samples import DATA, SAMPLES
from tests.evidence.nccl.wording import Nccl, edges, gpu, read, text_of

HEAD = "k023:4100:4140 [0] NCCL INFO "
IB = "Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/3/GDRDMA"
IPC = "Channel 00/0 : 0[0] -> 1[1] via P2P/IPC"


def edges_of(log: Log, kinds: bool = False) -> list[str]:
    """`0 -> 2 NET/IB/3/GDRDMA` of each edge, in order of ranks."""
    edges = {(e.source, e.destination, e.kind if kinds else e.wording) for e in log.edges}
    return [f"{source} -> {destination} {text}" for source, destination, text in sorted(edges)]


def asymmetric(log: Log) -> list[str]:
    """The edges whose ends logged different kinds."""
    ends: dict[tuple[int, int], dict[str | None, str]] = {}
    for edge in log.edges:
        ends.setdefault((edge.source, edge.destination), {})[edge.role] = edge.kind
    return [f"{s} -> {d}" for (s, d), kinds in ends.items() if len(set(kinds.values())) > 1]


# -- Samples ---------------------------------------------------------------------------------------


def expected(name: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text())
    return facts


def sample(name: str) -> Log:
    reader = Reader()
    reader.file(DATA / f"{name}.log", name)
    return reader.log()


def test_no_sample_is_missing() -> None:
    assert len(SAMPLES) == 25


@pytest.mark.parametrize("name", SAMPLES)
class TestSamples:
    def test_edges(self, name: str) -> None:
        """Every edge has NCCL's own wording and its kind; none is missing, and none is invented."""
        log, wanted = sample(name), expected(name)
        assert edges_of(log) == wanted["edges"]
        assert edges_of(log, kinds=True) == wanted["kinds"]
        assert asymmetric(log) == wanted.get("asymmetric", [])
        assert log.torn == ()

    def test_everything_else(self, name: str) -> None:
        """Version, networks, communicators and warnings, if the sample has them."""
        log, wanted = sample(name), expected(name)
        assert log.version == wanted["version"]
        chosen = sorted({net for nets in log.networks.values() for net in nets})
        assert chosen == wanted.get("networks", [])
        assert [f"{warning.source} {warning.text}" for warning in log.warnings] == wanted.get(
            "warnings", []
        )
        if wanted.get("failed"):
            assert log.warnings
            assert not any(comm.complete for comm in log.communicators)
        listed = wanted.get("communicators", log.communicators)
        assert len(log.communicators) == len(listed)
        for comm, facts in zip(log.communicators, wanted.get("communicators", ()), strict=False):
            assert comm.ranks == facts["ranks"]
            assert comm.id == facts.get("id")
            assert comm.complete is facts.get("complete")
            assert len(comm.members) == facts.get("members", len(comm.members))


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_without_its_last_newline(name: str) -> None:
    """Copied logs often have none. The last line counts if complete lines have wordings of the same
    form; otherwise it may have been cut, and counts as torn."""
    text = (DATA / f"{name}.log").read_bytes()
    log, whole = read(text[:-1]), edges(read(text))
    alone = {(9, 2, "NET/IB/1")} if name.startswith("36") else set()
    assert edges(log) == whole - alone
    assert log.torn_count == len(alone)


def test_edges_are_in_a_stable_order() -> None:
    """By source, destination and wording, whatever the order of the lines."""
    lines = (DATA / "01_2x2_cumem_ib_gdrdma.log").read_text().splitlines()
    order = [(e.source, e.destination, e.wording, e.role) for e in read(text_of(lines)).edges]
    assert order == sorted(order)
    again = read(text_of(reversed(lines))).edges
    assert [(e.source, e.destination, e.wording, e.role) for e in again] == order


# -- Quoted logs -----------------------------------------------------------------------------------


def test_correct_output_quoted_without_headers() -> None:
    """Headers are gone, the pointer is `0x...`: the edges and both inits are read."""
    text = """
    NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct
    NCCL INFO Channel 01 : 0[0] -> 1[1] via SHM/direct/direct
    NCCL INFO Connected all rings
    NCCL INFO Connected all trees
    NCCL INFO comm 0x... rank 0 nranks 2 - Init COMPLETE
    NCCL INFO comm 0x... rank 1 nranks 2 - Init COMPLETE
    """
    log = read(text.encode())
    assert edges_of(log) == ["0 -> 1 SHM/direct/direct"]
    assert log.edges[0].channels == (0, 1)
    [comm] = log.communicators
    assert (comm.ranks, comm.complete, sorted(comm.members)) == (2, True, [0, 1])
    assert {member.process for member in comm.members.values()} == {None}


def test_incorrect_output_quoted_without_headers() -> None:
    """`Using network IB` next to a P2P edge: the chosen network was not used between these
    ranks."""
    log = read(b"NCCL INFO Using network IB\nNCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n")
    assert edges_of(log, kinds=True) == ["0 -> 1 P2P/CUMEM"]
    assert log.networks == {None: ("IB",)}


def test_four_nodes_quoted_without_headers() -> None:
    """Transports are kept as logged, even an impossible P2P between nodes; NIC lists that differ
    between nodes give no name."""
    text = b"""gilbreth-i004: NCCL INFO NET/IB : Using [0]ibp161s0:1/RoCE/DETH
gilbreth-k023: NCCL INFO NET/IB : Using [0]ibp65s0:1/RoCE/DETH
gilbreth-k024: NCCL INFO NET/IB : Using [0]ibp65s0:1/RoCE/DETH
gilbreth-k025: NCCL INFO NET/IB : Using [0]ibp65s0:1/RoCE/DETH
NCCL INFO Channel 00 : 0[0] -> 4[0] via P2P/CUMEM
NCCL INFO Channel 00 : 0[0] -> 2[0] via NET/IB/0
"""
    log = read(text)
    assert edges_of(log) == ["0 -> 2 NET/IB/0", "0 -> 4 P2P/CUMEM"]
    assert [edge.nic for edge in log.edges] == [None, None]
    assert [edge.logger for edge in log.edges] == [None, None]


def test_pids_hidden_behind_x() -> None:
    """`host:XXXXX:XXXXX [0]` is a header; `Using interface` and prose are not lists of devices."""
    text = b"""innmi1srh2-p040:XXXXX:XXXXX [0] NCCL INFO Bootstrap : Using enp26s0np0:10.11.7.50<0>
innmi1srh2-p040:XXXXX:XXXXX [0] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so)
innmi1srh2-p040:XXXXX:XXXXX [0] NCCL INFO NET/IB : Using interface enp26s0np0
innmi1srh2-p041:XXXXX:XXXXX [0] NCCL INFO Connected to master 10.11.7.50:29600
innmi1srh2-p041:XXXXX:XXXXX [0] NCCL INFO Using network Socket
NCCL WARN ... connect to 10.11.7.50<12345> failed: No route to host
"""
    log = read(text)
    assert (log.edges, log.communicators, log.torn) == ((), (), ())
    assert log.networks == {NcclProcess("", "innmi1srh2-p041", "XXXXX"): ("Socket",)}
    assert [warning.text for warning in log.warnings] == [
        "... connect to 10.11.7.50<12345> failed: No route to host"
    ]


def test_prose_about_transports_is_not_an_edge() -> None:
    """A guide that mentions NCCL, `via NVLink/P2P`, `ncclCommInitRank ... nranks 8`."""
    text = b"""* `ncclCommInitRank ... nranks 8 ... Init COMPLETE`
- Intra-node GPU-to-GPU communication via NVLink/P2P
- GPUDirect RDMA via NET/IB/3 would show as `NET/IB/3/GDRDMA`
"""
    log = read(text)
    assert (log.edges, log.communicators) == ((), ())


# -- Prefixes --------------------------------------------------------------------------------------

BLUE, END = "\x1b[36m", "\x1b[0m"


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        "0: {}",
        " 3: {}",
        "03: {}",
        "[default0]:{}",
        "[default0]: {}",
        "[rank0]:{}",
        "[rank0]: {}",
        "[0]: {}",
        "[1,0]<stdout>:{}",
        "[1,0]<stdout>: {}",
        "[1,12]<stderr>: {}",
        "gpu-a: {}",
        "gpu-a.cluster: {}",
        "(RayTrainWorker pid=4711, ip=10.0.0.1) {}",
        f"{BLUE}(RayTrainWorker pid=4711, ip=10.0.0.1){END} {{}}",
        f"{BLUE}(worker pid=4711, ip=10.0.0.1){END} {{}} {BLUE}[repeated 3x across cluster]{END}",
        f"{BLUE}(worker){END} \x1b[32m{{}}{END}",
        "2025-12-28T23:55:58.210000Z {}",
        "2025-12-28T23:55:58.210000000Z stdout F {}",
        '{{"log":"{}\\\\n","stream":"stdout","time":"2025-12-28T23:55:58.2Z"}}',
        "  | 2024-12-04T05:27:48.100Z | {}",
        "Jun 01 10:00:00 k023 python[4100]: {}",
        "[2026-04-22 21:34:20] {}",
        "> {}",
        "> > {}",
        ">{}",
        "    {}",
        "\t{}",
        "`{}`",
        "[0] {}",
        "worker-0 | {}",
        "Step #3: {}",
    ],
)
def test_any_prefix_before_a_line(line: str) -> None:
    """The edge, its process and the communicator are read behind any launcher's prefix."""
    nccl, (first, second) = Nccl("2.20.5"), (gpu(0), gpu(1))
    parts = [
        *nccl.start(first, 2),
        *nccl.start(second, 2, "0x5b0"),
        *[nccl.p2p(first, second, "CUMEM", channel) for channel in range(3)],
        nccl.complete(first, 2),
        nccl.complete(second, 2, "0x5b0"),
    ]
    log = read(
        text_of(line.replace("{}", part).replace("{{", "{").replace("}}", "}") for part in parts)
    )
    assert edges_of(log) == ["0 -> 1 P2P/CUMEM"]
    assert log.edges[0].channels == (0, 1, 2)
    assert log.edges[0].logger == NcclProcess("", "k000", "4000")
    assert log.edges[0].communicators == (0,)
    assert log.communicators[0].complete is True


def test_json_that_escapes_angle_brackets() -> None:
    """Docker's json-file driver writes `->` as `-\\u003e`."""
    line = '{"log":"' + HEAD + IPC.replace(">", "\\u003e") + '\\n","stream":"stdout"}'
    log = read(f"{line}\n".encode())
    assert edges_of(log) == ["0 -> 1 P2P/IPC"]
    assert log.edges[0].logger == NcclProcess("", "k023", "4100")


def test_lines_that_end_in_cr_lf() -> None:
    """The last line may end in a CR alone."""
    text = (HEAD + IB + "\r\n" + HEAD + IPC + "\r").encode()
    assert edges_of(read(text)) == ["0 -> 1 P2P/IPC", "0 -> 2 NET/IB/3/GDRDMA"]


def test_places_are_numbered_from_one() -> None:
    """Each edge and warning has its file and line, in sparse logs and in dense ones."""
    filler = ["some text"] * 50
    lines = []
    for number in range(40):
        lines += [*filler, f"{HEAD}Channel 00/0 : {number}[0] -> {number + 1}[1] via P2P/IPC"]
    dense = [f"{HEAD}Channel 00/0 : {n}[0] -> {n + 2}[1] via P2P/IPC" for n in range(3000)]
    log = read(text_of([*lines, *dense, "x.cc:1 NCCL WARN late"]))
    where = {(edge.source, edge.destination): edge.where for edge in log.edges}
    assert all(where[n, n + 1] == Where("log", 51 * (n + 1)) for n in range(40))
    assert all(where[n, n + 2] == Where("log", 51 * 40 + n + 1) for n in range(3000))
    assert log.warnings[0].where == Where("log", len(lines) + len(dense) + 1)


# -- Torn and glued --------------------------------------------------------------------------------


def test_headers_and_bodies_written_apart() -> None:
    """2.3 may write two headers before one body, and a body alone. The last header counts; a body
    alone has no process."""
    text = f"k023:1:2 [0] NCCL INFO k023:3:4 [1] NCCL INFO {IPC}\n{IPC.replace('00/0', '01/0')}\n"
    log = read(text.encode())
    assert {(edge.channels, edge.logger) for edge in log.edges} == {
        ((0,), NcclProcess("", "k023", "3")),
        ((1,), None),
    }


@pytest.mark.parametrize(
    "host", ["k023", "10-4-3-7", "0a9b7c2d1e0f", "4e9a7654171e", "<cluster_name>", "node_1.x"]
)
@pytest.mark.parametrize(
    "wording",
    ["NET/IB/3/GDRDMA", "P2P/IPC", "P2P/CUMEM/read", "SHM/direct/direct", "direct shared memory"],
)
def test_two_lines_glued_together(host: str, wording: str) -> None:
    """A line that lost its newline: both edges are read, and the second one's process."""
    head = f"{host}:4100:4140 [0] NCCL INFO "
    role = " [send]" if wording.startswith("NET") else ""
    first = f"{head}Channel 00/0 : 0[0] -> 2[0]{role} via {wording}"
    second = f"{head}Channel 01/0 : 4[0] -> 6[0]{role} via {wording}"
    log = read(f"{head}Using network IB\n{first}{second}\n".encode())
    assert edges_of(log) == [f"0 -> 2 {wording}", f"4 -> 6 {wording}"]
    assert {edge.logger for edge in log.edges} == {NcclProcess("", host, "4100")}
    assert log.torn == ()


@pytest.mark.parametrize("host", ["10-4-3-7", "0a9b7c2d1e0f", "40", "4gpu"])
@pytest.mark.parametrize("device", [3, 12])
def test_a_number_glued_to_a_host_of_digits(host: str, device: int) -> None:
    """`NET/IB/310-4-3-7:…`: a known host name shows where the device's number ends; without one the
    line is torn."""
    sent = "Channel 00/0 : {}[0] -> {}[0] [send] via NET/IB/{}"
    glued = sent.format(0, 2, device) + f"{host}:4100:4140 [0] NCCL INFO " + sent.format(4, 6, 5)
    known = read(f"{host}:4100:4140 [0] NCCL INFO {glued}\n".encode())
    assert edges_of(known) == [f"0 -> 2 NET/IB/{device}", "4 -> 6 NET/IB/5"]
    assert {edge.logger for edge in known.edges} == {NcclProcess("", host, "4100")}
    unknown = read(f"{HEAD}{glued}\n".encode())
    assert edges_of(unknown) == ["4 -> 6 NET/IB/5"]
    assert unknown.torn_count == 1


def test_a_number_glued_to_a_host_of_letters() -> None:
    """`NET/IB/3k023:…` ends in 3 if no other line has a longer wording."""
    head = "k023:4100:4140 [0] NCCL INFO "
    first = f"{head}Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/3"
    second = f"{head}Channel 01/0 : 4[0] -> 6[0] [send] via NET/IB/5"
    assert edges_of(read(f"{first}{second}\n".encode())) == ["0 -> 2 NET/IB/3", "4 -> 6 NET/IB/5"]


@pytest.mark.parametrize("rest", ["", "k023:4100:4140 [0] NCCL INFO Connected all rings"])
@pytest.mark.parametrize("wording", ["NET/IB/31/GDRDMA", "P2P/IPC/read", "SHM/direct/direct"])
def test_a_line_cut_at_every_byte(wording: str, rest: str) -> None:
    """The last line of a log, or one that runs into another, is an edge only if it is complete: the
    log's complete lines show that NCCL's wording is longer than the cut one."""
    role = " [send]" if wording.startswith("NET") else ""
    whole = f"{HEAD}Channel 00/0 : 8[0] -> 9[1]{role} via {wording}\n".encode()
    last = f"{HEAD}Channel 01/0 : 18[0] -> 19[1]{role} via {wording}".encode()
    for cut in range(len(last)):
        text = last[:cut] + rest.encode()
        assert edges_of(read(whole + text)) == [f"8 -> 9 {wording}"], text
        # Without lines to compare with, a file that ends between two words counts as complete.
        alone = [f"18 -> 19 {wording[: cut - len(last)]}"] if not rest else []
        assert edges_of(read(text)) in ([], alone), text
    assert edges_of(read(whole + last + rest.encode())) == [
        f"8 -> 9 {wording}",
        f"18 -> 19 {wording}",
    ]


def test_cut_line_confirmed_by_a_complete_one() -> None:
    """A cut wording counts if a complete line of the same pair, on another channel or from the
    other end, has the same wording."""
    cut = f"{HEAD}Channel 07/0 : 0[0] -> 2[0] [send] via NET/IB/3"
    short = f"{HEAD}Channel 00/0 : 0[0] -> 2[0] [receive] via NET/IB/3\n{HEAD}{IB}\n"
    log = read((short + cut).encode())
    assert edges_of(log) == ["0 -> 2 NET/IB/3", "0 -> 2 NET/IB/3/GDRDMA"]
    log = read(f"{HEAD}{IB}\n{cut}".encode())
    assert edges_of(log) == ["0 -> 2 NET/IB/3/GDRDMA"]
    assert log.torn == (Where("log", 2),)


def test_an_edge_quoted_without_its_channel() -> None:
    """People quote `9[1a000] -> 2[6b000] [send] via …`. It counts only if the log has no complete
    lines, since otherwise it may be the rest of one."""
    quoted = "9[1a000] -> 2[6b000] [send] via NET/IB/0/GDRDMA\n"
    assert edges_of(read(quoted.encode())) == ["9 -> 2 NET/IB/0/GDRDMA"]
    log = read(f"{quoted}{HEAD}{IPC}\n".encode())
    assert edges_of(log) == ["0 -> 1 P2P/IPC"]
    assert log.torn_count == 1


def test_line_inside_another_line() -> None:
    """The inner line is read; the outer one is torn, and no other edge appears."""
    inner = "k024:5:6 [1] NCCL INFO Channel 03/0 : 7[1] -> 8[0] via P2P/IPC\n"
    outer = f"{HEAD}Channel 00/0 : 112[0] -> 213[1] via P2P/IPC\n"
    for place in range(1, len(outer) - 1):
        log = read((outer[:place] + inner + outer[place:]).encode())
        others = set(edges_of(log)) - {"112 -> 213 P2P/IPC"}
        assert others == {"7 -> 8 P2P/IPC"}, (place, edges_of(log))


# -- Pieces ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small() -> bytes:
    """A log with every kind of line, and lines longer than a small window."""
    nccl, sender, receiver = Nccl("2.26.2"), gpu(0), gpu(2)
    return text_of(
        [
            nccl.banner(sender),
            f"{sender.head}NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB ib0:10.0.0.1<0>",
            *nccl.start(sender, 4),
            nccl.complete(sender, 4),
            "x" * 300,
            nccl.net(sender, receiver, "IB/1/GDRDMA"),
            nccl.p2p(sender, gpu(1), "CUMEM"),
            nccl.p2p(sender, gpu(1), "CUMEM", channel=1),
            nccl.warn(sender, "Connect failed"),
            "y" * 300 + nccl.net(sender, receiver, "IB/1/GDRDMA", channel=1) + "\r",
        ]
    )


def test_chunk_size_does_not_matter(small: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk may end at any byte."""
    whole = read(small)
    assert edges_of(whole) == ["0 -> 1 P2P/CUMEM", "0 -> 2 NET/IB/1/GDRDMA"]
    for size in range(1, len(small) + 1):
        monkeypatch.setattr(log_reader, "CHUNK_BYTES", size)
        assert read(small) == whole, size


def test_a_line_longer_than_any_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line of megabytes (a progress bar, a JSON dump) is read in pieces: an edge in it is found
    at any offset, and nothing is counted twice."""
    monkeypatch.setattr(log_reader, "CHUNK_BYTES", 10_000)
    for before in range(0, 25_000, 613):
        text = b"." * before + f' "{HEAD}Channel 02/0 : 12[0] -> 34[1] via P2P/IPC" '.encode()
        text += b"misc.cc:7 NCCL WARN late" + b"." * 30_000
        log = read(text)
        assert edges_of(log) == ["12 -> 34 P2P/IPC"], before
        assert [warning.count for warning in log.warnings] == [1], before
        assert log.torn == (), before


def test_short_reads_of_a_pipe(small: bytes) -> None:
    """A pipe may return fewer bytes than requested."""

    class Pipe(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(min(size or 1, 7))

    reader = Reader()
    reader.stream(Pipe(small), "log")
    assert reader.log() == read(small)


@pytest.mark.parametrize("stamped", [False, True])
@pytest.mark.parametrize("share", [0.05, 1.0])
def test_sparse_and_dense_reading_agree(
    share: float, stamped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Line by line or by search: the choice depends on the density of matches."""
    monkeypatch.setattr(large, "BLOCK_BYTES", 2**19)
    text = large.mixed(share, seed=1, stamped=stamped)
    monkeypatch.setattr(log_reader, "CHUNK_BYTES", 10_007)
    monkeypatch.setattr(log_reader, "DENSE_BYTES", 0)
    sparse = read(text)
    monkeypatch.setattr(log_reader, "DENSE_BYTES", 10**9)
    assert read(text) == sparse
    assert len(sparse.edges) > 100


def test_a_job_of_512_ranks() -> None:
    """64 nodes of 8 in 16 rings: every edge from each end that logs it, in one communicator."""
    log = read(text_of(large.rings(64, 8)))
    assert len({(edge.source, edge.destination) for edge in log.edges}) == 512
    assert len(log.edges) == 512 + 64  # both ends log an edge between nodes
    assert {edge.communicators for edge in log.edges} == {(0,)}
    assert {edge.channels for edge in log.edges} == {tuple(range(16))}
    assert [(comm.ranks, len(comm.members)) for comm in log.communicators] == [(512, 512)]


def test_all_pairs_of_a_job() -> None:
    """An all-to-all of 4 nodes of 4: 240 pairs, with both ends of each pair between nodes."""
    log = read(text_of(large.all_pairs(4, 4)))
    assert len({(edge.source, edge.destination) for edge in log.edges}) == 16 * 15
    assert len(log.edges) == 16 * 3 + 2 * 16 * 12
    assert {edge.nic for edge in log.edges} == {None}
    assert {edge.communicators for edge in log.edges} == {(0,)}


@pytest.mark.slow
def test_memory_does_not_grow_with_bytes() -> None:
    """Ten times as many lines of the same edges need no more memory."""
    edge = "Channel {:02d}/0 : {}[0] -> {}[1] [send] via NET/IB/0/GDRDMA"
    lines = [
        f"2025-09-01T12:00:{n % 60:02d}Z {HEAD}" + edge.format(n % 32, n % 8, 8 + n % 7)
        if n % 9 == 0
        else f"step {n} loss {n / 7:.6f} " + "z" * 99
        for n in range(20_000)
    ]
    text = text_of(lines)

    class Repeated(io.RawIOBase):
        """The lines, repeated while they are read."""

        def __init__(self, times: int) -> None:
            self._parts: Iterator[bytes] = iter([text] * times)
            self._left = b""

        def read(self, size: int = -1) -> bytes:
            if not self._left:
                self._left = next(self._parts, b"")
            part, self._left = self._left[:size], self._left[size:]
            return part

    def peak(times: int) -> int:
        tracemalloc.start()
        reader = Reader()
        reader.stream(Repeated(times), "log")  # type: ignore[arg-type]
        assert len(reader.log().edges) == 8 * 7
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    assert peak(20) < peak(2) + 200_000


# -- Not a log -------------------------------------------------------------------------------------


def refusal(path: Path) -> str:
    with pytest.raises(Unreadable) as caught:
        Reader().file(path)
    return str(caught.value)


def test_non_file_is_refused(tmp_path: Path) -> None:
    """A directory, a FIFO (which would block forever) and a missing file are each reported."""
    os.mkfifo(tmp_path / "fifo")
    assert refusal(tmp_path) == f"{tmp_path} is a directory"
    assert refusal(tmp_path / "fifo") == f"{tmp_path / 'fifo'} is not a regular file"
    assert refusal(tmp_path / "none") == f"{tmp_path / 'none'} does not exist"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_file_without_read_permission(tmp_path: Path) -> None:
    path = tmp_path / "nccl.log"
    path.touch(mode=0)
    assert refusal(path) == f"{path} cannot be read: Permission denied"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (gzip.compress(b"NCCL INFO", mtime=0), "is compressed; expected text (zcat FILE | … -)"),
        (b"\x28\xb5\x2f\xfd....", "is compressed; expected text (zstdcat FILE | … -)"),
        (HEAD.encode("utf-16"), "is UTF-16 text; expected UTF-8 (iconv -f UTF-16 -t UTF-8)"),
        (HEAD.encode("utf-16-le"), "is binary; expected a text log"),
        (b"\x7fELF\0\0\0\1", "is binary; expected a text log"),
    ],
)
def test_non_text_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    """Otherwise it would look like a log without edges, which is a finding."""
    path = tmp_path / "nccl.log"
    path.write_bytes(content)
    assert refusal(path) == f"{path} {reason}"


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "nccl.log"
    path.touch()
    reader = Reader()
    reader.file(path)
    assert reader.log() == read(b"")
    assert reader.log().edges == ()


def test_text_with_nul_bytes_is_read() -> None:
    """A file that was cut while it was written (copytruncate) begins with NULs."""
    text = b"\0" * 100 + f"{HEAD}{IPC}\n".encode() + b"\0\xff\xfe\n" + f"{HEAD}{IB}\n".encode()
    log = read(text)
    assert edges_of(log) == ["0 -> 1 P2P/IPC", "0 -> 2 NET/IB/3/GDRDMA"]
    assert {edge.logger for edge in log.edges} == {NcclProcess("", "k023", "4100")}


def test_a_stream_that_fails_keeps_what_was_read() -> None:
    """A disk that fails half-way is reported, and everything before is kept."""

    class Failing(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell():
                raise OSError(5, "Input/output error")
            return super().read()

    reader = Reader()
    with pytest.raises(Unreadable, match="log cannot be read: Input/output error"):
        reader.stream(Failing(f"{HEAD}{IPC}\n".encode()), "log")
    assert edges_of(reader.log()) == ["0 -> 1 P2P/IPC"]


def test_several_files_are_one_log(tmp_path: Path) -> None:
    """A file for each process, each with its own name in the places."""
    nccl, reader = Nccl("2.20.5"), Reader()
    for rank in (0, 1):
        process, peer = gpu(rank), gpu(1 - rank)
        lines = [*nccl.start(process, 2), nccl.p2p(process, peer), nccl.complete(process, 2)]
        path = tmp_path / f"{process.host}.{process.pid}.log"
        path.write_bytes(text_of(lines))
        reader.file(path, path.name)
    log = reader.log()
    assert [str(edge.where) for edge in log.edges] == ["k000.4000.log:2", "k000.4001.log:2"]
    assert [comm.complete for comm in log.communicators] == [True]


def test_log_is_available_at_any_time() -> None:
    """In a run in progress the log grows and keeps its earlier edges."""
    reader = Reader()
    reader.stream(io.BytesIO(f"{HEAD}{IPC}\n".encode()), "a")
    first = reader.log()
    reader.stream(io.BytesIO(f"{HEAD}{IB}\n".encode()), "b")
    assert set(edges_of(first)) < set(edges_of(reader.log()))
