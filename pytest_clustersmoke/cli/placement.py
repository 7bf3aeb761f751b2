"""Which node each rank of a communicator ran on, from the log only.

A rank is on the host of its process, which is the process that logged the rank's init, or one of
its edges as sender or receiver. A rank is never placed by arithmetic on its number, nor by the
transport of an edge (MNNVL is P2P between nodes). A rank without a log line, or with lines from
several hosts, has no node: None.

Ranks of one host name are on one node, unless the evidence shows that nodes share the name:
- two of them have the same GPU (bus id) or localRank: a GPU holds one rank of a communicator, and
  a localRank is unique on a node;
- NCCL counts more nodes (nNodes) than there are names and ranks without a node.
Ranks of different host names are on different nodes, unless NCCL counts fewer nodes than there are
names (containers). In these cases the side of the edges is None: unknown, not guessed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ..evidence.nccl.nccl_log import Communicator, Edge, Log, Member, NcclProcess
from ..text import plural


class HostNode(NamedTuple):
    """A node by its host name; `scope` distinguishes nodes of one name (see NcclProcess)."""

    scope: str
    host: str


Claims = Mapping[int, Iterable[NcclProcess]]
Ends = tuple["HostNode | None", "HostNode | None"]


class Placement:
    """Where the ranks of one communicator ran. `claims` has, for each rank, the processes that
    logged its edges as sender or receiver."""

    def __init__(self, communicator: Communicator, claims: Claims | None = None) -> None:
        self.processes: dict[int, NcclProcess] = {}
        self.disputed: dict[int, list[HostNode]] = {}  # ranks that several hosts claim
        self.nodes: dict[int, HostNode] = {}
        self._place(communicator.members, claims or {})
        self.ranks_of: Mapping[HostNode, list[int]] = defaultdict(list)
        for rank, node in sorted(self.nodes.items()):
            self.ranks_of[node].append(rank)
        # Why a name may belong to several nodes, and why several names may belong to one node.
        self.ambiguous: dict[HostNode, str] = {}
        self.merged = ""
        self._doubt(communicator)

    def node(self, rank: int) -> HostNode | None:
        return self.nodes.get(rank)

    def ends(self, edge: Edge) -> Ends:
        """The nodes of an edge's source and destination."""
        return self._end(edge, edge.source), self._end(edge, edge.destination)

    def same(self, source: HostNode | None, destination: HostNode | None) -> bool | None:
        """Whether two nodes are the same; None if the log does not show it."""
        if source is None or destination is None:
            return None
        if source == destination:
            return None if source in self.ambiguous else True
        return None if self.merged else False

    @property
    def count(self) -> int | None:
        """The number of nodes; None unless each host name in the log belongs to a single node."""
        return None if self.ambiguous or self.merged else len(self.ranks_of)

    @property
    def doubts(self) -> list[str]:
        """Why the node of some ranks is not certain."""
        disputes = {" and ".join(node.host for node in nodes) for nodes in self.disputed.values()}
        disputed = [f"processes on {hosts} logged as the same rank" for hosts in sorted(disputes)]
        return [*disputed, *self.ambiguous.values(), *filter(None, [self.merged])]

    # -- Placing ranks -----------------------------------------------------------------------------

    def _end(self, edge: Edge, rank: int) -> HostNode | None:
        node = self.nodes.get(rank)
        # An edge's communicator may be unknown; its logger is always one of its ends.
        if node is None and edge.logger and rank == edge.own_rank and rank not in self.disputed:
            return HostNode(edge.logger.scope, edge.logger.host)
        return node

    def _place(self, members: Mapping[int, Member], claims: Claims) -> None:
        for rank in sorted({*members, *claims}):
            member = members.get(rank)
            processes = [member.process] if member and member.process else []
            processes += claims.get(rank, ())
            hosts = sorted({HostNode(process.scope, process.host) for process in processes})
            if len(hosts) > 1:
                self.disputed[rank] = hosts
            elif hosts:
                self.nodes[rank] = hosts[0]
                self.processes[rank] = processes[0]

    def _doubt(self, communicator: Communicator) -> None:
        """Check the names against bus ids, local ranks and NCCL's own count of nodes."""
        fewest: dict[HostNode, int] = {}
        for name, ranks in self.ranks_of.items():
            members = [communicator.members[rank] for rank in ranks if rank in communicator.members]
            fewest[name] = self._least(name, members)
        counted, least = communicator.nodes, sum(fewest.values())
        if counted is None:
            return
        nodes = f"NCCL counts {plural(counted, 'node')}"
        if counted < least:
            self.merged = (
                f"{nodes}, fewer than the {len(fewest)} host names: one node may have "
                "several names (containers)"
            )
        elsewhere = None if communicator.ranks is None else communicator.ranks - len(self.nodes)
        if elsewhere is not None and counted > least + elsewhere:
            why = f"{nodes}, more than the host names: several nodes may have the name "
            for name, ranks in self.ranks_of.items():
                if len(ranks) > fewest[name]:
                    self.ambiguous.setdefault(name, why + name.host)

    def _least(self, name: HostNode, members: list[Member]) -> int:
        """The least number of nodes with this name; records why if there are several."""
        least = 1
        for key, values in (
            ("the GPU with bus id", [member.bus_id for member in members]),
            ("localRank", [member.local_rank for member in members]),
        ):
            counts = Counter(value for value in values if value is not None)
            for value, times in counts.most_common(1):
                if times > least:
                    least = times
                    self.ambiguous[name] = (
                        f"{times} ranks of {name.host} have {key} {value}: several nodes have "
                        f"the name {name.host}, or ranks share a GPU"
                    )
        return least


def place(log: Log) -> tuple[Placement, ...]:
    """The placement of each communicator of a log, by its index."""
    claims: list[dict[int, dict[NcclProcess, None]]] = [{} for _ in log.communicators]
    for edge in log.edges:
        own = edge.own_rank
        if own is not None and edge.logger is not None and len(edge.communicators) == 1:
            claims[edge.communicators[0]].setdefault(own, {})[edge.logger] = None
    return tuple(
        Placement(communicator, claims[communicator.index]) for communicator in log.communicators
    )
