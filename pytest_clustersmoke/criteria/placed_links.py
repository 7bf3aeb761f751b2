"""Which transports NCCL used between the ranks of a phase: its logs, joined to the ranks' events.

NCCL numbers the ranks of each communicator for itself. So each end of an edge is taken to the
process that was that rank of that communicator, and the process to the rank of the phase that it
wrote of itself in its events. A rank that left none is placed by NCCL's log alone, where a
communicator of all ranks numbers the others as they number themselves. The node is the one whose
launcher kept the log. An edge that cannot be placed so is `unplaced`: not measured is no pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from ..evidence.nccl.nccl_log import CollNet, Edge, Log, NcclProcess, NcclTransport, Where
from ..evidence.phase_result import PhaseResult

Ends = tuple[int, int]


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
class Placed:
    """The edges of a phase's logs: those of two known ranks, and those that are not."""

    links: list[PhaseLink] = field(default_factory=list)
    unplaced: list[tuple[Edge, str]] = field(default_factory=list)  # and why
    collnet: dict[int, list[CollNet]] = field(default_factory=dict)  # by rank of the phase
    nvls: set[int] = field(default_factory=set)  # ranks of the phase that connected NVLS


class Transports:
    """The connections of a phase, as NCCL logged them, between the ranks that they join."""

    def __init__(self, result: PhaseResult) -> None:
        self.result = result

    @property
    def log(self) -> Log:
        return self.result.nccl.log

    @cached_property
    def placed(self) -> Placed:
        """Each edge of the logs between the ranks of the phase that it joins."""
        placed, log = Placed(), self.log
        for edge in log.edges:
            ends = self._ends(edge)
            if isinstance(ends, str):
                placed.unplaced.append((edge, ends))
            else:
                inside = self.nodes[ends[0]] == self.nodes[ends[1]]
                placed.links.append(PhaseLink(*ends, inside, edge))
        for one in log.collnet:
            rank = self._rank_of(one.logger)
            if rank is not None:
                placed.collnet.setdefault(rank, []).append(one)
        for process in log.nvls:
            rank = self._rank_of(process)
            if rank is not None:
                placed.nvls.add(rank)
        return placed

    # -- Who is who --------------------------------------------------------------------------------

    @property
    def nodes(self) -> dict[int, int]:
        """Rank of the phase -> its node rank; ranks that nothing places are missing."""
        return self._places[1]

    @cached_property
    def _places(self) -> tuple[dict[tuple[str, str], int | None], dict[int, int]]:
        """(node rank, pid) -> rank, None where two ranks said they are that; and `nodes`."""
        by_process: dict[tuple[str, str], int | None] = {}
        nodes: dict[int, int] = {}
        for rank in self.result.ranks:
            node, pid = rank.start.get("node_rank"), rank.start.get("pid")
            if type(node) is int and type(pid) is int:
                key = str(node), str(pid)
                by_process[key] = None if key in by_process else rank.rank
                nodes[rank.rank] = node
        for number, process in self._by_log_alone(by_process):
            by_process[process.scope, process.pid] = number
            nodes[number] = int(process.scope)
        return by_process, nodes

    def _by_log_alone(
        self, by_process: dict[tuple[str, str], int | None]
    ) -> list[tuple[int, NcclProcess]]:
        """Ranks without events, by a communicator of all ranks whose numbers are the phase's."""
        lost = {rank.rank for rank in self.result.ranks if not rank.start}
        found: dict[int, NcclProcess] = {}
        for one in self.log.communicators if lost else ():
            who = {n: m.process for n, m in one.members.items() if m.process is not None}
            known = {n: by_process.get((p.scope, p.pid)) for n, p in who.items()}
            agree = all(rank == n for n, rank in known.items() if n not in lost)
            if one.ranks == self.result.world_size and agree and len(known) > len(lost):
                found |= {n: who[n] for n in lost & who.keys() if known[n] is None}
        return list(found.items())

    def _rank_of(self, process: NcclProcess | None) -> int | None:
        return None if process is None else self._places[0].get((process.scope, process.pid))

    def _ends(self, edge: Edge) -> Ends | str:
        """The ranks of the phase that an edge joins, or why they are not known."""
        if not edge.communicators:
            return "no communicator is known to which it belongs"
        found: set[Ends] = set()
        for index in edge.communicators:
            members = self.log.communicators[index].members
            ends = []
            for number in (edge.source, edge.destination):
                process = members[number].process if number in members else None
                if number == edge.own_rank:
                    process = edge.logger
                rank = self._rank_of(process)
                if rank is None:
                    return f"rank {number} of its communicator is no known rank of the phase"
                ends.append(rank)
            found.add((ends[0], ends[1]))
        if len(found) > 1:
            return "it may be of several communicators, which differ in their ranks"
        return found.pop()
