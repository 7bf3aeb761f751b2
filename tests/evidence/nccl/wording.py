"""NCCL's lines as each version's source prints them, from 2.3.5 to 2.30.7."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from pytest_clustersmoke.evidence.nccl.log_reader import Reader
from pytest_clustersmoke.evidence.nccl.nccl_log import Log

# Versions that change a wording; each is the first one with the feature in its comment.
VERSIONS = (
    "2.3.5",
    "2.4.8",  # cudaDev and nvmlDev in init lines
    "2.5.6",  # bus ids
    "2.7.8",  # Channel, /read
    "2.8.4",  # P2P/indirect, /Shared
    "2.12.12",  # NET edges have their connection; PXN
    "2.13.4",  # SHM/x/y
    "2.14.3",  # P2P edges have their connection
    "2.17.1",  # commId, Init START
    "2.18.1",  # CUMEM
    "2.18.5",  # nvmlDev again
    "2.20.5",  # nNodes, MNNVL
    "2.21.5",  # the API's name
    "2.22.3",  # connections when they are needed; the version after NCCL INFO
    "2.23.4",  # splits without an id of their own
    "2.26.2",  # GDRDMA(PCI); times before warnings
    "2.27.7",  # childCount
    "2.29.2",  # [Rank n] before the API's name
    "2.30.7",  # SHM/direct; warnings name their function
)


class Gpu(NamedTuple):
    """The process and GPU of a rank, as NCCL logs them."""

    rank: int
    host: str
    pid: int
    tid: int
    device: int
    bus: str

    @property
    def head(self) -> str:
        return f"{self.host}:{self.pid}:{self.tid} [{self.device}] NCCL INFO "


def gpu(rank: int, per_node: int = 2, host: str = "k{:03d}", tid: int = 0) -> Gpu:
    """A rank of a job with block placement, one process per rank; `{}` in `host` is the node."""
    node, device = divmod(rank, per_node)
    pid = 4000 + 100 * node + device
    return Gpu(rank, host.format(node), pid, tid or pid + 40, device, f"{device + 1:x}8000")


@dataclass(frozen=True)
class Nccl:
    """The wording of one version."""

    version: str
    number: tuple[int, int, int] = field(init=False)

    def __post_init__(self) -> None:
        parts = tuple(map(int, self.version.split(".")))
        object.__setattr__(self, "number", (*parts, 0)[:3])

    # -- Edges -------------------------------------------------------------------------------------

    def p2p(
        self,
        source: Gpu,
        destination: Gpu,
        method: str = "IPC",
        channel: int = 0,
        connection: int = 0,
    ) -> str:
        """An edge as its sender logs it."""
        number = f"/{connection}" if self.number >= (2, 14, 3) else ""
        ends = self.ends(source, destination)
        return f"{source.head}{self._channel(channel)}{number} : {ends} via P2P/{method}"

    def shm(self, source: Gpu, destination: Gpu, channel: int = 0) -> str:
        ends = self.ends(source, destination)
        return f"{source.head}{self._channel(channel)} : {ends} via {self.shm_wording}"

    @property
    def shm_wording(self) -> str:
        if self.number >= (2, 30, 7):
            return "SHM/direct"
        return "SHM/direct/direct" if self.number >= (2, 13, 4) else "direct shared memory"

    def net(
        self,
        source: Gpu,
        destination: Gpu,
        wording: str = "IB/0",
        role: str = "send",
        channel: int = 0,
        connection: int = 0,
    ) -> str:
        """An edge as its sender, or its receiver, logs it."""
        number = f"/{connection}" if self.number >= (2, 12, 7) else ""
        head = source.head if role == "send" else destination.head
        ends = self.ends(source, destination)
        if self.number < (2, 5, 0):
            ends = f"{source.rank} -> {destination.rank}"
        return f"{head}{self._channel(channel)}{number} : {ends} [{role}] via NET/{wording}"

    def ends(self, source: Gpu, destination: Gpu) -> str:
        by_bus = (2, 5, 0) <= self.number < (2, 18, 3)
        ids = (source.bus, destination.bus) if by_bus else (source.device, destination.device)
        return f"{source.rank}[{ids[0]}] -> {destination.rank}[{ids[1]}]"

    def _channel(self, channel: int) -> str:
        return f"{'Channel' if self.number >= (2, 7, 0) else 'Ring'} {channel:02d}"

    # -- Communicators -----------------------------------------------------------------------------

    def start(
        self, process: Gpu, ranks: int, comm: str = "0x5a0", comm_id: str = "0xf021d9"
    ) -> list[str]:
        """`Init START`, if the version logs it."""
        if self.number < (2, 17, 0):
            return []
        rank = f"[Rank {process.rank}] " if self.number >= (2, 29, 0) else ""
        comm_text = f"{self._comm(process, ranks, comm)} commId {comm_id} - Init START"
        return [f"{process.head}{rank}{self._api('ncclCommInitRank')}{comm_text}"]

    def complete(
        self, process: Gpu, ranks: int, comm: str = "0x5a0", comm_id: str = "0xf021d9"
    ) -> str:
        named = f" commId {comm_id}" if self.number >= (2, 17, 0) else ""
        state = "Init COMPLETE" if self.number >= (2, 4, 0) else "COMPLETE"
        comm_text = f"{self._comm(process, ranks, comm)}{named} - {state}"
        return f"{process.head}{self._api('ncclCommInitRank')}{comm_text}"

    def split(
        self,
        process: Gpu,
        ranks: int,
        parent: str,
        comm: str,
        count: int = 1,
        color: int = 0,
        comm_id: str = "0x51",
        api: str = "ncclCommSplit",
    ) -> tuple[str, str]:
        """Start and end of a communicator split from another; `comm_id` is logged up to 2.21."""
        if self.number >= (2, 22, 0):
            counted = "childCount" if self.number >= (2, 27, 0) else "splitCount"
            text = f" parent {parent} {counted} {count} color {color} key {process.rank}"
            ends = f"{text}- Init START", f"{text} - Init COMPLETE"
        elif self.number >= (2, 20, 0):
            text = f" parent {parent} color {color} key {process.rank} commId {comm_id}"
            ends = f"{text} - Init START", f"{text} - Init COMPLETE"
        else:
            ends = f" commId {comm_id} - Init START", f" commId {comm_id} - Init COMPLETE"
        head = f"{process.head}{self._api(api)}{self._comm(process, ranks, comm)}"
        return head + ends[0], head + ends[1]

    def nodes(self, process: Gpu, ranks: int, nodes: int, comm: str = "0x5a0") -> list[str]:
        """`nNodes`, if the version logs it."""
        if self.number < (2, 20, 3):
            return []
        local = f"localRanks {ranks // nodes} localRank {process.device} MNNVL 0"
        return [
            f"{process.head}comm {comm} rank {process.rank} nRanks {ranks} nNodes {nodes} {local}"
        ]

    def _api(self, name: str) -> str:
        return f"{name} " if self.number >= (2, 21, 5) else ""

    def _comm(self, process: Gpu, ranks: int, comm: str) -> str:
        text = f"comm {comm} rank {process.rank} nranks {ranks}"
        if self.number >= (2, 4, 0):
            text += f" cudaDev {process.device}"
        if (2, 4, 0) <= self.number < (2, 5, 0) or self.number >= (2, 18, 3):
            text += f" nvmlDev {process.device}"
        return text + (f" busId {process.bus}" if self.number >= (2, 5, 0) else "")

    # -- The rest ----------------------------------------------------------------------------------

    def banner(self, process: Gpu) -> str:
        """The version, which only rank 0 logs."""
        text = f"NCCL version {self.version}+cuda12.4"
        return process.head + text if self.number >= (2, 22, 0) else text

    def warn(
        self, process: Gpu, text: str, source: str = "misc/socket.cc:88", function: str = "f"
    ) -> str:
        """A warning, with the empty line that comes before it."""
        time = "[2026-06-01 10:00:00] " if self.number >= (2, 26, 0) else ""
        named = f" ({function})" if self.number >= (2, 30, 7) else ""
        head = f"{process.host}:{process.pid}:{process.tid} [{process.device}]"
        return f"\n{time}{head} {source}{named} NCCL WARN {text}"

    @property
    def lazy(self) -> bool:
        """Whether connections are made when a collective first needs them."""
        return self.number >= (2, 22, 0)


def text_of(lines: Iterable[str]) -> bytes:
    return b"".join(f"{line}\n".encode() for line in lines)


def read(text: bytes, scope: str = "") -> Log:
    reader = Reader()
    reader.stream(io.BytesIO(text), "log", scope)
    return reader.log()


def edges(log: Log) -> set[tuple[int, int, str]]:
    return {(edge.source, edge.destination, edge.wording) for edge in log.edges}
