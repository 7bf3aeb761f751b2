"""Which transports NCCL used between the ranks of a phase: its logs, joined with the ranks' events.

NCCL numbers the ranks of each communicator separately. So each end of an edge is resolved to the
process that was that rank of that communicator, and the process to the phase's rank recorded in its
events. A rank without events is placed by NCCL's log alone, if a communicator of all ranks numbers
the other ranks as their events do. The node is the one whose launcher kept the log. An edge that
cannot be placed is `unplaced` and makes the criterion unmeasured.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..evidence.nccl.nccl_log import CollNet, Edge, Log, NcclProcess, NcclTransport, Where
from ..evidence.phase_result import PhaseResult

# (node rank, pid) -> rank of the phase; None if two ranks recorded the same process.
Processes = dict[tuple[str, str], "int | None"]


@dataclass(frozen=True)
class PhaseLink:
    """The transport from one rank of the phase to another, as one of them logged it."""

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

    @property
    def ends(self) -> tuple[int, int]:
        """The rank that logged it, and the other one."""
        ranks = self.source, self.destination
        return ranks[::-1] if self.edge.role == "receive" else ranks


@dataclass
class PlacedEdges:
    """The edges in a phase's logs: between known ranks of the phase, and unplaced ones."""

    nodes: dict[int, int]  # rank of the phase -> node rank, without ranks that cannot be placed
    links: list[PhaseLink] = field(default_factory=list)
    unplaced: list[tuple[Edge, str]] = field(default_factory=list)  # with the reason
    collnet: dict[int, list[CollNet]] = field(default_factory=dict)  # by rank of the phase
    nvls: set[int] = field(default_factory=set)  # ranks of the phase that connected NVLS


def place_edges(result: PhaseResult) -> PlacedEdges:
    """Resolve each edge of the logs to the ranks of the phase that it connects."""
    log = result.nccl.log
    processes, nodes = _map_processes(result)
    placed = PlacedEdges(nodes)
    for edge in log.edges:
        ends = _resolve_ends(edge, log, processes)
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


def _map_processes(result: PhaseResult) -> tuple[Processes, dict[int, int]]:
    """The rank of each process, and the node of each rank."""
    processes: Processes = {}
    nodes: dict[int, int] = {}
    for rank in result.ranks:
        if rank.node_rank is not None and rank.pid is not None:
            key = str(rank.node_rank), str(rank.pid)
            processes[key] = None if key in processes else rank.rank
            nodes[rank.rank] = rank.node_rank
    for number, process in _place_by_log(result, processes).items():
        processes[process.scope, process.pid] = number
        nodes[number] = int(process.scope)
    return processes, nodes


def _place_by_log(result: PhaseResult, processes: Processes) -> dict[int, NcclProcess]:
    """Ranks without events, placed by a communicator of all ranks that uses the phase's numbers."""
    lost = {rank.rank for rank in result.ranks if not rank.start}
    placed: dict[int, NcclProcess] = {}
    for communicator in result.nccl.log.communicators if lost else ():
        members = {n: m.process for n, m in communicator.members.items() if m.process is not None}
        known = {n: _rank_of(process, processes) for n, process in members.items()}
        agree = all(rank == n for n, rank in known.items() if n not in lost)
        if communicator.ranks == result.world_size and agree and len(known) > len(lost):
            placed |= {n: members[n] for n in lost & members.keys() if known[n] is None}
    return placed


def _rank_of(process: NcclProcess | None, processes: Processes) -> int | None:
    return None if process is None else processes.get((process.scope, process.pid))


def _resolve_ends(edge: Edge, log: Log, processes: Processes) -> tuple[int, int] | str:
    """The ranks of the phase that an edge connects, or why they are unknown."""
    if not edge.communicators:
        return "its communicator is unknown"
    pairs: set[tuple[int, int]] = set()
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
        pairs.add((ends[0], ends[1]))
    if len(pairs) > 1:
        return "it may belong to several communicators, which differ in their ranks"
    return pairs.pop()
