"""Which node each rank of a communicator ran on, by the log alone.

A rank stands on the host of its process: the one that logged its init, or an edge of its own as
its sender or receiver. Never is a rank placed by arithmetic on its number, nor by the transport of
an edge (MNNVL is P2P between nodes). A rank that no process logged for, or processes on several
hosts did, has no node: None.

Ranks of one host name are on one node, unless the evidence says that nodes share the name:
- two of them have one GPU (bus id), or one localRank: a GPU holds one rank of a communicator, and
  a localRank is given once on a node;
- NCCL counts more nodes (nNodes) than there are names and ranks without a node.
Ranks of different host names are on different nodes, unless NCCL counts fewer nodes than there are
names (containers). Where so, the side of the edges in question is None: unknown, not guessed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from .model import Communicator, Edge, Log, Member, NcclProcess


class Node(NamedTuple):
    """A node by its name; `scope` tells apart those of one name (see NcclProcess)."""

    scope: str
    host: str


class Placement:
    """Where the ranks of one communicator ran. `claims` are the processes of each rank, by the
    edges that they logged as its sender or receiver."""

    def __init__(
        self, communicator: Communicator, claims: Mapping[int, Iterable[NcclProcess]] | None = None
    ) -> None:
        self.processes: dict[int, NcclProcess] = {}
        self.disputed: dict[int, list[Node]] = {}  # ranks that several hosts claim to be
        self.nodes: dict[int, Node] = {}
        self._place(communicator.members, claims or {})
        crowds: dict[Node, list[int]] = defaultdict(list)
        for rank, node in sorted(self.nodes.items()):
            crowds[node].append(rank)
        self.ranks_of: Mapping[Node, list[int]] = crowds
        # Names that more than one node may have, and names that may be those of one node: why.
        self.ambiguous: dict[Node, str] = {}
        self.merged: str | None = None
        self._doubt(communicator)

    # -- What it tells -----------------------------------------------------------------------------

    def node(self, rank: int) -> Node | None:
        return self.nodes.get(rank)

    def same_node(self, edge: Edge) -> bool | None:
        """Whether both ends of an edge are on one node; None where the log does not tell."""
        return self.together(*self.ends(edge))

    def together(self, source: Node | None, destination: Node | None) -> bool | None:
        """The same of the nodes of two ranks."""
        if source is None or destination is None:
            return None
        if source == destination:
            return None if source in self.ambiguous else True
        return None if self.merged else False

    def ends(self, edge: Edge) -> tuple[Node | None, Node | None]:
        """The nodes of an edge's source and destination."""
        return self._end(edge, edge.source), self._end(edge, edge.destination)

    def why_not(self, edge: Edge) -> str:
        """Why the side of an edge is not known."""
        source, destination = self.ends(edge)
        for rank, node in ((edge.source, source), (edge.destination, destination)):
            if node is None and rank in self.disputed:
                hosts = " and ".join(node.host for node in self.disputed[rank])
                return f"processes on {hosts} both logged as one rank"
            if node is None:
                return "one end has no line here that is surely its own"
        if source == destination and source is not None:
            return self.ambiguous.get(source, "")
        return self.merged or ""

    @property
    def count(self) -> int | None:
        """The number of nodes, where each name is one."""
        return None if self.ambiguous or self.merged else len(self.ranks_of)

    # -- How it is known ---------------------------------------------------------------------------

    def _end(self, edge: Edge, rank: int) -> Node | None:
        node = self.nodes.get(rank)
        # Whose an edge is may be open; that its logger is one of its ends is not.
        if node is None and rank == edge.own_rank and rank not in self.disputed:
            return _node(edge.logger)
        return node

    def _place(
        self, members: Mapping[int, Member], claims: Mapping[int, Iterable[NcclProcess]]
    ) -> None:
        for rank in sorted({*members, *claims}):
            process = members[rank].process if rank in members else None
            known = [process] if process else []
            known += [one for one in claims.get(rank, ()) if one not in known]
            hosts = sorted({Node(one.scope, one.host) for one in known})
            if len(hosts) > 1:
                self.disputed[rank] = hosts
            elif hosts:
                self.nodes[rank] = hosts[0]
                self.processes[rank] = known[0]

    def _doubt(self, communicator: Communicator) -> None:
        """Hold the names against bus ids, local ranks and NCCL's own count of nodes."""
        fewest = {}
        for name, ranks in self.ranks_of.items():
            fewest[name], why = self._at_least(name, ranks, communicator.members)
            if why:
                self.ambiguous[name] = why
        counted, least = communicator.nodes, sum(fewest.values())
        if counted is None:
            return
        if counted < least:
            self.merged = (
                f"NCCL counts {_nodes(counted)}, fewer than the {len(fewest)} host names: "
                "one node may have several (containers)"
            )
        elsewhere = None if communicator.ranks is None else communicator.ranks - len(self.nodes)
        if elsewhere is not None and counted > least + elsewhere:
            for name, ranks in self.ranks_of.items():
                if len(ranks) > fewest[name]:
                    self.ambiguous.setdefault(
                        name,
                        f"NCCL counts {_nodes(counted)}, more than the host names: several nodes "
                        f"may be called {name.host}",
                    )

    @staticmethod
    def _at_least(
        name: Node, ranks: list[int], members: Mapping[int, Member]
    ) -> tuple[int, str | None]:
        """How many nodes the name must stand for, and the evidence where that is several."""
        mine = [members[rank] for rank in ranks if rank in members]
        least, why = 1, None
        for what, values in (
            ("the GPU with bus id", [one.bus_id for one in mine if one.bus_id is not None]),
            ("localRank", [one.local_rank for one in mine if one.local_rank is not None]),
        ):
            for value, times in Counter(values).most_common(1):
                if times > least:
                    least, why = (
                        times,
                        (
                            f"{times} ranks of {name.host} have {what} {value}: several nodes are "
                            f"called {name.host}, or ranks share a GPU"
                        ),
                    )
        return least, why


def place(log: Log) -> tuple[Placement, ...]:
    """The placement of each communicator of a log, by its index."""
    claims: list[dict[int, dict[NcclProcess, None]]] = [{} for _ in log.communicators]
    for edge in log.edges:
        own = edge.own_rank
        if own is not None and edge.logger is not None and len(edge.communicators) == 1:
            claims[edge.communicators[0]].setdefault(own, {})[edge.logger] = None
    return tuple(Placement(one, claims[one.index]) for one in log.communicators)


def _node(process: NcclProcess | None) -> Node | None:
    return None if process is None else Node(process.scope, process.host)


def _nodes(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"
