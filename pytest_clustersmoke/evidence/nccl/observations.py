"""Everything the reader has seen, kept small: one entry per distinct edge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from .grammar import Header
from .nccl_log import NcclProcess, Warn, Where

MAX_WARNINGS = 1000
MAX_TORN = 100


class InitMoment(NamedTuple):
    """When in the life of a process an edge was logged, counted in inits of communicators."""

    completed: int  # inits completed by this process
    completed_here: int  # … by this thread
    open: int | None  # the init that this thread had started and not completed


class Variant(NamedTuple):
    """The properties that edges of many pairs of ranks share."""

    wording: str
    connection: int | None
    role: str | None
    source_id: str | None  # nvmlDev or busId, by version
    destination_id: str | None
    moment: InitMoment | None


# Index of the thread (-1: unknown), source, destination, index of the variant.
EdgeKey = tuple[int, int, int, int]


# How the wording of an edge ended: perhaps cut by another line, at the end of the file, or
# certainly complete.
CUT, LAST, WHOLE = 0, 1, 2


class SeenEdge:
    """An edge as one thread logged it: its channels as bits, and its first place."""

    __slots__ = ("channels", "ended", "where")

    def __init__(self, where: Where, ended: int) -> None:
        self.channels = 0
        self.where = where
        self.ended = ended


# The edges of one thread and variant, by both ranks as one number. A job of 512 ranks may have half
# a million edges, so this must be small.
Group = dict[int, SeenEdge]
RANK_BITS = 24  # ranks have at most seven digits


def record_edge(group: Group, source: int, destination: int, where: Where, ended: int) -> SeenEdge:
    """The entry of an edge, created if it is new."""
    ranks = source << RANK_BITS | destination
    seen = group.get(ranks)
    if seen is None:
        seen = group[ranks] = SeenEdge(where, ended)
    seen.ended |= ended
    return seen


def iterate_edges(groups: Mapping[tuple[int, int], Group]) -> Iterator[tuple[EdgeKey, SeenEdge]]:
    """All edges of groups, which are by thread and variant."""
    for (thread, variant), group in groups.items():
        for ranks, seen in group.items():
            yield (thread, ranks >> RANK_BITS, ranks & (1 << RANK_BITS) - 1, variant), seen


@dataclass
class Init:
    """One rank's init of a communicator, as its process logged it."""

    index: int
    process: NcclProcess | None
    pointer: str
    rank: int
    ranks: int
    comm_id: str | None
    cuda_device: int | None
    nvml_device: int | None
    bus_id: str | None
    shared_id: bool = False  # a split: siblings of one parent and colour share the id (up to 2.21)
    nodes: int | None = None
    local_rank: int | None = None
    started: bool = False
    completed: int | None = None  # its index among the process's completed inits
    ended: int | None = None  # the process's completed inits when it was destroyed
    inside: list[Thread] = field(default_factory=list)  # threads that started it


@dataclass
class Thread:
    """A thread that logged."""

    index: int
    process: NcclProcess
    state: ProcessState
    device: str
    completed: list[int] = field(default_factory=list)  # inits, in order
    open: int | None = None

    def moment(self) -> InitMoment:
        return InitMoment(self.state.completed, len(self.completed), self.open)


@dataclass
class ProcessState:
    """The progress of a process, and its lines in the line cache."""

    process: NcclProcess
    completed: int = 0  # inits
    heads: set[bytes] = field(default_factory=set)  # the beginnings of its lines in the line cache


class Observations:
    """Everything seen so far."""

    def __init__(self) -> None:
        self.processes: dict[NcclProcess, ProcessState] = {}
        self.threads: list[Thread] = []
        self.inits: list[Init] = []
        self.edges: dict[tuple[int, int], Group] = {}
        self.quoted: dict[tuple[int, int], Group] = {}
        self.variants: list[Variant] = []
        self.collnet: dict[tuple[NcclProcess | None, int, str, str], SeenEdge] = {}
        self.versions: dict[str, None] = {}
        self.warnings: dict[tuple[str, str | None], Warn] = {}
        self.networks: dict[NcclProcess | None, dict[str, None]] = {}
        self.devices: dict[tuple[NcclProcess | None, str], dict[int, str | None]] = {}
        self.without_ib: dict[NcclProcess, None] = {}
        # Process -> the communicators (their pointers) that connected NVLS; None: unknown which.
        self.nvls: dict[NcclProcess | None, set[str | None]] = {}
        self.informed = False  # whether any line of NCCL INFO was read
        self.torn: list[Where] = []
        self.torn_count = 0
        self._by_header: dict[tuple[str, Header], Thread] = {}
        self._variant_index: dict[Variant, int] = {}
        self._hosts: dict[tuple[str, str], set[str]] = {}  # of the processes with a pid
        self._known_hosts: set[tuple[str, str]] = set()
        self._inits: dict[tuple[NcclProcess | None, str, int, str | None], Init] = {}
        self._parents: dict[tuple[NcclProcess | None, str], Init] = {}
        self._newest: dict[tuple[NcclProcess | None, str, int], Init] = {}

    # -- Processes and threads ---------------------------------------------------------------------

    def thread(self, scope: str, header: Header | None) -> Thread | None:
        """The thread of a header; None if the line's header is lost."""
        if header is None:
            return None
        thread = self._by_header.get((scope, header))
        if thread is None:
            host, pid = (word.decode(errors="replace") for word in header[:2])
            process = self._process(scope, host, pid)
            state = self.processes.get(process)
            if state is None:
                state = self.processes[process] = ProcessState(process)
                self._hosts.setdefault((scope, pid), set()).add(process.host)
                self._known_hosts.add((scope, process.host))
            thread = Thread(len(self.threads), process, state, header.device.decode())
            self._by_header[scope, header] = thread
            self.threads.append(thread)
        return thread

    def _process(self, scope: str, host: str, pid: str) -> NcclProcess:
        """The process of a header. Text of a line that lost its newline may stick to the host:
        `memoryk023` is `k023` if a process with this pid is known there."""
        known = self._hosts.get((scope, pid), set()) if pid.isdigit() else set()
        for begin in range(1, len(host) if known else 0):
            if host[begin:] in known and host[begin - 1].isalnum():
                return NcclProcess(scope, host[begin:], pid)
        return NcclProcess(scope, host, pid)

    def knows_host(self, scope: str, host: str) -> bool:
        return (scope, host) in self._known_hosts

    # -- Lines -------------------------------------------------------------------------------------

    def group(self, thread: Thread | None, variant: Variant) -> Group:
        """The edges of a thread that share a variant."""
        key = (thread.index if thread else -1, self._variant(variant))
        return self.edges.setdefault(key, {})

    def quote(self, variant: Variant) -> Group:
        """The same for quoted edges."""
        return self.quoted.setdefault((-1, self._variant(variant)), {})

    def see_collnet(
        self, thread: Thread | None, key: tuple[int, str, str], channel: int, where: Where
    ) -> None:
        process = thread.process if thread else None
        seen = self.collnet.setdefault((process, *key), SeenEdge(where, WHOLE))
        seen.channels |= 1 << min(channel, 1023)

    def tear(self, where: Where) -> None:
        self.torn_count += 1
        if len(self.torn) < MAX_TORN:
            self.torn.append(where)

    def warn(
        self,
        text: str,
        source: str | None,
        function: str | None,
        process: NcclProcess | None,
        where: Where,
    ) -> None:
        known = self.warnings.get((text, source))
        if known is not None:
            known.count += 1
        elif len(self.warnings) < MAX_WARNINGS:
            self.warnings[text, source] = Warn(text, source, function, process, where)

    def init(self, thread: Thread | None, new: Init, state: str) -> None:
        """Record a line about a communicator: `Init START`, `Init COMPLETE`, or its end."""
        key = (new.process, new.pointer, new.rank, new.comm_id)
        known, newest = self._inits.get(key), self._newest.get(key[:3])
        if state.endswith(("Abort COMPLETE", "Destroy COMPLETE")):
            self._close(newest)
            if newest is not None and thread is not None:
                newest.ended = thread.state.completed
            return
        begins = state == "Init START"
        if not begins and known is None and newest is not None and newest.completed is None:
            # ncclCommGrow logs another name at the end than at the start.
            known = newest
            if known.comm_id is None and known.cuda_device is None:  # from the line about nodes
                known.comm_id, known.cuda_device = new.comm_id, new.cuda_device
                known.nvml_device, known.bus_id = new.nvml_device, new.bus_id
        if known is None or (known.completed is not None and (begins or new.comm_id is None)):
            self._add(new)
            known = new
        if begins:
            known.started = True
            if thread is not None:
                thread.open = known.index
                known.inside.append(thread)
        elif known.completed is None:
            known.completed = thread.state.completed if thread else 0
            self._close(known)
            if thread is not None:
                thread.state.completed += 1
                thread.completed.append(known.index)

    @staticmethod
    def _close(known: Init | None) -> None:
        """Record that no thread is inside an init any more."""
        if known is None:
            return
        for thread in known.inside:
            if thread.open == known.index:
                thread.open = None

    def child(self, process: NcclProcess | None, parent: str, which: str) -> str | None:
        """A name for a communicator that was split from another, the same on all its ranks; None if
        the parent's name is unknown."""
        known = self._parents.get((process, parent))
        return f"{known.comm_id}/{which}" if known and known.comm_id else None

    def list_devices(self, process: NcclProcess | None, net: str, names: dict[int, str]) -> None:
        """Record NICs by index. Lists without a process may come from several nodes: entries that
        disagree become unknown."""
        known = self.devices.setdefault((process, net), {})
        for index, name in names.items():
            differs = process is None and known.get(index, name) != name
            known[index] = None if differs else name

    def nodes(self, new: Init) -> None:
        """Record `nNodes` and `localRank`, which have a line of their own after `Init START`. If
        that is missing, this line alone shows that the rank is a member."""
        known = self._newest.get((new.process, new.pointer, new.rank))
        if known is None or known.ranks != new.ranks:
            self._add(new)
            known = new
        known.nodes, known.local_rank = new.nodes, new.local_rank

    def _add(self, new: Init) -> None:
        new.index = len(self.inits)
        self.inits.append(new)
        key = (new.process, new.pointer, new.rank, new.comm_id)
        self._inits[key] = self._newest[key[:3]] = self._parents[key[:2]] = new

    def _variant(self, variant: Variant) -> int:
        """The index of a variant, assigned if it is new."""
        index = self._variant_index.get(variant)
        if index is None:
            index = self._variant_index[variant] = len(self.variants)
            self.variants.append(variant)
        return index
