"""Logs of many megabytes, the same for the same seed: noise with edges in it, rings, all pairs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

BLOCK_BYTES = 2**24  # of distinct lines; larger logs repeat it, as training repeats itself


def mixed(share: float, seed: int = 0, stamped: bool = False) -> bytes:
    """A block of the log of 64 nodes with 8 GPUs, in which edges are `share` of the bytes.

    `stamped`: a time before each line, as a log collector puts it there.
    """
    random, lines, size, of_edges = Random(seed), [], 0, 0
    while size < BLOCK_BYTES:
        rank = random.randrange(512)
        is_edge = of_edges <= share * size
        line = _edge(random, rank) if is_edge else _noise(random, rank)
        if stamped:
            micros = random.randrange(10**6)
            line = f"2025-09-01T12:{size // 60 % 60:02d}:{size % 60:02d}.{micros:06d}Z {line}"
        lines.append(line)
        size += len(line) + 1
        of_edges += (len(line) + 1) * is_edge
    return "\n".join(lines).encode() + b"\n"


def write(path: Path, block: bytes, size: int) -> None:
    """A file of that many bytes, to the end of a line."""
    with path.open("wb") as file:
        for _ in range(size // len(block)):
            file.write(block)
        rest = block[: size % len(block)]
        file.write(rest[: rest.rfind(b"\n") + 1])


def all_pairs(nodes: int, per_node: int, channels: int = 2) -> Iterator[str]:
    """An all-to-all: each rank connects to each, both ends of NET, P2P inside nodes."""
    ranks = nodes * per_node
    for rank in range(ranks):
        comm = f"comm 0x{rank:x} rank {rank} nranks {ranks} {_device(rank, per_node)} commId 0xab"
        for state in ("START", "COMPLETE"):
            yield f"{_head(rank, per_node)}ncclCommInitRank {comm} - Init {state}"
    for rank in range(ranks):
        head = _head(rank, per_node)
        for peer in range(ranks):
            sent, received = _ends(rank, peer, per_node), _ends(peer, rank, per_node)
            for channel in range(channels) if peer != rank else ():
                number = f"{head}Channel {channel:02d}/1 : "
                if rank // per_node == peer // per_node:
                    yield f"{number}{sent} via P2P/CUMEM"
                    continue
                via = f"via NET/IB/{rank % per_node}/GDRDMA/Shared"
                yield f"{number}{sent} [send] {via}"
                yield f"{number}{received} [receive] {via}"


def rings(nodes: int, per_node: int, channels: int = 16) -> Iterator[str]:
    """Rings over all ranks, both ends of NET edges, and the other lines that a job logs at its
    start."""
    ranks = nodes * per_node
    for rank in range(ranks):
        head = _head(rank, per_node)
        nics = " ".join(f"[{i}]mlx5_{i}:1/IB" for i in range(per_node))
        comm = f"comm 0x{rank:x} rank {rank} nranks {ranks} {_device(rank, per_node)} commId 0xab"
        yield f"{head}NET/IB : Using {nics} [RO]; OOB ib0:10.0.0.{rank // per_node}<0>"
        yield f"{head}Using network IB"
        yield f"{head}ncclCommInitRank {comm} - Init START"
        yield f"{head}Trees [0] {rank}/-1/-1->{rank}->{rank - 1}"
        yield f"{head}ncclCommInitRank {comm} - Init COMPLETE"
        before, after = (rank - 1) % ranks, (rank + 1) % ranks
        for channel in range(channels):
            number = f"{head}Channel {channel:02d}/0 : "
            via = f"via NET/IB/{rank % per_node}/GDRDMA"
            if rank // per_node == after // per_node:
                yield f"{number}{_ends(rank, after, per_node)} via P2P/CUMEM"
            else:
                yield f"{number}{_ends(rank, after, per_node)} [send] {via}"
            if rank // per_node != before // per_node:
                yield f"{number}{_ends(before, rank, per_node)} [receive] {via}"


def _head(rank: int, per_node: int) -> str:
    return (
        f"node{rank // per_node:03d}:{10000 + rank}:{20000 + rank} [{rank % per_node}] NCCL INFO "
    )


def _device(rank: int, per_node: int) -> str:
    device = rank % per_node
    return f"cudaDev {device} nvmlDev {device} busId {device + 1:x}8000"


def _ends(source: int, destination: int, per_node: int) -> str:
    return f"{source}[{source % per_node}] -> {destination}[{destination % per_node}]"


def _edge(random: Random, rank: int) -> str:
    peer, channel = (rank + random.choice((1, 8))) % 512, random.randrange(32)
    via = f"[send] via NET/IB/{rank % 8}/GDRDMA" if rank // 8 != peer // 8 else "via P2P/CUMEM"
    return f"{_head(rank, 8)}Channel {channel:02d}/0 : {_ends(rank, peer, 8)} {via}"


def _noise(random: Random, rank: int) -> str:
    """A line that is not an edge; some of these contain words of edges."""
    head, number = _head(rank, 8), random.randrange(2**31)
    kind = number % 8
    if kind == 0:
        return f"{head}Channel {number % 32:02d}/32 : " + " ".join(map(str, range(64)))
    if kind == 1:
        return f"{head}Trees [0] {rank}/-1/-1->{rank}->{rank - 1} [1] -1/-1/-1->{rank}->{rank - 8}"
    if kind in (2, 3, 4):
        return (
            f"{head}AllReduce: opCount {number:x} sendbuff 0x7f{number:010x} recvbuff "
            f"0x7f{number:010x} acc (nil) count {number % 2**24} datatype 9 op 0 root 0 comm "
            f"0x{number:x} [nranks=512] stream 0x{number:x}"
        )
    if kind == 5:
        return f"[rank{rank}]: step {number % 10**5} | loss {number / 2**30:.5f} | lr 1.0e-04"
    if kind == 6:
        return f"{head}NVLS multicast support is available on dev {rank % 8} (NVLS_NCHANNELS 24)"
    return f"W0901 12:00:00.{number % 10**6:06d} torch/distributed/run.py:793] {'*' * 40}"
