"""Which transports NCCL used between the ranks of a phase: its logs, joined to the ranks' events.

NCCL numbers the ranks of each communicator for itself. So each end of an edge is taken to the
process that was that rank of that communicator, and the process to the rank of the phase that it
wrote of itself in its events. A rank that left none is placed by NCCL's log alone, where a
communicator of all ranks numbers the others as they number themselves. The node is the one whose
launcher kept the log. An edge that cannot be placed so is `unplaced`: not measured is no pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..evidence.nccl.nccl_log import CollNet, Edge, Log, NcclProcess, NcclTransport, Where
from ..evidence.phase_result import PhaseResult

# (node rank, pid) -> rank of the phase; None where two ranks said they are that.
Processes = dict[tuple[str, str], "int | None"]


@dataclass(frozen=True)
class PhaseLink:
    """What NCCL used from one rank of the phase to another, as one of them logged it."""

    source: int
    destination: int
    inside: bool  # both ranks are on one node
    edge: Edge

    @property
    def transport(self) -> NcclTransport:
        return self.edge.transport

    @property
    def where(self) -> Where:
        return self.edge.where


@dataclass
class PlacedEdges:
    """The edges of a phase's logs: those of two known ranks, and those that are not."""

    nodes: dict[int, int]  # rank of the phase -> node rank; ranks that nothing places are missing
    links: list[PhaseLink] = field(default_factory=list)
    unplaced: list[tuple[Edge, str]] = field(default_factory=list)  # and why
    collnet: dict[int, list[CollNet]] = field(default_factory=dict)  # by rank of the phase
    nvls: set[int] = field(default_factory=set)  # ranks of the phase that connected NVLS


def place_edges(result: PhaseResult) -> PlacedEdges:
    """Find the ranks of the phase that each edge of its logs joins."""
    log = result.nccl.log
    processes, nodes = _places(result)
    placed = PlacedEdges(nodes)
    for edge in log.edges:
        ends = _ends(edge, log, processes)
        if isinstance(ends, str):
            placed.unplaced.append((edge, ends))
        else:
            inside = nodes[ends[0]] == nodes[ends[1]]
            placed.links.append(PhaseLink(*ends, inside, edge))
    for connection in log.collnet:
        rank = _rank_of(connection.logger, processes)
        if rank is not None:
            placed.collnet.setdefault(rank, []).append(connection)
    placed.nvls = {
        rank for process in log.nvls if (rank := _rank_of(process, processes)) is not None
    }
    return placed


def _places(result: PhaseResult) -> tuple[Processes, dict[int, int]]:
    """Who is which rank of the phase, and the node of each rank."""
    processes: Processes = {}
    nodes: dict[int, int] = {}
    for rank in result.ranks:
        node, pid = rank.start.get("node_rank"), rank.start.get("pid")
        if type(node) is int and type(pid) is int:
            key = str(node), str(pid)
            processes[key] = None if key in processes else rank.rank
            nodes[rank.rank] = node
    for number, process in _by_log_alone(result, processes).items():
        processes[process.scope, process.pid] = number
        nodes[number] = int(process.scope)
    return processes, nodes


def _by_log_alone(result: PhaseResult, processes: Processes) -> dict[int, NcclProcess]:
    """Ranks without events, by a communicator of all ranks whose numbers are the phase's."""
    lost = {rank.rank for rank in result.ranks if not rank.start}
    found: dict[int, NcclProcess] = {}
    for communicator in result.nccl.log.communicators if lost else ():
        who = {n: m.process for n, m in communicator.members.items() if m.process is not None}
        known = {n: _rank_of(process, processes) for n, process in who.items()}
        agree = all(rank == n for n, rank in known.items() if n not in lost)
        if communicator.ranks == result.world_size and agree and len(known) > len(lost):
            found |= {n: who[n] for n in lost & who.keys() if known[n] is None}
    return found


def _rank_of(process: NcclProcess | None, processes: Processes) -> int | None:
    return None if process is None else processes.get((process.scope, process.pid))


def _ends(edge: Edge, log: Log, processes: Processes) -> tuple[int, int] | str:
    """The ranks of the phase that an edge joins, or why they are not known."""
    if not edge.communicators:
        return "its communicator is unknown"
    found: set[tuple[int, int]] = set()
    for index in edge.communicators:
        members = log.communicators[index].members
        ends = []
        for number in (edge.source, edge.destination):
            process = members[number].process if number in members else None
            if number == edge.own_rank:
                process = edge.logger
            rank = _rank_of(process, processes)
            if rank is None:
                return f"rank {number} of its communicator is not a known rank of the phase"
            ends.append(rank)
        found.add((ends[0], ends[1]))
    if len(found) > 1:
        return "it may belong to several communicators, which differ in their ranks"
    return found.pop()
