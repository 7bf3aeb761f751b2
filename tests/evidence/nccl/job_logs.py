"""Logs like those of NCCL 2.20 to 2.30 for a job of any size: rings and trees over its nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

Pair = tuple[int, int]


@dataclass(frozen=True)
class JobLogs:
    """A job of `nodes` nodes with `gpus` GPUs, each with one rank, and a healthy network: P2P
    inside a node, InfiniBand with GPUDirect RDMA between nodes. `overrides` sets the transport of
    single pairs."""

    nodes: int
    gpus: int
    channels: int = 16
    version: str = "2.21.5"
    overrides: dict[Pair, str] = field(default_factory=dict)
    noise: int = 0  # lines per rank that say nothing about transports

    @property
    def ranks(self) -> int:
        return self.nodes * self.gpus

    def host(self, node: int) -> str:
        return f"k{node + 1:03d}"

    def write(self, folder: Path) -> list[Path]:
        """A file for each process, as with NCCL_DEBUG_FILE=%h.%p.log."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for node in range(self.nodes):
            for gpu in range(self.gpus):
                path = folder / f"{self.host(node)}.{4000 + gpu}.log"
                path.write_text("\n".join(self.lines(node, gpu)) + "\n")
                paths.append(path)
        return paths

    def lines(self, node: int, gpu: int) -> Iterator[str]:
        """The log lines of one rank's process."""
        rank = node * self.gpus + gpu
        head = f"{self.host(node)}:{4000 + gpu}:{5000 + gpu} [{gpu}] NCCL INFO "
        bus = f"{0x18 + 0x10 * gpu:x}000"
        comm = f"comm 0x5f00{rank:04x}0 rank {rank} "
        devices = " ".join(f"[{i}]mlx5_{i}:1/IB" for i in range(self.gpus))
        where = f"cudaDev {gpu} nvmlDev {gpu} busId {bus} commId 0x9f3c51aa00010001"
        if rank == 0:
            yield f"NCCL version {self.version}+cuda12.4"
        yield f"{head}Bootstrap : Using ib0:10.1.0.{node}<0>"
        yield f"{head}NET/IB : Using {devices} [RO]; OOB ib0:10.1.0.{node}<0>"
        yield f"{head}Using network IB"
        yield f"{head}ncclCommInitRank {comm}nranks {self.ranks} {where} - Init START"
        yield (
            f"{head}{comm}nRanks {self.ranks} nNodes {self.nodes} localRanks {self.gpus} "
            f"localRank {gpu} MNNVL 0"
        )
        yield from (
            f"{head}NCCL_IB_TIMEOUT set by environment to 22. #{i}" for i in range(self.noise)
        )
        for source, destination, channel in self._ring(rank):
            yield head + self._edge(rank, source, destination, channel)
        yield f"{head}Connected all rings"
        for source, destination, channel in self._tree(rank):
            yield head + self._edge(rank, source, destination, channel)
        yield f"{head}Connected all trees"
        yield f"{head}ncclCommInitRank {comm}nranks {self.ranks} {where} - Init COMPLETE"

    def _edge(self, rank: int, source: int, destination: int, channel: int) -> str:
        ends = " -> ".join(f"{end}[{end % self.gpus}]" for end in (source, destination))
        inside = source // self.gpus == destination // self.gpus
        healthy = "P2P/CUMEM" if inside else f"NET/IB/{rank % self.gpus}/GDRDMA"
        transport = self.overrides.get((source, destination), healthy)
        role = (
            "" if not transport.startswith("NET") else " [send]" if rank == source else " [receive]"
        )
        return f"Channel {channel:02d}/0 : {ends}{role} via {transport}"

    def _ring(self, rank: int) -> Iterator[tuple[int, int, int]]:
        for channel in range(self.channels):
            before, after = self._step(rank, channel, -1), self._step(rank, channel, 1)
            if self._logs(rank, before, rank):
                yield before, rank, channel
            yield rank, after, channel

    def _step(self, rank: int, channel: int, step: int) -> int:
        """The neighbour in a ring that enters each node at GPU `channel`."""
        node, gpu = divmod(rank, self.gpus)
        place = (gpu - channel) % self.gpus + step
        if 0 <= place < self.gpus:
            return node * self.gpus + (place + channel) % self.gpus
        return (node + step) % self.nodes * self.gpus + (place % self.gpus + channel) % self.gpus

    def _tree(self, rank: int) -> Iterator[tuple[int, int, int]]:
        """A binary tree of nodes, and a chain in each, up and down."""
        node, gpu = divmod(rank, self.gpus)
        for channel in range(self.channels):
            place = (gpu - channel) % self.gpus
            chain = [node * self.gpus + (p + channel) % self.gpus for p in (place - 1, place + 1)]
            near = [
                peer
                for peer, p in zip(chain, (place - 1, place + 1), strict=True)
                if 0 <= p < self.gpus
            ]
            if place == 0:
                others = [(node - 1) // 2 if node else -1, 2 * node + 1, 2 * node + 2]
                near += [n * self.gpus + gpu for n in others if 0 <= n < self.nodes]
            for other in near:
                if self._logs(rank, other, rank):
                    yield other, rank, channel
                yield rank, other, channel

    def _logs(self, rank: int, source: int, destination: int) -> bool:
        """Whether the receiver logs an edge, as for NET edges."""
        inside = source // self.gpus == destination // self.gpus
        transport = self.overrides.get((source, destination), "P2P" if inside else "NET")
        return transport.startswith("NET")
