"""What the reader has seen, kept small: one entry for each distinct edge."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from .grammar import Header
from .model import Log, Process, Warn, Where

MAX_WARNINGS = 1000
MAX_TORN = 100


class Moment(NamedTuple):
    """When in the life of a process an edge was logged, in inits of communicators."""

    completed: int  # inits that this process had completed
    completed_here: int  # … on this thread
    open: int | None  # the init that this thread had begun and not completed


class Variant(NamedTuple):
    """What the edges of many pairs of ranks have in common."""

    wording: str
    connection: int | None
    role: str | None
    source_id: str | None  # nvmlDev or busId, by version
    destination_id: str | None
    moment: Moment | None


class Seen:
    """An edge as one thread logged it: its channels as bits, and where it first stood."""

    __slots__ = ("channels", "file", "line", "whole")

    def __init__(self, where: Where, whole: bool) -> None:
        self.channels = 0
        self.file, self.line = where
        self.whole = whole  # whether its line was ended


@dataclass
class Init:
    """One rank's init of a communicator, as its process logged it."""

    index: int
    process: Process | None
    pointer: str
    rank: int
    ranks: int
    comm_id: str | None
    cuda_device: int | None
    nvml_device: int | None
    bus_id: str | None
    nodes: int | None = None
    local_rank: int | None = None
    started: bool = False
    completed: int | None = None  # the how-manieth completed of its process, from 0


@dataclass
class Thread:
    """A thread that logged."""

    index: int
    process: Process
    state: ProcessState
    device: str
    completed: list[int] = field(default_factory=list)  # inits, in order
    open: int | None = None
    heads: set[bytes] = field(default_factory=set)  # what the reader knows its lines by

    def moment(self) -> Moment:
        return Moment(self.state.completed, len(self.completed), self.open)


@dataclass
class ProcessState:
    """What a process said of itself."""

    process: Process
    completed: int = 0
    inits: list[int] = field(default_factory=list)
    threads: list[Thread] = field(default_factory=list)


class Logged:
    """Everything seen so far."""

    def __init__(self) -> None:
        self.processes: dict[Process, ProcessState] = {}
        self.threads: list[Thread] = []
        self.inits: list[Init] = []
        self.edges: dict[tuple[int, int, int, int], Seen] = {}
        self.quoted: dict[tuple[int, int, int, int], Seen] = {}
        self.variants: list[Variant] = []
        self.collnet: dict[tuple[Process | None, int, str, str], Seen] = {}
        self.versions: dict[str, None] = {}
        self.warnings: dict[tuple[str, str | None], Warn] = {}
        self.networks: dict[Process | None, dict[str, None]] = {}
        self.devices: dict[tuple[Process | None, str], dict[int, str]] = {}
        self.without_ib: dict[Process, None] = {}
        self.nvls: set[Process | None] = set()
        self.torn: list[Where] = []
        self.torn_count = 0
        self._by_header: dict[tuple[str, Header], Thread] = {}
        self._variant_index: dict[Variant, int] = {}
        self._hosts: set[tuple[str, str]] = set()
        self._inits: dict[tuple[Process | None, str, int, str | None], Init] = {}
        self._parents: dict[tuple[Process | None, str], Init] = {}
        self._newest: dict[tuple[Process | None, str, int], Init] = {}

    # -- Who ---------------------------------------------------------------------------------------

    def thread(self, scope: str, header: Header | None) -> Thread | None:
        """The thread of a header; None for lines whose header is lost."""
        if header is None:
            return None
        found = self._by_header.get((scope, header))
        if found is None:
            host, pid = (word.decode(errors="replace") for word in header[:2])
            process = Process(scope, host, pid)
            state = self.processes.setdefault(process, ProcessState(process))
            found = Thread(len(self.threads), process, state, header.device.decode())
            self._by_header[scope, header] = found
            self._hosts.add((scope, host))
            self.threads.append(found)
            state.threads.append(found)
        return found

    def knows_host(self, scope: str, host: str) -> bool:
        return (scope, host) in self._hosts

    # -- What --------------------------------------------------------------------------------------

    def see(
        self,
        thread: Thread | None,
        source: int,
        destination: int,
        variant: Variant,
        where: Where,
        whole: bool,
    ) -> Seen:
        """The entry of an edge, made where it is new."""
        key = (thread.index if thread else -1, source, destination, self._variant(variant))
        seen = self.edges.get(key)
        if seen is None:
            seen = self.edges[key] = Seen(where, whole)
        seen.whole |= whole
        return seen

    def quote(self, source: int, destination: int, variant: Variant, where: Where) -> None:
        key = (-1, source, destination, self._variant(variant))
        self.quoted.setdefault(key, Seen(where, whole=True))

    def see_collnet(
        self, thread: Thread | None, key: tuple[int, str, str], channel: int, where: Where
    ) -> None:
        process = thread.process if thread else None
        seen = self.collnet.setdefault((process, *key), Seen(where, whole=True))
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
        process: Process | None,
        where: Where,
    ) -> None:
        known = self.warnings.get((text, source))
        if known is not None:
            known.count += 1
        elif len(self.warnings) < MAX_WARNINGS:
            self.warnings[text, source] = Warn(text, source, function, process, where)

    def init(self, thread: Thread | None, one: Init, state: str) -> None:
        """One line of a communicator's life: `Init START`, `Init COMPLETE`, an end."""
        key = (one.process, one.pointer, one.rank, one.comm_id)
        known = self._inits.get(key)
        if state.endswith(("Abort COMPLETE", "Destroy COMPLETE")):
            return
        begins = state == "Init START"
        if known is None or (known.completed is not None and (begins or one.comm_id is None)):
            one.index = len(self.inits)
            self.inits.append(one)
            self._inits[key] = self._newest[key[:3]] = self._parents[key[:2]] = known = one
            if thread is not None:
                thread.state.inits.append(one.index)
        if begins:
            known.started = True
            if thread is not None:
                thread.open = known.index
        elif known.completed is None:
            known.completed = thread.state.completed if thread else 0
            if thread is not None:
                thread.state.completed += 1
                thread.completed.append(known.index)
                thread.open = None

    def child(self, process: Process | None, parent: str, which: str) -> str | None:
        """A name for what was split from a communicator, the same on all its ranks; None where the
        parent's is not known."""
        known = self._parents.get((process, parent))
        return f"{known.comm_id}/{which}" if known and known.comm_id else None

    def nodes(
        self, process: Process | None, pointer: str, rank: int, told: tuple[int, int]
    ) -> None:
        """`nNodes` and `localRank`, which stand in a line of their own after `Init START`."""
        known = self._newest.get((process, pointer, rank))
        if known is not None:
            known.nodes, known.local_rank = told

    def log(self) -> Log:
        from .assemble import assemble

        return assemble(self)

    def _variant(self, variant: Variant) -> int:
        index = self._variant_index.get(variant)
        if index is None:
            index = self._variant_index[variant] = len(self.variants)
            self.variants.append(variant)
        return index
