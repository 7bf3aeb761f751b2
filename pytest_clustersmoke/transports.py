"""Which transports NCCL used between the ranks of a phase, judged against the cluster's `expect`.

NCCL itself numbers the ranks of one communicator, so an edge is used only where that communicator
spans the world: then its numbers are the phase's. Each rank is placed on its node by its own
events, never by arithmetic. What cannot be placed is not measured, and not measured is no pass.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from .evidence import Unmeasured, fail

if TYPE_CHECKING:
    from .cluster import Expectation
    from .result import PhaseResult

MAX_LINE = 4096
# From NCCL 2.5: `Channel 00/0 : 0[1a000] -> 1[1b000] [send] via NET/IB/0/GDRDMA`.
EDGE = re.compile(
    r"NCCL INFO (?:Ring|Channel) \d+(?:/\d+)? : (\d+)\[[0-9a-f]+\] -> (\d+)\[[0-9a-f]+\]"
    r"(?: \[(?:send|receive)\])? via (\S.*)"
)
# `NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB ib0:<0>` names the devices by number.
DEVICES = re.compile(r"NCCL INFO NET/IB : Using (.*)")
DEVICE = re.compile(r"\[(\d+)\]([^\s:]+):\d+/")
COMMUNICATOR = re.compile(r"NCCL INFO .*comm 0x[0-9a-f]+ rank \d+ nranks (\d+) .*Init COMPLETE")
NET_NAME = re.compile(r"NET/(.+?)/(\d+)(?:\(\d+\))?((?:/GDRDMA)?)(?:\(PCI\))?(?:/Shared)?$")


@dataclass(frozen=True)
class Edge:
    """One connection as NCCL logged it, between ranks of the phase."""

    source: int
    destination: int
    transport: str
    where: str
    hca: str | None = None  # the RDMA device by name, where the log tells

    @property
    def kind(self) -> str:
        return kind(self.transport)


def kind(transport: str) -> str:
    """`P2P/<method>`, `SHM`, or `NET/<name>` with `/GDRDMA` where GPUDirect RDMA is used."""
    if transport.startswith(("SHM", "direct shared memory")):
        return "SHM"
    net = NET_NAME.match(transport)
    if net:
        return f"NET/{net.group(1)}{net.group(3)}"
    return "/".join(transport.split("/")[:2])


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a log, numbered from 1; Unmeasured where it is no file that can be read."""
    try:
        if not path.is_file():  # a FIFO of that name would be waited on for ever
            raise Unmeasured("transports", f"{path} is no file")
        with path.open(errors="replace") as stream:
            yield from enumerate(iter(lambda: stream.readline(MAX_LINE), ""), 1)
    except OSError as error:
        raise Unmeasured("transports", f"{path} cannot be read: {error}") from error


class Transports:
    """The edges of a phase, and the checks of them that criteria use."""

    def __init__(self, result: PhaseResult) -> None:
        self._result = result

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """Every edge of world communicators, once; Unmeasured where the logs do not tell."""
        found: dict[tuple[int, int, str, str | None], Edge] = {}
        for node in self._result.nodes:
            folder = self._result.directory.nccl_logs(node.node_rank)
            for path in sorted(folder.glob("*.log")):
                for edge in self._read(path):
                    key = (edge.source, edge.destination, edge.transport, edge.hca)
                    found.setdefault(key, edge)
        return tuple(found.values())

    def _read(self, path: Path) -> Iterable[Edge]:
        edges: list[Edge] = []
        sizes: set[int] = set()
        devices: dict[str, str] = {}
        name = path.relative_to(self._result.directory.root)
        for number, line in _lines(path):
            if size := COMMUNICATOR.search(line):
                sizes.add(int(size.group(1)))
            elif listed := DEVICES.search(line):
                devices = dict(DEVICE.findall(listed.group(1)))
            elif match := EDGE.search(line):
                source, destination, transport = match.groups()
                net = NET_NAME.match(transport.strip())
                hca = devices.get(net.group(2)) if net else None
                where = f"{name}:{number}"
                edges.append(Edge(int(source), int(destination), transport.strip(), where, hca))
        if edges and sizes != {self._result.world_size}:
            raise Unmeasured(
                "transports",
                f"{name} has communicators of {sorted(sizes) or 'unknown'} ranks, the world has "
                f"{self._result.world_size}: whose edges these are is not known",
            )
        return edges

    def kinds(self) -> list[str]:
        """The kinds of all edges, in alphabetical order."""
        return sorted({edge.kind for edge in self.edges})

    @property
    def intra_node(self) -> Side:
        return Side(self, self._result, inside=True)

    @property
    def inter_node(self) -> Side:
        return Side(self, self._result, inside=False)


@dataclass(frozen=True)
class Side:
    """The edges inside nodes, or those between nodes."""

    transports: Transports
    result: PhaseResult
    inside: bool

    def edges(self) -> list[Edge]:
        place = {rank.rank: rank.start.get("node_rank") for rank in self.result.ranks}
        for edge in self.transports.edges:
            for rank in (edge.source, edge.destination):
                if place.get(rank) is None:
                    raise Unmeasured("transports", f"rank {rank} of {edge.where} has no known node")
        return [
            edge
            for edge in self.transports.edges
            if (place[edge.source] == place[edge.destination]) is self.inside
        ]

    def check(self) -> None:
        """Every edge matches the cluster's expectation; no edge at all is not measured."""
        __tracebackhide__ = True
        where = "inside a node" if self.inside else "between nodes"
        if self.result.backend != "nccl":
            raise Unmeasured(
                "transports",
                f"the ranks talked over {self.result.backend}, which has none of NCCL's",
            )
        expect = self.result.expect
        globs = (expect.intra_node if self.inside else expect.inter_node) if expect else ()
        forbidden = expect.forbid if expect else ()
        if not globs and not forbidden:
            raise Unmeasured("transports", f"cluster.yaml expects nothing of transports {where}")
        edges = self.edges()
        if not edges:
            raise Unmeasured("transports", f"NCCL logged no connection {where}")
        for edge in edges:
            if any(matches(edge, glob) for glob in forbidden):
                fail(f"{self._say(edge)}, forbidden by {', '.join(forbidden)}: {edge.where}")
            if globs and not any(matches(edge, glob) for glob in globs):
                fail(f"{self._say(edge)}, expected {' or '.join(globs)}: {edge.where}")
        if expect and not self.inside:
            self._check_rdma(edges, expect)
        silent = self._silent(edges)
        if silent:
            raise Unmeasured("transports", f"NCCL logged no connection {where} of {silent}")
        self.result.judged.add("transports")

    def _check_rdma(self, edges: Iterable[Edge], expect: Expectation) -> None:
        """GPUDirect RDMA and the RDMA device of each edge between nodes, where they matter."""
        __tracebackhide__ = True
        for edge in edges:
            direct = edge.kind.endswith("/GDRDMA")
            if expect.gpudirect != "any" and direct is not (expect.gpudirect == "required"):
                fail(f"{self._say(edge)}, GPUDirect RDMA is {expect.gpudirect}: {edge.where}")
            if expect.hca and edge.hca is None:
                raise Unmeasured("transports", f"the RDMA device of {edge.where} is not known")
            if expect.hca and not fnmatchcase(str(edge.hca), expect.hca):
                fail(f"{self._say(edge)} by {edge.hca}, expected {expect.hca}: {edge.where}")

    def _silent(self, edges: Iterable[Edge]) -> str:
        """A rank, or a node, that must have talked on this side and of which no edge is known."""
        place = {rank.rank: rank.start.get("node_rank") for rank in self.result.ranks}
        seen = {rank for edge in edges for rank in (edge.source, edge.destination)}
        crowds = Counter(place.values())
        for rank in self.result.ranks:
            node = place[rank.rank]
            heard = rank.rank in seen if self.inside else node in {place[one] for one in seen}
            must = crowds[node] > 1 if self.inside else len(crowds) > 1
            if node is None or (must and not heard):
                return str(rank)
        return ""

    def _say(self, edge: Edge) -> str:
        ranks = {rank.rank: str(rank) for rank in self.result.ranks}
        return f"{ranks[edge.source]} -> {ranks[edge.destination]}: {edge.transport}"


def matches(edge: Edge, glob: str) -> bool:
    return fnmatchcase(edge.kind, glob) or fnmatchcase(edge.transport, glob)
