"""The wording of every version is read, and wordings that NCCL does not use are not."""

from __future__ import annotations

import pytest

from pytest_clustersmoke.evidence.nccl.nccl_log import Edge, NcclProcess, Where, parse_transport
from tests.evidence.nccl.wording import VERSIONS, Nccl, edges, gpu, read, text_of

ZERO, ONE, THREE = gpu(0), gpu(1), gpu(3)  # of 2 nodes of 2
HEAD = "k000:4000:4040 [0] NCCL INFO "


def one_edge(line: str) -> Edge:
    log = read(f"{line}\n".encode())
    assert len(log.edges) == 1, line
    assert log.torn == (), line
    return log.edges[0]


def since(first: str, last: str = "9") -> list[Nccl]:
    """The versions from `first` on and before `last`."""
    bounds = Nccl(first).number, Nccl(last).number
    return [nccl for nccl in map(Nccl, VERSIONS) if bounds[0] <= nccl.number < bounds[1]]


# -- Edges -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("nccl", since("2.3.5"), ids=lambda nccl: nccl.version)
class TestEdgesOfAVersion:
    def test_p2p(self, nccl: Nccl) -> None:
        """A P2P edge is logged by its sender, with the channel and, from 2.14 on, the
        connection."""
        edge = one_edge(nccl.p2p(ZERO, ONE, channel=3, connection=1))
        assert (edge.source, edge.destination, edge.wording) == (0, 1, "P2P/IPC")
        assert (edge.channels, edge.role, edge.own_rank) == ((3,), "send", 0)
        assert edge.connection == (1 if nccl.number >= (2, 14, 3) else None)
        assert edge.logger == NcclProcess("", "k000", "4000")
        assert edge.where == Where("log", 1)

    def test_shm(self, nccl: Nccl) -> None:
        """Every wording of a shared memory edge has the kind SHM."""
        edge = one_edge(nccl.shm(ONE, ZERO, channel=11))
        assert (edge.wording, edge.kind, edge.channels) == (nccl.shm_wording, "SHM", (11,))
        assert (edge.role, edge.connection) == ("send", None)

    @pytest.mark.parametrize("role", ["send", "receive"])
    def test_net(self, nccl: Nccl, role: str) -> None:
        """A NET edge is read from either end, with its role."""
        edge = one_edge(nccl.net(ONE, THREE, "Socket/2", role, channel=1))
        assert (edge.source, edge.destination, edge.kind) == (1, 3, "NET/Socket")
        assert (edge.role, edge.own_rank) == (role, 1 if role == "send" else 3)
        assert edge.logger == NcclProcess(
            "", *(("k000", "4001") if role == "send" else ("k001", "4101"))
        )
        assert edge.transport.device == 2


@pytest.mark.parametrize(
    ("wording", "kind"),
    [
        ("P2P/common device", "P2P/common device"),
        ("P2P/direct pointer", "P2P/direct pointer"),
        ("P2P/direct pointer/read", "P2P/direct pointer"),
        ("P2P/IPC/read", "P2P/IPC"),
        ("P2P/IPC/CE", "P2P/IPC"),
        ("P2P/IPC/read/CE", "P2P/IPC"),
        ("P2P/CUMEM", "P2P/CUMEM"),
        ("P2P/CUMEM/read", "P2P/CUMEM"),
        ("P2P/CUMEM/CE", "P2P/CUMEM"),
        ("P2P/MNNVL", "P2P/MNNVL"),
        ("P2P/indirect/1[5000]", "P2P/indirect"),
        ("P2P/indirect/1[5]/read", "P2P/indirect"),
        ("SHM/direct/direct", "SHM"),
        ("SHM/CE/direct", "SHM"),
        ("SHM/direct/CE", "SHM"),
        ("SHM/CE/CE", "SHM"),
        ("SHM/direct", "SHM"),
        ("direct shared memory", "SHM"),
        ("NET/IB/0", "NET/IB"),
        ("NET/IB/13/GDRDMA", "NET/IB/GDRDMA"),
        ("NET/IB/3/GDRDMA(PCI)", "NET/IB/GDRDMA"),
        ("NET/IB/3/GDRDMA/Shared", "NET/IB/GDRDMA"),
        ("NET/IB/3/GDRDMA(PCI)/Shared", "NET/IB/GDRDMA"),
        ("NET/IB/3/Shared", "NET/IB"),
        ("NET/IB/1(2)", "NET/IB"),
        ("NET/IB/1(14)/GDRDMA/Shared", "NET/IB/GDRDMA"),
        ("NET/Socket/0/GDCopy", "NET/Socket"),  # 2.3
        ("NET/IB/0/GDRDMA/flush=None", "NET/IB/GDRDMA"),  # 2.31
        ("NET/IBext/0/GDRDMA", "NET/IBext/GDRDMA"),
        ("NET/IBext_v8/0", "NET/IBext_v8"),
        ("NET/IB-CAST/0/GDRDMA", "NET/IB-CAST/GDRDMA"),
        ("NET/FastSocket/0", "NET/FastSocket"),
        ("NET/AWS Libfabric/0/GDRDMA", "NET/AWS Libfabric/GDRDMA"),
        ("NET/AWS Libfabric/1(2)/GDRDMA/Shared", "NET/AWS Libfabric/GDRDMA"),
    ],
)
def test_wordings_and_kinds(wording: str, kind: str) -> None:
    """The transport is NCCL's complete wording; the kind is the name that criteria use."""
    role = " [send]" if wording.startswith("NET") else ""
    edge = one_edge(f"{HEAD}Channel 02/0 : 0[0] -> 1[1]{role} via {wording}")
    assert (edge.wording, edge.kind) == (wording, kind)
    assert (edge.channels, edge.connection) == ((2,), 0)


def test_transport_is_parsed() -> None:
    """NIC, GPUDirect RDMA, the rank of the PXN proxy and sharing are separate values."""
    transport = parse_transport("NET/AWS Libfabric/1(2)/GDRDMA(PCI)/Shared")
    assert (transport.net, transport.device, transport.pxn_proxy) == ("AWS Libfabric", 1, 2)
    assert transport.gdrdma
    assert transport.shared
    plain = parse_transport("NET/IB/12")
    assert (plain.net, plain.device, plain.pxn_proxy) == ("IB", 12, None)
    assert not plain.gdrdma
    assert not plain.shared
    assert parse_transport("P2P/IPC/read").net is None


def test_the_oldest_lines_without_ids_and_roles_are_read() -> None:
    """2.3 prints no ids for a common device, and neither ids nor role for a network."""
    edge = one_edge(f"{HEAD}Ring 00 : 0 -> 1 via P2P/common device")
    assert (edge.source, edge.destination, edge.role) == (0, 1, "send")
    edge = one_edge(f"{HEAD}Ring 01 : 3 -> 0 via NET/Socket/0")
    assert (edge.source, edge.destination, edge.role, edge.own_rank) == (3, 0, None, None)


def test_channels_of_an_edge_are_collected() -> None:
    """An edge has all channels of its lines, including those with three digits."""
    lines = [f"{HEAD}Channel {c:02d}/0 : 0[0] -> 1[1] via P2P/CUMEM" for c in (0, 7, 99, 100, 127)]
    edge = read(text_of(lines * 2)).edges[0]
    assert edge.channels == (0, 7, 99, 100, 127)


@pytest.mark.parametrize(
    "line",
    [
        "Channel 00/08 :    0   1",  # a ring
        "Channel 00/02 : 0 1",
        "Trees [0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->-1",
        "Ring 00 : 3 -> 0 -> 1",
        "P2P is disabled between NVLINK connected GPUs 1 and 0",
        "Connected all rings, use ring PXN 0 GDR 1",
        "NCCL_P2P_LEVEL set by environment to LOC",
    ],
)
def test_lines_that_are_not_edges(line: str) -> None:
    """Rings, trees and prose are neither edges nor torn."""
    log = read(
        f"{HEAD}{line}\nGPU-to-GPU communication via NVLink, via srun and via P2P\n".encode()
    )
    assert log.edges == ()
    assert log.torn == ()


@pytest.mark.parametrize(
    "wording",
    [
        "P2P/IP",
        "P2P/IPC/rea",
        "P2P/4",
        "P2P",
        "SHM",
        "SHM/dir",
        "SHM/direct/dire",
        "direct shared mem",
        "NET/IB",
        "NET/IB/",
        "NET/IB/3/",
        "NET/IB/3/GDR",
        "NET/IB/3/GDRDMA(PC",
        "NET/IB/1(2",
        "NET/IB/3/GDRDMA/Sha",
        "NET/AWS Libfa",
    ],
)
def test_cut_wordings_are_torn(wording: str) -> None:
    """A wording that NCCL never prints is recorded as torn, without an edge."""
    log = read(f"{HEAD}Channel 00/0 : 0[0] -> 1[1] [send] via {wording}\n".encode())
    assert log.edges == ()
    assert log.torn == (Where("log", 1),)
    assert log.torn_count == 1


@pytest.mark.parametrize("word", ["Coll", "CollNet"])
@pytest.mark.parametrize("number", ["00", "00/0"])
def test_collnet_names_a_rank_and_no_peer(word: str, number: str) -> None:
    """Connections into the network's own collectives, old wording and new, are not edges."""
    lines = [
        f"{HEAD}{word} {number} : 0 [send] via COLLNET/SHARP/0/GDRDMA",
        f"{HEAD}{word} {number} : 0 [receive] via COLLNET/SHARP/1",
    ]
    log = read(text_of(lines))
    assert log.edges == ()
    assert [(link.rank, link.role, link.kind) for link in log.collnet] == [
        (0, "send", "COLLNET/SHARP/GDRDMA"),
        (0, "receive", "COLLNET/SHARP"),
    ]


# -- Communicators ---------------------------------------------------------------------------------


@pytest.mark.parametrize("nccl", since("2.3.5"), ids=lambda nccl: nccl.version)
def test_lines_of_init(nccl: Nccl) -> None:
    """Rank, ranks, devices, nodes and init progress are read from each version's wording."""
    lines = [nccl.banner(ZERO), *nccl.start(ZERO, 4, "0xa")]
    lines += [*nccl.nodes(ZERO, 4, 2, "0xa"), nccl.complete(ZERO, 4, "0xa")]
    log = read(text_of(lines))
    assert log.versions == (nccl.version,)
    [comm] = log.communicators
    member = comm.members[0]
    assert (comm.ranks, comm.id) == (4, "0xf021d9" if nccl.number >= (2, 17, 0) else None)
    assert member.process == NcclProcess("", "k000", "4000")
    assert member.complete
    assert member.started is (nccl.number >= (2, 17, 0))
    assert member.cuda_device == (0 if nccl.number >= (2, 4, 0) else None)
    assert member.bus_id == ("18000" if nccl.number >= (2, 5, 0) else None)
    assert comm.nodes == (2 if nccl.number >= (2, 20, 3) else None)
    assert member.local_rank == (0 if nccl.number >= (2, 20, 3) else None)


@pytest.mark.parametrize("nccl", since("2.17.1"), ids=lambda nccl: nccl.version)
def test_an_init_that_did_not_end(nccl: Nccl) -> None:
    """A rank that started and did not complete makes its communicator incomplete."""
    first, second = nccl.start(ZERO, 2, "0xa")[0], nccl.start(ONE, 2, "0xb")[0]
    log = read(text_of([first, second, nccl.complete(ZERO, 2, "0xa")]))
    [comm] = log.communicators
    assert comm.complete is False
    assert [comm.members[rank].complete for rank in (0, 1)] == [True, False]
    done = read(
        text_of(
            [first, second, *(nccl.complete(g, 2, c) for g, c in ((ZERO, "0xa"), (ONE, "0xb")))]
        )
    )
    assert done.communicators[0].complete is True


@pytest.mark.parametrize("state", ["Abort COMPLETE", "Destroy COMPLETE"])
def test_end_of_a_communicator_adds_none(state: str) -> None:
    """Abort and Destroy end a known communicator; alone they do not create one."""
    end = f"{HEAD}comm 0xa rank 0 nranks 2 cudaDev 0 busId 18000 - {state}"
    assert read(text_of([end])).communicators == ()
    log = read(text_of([Nccl("2.20.5").complete(ZERO, 2, "0xa"), end]))
    assert [comm.members[0].complete for comm in log.communicators] == [True]


@pytest.mark.parametrize(
    "api", ["ncclCommInitRankConfig", "ncclCommInitAll", "ncclCommInitRankScalable", "ncclCommGrow"]
)
def test_api_name_before_an_init_line(api: str) -> None:
    """The header is found before the API's name, and from 2.29 on before the rank."""
    for rank in ("", "[Rank 0] "):
        comm_text = (
            "comm 0xa rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0x1 - Init START"
        )
        [comm] = read(f"{HEAD}{rank}{api} {comm_text}\n".encode()).communicators
        assert comm.members[0].process == NcclProcess("", "k000", "4000")


# -- Networks, devices, NVLS, warnings -------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "net", "names"),
    [
        ("NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE", "IB", ["mlx5_0", "mlx5_1"]),
        ("NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_bond_0:1/RoCE [RO]; OOB eno1:10.1.2.6<0>", "IB",
         ["mlx5_0", "mlx5_bond_0"]),
        ("NET/IB : Using [0]ibp161s0:1/RoCE/DETH", "IB", ["ibp161s0"]),
        ("NET/IBext_v8 : Using [0]mlx5_0:1/IB/SHARP [RO]; OOB ib0:fe80::1%ib0<0>", "IBext_v8",
         ["mlx5_0"]),
        ("NET/Socket : Using [0]eth0:10.1.2.6<0> [1]ens4f1:10.2.2.6<0>", "Socket",
         ["eth0", "ens4f1"]),
        ("NET/Socket : Using [0]veth1:fe80::fc%veth1<0>", "Socket", ["veth1"]),
    ],
)  # fmt: skip
def test_an_edge_names_its_nic(line: str, net: str, names: list[str]) -> None:
    """The NIC of an edge has its index in the logger's own list."""
    for index, name in enumerate(names):
        edge = f"{HEAD}Channel 00/0 : 0[0] -> 2[0] [send] via NET/{net}/{index}"
        assert read(text_of([HEAD + line, edge])).edges[0].nic == name
    edge = f"{HEAD}Channel 00/0 : 0[0] -> 2[0] [send] via NET/{net}/7"
    assert read(text_of([HEAD + line, edge])).edges[0].nic is None


def test_a_virtual_device_is_a_nic() -> None:
    """From 2.23 on NICs may be merged; the merged one has an index of its own."""
    lines = [
        "NET/IB : Made virtual device [8] name=mlx5_0+mlx5_1 speed=800000 ndevs=2",
        "Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/8/GDRDMA",
    ]
    assert read(text_of(HEAD + line for line in lines)).edges[0].nic == "mlx5_0+mlx5_1"


def test_list_of_another_process_is_not_used() -> None:
    """Each node numbers its own NICs, so its list is not valid for other nodes."""
    other = "k001:4100:4140 [0] NCCL INFO NET/IB : Using [0]mlx5_4:1/IB"
    edge = f"{HEAD}Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/0"
    assert read(text_of([other, edge])).edges[0].nic is None


def test_conflicting_lists_without_process_are_not_used() -> None:
    """Without headers a list may belong to any node, so names that differ between lists are
    unknown."""
    lists = ["NET/IB : Using [0]ibp161s0:1/RoCE [1]mlx5_1:1/IB", "NET/IB : Using [0]ibp65s0:1/RoCE"]
    sent = [f"Channel 00 : 0[0] -> 2[0] via NET/IB/{index}" for index in (0, 1)]
    log = read(text_of(f"NCCL INFO {line}" for line in (*lists, *sent)))
    assert [edge.nic for edge in log.edges] == [None, "mlx5_1"]


@pytest.mark.parametrize("name", ["IB", "Socket", "AWS Libfabric", "IBext_v8", "FastSocket"])
def test_chosen_network(name: str) -> None:
    """`Using network` is recorded by process; it is not an edge."""
    log = read(f"{HEAD}Using network {name}\n".encode())
    assert log.networks == {NcclProcess("", "k000", "4000"): (name,)}
    assert log.edges == ()


def test_a_process_that_found_no_infiniband() -> None:
    log = read(f"{HEAD}NET/IB : No device found.\n".encode())
    assert log.without_ib == (NcclProcess("", "k000", "4000"),)


@pytest.mark.parametrize(
    "line",
    [
        "Connected NVLS tree",
        "NVLS comm 0xa headRank 0 nHeads 2 buffSize 4194304 memSize 2097152 nvlsPerRankSize 1",
        "NVLS comm 0xa headRank 0 nHeads 2 nvlsRanks 2 buffSize 4194304 nvlsPerRankSize 1",
    ],
)
def test_nvls_was_connected(line: str) -> None:
    """NVLS has no `via` lines, only its own."""
    nccl = Nccl("2.27.7")
    inits = [*nccl.start(ZERO, 2, "0xa"), HEAD + line, nccl.complete(ZERO, 2, "0xa")]
    log = read(text_of(inits))
    assert log.nvls == {NcclProcess("", "k000", "4000")}
    assert [comm.nvls for comm in log.communicators] == [True]


@pytest.mark.parametrize(
    "line",
    ["NVLS multicast support is available on dev 0", "24 coll channels, 16 nvls channels"],
)
def test_nvls_support_is_not_nvls_use(line: str) -> None:
    """A GPU that supports NVLS, or counted channels, are not a connection."""
    log = read(text_of([*Nccl("2.27.7").start(ZERO, 2, "0xa"), HEAD + line]))
    assert log.nvls == frozenset()
    assert [comm.nvls for comm in log.communicators] == [False]


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NCCL version 2.4.8+cuda10.0", "2.4.8"),
        ("NCCL version 2.20.5+cuda12.4", "2.20.5"),
        ("k000:1:2 [0] NCCL INFO NCCL version 2.22.3+cuda12.5", "2.22.3"),
        ("NCCL version 2.18+cuda11.0", "2.18"),
        ("[rank0]: NCCL version 2.30.7+cuda13.0", "2.30.7"),
        ("Driver version 550.54", None),
        ("NCCL version unknown", None),
    ],
)
def test_the_version(line: str, version: str | None) -> None:
    """NCCL's own line has its version, without a header up to 2.21 and with one from 2.22 on."""
    assert read(f"{line}\n".encode()).version == version


def test_different_versions_are_all_listed() -> None:
    log = read(b"NCCL version 2.20.5+cuda12.4\nNCCL version 2.18.3+cuda12.1\n")
    assert log.versions == ("2.18.3", "2.20.5")
    assert log.version == "2.18.3, 2.20.5"


@pytest.mark.parametrize("nccl", since("2.3.5"), ids=lambda nccl: nccl.version)
def test_warnings(nccl: Nccl) -> None:
    """A warning has its text, its place in NCCL's source, its function (2.30.7) and its process."""
    text = "Connect to 10.0.0.1<37263> failed : Connection timed out"
    log = read(f"{nccl.warn(ONE, text, 'misc/socket.cc:403', 'socketConnect')}\n".encode() * 2)
    [warning] = log.warnings
    assert (warning.text, warning.source, warning.count) == (text, "misc/socket.cc:403", 2)
    assert warning.function == ("socketConnect" if nccl.number >= (2, 30, 7) else None)
    assert warning.process == NcclProcess("", "k000", "4001")
    assert warning.where == Where("log", 2)


def test_warning_without_place_or_header_is_kept() -> None:
    """The text of a warning counts even if a logger stripped what precedes it."""
    log = read(b"NCCL WARN Error: no space\nx.cc:1 NCCL WARN other\n")
    assert [(warning.text, warning.source, warning.process) for warning in log.warnings] == [
        ("Error: no space", None, None),
        ("other", "x.cc:1", None),
    ]


@pytest.mark.parametrize(
    "time",
    [
        "[2026-04-22 21:34:20] ",
        "[2025-09-01 12:00:00.123] ",
        "2025/09/01 12:00:00.001 ",
        "[Sep 01] ",
        "12:00:00 ",
        "1756728000.123456 ",
    ],
)
def test_time_before_any_line(time: str) -> None:
    """Users choose NCCL_DEBUG_TIMESTAMP_FORMAT freely (2.26 and later)."""
    nccl = Nccl("2.26.2")
    lines = [*nccl.start(ZERO, 4), nccl.net(ZERO, THREE), nccl.complete(ZERO, 4)]
    log = read(text_of(time + line for line in lines))
    assert edges(log) == {(0, 3, "NET/IB/0")}
    assert log.edges[0].communicators == (0,)
    assert log.edges[0].logger == NcclProcess("", "k000", "4000")
    assert log.communicators[0].members[0].process == NcclProcess("", "k000", "4000")
