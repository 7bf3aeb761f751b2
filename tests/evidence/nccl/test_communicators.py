"""An edge lists the right communicator, or all possible ones, but never only a wrong one."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable

import pytest

from pytest_clustersmoke.evidence.nccl.log_reader import Reader
from pytest_clustersmoke.evidence.nccl.nccl_log import Log, NcclProcess
from tests.evidence.nccl.wording import VERSIONS, Gpu, Nccl, gpu, read, text_of

WORLD, DATA, TENSOR = "0xa0", "0xb0", "0xc0"
GPUS = [gpu(rank) for rank in range(4)]  # 2 nodes of 2
HEAD = "k000:4000:4040 [0] NCCL INFO "
EDGE = "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"

NAMED = [nccl for nccl in map(Nccl, VERSIONS) if nccl.number >= (2, 17, 0)]
EAGER = [nccl for nccl in map(Nccl, VERSIONS) if not nccl.lazy]
LAZY = [nccl for nccl in NAMED if nccl.lazy]


def version(nccl: Nccl) -> str:
    return nccl.version


def as_rank(process: Gpu, rank: int) -> Gpu:
    """The same process with the rank that it has in another communicator."""
    return process._replace(rank=rank)


def pair(process: Gpu, other: Gpu) -> tuple[Gpu, Gpu]:
    """Two processes as ranks 0 and 1 of a communicator."""
    return as_rank(process, 0), as_rank(other, 1)


def pointer(process: Gpu, comm: str) -> str:
    """The address of the communicator in the process."""
    return f"{comm}{process.pid}"


def init(nccl: Nccl, process: Gpu, ranks: int, comm: str, inside: Iterable[str] = ()) -> list[str]:
    """The lines of one rank's init, with those that it logs inside it."""
    arguments = process, ranks, pointer(process, comm), comm
    return [*nccl.start(*arguments), *inside, nccl.complete(*arguments)]


def owners(log: Log) -> dict[tuple[str, int, int], list[tuple[int, ...]]]:
    """Logger, source, destination -> the communicators that those edges may belong to."""
    communicators: dict[tuple[str, int, int], list[tuple[int, ...]]] = {}
    for edge in log.edges:
        assert edge.logger is not None
        key = edge.logger.pid, edge.source, edge.destination
        communicators.setdefault(key, []).append(edge.communicators)
    return communicators


def members(log: Log) -> list[dict[int, str | None]]:
    """The pids of each communicator's ranks."""
    return [
        {
            rank: member.process.pid if member.process else None
            for rank, member in comm.members.items()
        }
        for comm in log.communicators
    ]


def ids(log: Log) -> list[str | None]:
    return [comm.id for comm in log.communicators]


WHOLE = {0: "4000", 1: "4001", 2: "4100", 3: "4101"}


def world_and_tensor(nccl: Nccl, eager: bool) -> list[str]:
    """A world of four ranks, and a group of two on each node whose ranks have the same numbers."""
    banner, worlds, groups = nccl.banner(GPUS[0]), [], []
    for process in GPUS:
        other = GPUS[process.rank ^ 1]
        after = GPUS[(process.rank + 1) % 4]
        ring = [nccl.net(process, after, "IB/0", channel=c) for c in (0, 1)]
        mine, its = (
            pair(process, other) if process.rank < other.rank else pair(other, process)[::-1]
        )
        local = [nccl.p2p(mine, its, channel=c) for c in (0, 1)]
        worlds += init(nccl, process, 4, WORLD, ring if eager else ())
        comm = f"{TENSOR}{process.rank // 2}"
        groups += init(nccl, mine, 2, comm, local if eager else ())
        if not eager:
            worlds += ring  # the first collective of the world, before the groups are made
            groups += local
    return [banner, *worlds, *groups]


@pytest.mark.parametrize("nccl", [nccl for nccl in NAMED if not nccl.lazy], ids=version)
def test_edge_within_init_belongs_to_it(nccl: Nccl) -> None:
    """Up to 2.21 rings are connected within init: 0 -> 1 of the world is not 0 -> 1 of a group."""
    log = read(text_of(world_and_tensor(nccl, eager=True)))
    assert ids(log) == [WORLD, f"{TENSOR}0", f"{TENSOR}1"]
    assert members(log) == [WHOLE, {0: "4000", 1: "4001"}, {0: "4100", 1: "4101"}]
    mine = owners(log)
    assert sorted(mine["4000", 0, 1]) == [(0,), (1,)]
    assert mine["4001", 1, 2] == [(0,)]
    assert mine["4001", 1, 0] == [(1,)]
    assert mine["4100", 0, 1] == [(2,)]
    assert mine["4100", 2, 3] == [(0,)]
    by_wording = {edge.wording: edge.communicators for edge in log.edges if edge.source == 0
                  and edge.logger == NcclProcess("", "k000", "4000")}  # fmt: skip
    assert by_wording == {"NET/IB/0": (0,), "P2P/IPC": (1,)}


@pytest.mark.parametrize("nccl", LAZY, ids=version)
def test_later_edge_belongs_to_a_completed_init(nccl: Nccl) -> None:
    """From 2.22 on an edge before a group's init belongs to the world; a later one may belong to
    either."""
    log = read(text_of(world_and_tensor(nccl, eager=False)))
    mine = owners(log)
    assert mine["4001", 1, 2] == [(0,)]  # only the world has a rank 2
    assert mine["4100", 0, 1] == [(2,)]  # in the world it is rank 2
    by_wording = {edge.wording: edge.communicators for edge in log.edges if edge.source == 0
                  and edge.logger == NcclProcess("", "k000", "4000")}  # fmt: skip
    assert by_wording == {"NET/IB/0": (0,), "P2P/IPC": (0, 1)}


@pytest.mark.parametrize("nccl", LAZY, ids=version)
def test_without_cumem_new_versions_connect_within_init(nccl: Nccl) -> None:
    """NCCL_CUMEM_ENABLE=0 or NCCL_RUNTIME_CONNECT=0: edges logged inside an init belong to it."""
    log = read(text_of(world_and_tensor(nccl, eager=True)))
    by_wording = {edge.wording: edge.communicators for edge in log.edges if edge.source == 0
                  and edge.logger == NcclProcess("", "k000", "4000")}  # fmt: skip
    assert by_wording == {"NET/IB/0": (0,), "P2P/IPC": (1,)}


def test_init_lines_decide_without_a_version() -> None:
    """Without a version, an edge logged before the next init started does not belong to that
    init."""
    process, nccl = GPUS[0], Nccl("2.22.3")
    lines = [
        *init(nccl, process, 4, WORLD),
        HEAD + EDGE,  # the world's first collective
        *init(nccl, process, 2, TENSOR),
    ]
    log = read(text_of(lines))
    assert ids(log) == [WORLD, TENSOR]
    assert log.edges[0].communicators == (0,)


def test_send_and_receive_connect_after_init() -> None:
    """Connection 1 is send/recv, which connects when it is first used, in eager versions too."""
    nccl, process = Nccl("2.20.5"), GPUS[0]
    lines = [
        nccl.banner(process),
        *init(nccl, process, 4, WORLD),
        nccl.p2p(process, GPUS[1], connection=1),
        *init(nccl, process, 2, TENSOR),
        nccl.p2p(process, GPUS[1], connection=1, channel=5),
    ]
    log = read(text_of(lines))
    assert {edge.channels: edge.communicators for edge in log.edges} == {(0,): (0,), (5,): (0, 1)}


@pytest.mark.parametrize("nccl", [Nccl("2.8.4"), Nccl("2.12.12")], ids=version)
def test_edge_may_be_a_send_before_starts_were_logged(nccl: Nccl) -> None:
    """2.7 to 2.13 do not distinguish send/recv from an init's own edges, so both communicators are
    listed."""
    first, second = GPUS[0], GPUS[1]
    lines = [
        nccl.banner(first),
        *init(nccl, first, 4, WORLD, [nccl.p2p(first, second)]),
        *init(nccl, first, 2, TENSOR, [nccl.p2p(first, second, "direct pointer")]),
    ]
    log = read(text_of(lines))
    assert {edge.wording: edge.communicators for edge in log.edges} == {
        "P2P/IPC": (0,),
        "P2P/direct pointer": (0, 1),
    }


def test_oldest_versions_have_no_send_and_receive() -> None:
    """Before 2.7 every edge belongs to the init that ends next on its thread."""
    nccl, first, second = Nccl("2.4.8"), GPUS[0], GPUS[1]
    lines = [
        nccl.banner(first),
        *init(nccl, first, 4, WORLD, [nccl.p2p(first, second)]),
        *init(nccl, first, 2, TENSOR, [nccl.p2p(first, second, "direct pointer")]),
    ]
    log = read(text_of(lines))
    assert {edge.wording: edge.communicators for edge in log.edges} == {
        "P2P/IPC": (0,),
        "P2P/direct pointer": (1,),
    }


def test_cached_line_is_read_again_after_an_init() -> None:
    """The same text before and after an init means two edges, on each thread of the process."""
    nccl = Nccl("2.22.3")
    process, worker = GPUS[0], GPUS[0]._replace(tid=9999)
    lines = [
        nccl.banner(process),
        *init(nccl, process, 4, WORLD),
        *[nccl.p2p(worker, GPUS[1], channel=c) for c in (0, 1)],
        *init(nccl, process, 2, TENSOR),
        *[nccl.p2p(worker, GPUS[1], channel=c) for c in (2, 3)],
    ]
    log = read(text_of(lines))
    assert {edge.channels: edge.communicators for edge in log.edges} == {
        (0, 1): (0,),
        (2, 3): (0, 1),
    }


# -- Splits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("nccl", [nccl for nccl in NAMED if nccl.number >= (2, 18, 0)], ids=version)
def test_split_is_a_separate_communicator(nccl: Nccl) -> None:
    """torch makes its groups by ncclCommSplit: from 2.22 on they have no commId, but a parent and a
    colour."""
    lines = [nccl.banner(GPUS[0])]
    for process in GPUS:
        lines += init(nccl, process, 4, WORLD)
    for process in GPUS:  # the columns: {0, 2} and {1, 3}
        mine = as_rank(process, process.rank // 2)
        start, end = nccl.split(
            mine,
            2,
            pointer(process, WORLD),
            pointer(process, DATA),
            1,
            process.rank % 2,
            f"0x5{process.rank % 2}",
        )
        sent = nccl.net(mine, as_rank(GPUS[process.rank ^ 2], mine.rank ^ 1))
        lines += [start, sent, end]
    log = read(text_of(lines))
    assert members(log) == [WHOLE, {0: "4000", 1: "4100"}, {0: "4001", 1: "4101"}]
    assert owners(log) == {
        ("4000", 0, 1): [(1,)],
        ("4001", 0, 1): [(2,)],
        ("4100", 1, 0): [(1,)],
        ("4101", 1, 0): [(2,)],
    }


def test_two_splits_are_two_communicators() -> None:
    """Splits of one parent and colour differ in their count; a split of a split in its parent."""
    nccl, process = Nccl("2.27.7"), GPUS[0]
    lines = init(nccl, process, 4, WORLD)
    for count, parent, comm in ((1, WORLD, DATA), (2, WORLD, TENSOR), (1, DATA, "0xd0")):
        lines += nccl.split(process, 2, pointer(process, parent), pointer(process, comm), count, 7)
    assert len(set(ids(read(text_of(lines))))) == 4


@pytest.mark.parametrize("version", ["2.18.5", "2.20.5", "2.21.5"])
def test_splits_of_one_colour_share_an_id_before_2_22(version: str) -> None:
    """commId is then a hash of parent and colour, the same for rows and columns of one colour. Two
    processes with the same rank show that there are two communicators."""
    nccl = Nccl(version)
    rows = [pair(GPUS[0], GPUS[1])]
    columns = [pair(GPUS[2], GPUS[0])]
    lines = [nccl.banner(GPUS[0])]
    for comm, groups in ((DATA, rows), (TENSOR, columns)):
        for group in groups:
            for process in group:
                lines += nccl.split(
                    process, 2, pointer(process, WORLD), pointer(process, comm), color=0
                )
    lines += [nccl.p2p(*rows[0], connection=1), nccl.p2p(*columns[0], connection=1)]
    log = read(text_of(lines))
    assert set(ids(log)) == {"0x51"}
    for edge in log.edges:
        assert edge.logger is not None
        [owner] = edge.communicators
        assert members(log)[owner] == {0: edge.logger.pid}


def test_a_split_whose_parent_was_not_logged() -> None:
    """Without its parent a split has no name, so only ranks of one process are joined."""
    nccl = Nccl("2.27.7")
    lines = [nccl.banner(GPUS[0])]
    for process in GPUS:  # the world, then two groups with one logged rank each
        lines += init(nccl, process, 4, WORLD)
    first, second = as_rank(GPUS[0], 0), as_rank(GPUS[3], 1)
    for process in (first, second):
        lines += nccl.split(process, 3, "0xffff", pointer(process, DATA), 1, process.rank)
    lines += [nccl.net(first, second), nccl.net(second, first)]
    log = read(text_of(lines))
    assert members(log)[1:] == [{0: "4000"}, {1: "4101"}]
    assert owners(log) == {("4000", 0, 1): [(0, 1)], ("4101", 1, 0): [(2,)]}


def test_grown_communicator_is_counted_once() -> None:
    """ncclCommGrow (2.29) logs its id at the start and its parent at the end."""
    nccl, process = Nccl("2.29.2"), GPUS[0]
    start = nccl.start(process, 3, "0xc", "0x77")
    _, end = nccl.split(process, 3, pointer(process, WORLD), "0xc", api="ncclCommGrow")
    log = read(text_of([*init(nccl, process, 2, WORLD), *start, end]))
    assert ids(log) == [WORLD, "0x77"]
    assert [comm.members[0].complete for comm in log.communicators] == [True, True]


# -- Without names ---------------------------------------------------------------------------------


@pytest.mark.parametrize("nccl", [nccl for nccl in EAGER if nccl not in NAMED], ids=version)
def test_before_commids_a_rank_is_one_process(nccl: Nccl) -> None:
    """A world of four differs from two groups of two by its size, the groups by their processes."""
    log = read(text_of(world_and_tensor(nccl, eager=True)))
    assert members(log)[0] == WHOLE
    assert [comm.ranks for comm in log.communicators] == [4, 2, 2]
    mine = owners(log)
    assert mine["4001", 1, 2] == [(0,)]
    assert set(mine["4101", 1, 0][0]) <= {1, 2}  # one of the groups, it is open which
    assert all(2 not in indices for indices in mine["4000", 0, 1])


def test_ranks_of_some_nodes_are_not_joined() -> None:
    """Four nodes with groups of two, and logs of two nodes: their ranks may be in different
    groups."""
    nccl = Nccl("2.8.4")
    nodes = [gpu(rank, per_node=1) for rank in range(4)]
    lines = [nccl.banner(nodes[0])]
    for process in (nodes[0], nodes[3]):
        lines += init(nccl, process, 4, WORLD)
    first, second = as_rank(nodes[0], 0), as_rank(nodes[3], 1)  # of {0, 1} and of {2, 3}
    for process in (first, second):
        lines += init(nccl, process, 2, DATA)
    log = read(text_of(lines))
    assert members(log) == [{0: "4000", 3: "4300"}, {0: "4000"}, {1: "4300"}]


def test_incomplete_inits_are_not_paired_by_count() -> None:
    """Two groups of the same two processes: if an init line is lost, the next init of that process
    is not paired with the init that it would have matched."""
    nccl, (first, second) = Nccl("2.8.4"), pair(*GPUS[:2])
    lines = [
        *init(nccl, first, 2, DATA, [nccl.p2p(first, second)]),
        *init(nccl, first, 2, TENSOR, [nccl.p2p(first, second, "direct pointer")]),
        *init(nccl, second, 2, TENSOR, [nccl.p2p(second, first, "direct pointer")]),
    ]
    log = read(text_of([nccl.banner(first), *lines]))
    assert members(log) == [{0: "4000"}, {0: "4000"}]
    assert owners(log)["4001", 1, 0] == [(0, 1)]


def test_rank_of_two_processes_shows_two_communicators() -> None:
    """Without init lines, a second process of the same rank is in another communicator."""
    nccl = Nccl("2.17.1")
    (first, second), (third, fourth) = pair(*GPUS[:2]), pair(*GPUS[2:])
    lines = [nccl.shm(first, second), nccl.shm(third, fourth), nccl.shm(second, first)]
    log = read(text_of(lines))
    assert [comm.ranks for comm in log.communicators] == [None, None]
    assert owners(log) == {
        ("4000", 0, 1): [(0,)],
        ("4100", 0, 1): [(1,)],
        ("4001", 1, 0): [(0, 1)],
    }


def test_process_of_two_ranks_shows_overlapping_groups() -> None:
    """A GPU's process has one rank in a communicator. If it logs as two ranks there are two
    communicators, and every edge may belong to either."""
    nccl = Nccl("2.17.1")
    world = [nccl.net(GPUS[2], GPUS[3]), nccl.net(GPUS[0], GPUS[1])]
    group = nccl.p2p(*pair(GPUS[2], GPUS[3]))
    log = read(text_of([*world, group]))
    assert len(log.communicators) == 2
    assert {edge.communicators for edge in log.edges} == {(0, 1)}


def test_one_process_with_all_gpus_is_many_ranks() -> None:
    """Threads of one process are ranks of one communicator, each with its own GPU."""
    nccl = Nccl("2.22.3")
    gpus = [gpu(rank)._replace(pid=7, tid=70 + rank, host="k000", device=rank) for rank in range(4)]
    sent = [nccl.p2p(process, gpus[(process.rank + 1) % 4], "direct pointer") for process in gpus]
    log = read(text_of(sent))
    assert [edge.communicators for edge in log.edges] == [(0,)] * 4
    whole = [line for process in gpus for line in init(nccl, process, 4, WORLD)]
    log = read(text_of([*whole, *sent]))
    assert [edge.communicators for edge in log.edges] == [(0,)] * 4
    assert members(log) == [dict.fromkeys(range(4), "7")]


# -- Lost lines ------------------------------------------------------------------------------------


def test_process_without_init_is_the_missing_rank() -> None:
    """With one communicator, a rank without init is the only process that logs as that rank."""
    nccl = Nccl("2.20.5")
    lines = [line for process in GPUS[:3] for line in init(nccl, process, 4, WORLD)]
    log = read(text_of([*lines, nccl.net(GPUS[3], GPUS[0]), nccl.net(GPUS[2], GPUS[3])]))
    assert members(log) == [WHOLE]
    assert owners(log)["4101", 3, 0] == [(0,)]


def test_rank_claimed_by_two_processes_stays_open() -> None:
    """Two processes whose inits were lost log as the same rank: neither is certain."""
    nccl = Nccl("2.20.5")
    lines = init(nccl, GPUS[1], 4, WORLD) + init(nccl, GPUS[3], 4, WORLD)
    strangers = GPUS[0], as_rank(GPUS[2], 0)
    log = read(text_of([*lines, *(nccl.p2p(process, GPUS[1]) for process in strangers)]))
    assert members(log) == [{1: "4001", 3: "4101"}]
    assert owners(log) == {("4000", 0, 1): [()], ("4100", 0, 1): [()]}


def test_edge_of_an_unlogged_communicator_is_not_attributed() -> None:
    """The log of node 1 has the world's inits, but only the edges of a group. The group's rank 0 is
    not the world's rank 0, which did not log: its process is rank 2 of the world."""
    nccl = Nccl("2.20.5")
    mine = GPUS[2:]
    first, second = pair(*mine)
    lines = [line for process in mine for line in init(nccl, process, 4, WORLD)]
    lines += [nccl.p2p(second, first, connection=1), nccl.p2p(first, second, connection=1)]
    log = read(text_of(lines))
    assert members(log) == [{2: "4100", 3: "4101"}]
    assert {edge.communicators for edge in log.edges} == {()}


def test_rank_beyond_the_communicator_is_excluded() -> None:
    """An edge to rank 5 does not belong to a communicator of four."""
    nccl = Nccl("2.20.5")
    log = read(text_of([*init(nccl, GPUS[0], 4, WORLD), nccl.net(GPUS[0], gpu(5), connection=1)]))
    assert log.edges[0].communicators == ()


@pytest.mark.parametrize("nccl", [Nccl("2.17.1"), Nccl("2.20.5")], ids=version)
def test_another_device_is_another_rank(nccl: Nccl) -> None:
    """An edge names the devices of both ends, by bus id or nvmlDev depending on the version."""
    nine = GPUS[1]._replace(device=9, bus="99000")
    lines = [line for process in GPUS for line in init(nccl, process, 4, WORLD)]
    log = read(
        text_of([*lines, nccl.p2p(GPUS[0], nine), nccl.p2p(nine, GPUS[0], "direct pointer")])
    )
    assert {edge.communicators for edge in log.edges} == {()}


def test_bus_ids_cut_to_32_bits_are_the_same_device() -> None:
    """Before 2.8 init lines print the bus id as %x, edges as %lx; a PCI domain above zero (Azure)
    is in the upper bits."""
    nccl = Nccl("2.7.8")
    inits = [process._replace(bus="0") for process in GPUS[:2]]
    sent = GPUS[0]._replace(bus="100000000"), GPUS[1]._replace(bus="200000000")
    lines = [line for process in inits for line in init(nccl, process, 2, WORLD)]
    log = read(text_of([nccl.banner(GPUS[0]), nccl.p2p(*sent), *lines]))
    assert log.edges[0].communicators == (0,)


def test_line_without_role_belongs_to_one_of_its_ends() -> None:
    """2.3 does not log which end wrote a line, but rank 2 cannot have logged the edge 0 -> 1."""
    nccl = Nccl("2.4.8")
    lines = [line for process in GPUS for line in init(nccl, process, 4, WORLD)]
    strange = "k001:4100:4140 [0] NCCL INFO Ring 00 : 0 -> 1 via NET/Socket/0"
    mine = "k001:4100:4140 [0] NCCL INFO Ring 00 : 2 -> 3 via NET/Socket/0"
    log = read(text_of([strange, mine, *lines]))
    assert {edge.source: edge.communicators for edge in log.edges} == {0: (), 2: (0,)}


def test_unfinished_init_owns_nothing_for_certain() -> None:
    """A group has an Init START without an end: it failed, or the line was lost. A later edge may
    belong to it, or to the world, whose init is complete."""
    nccl, process = Nccl("2.22.3"), GPUS[0]
    lines = [*init(nccl, process, 4, WORLD), *nccl.start(process, 2, "0xb", TENSOR), HEAD + EDGE]
    assert read(text_of(lines)).edges[0].communicators == (0, 1)
    aborted = f"{HEAD}comm 0xb rank 0 nranks 2 cudaDev 0 busId 18000 - Abort COMPLETE"
    log = read(text_of([*lines[:-1], aborted, HEAD + EDGE]))
    assert log.edges[0].communicators == (0, 1)


def test_destroyed_communicator_owns_no_later_edges() -> None:
    """Groups that are created and destroyed one after the other are not confused."""
    nccl, process, lines = Nccl("2.22.3"), GPUS[0], []
    for turn in range(3):
        comm = f"{TENSOR}{turn}"
        lines += [*init(nccl, process, 2, comm), nccl.p2p(process, GPUS[1], channel=turn)]
        comm_text = f"comm {pointer(process, comm)} rank 0 nranks 2 cudaDev 0 busId 18000"
        lines.append(f"{HEAD}{comm_text} - Destroy COMPLETE")
    log = read(text_of(lines))
    assert {edge.channels: edge.communicators for edge in log.edges} == {
        (0,): (0,),
        (1,): (1,),
        (2,): (2,),
    }


def test_too_many_communicators_are_not_listed() -> None:
    """A process is rank 0 of a hundred communicators: its edges cannot be attributed, and listing
    all of them for each edge would take forever."""
    nccl, process = Nccl("2.22.3"), GPUS[0]
    lines = [line for turn in range(100) for line in init(nccl, process, 2, f"{TENSOR}{turn}")]
    log = read(text_of([*lines, nccl.p2p(process, GPUS[1])]))
    assert len(log.communicators) == 100
    assert log.edges[0].communicators == ()


def test_edges_before_a_failure_belong_to_the_failed_init() -> None:
    """The only communicator never came up: its connections are listed, and it is not complete."""
    nccl = Nccl("2.20.5")
    lines = [nccl.banner(GPUS[0])]
    for process in GPUS[:2]:
        lines += nccl.start(process, 2, pointer(process, WORLD), WORLD)
    lines += [nccl.p2p(GPUS[0], GPUS[1]), nccl.warn(GPUS[1], "Call to connect returned Timeout")]
    log = read(text_of(lines))
    assert log.edges[0].communicators == (0,)
    assert log.communicators[0].complete is False
    assert log.warnings[0].process == NcclProcess("", "k000", "4001")


def test_end_replaces_a_lost_start() -> None:
    """If the Init START line was torn, its edges may belong to the init that ends next."""
    nccl, process = Nccl("2.20.5"), GPUS[0]
    start, *rest = init(nccl, process, 2, TENSOR, [nccl.p2p(process, GPUS[1], connection=0)])
    assert start.endswith("Init START")
    log = read(text_of([*init(nccl, process, 4, WORLD), *rest]))
    assert log.edges[0].communicators == (0, 1)


def test_processes_with_hidden_pids_differ_by_rank() -> None:
    """Quoted logs write X for every pid: ranks and devices distinguish processes, not time."""
    nccl, lines = Nccl("2.20.5"), []
    for process in GPUS:
        lines += init(nccl, process, 4, WORLD, [nccl.p2p(process, GPUS[process.rank ^ 1])])
    text = re.sub(rb"k00\d:\d+:\d+ ", b"k:XXXXX:XXXXX ", text_of(lines))
    log = read(text)
    assert members(log) == [dict.fromkeys(range(4), "XXXXX")]
    assert [edge.communicators for edge in log.edges] == [(0,)] * 4


# -- Processes -------------------------------------------------------------------------------------


def test_scope_distinguishes_nodes_of_one_name() -> None:
    """`scope` distinguishes nodes with equal host names and pids."""
    nccl, reader = Nccl("2.20.5"), Reader()
    for node in (0, 1):
        process = gpu(node, per_node=1, host="worker")._replace(pid=42, tid=43)
        sent = nccl.net(process, gpu(1 - node, per_node=1), "IB/0")
        text = text_of(init(nccl, process, 2, WORLD, [sent]))
        reader.stream(io.BytesIO(text), f"{node}.log", scope=str(node))
    log = reader.log()
    assert log.communicators[0].members[0].process == NcclProcess("0", "worker", "42")
    assert log.communicators[0].members[1].process == NcclProcess("1", "worker", "42")
    assert [edge.communicators for edge in log.edges] == [(0,), (0,)]


def test_without_scope_equal_name_and_pid_is_one_process() -> None:
    """Only their ranks distinguish them; their edges are still attributed to the communicator."""
    nccl = Nccl("2.20.5")
    both = [gpu(node, per_node=1, host="worker")._replace(pid=42, tid=43) for node in (0, 1)]
    lines = [line for process in both for line in init(nccl, process, 2, WORLD)]
    sent = [nccl.net(both[0], both[1], connection=1), nccl.net(both[1], both[0], connection=1)]
    log = read(text_of([*lines, *sent]))
    assert [edge.communicators for edge in log.edges] == [(0,), (0,)]


def test_log_given_twice_counts_once() -> None:
    """srun's output and the file of NCCL_DEBUG_FILE have the same lines."""
    text = text_of(world_and_tensor(Nccl("2.20.5"), eager=True))
    once, twice = read(text), read(text + text)
    assert ids(once) == ids(twice)
    assert members(once) == members(twice)
    assert {edge.communicators for edge in once.edges} == {
        edge.communicators for edge in twice.edges
    }


def test_nvls_of_a_process_in_two_communicators() -> None:
    """`NVLS comm 0x…` names its communicator; `Connected NVLS tree` may belong to either."""
    nccl, process = Nccl("2.20.5"), GPUS[0]
    of_tensor = f"{HEAD}NVLS comm {pointer(process, TENSOR)} headRank 0 nHeads 2"
    inits = [*init(nccl, process, 4, WORLD), *init(nccl, process, 2, TENSOR, [of_tensor])]
    assert [comm.nvls for comm in read(text_of(inits)).communicators] == [False, True]
    tree = HEAD + "Connected NVLS tree"
    inits = [*init(nccl, process, 4, WORLD), *init(nccl, process, 2, TENSOR, [tree])]
    assert [comm.nvls for comm in read(text_of(inits)).communicators] == [None, None]


NODES = "comm 0x6426550 rank {rank} nRanks 8 nNodes 4 localRanks 2 localRank {local} MNNVL 0"


def log_of(*lines: str) -> Log:
    reader = Reader()
    reader.stream(io.BytesIO("\n".join([*lines, ""]).encode()), "x.log")
    return reader.log()


def test_line_about_nodes_shows_a_member() -> None:
    """An excerpt may lack `Init START`; how far the init got is then unknown."""
    log = log_of(
        f"gpu36:15433:15499 [0] NCCL INFO {NODES.format(rank=2, local=0)}",
        f"gpu34:23655:23685 [1] NCCL INFO {NODES.format(rank=1, local=1)}",
    )
    (communicator,) = log.communicators
    assert (communicator.ranks, communicator.nodes, communicator.complete) == (8, 4, None)
    assert members(log) == [{1: "23655", 2: "15433"}]
    assert communicator.members[1].local_rank == 1 and not communicator.members[1].started


def test_line_about_nodes_and_the_end_of_init_are_one_member() -> None:
    """The end adds the name and the devices."""
    start = "comm 0x6426550 rank 2 nranks 8 cudaDev 0 nvmlDev 4 busId 7000 commId 0xa0 - Init"
    head = "gpu36:15433:15499 [0] NCCL INFO "
    log = log_of(f"{head}{NODES.format(rank=2, local=0)}", f"{head}{start} COMPLETE")
    (communicator,) = log.communicators
    assert communicator.id == "0xa0" and communicator.nodes == 4
    assert communicator.members[2].complete and communicator.members[2].nvml_device == 4


@pytest.mark.parametrize(
    "line",
    [
        "node [0] NCCL INFO RCCL version : 2.27.7-HEAD:29e1567",
        "RCCL version 2.18.3+hip5.7 HEAD:418cd5f+",
    ],
)
def test_version_of_rccl_is_read(line: str) -> None:
    """AMD's library has NCCL's version numbers."""
    assert log_of(line).version in ("2.27.7", "2.18.3")


def test_init_of_rccl_is_read() -> None:
    """It says how much memory it took."""
    end = "comm 0x2ac764000c00 rank 3 nranks 4 cudaDev 3 busId 63000 used 67129296 bytes - Init"
    (communicator,) = log_of(f"{HEAD}{end} COMPLETE").communicators
    assert communicator.ranks == 4 and communicator.members[3].complete
