"""The log that NCCL 2.20 would write for a rank of a job; NCCL itself needs a GPU.

The lines follow its source: Init START, nNodes, networks, the edges of a ring (P2P and SHM logged
by the sender, NET by both ends), Init COMPLETE.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

CHANNELS = 2
COMM_ID = "0xf021d90379243d8"
USING = "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB ib0:10.0.0.1<0>"
# (source, destination, role of the logger) -> NCCL's wording; None: no such edge is logged.
Wording = Callable[[int, int, str], "str | None"]


def healthy(job: FakeNccl) -> Wording:
    """P2P inside nodes, InfiniBand with GPUDirect RDMA between them."""

    def wording(source: int, destination: int, role: str) -> str:
        inside = job.node(source) == job.node(destination)
        return "P2P/CUMEM" if inside else "NET/IB/1/GDRDMA"

    return wording


@dataclass
class FakeNccl:
    """A job of `nodes` x `per_node` ranks, placed in blocks unless `nodes_of` says otherwise."""

    nodes: int
    per_node: int
    wording: Wording | None = None
    nodes_of: Mapping[int, int] = field(default_factory=dict)
    using: Mapping[int, str] = field(default_factory=dict)  # by node

    @property
    def world(self) -> int:
        return self.nodes * self.per_node

    def node(self, rank: int) -> int:
        return self.nodes_of.get(rank, rank // self.per_node)

    def lines(self, rank: int, host: str, pid: int) -> list[str]:
        """The lines of one rank's log."""
        device = sum(self.node(other) == self.node(rank) for other in range(rank))
        head = f"{host}:{pid}:{pid + 50000} [{device}] NCCL INFO "
        comm = f"comm 0x5a{rank:04x}"
        ids = (
            f"{comm} rank {rank} nranks {self.world} cudaDev {device} nvmlDev {device} "
            f"busId {device + 1:x}8000 commId {COMM_ID}"
        )
        local = f"localRanks {self.per_node} localRank {device}"
        return [
            *(["NCCL version 2.20.5+cuda12.4"] if rank == 0 else []),
            head + self.using.get(self.node(rank), USING),
            head + "Using network IB",
            f"{head}ncclCommInitRank {ids} - Init START",
            f"{head}{comm} rank {rank} nRanks {self.world} nNodes {self.nodes} {local} MNNVL 0",
            *(head + edge for edge in self._edges(rank)),
            head + "Connected all rings",
            f"{head}ncclCommInitRank {ids} - Init COMPLETE",
        ]

    def _edges(self, rank: int) -> list[str]:
        """The edges that a rank logs: what it sends, and what it receives over a network."""
        wording = self.wording or healthy(self)
        after, before = (rank + 1) % self.world, (rank - 1) % self.world
        edges = []
        for channel in range(CHANNELS):
            sent = wording(rank, after, "send")
            if sent is not None:
                role = " [send]" if sent.startswith("NET") else ""
                edges.append(f"{self._ends(channel, rank, after)}{role} via {sent}")
            received = wording(before, rank, "receive")
            if received is not None and received.startswith("NET"):
                edges.append(f"{self._ends(channel, before, rank)} [receive] via {received}")
        return edges

    def _ends(self, channel: int, source: int, destination: int) -> str:
        ids = [sum(self.node(o) == self.node(r) for o in range(r)) for r in (source, destination)]
        return f"Channel {channel:02d}/0 : {source}[{ids[0]}] -> {destination}[{ids[1]}]"


# Name of a fault -> (source, destination) -> the wording of that edge, in a job of 2 x 2 ranks.
FAULTS: dict[str, dict[tuple[int, int], str]] = {
    "none": {},
    "socket": {(1, 2): "NET/Socket/0"},
    "shm": {(2, 3): "SHM/direct/direct"},
    "no_gpudirect": {(3, 0): "NET/IB/1"},
    "ib_inside": {(0, 1): "NET/IB/0/GDRDMA"},
    "no_edges": {},
    "no_log": {},
    "lost_rank": {},
}


def staged(fault: str, rank: int, per_node: int, world: int) -> tuple[str, int, list[str]]:
    """Host, pid and lines of this process's log, with a fault of FAULTS."""
    job = FakeNccl(world // per_node, per_node)
    well = healthy(job)

    def wording(source: int, destination: int, role: str) -> str | None:
        if fault == "no_edges":
            return None
        return FAULTS[fault].get((source, destination)) or well(source, destination, role)

    job.wording = wording
    # A log of a process that is not a rank belongs to no rank.
    pid = os.getpid() + (2**22 if fault == "lost_rank" and rank == 3 else 0)
    host = socket.gethostname().split(".")[0]
    return host, pid, [] if fault == "no_log" else job.lines(rank, host, pid)
