"""A phase's transports, inside nodes and between them, against the cluster's `expect`.

A connection that is visibly wrong fails, whatever else is missing. Only then is the evidence
checked for completeness: an edge for every rank, an edge to every node, both ends of each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import pytest

from ..evidence.metric import BETWEEN, INSIDE, Unmeasured, fail
from ..evidence.nccl.nccl_log import Log
from ..evidence.phase_result import PhaseResult
from ..evidence.transport_rule import SIDES, TransportRule
from ..text import plural, shorten_lines
from .placed_links import PhaseLink, PlacedEdges, place_edges

MOST_SHOWN = 8


@dataclass(frozen=True)
class Connection:
    """Everything known about one transport from one rank to another: the logs of both ends."""

    source: int
    destination: int
    wording: str
    links: tuple[PhaseLink, ...]

    def nics(self) -> str:
        """` (mlx5_0)`, or both ends' NICs if they differ; empty if no log names one."""
        ends = {link.edge.role: link.edge.nic for link in self.links if link.edge.nic}
        names = list(dict.fromkeys(ends[role] for role in ("send", "receive") if role in ends))
        return f" ({' -> '.join(names)})" if names else ""


class Transports:
    """The connections of a phase, inside and between nodes, each with the check for criteria."""

    def __init__(self, result: PhaseResult) -> None:
        self._result = result

    @property
    def log(self) -> Log:
        """NCCL's logs of all nodes, except those in `unreadable`."""
        return self._result.nccl.log

    @property
    def unreadable(self) -> tuple[str, ...]:
        return self._result.nccl.unreadable

    @cached_property
    def placed(self) -> PlacedEdges:
        """The edges of the logs, resolved to ranks of the phase."""
        return place_edges(self._result)

    @property
    def nodes(self) -> dict[int, int]:
        """Rank of the phase -> its node rank, without ranks that cannot be placed."""
        return self.placed.nodes

    @property
    def intra_node(self) -> Side:
        """The connections inside nodes."""
        return Side(self, self._result, inside=True)

    @property
    def inter_node(self) -> Side:
        """The connections between nodes."""
        return Side(self, self._result, inside=False)

    def kinds(self) -> list[str]:
        """The kinds of all connections, in alphabetical order."""
        return self.log.kinds()


@dataclass(frozen=True)
class Side:
    """The connections inside nodes, or those between nodes."""

    transports: Transports
    result: PhaseResult
    inside: bool

    @cached_property
    def _rule(self) -> TransportRule:
        """What the cluster expects of these connections."""
        return TransportRule.of(self.result.expect, inside=self.inside)

    def links(self) -> list[PhaseLink]:
        return [link for link in self.transports.placed.links if link.inside is self.inside]

    def check(self) -> None:
        """Every connection is one that the cluster expects, and none is missing.

        Raises AssertionError with the ranks, hosts, NICs and log lines of those that are not, and
        Unmeasured if the logs do not show enough. Skips if there cannot be any: inside nodes of
        one rank each, or between nodes if there is only one.
        """
        __tracebackhide__ = True
        where = SIDES[self.inside]
        if self.result.backend != "nccl":
            raise Unmeasured(
                "transports",
                f"the ranks talked over {self.result.backend}, which has no NCCL transports",
            )
        if reason := self._why_skipped():
            pytest.skip(reason)
        if self._rule.is_empty:
            raise Unmeasured("transports", f"cluster.yaml expects nothing of transports {where}")
        wrong = [
            f"{self._describe(pair)}, {reason}: {pair.links[0].where}"
            for pair, reason in self.judged()
            if reason
        ]
        wrong += [*self._wrong_without_peer(), *self._wrong_anywhere()]
        if not wrong and (unknown := self._missing_evidence(where)):
            raise Unmeasured("transports", unknown)
        self.result.judged.add(INSIDE if self.inside else BETWEEN)
        if wrong:
            fail(
                _listed(wrong, f"connections {where} are not as cluster.yaml expects")
                + self._hint()
            )

    def _why_skipped(self) -> str:
        """Why there can be no connection on this side; empty if there must be one."""
        key = "ranks_per_node" if self.inside else "nodes"
        if int(self.result.spec[key]) > 1:
            return ""
        return "each node has one rank" if self.inside else "the phase has one node"

    def judged(self) -> Iterator[tuple[Connection, str]]:
        """Every connection, with the reason why it is not as the cluster expects; the reason is
        empty if it is, or if nothing is expected."""
        for pair in self._pairs():
            yield pair, self._reason(pair)

    # -- What is wrong -----------------------------------------------------------------------------

    def _pairs(self) -> Iterator[Connection]:
        """The links grouped by ranks and wording, the sender's log first."""
        pairs: dict[tuple[int, int, str], list[PhaseLink]] = defaultdict(list)
        for link in self.links():
            pairs[link.source, link.destination, link.edge.wording].append(link)
        for (source, destination, wording), links in sorted(pairs.items()):
            links.sort(key=lambda link: (link.edge.role != "send", link.where))
            yield Connection(source, destination, wording, tuple(links))

    def _reason(self, pair: Connection) -> str:
        """Why a connection is wrong; empty if it is not."""
        ends = {link.edge.role for link in pair.links}
        end = f" at the {'sender' if 'send' in ends else 'receiver'}" if len(ends) == 1 else ""
        nics = [link.edge.nic for link in pair.links if link.edge.nic]
        return self._rule.refuse(pair.wording, end) or self._rule.refuse_devices(nics)

    def _wrong_without_peer(self) -> Iterator[str]:
        """NVLS (to the node's switches) and CollNet (to the network) have no peer."""
        placed = self.transports.placed
        if self.inside:
            if reason := self._rule.forbidden_by("NVLS"):
                yield from (f"{self._name(rank)}: NVLS, {reason}" for rank in sorted(placed.nvls))
            return
        for rank, connections in sorted(placed.collnet.items()):
            for connection in connections:
                if reason := self._rule.forbidden_by(connection.wording):
                    yield f"{self._name(rank)}: {connection.wording}, {reason}: {connection.where}"

    def _wrong_anywhere(self) -> Iterator[str]:
        """Unplaced edges that are forbidden: forbidden transports are wrong on either side."""
        for edge, _ in self.transports.placed.unplaced:
            if reason := self._rule.forbidden_by(edge.wording):
                ranks = f"ranks {edge.source} -> {edge.destination} of a communicator"
                yield f"{ranks}: {edge.wording}, {reason}: {edge.where}"

    def _hint(self) -> str:
        """A possible cause that the logs show; empty if there is none."""
        names = {rank.node_rank: rank.node for rank in self.result.ranks}
        scopes = {process.scope for process in self.transports.log.without_ib}
        nodes = sorted({str(names.get(int(scope), scope)) for scope in scopes if scope.isdigit()})
        return f"\nNCCL found no InfiniBand device on {', '.join(nodes)}" if nodes else ""

    # -- What is not known -------------------------------------------------------------------------

    def _missing_evidence(self, where: str) -> str:
        """The first gap in the evidence that prevents a verdict; empty if there is none."""
        transports = self.transports
        placed = transports.placed
        if transports.unreadable:
            return transports.unreadable[0]
        unplaced_ranks = [rank for rank in self.result.ranks if rank.rank not in transports.nodes]
        if unplaced_ranks:
            return f"{unplaced_ranks[0]} has no known node"
        if unplaced := placed.unplaced:
            edge, reason = unplaced[0]
            return (
                f"{plural(len(unplaced), 'edge')} cannot be placed, the first {edge.source} -> "
                f"{edge.destination} {edge.wording} at {edge.where}: {reason}"
            )
        if transports.log.torn_count:
            return (
                "connection lines that are torn or in an unknown form: "
                f"{transports.log.torn_count}, the first at {transports.log.torn[0]}"
            )
        links = self.links()
        reduced = self._ranks_without_peers()
        if not links and not reduced:
            return f"NCCL logged no connection {where}{self._why_none()}"
        silent = (
            self._unconnected_ranks(links, reduced)
            if self.inside
            else self._unconnected_nodes(links, reduced)
        )
        if silent:
            return f"NCCL logged no connection {where} for {silent}"
        return ("" if self.inside else self._incomplete_end(links)) or self._incomplete_log()

    def _incomplete_log(self) -> str:
        """A rank whose own log is incomplete: an init without its end, or no connection made by the
        rank. Connections to it in other logs do not prove those that it made itself."""
        placed, log = self.transports.placed, self.transports.log
        for communicator in log.communicators:
            for number, member in communicator.members.items():
                if member.started and not member.complete:
                    who = f"{member.process} (rank {number} of {communicator.ranks or '?'})"
                    return f"NCCL's init of {who} began, but its end is not in the log"
        sent = {link.source for link in placed.links if link.edge.role != "receive"}
        silent = [
            rank.rank
            for rank in self.result.ranks
            if rank.rank not in sent | placed.nvls | placed.collnet.keys()
        ]
        if silent and placed.links:
            names = ", ".join(map(self._name, silent[:MOST_SHOWN]))
            return f"NCCL logged no connection that {names} made"
        return ""

    def _ranks_without_peers(self) -> set[int]:
        """Ranks that use NVLS (inside nodes) or CollNet (between nodes), if these are expected:
        they connect no pairs of ranks."""
        placed = self.transports.placed
        if self.inside:
            return placed.nvls if self._rule.names_nvls else set()
        return {
            rank
            for rank, held in placed.collnet.items()
            if any(self._rule.names(connection.wording) for connection in held)
        }

    def _why_none(self) -> str:
        log = self.transports.log
        if not (log.edges or log.communicators or log.versions or log.networks):
            return ": its logs are missing or empty"
        if not log.edges:
            return (
                ": NCCL connects only when a collective first needs a connection, and logs no "
                "edges of subsystems that NCCL_DEBUG_SUBSYS leaves out"
            )
        return ""

    def _unconnected_ranks(self, links: Iterable[PhaseLink], reduced: set[int]) -> str:
        """Ranks that share their node but have no known connection inside it."""
        seen = {rank for link in links for rank in (link.source, link.destination)} | reduced
        ranks_on: dict[int, list[int]] = defaultdict(list)
        for rank in self.result.ranks:
            ranks_on[self.transports.nodes[rank.rank]].append(rank.rank)
        silent = [
            r for ranks in ranks_on.values() if len(ranks) > 1 for r in ranks if r not in seen
        ]
        return ", ".join(map(self._name, silent[:MOST_SHOWN]))

    def _unconnected_nodes(self, links: Iterable[PhaseLink], reduced: set[int]) -> str:
        """Nodes that no chain of connections links to the first one."""
        node = self.transports.nodes
        names = {node[rank.rank]: rank.node for rank in self.result.ranks}
        joined: dict[int, set[int]] = defaultdict(set)
        for link in links:
            joined[node[link.source]].add(node[link.destination])
            joined[node[link.destination]].add(node[link.source])
        in_network = {node[rank] for rank in reduced}
        for other in in_network:
            joined[other] |= in_network
        first = min(names)
        reached, pending = {first}, [first]
        while pending:
            new = joined[pending.pop()] - reached
            reached |= new
            pending += new
        apart = sorted(set(names) - reached)
        return ", ".join(str(names[node]) for node in apart[:MOST_SHOWN])

    def _incomplete_end(self, links: Iterable[PhaseLink]) -> str:
        """A network connection that only one end logged, though both should: the other end may
        differ; or one without a NIC's name, if the cluster expects certain NICs."""
        ends: dict[tuple[int, int], dict[str | None, PhaseLink]] = defaultdict(dict)
        for link in links:
            if link.transport.net is not None:
                ends[link.source, link.destination][link.edge.role] = link
                if self._rule.hca and link.edge.nic is None:
                    return f"the RDMA device of {link.where} is not known"
        for (source, destination), by_role in ends.items():
            for role, end in (("send", "sender"), ("receive", "receiver")):
                if role not in by_role:
                    pair = self._describe_ends(source, destination)
                    return f"the {end} of {pair} logged nothing about the connection"
        return ""

    # -- Words -------------------------------------------------------------------------------------

    def _describe(self, pair: Connection) -> str:
        return f"{self._describe_ends(pair.source, pair.destination)}: {pair.wording}{pair.nics()}"

    def _describe_ends(self, source: int, destination: int) -> str:
        return f"{self._name(source)} -> {self._name(destination)}"

    def _name(self, rank: int) -> str:
        return str(self.result.ranks[rank])


def _listed(wrong: list[str], problem: str) -> str:
    if len(wrong) == 1:
        return wrong[0]
    shown = (f"  {text}" for text in shorten_lines(wrong, MOST_SHOWN))
    return "\n".join([f"{len(wrong)} {problem}:", *shown])
