"""The content of NCCL's log as frozen values; what the log does not say is None or empty."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple


class Where(NamedTuple):
    """A place in a log; lines are numbered from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class NcclProcess(NamedTuple):
    """A process that logged. `scope` distinguishes nodes that share a host name if the reader knows
    that they differ (one directory per node); otherwise it is empty."""

    scope: str
    host: str
    pid: str  # as in the log; quoted logs may hide it behind X

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}"


@dataclass(frozen=True)
class NcclTransport:
    """NCCL's wording of a transport, parsed.

    `kind` is `P2P/<method>`, `SHM` or `NET/<name>`, the latter with `/GDRDMA` where GPUDirect RDMA
    is used; `COLLNET/<name>` likewise.
    """

    wording: str
    kind: str
    net: str | None = None
    device: int | None = None  # the NIC's index in the logger's list
    gdrdma: bool = False
    pxn_proxy: int | None = None  # the rank that owns the NIC, if PXN sends through a peer
    shared: bool = False


NET = re.compile(
    r"(NET|COLLNET)/(.+?)/(\d{1,9})(?:\((\d{1,9})\))?((?:/GDRDMA)?)(?:\(PCI\))?((?:/[\w=]+)*)"
)


@lru_cache(maxsize=4096)
def parse_transport(wording: str) -> NcclTransport:
    """Parse NCCL's wording: `NET/AWS Libfabric/1(2)/GDRDMA/Shared`, `P2P/IPC/read`, …"""
    if wording.startswith(("SHM", "direct shared memory")):
        return NcclTransport(wording, "SHM")
    net = NET.fullmatch(wording)
    if net is None:
        method = "/".join(wording.split("/")[:2])
        return NcclTransport(wording, method)
    family, name, device, proxy, direct, suffixes = net.groups()
    return NcclTransport(
        wording,
        kind=f"{family}/{name}{direct}",
        net=name,
        device=int(device),
        gdrdma=bool(direct),
        pxn_proxy=int(proxy) if proxy else None,
        shared="/Shared" in suffixes,
    )


@dataclass(frozen=True, slots=True)
class Edge:
    """A connection from one rank to another, as one process logged it.

    Ranks are those of a communicator, not of the job. `communicators` lists the indices of those it
    may belong to: one if that is certain, several if the log does not distinguish them, none if
    nothing is known. NET edges are logged by both ends (`role` says which this is), P2P and SHM
    edges by the sender alone.
    """

    source: int
    destination: int
    wording: str
    channels: tuple[int, ...]
    connection: int | None  # 0: collectives, 1: send/recv; from NCCL 2.12 on
    role: str | None  # of the logger: "send" or "receive"
    logger: NcclProcess | None
    nic: str | None
    where: Where
    communicators: tuple[int, ...] = ()

    @property
    def transport(self) -> NcclTransport:
        return parse_transport(self.wording)

    @property
    def kind(self) -> str:
        return parse_transport(self.wording).kind

    @property
    def own_rank(self) -> int | None:
        """The rank of the process that logged; None if the line does not say."""
        if self.role is None:
            return None
        return self.destination if self.role == "receive" else self.source


@dataclass(frozen=True, slots=True)
class CollNet:
    """A connection of a rank into the network's own collectives (SHARP), which has no peer."""

    rank: int
    wording: str
    channels: tuple[int, ...]
    role: str
    logger: NcclProcess | None
    nic: str | None
    where: Where

    @property
    def kind(self) -> str:
        return parse_transport(self.wording).kind


@dataclass(frozen=True)
class Member:
    """A rank of a communicator: its process and devices, and how far its init got."""

    process: NcclProcess | None
    cuda_device: int | None = None
    nvml_device: int | None = None
    bus_id: str | None = None
    local_rank: int | None = None
    started: bool = False
    complete: bool = False


@dataclass(frozen=True)
class Communicator:
    """A communicator and those of its ranks that logged. `ranks` and `nodes` are None if no line
    has them; `id` is NCCL's commId (from 2.17 on)."""

    index: int
    id: str | None
    ranks: int | None
    nodes: int | None
    members: Mapping[int, Member]
    nvls: bool | None = None  # whether NVLS was connected; None: perhaps another communicator's

    @property
    def complete(self) -> bool | None:
        """Whether every rank's init is complete; False if one started and did not complete."""
        ends = [member.complete for member in self.members.values()]
        if any(member.started and not member.complete for member in self.members.values()):
            return False
        return True if self.ranks and len(ends) == self.ranks and all(ends) else None


@dataclass
class Warn:
    """A message of NCCL WARN, where it first occurred, and how often."""

    text: str
    source: str | None  # NCCL's own `file.cc:line`
    function: str | None
    process: NcclProcess | None
    where: Where
    count: int = 1


@dataclass(frozen=True)
class Log:
    """Everything the logs of a job say about its transports."""

    versions: tuple[str, ...]
    communicators: tuple[Communicator, ...]
    edges: tuple[Edge, ...]
    collnet: tuple[CollNet, ...]
    warnings: tuple[Warn, ...]
    networks: Mapping[NcclProcess | None, tuple[str, ...]] = field(default_factory=dict)
    without_ib: tuple[NcclProcess, ...] = ()  # processes in which NET/IB found no device
    nvls: frozenset[NcclProcess | None] = frozenset()  # processes that connected NVLS
    # Places of cut or torn lines: `via` between two ranks in a wording that no NCCL uses.
    torn: tuple[Where, ...] = ()
    torn_count: int = 0
    informed: bool = False  # whether any line of NCCL INFO was read

    @property
    def version(self) -> str | None:
        """NCCL's version; joined if processes differ, None if no line has it."""
        return ", ".join(self.versions) or None

    def kinds(self) -> list[str]:
        """The kinds of all edges in alphabetical order, with NVLS and CollNet if they were used."""
        kinds = {edge.kind for edge in self.edges} | {link.kind for link in self.collnet}
        return sorted(kinds | ({"NVLS"} if self.nvls else set()))
