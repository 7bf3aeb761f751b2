"""Finds which communicators exist, and which of their ranks each process is or may be.

From 2.17 on NCCL names a communicator (commId) or the one it was split from. In older or incomplete
logs communicators are distinguished by their processes: a rank is one process.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from .nccl_log import Communicator, Member, NcclProcess
from .observations import Init, Observations, Variant, iterate_edges


@dataclass(eq=False)
class CommunicatorDraft:
    """A communicator under construction."""

    index: int
    id: str | None
    ranks: int | None
    members: dict[int, Init | NcclProcess | None] = field(default_factory=dict)

    def member(self, rank: int) -> Member:
        held = self.members[rank]
        if not isinstance(held, Init):
            return Member(held)
        return Member(
            held.process,
            held.cuda_device,
            held.nvml_device,
            held.bus_id,
            held.local_rank,
            held.started,
            held.completed is not None,
        )

    def process(self, rank: int) -> NcclProcess | None:
        held = self.members.get(rank)
        return held.process if isinstance(held, Init) else held


@dataclass(frozen=True, eq=False)
class Claim:
    """A process's own init shows that it is this rank of one of these communicators."""

    drafts: tuple[CommunicatorDraft, ...]
    rank: int
    init: Init


class Communicators:
    """The communicators of a log, and the ranks that each process claims."""

    def __init__(self, logged: Observations) -> None:
        self._logged = logged
        self.drafts: list[CommunicatorDraft] = []
        self.claims: dict[NcclProcess | None, list[Claim]] = defaultdict(list)
        self._from_inits()
        self.inferred = not self.drafts
        # Without init lines: whether a process has several ranks, so that its edges cannot be
        # attributed.
        self.overlapping = False
        if self.inferred:
            self._from_edges()

    def finished(self) -> Iterator[Communicator]:
        for draft in self.drafts:
            members = {rank: draft.member(rank) for rank in sorted(draft.members)}
            inits = [member for member in draft.members.values() if isinstance(member, Init)]
            nodes = {init.nodes for init in inits} - {None}
            yield Communicator(
                index=draft.index,
                id=draft.id,
                ranks=draft.ranks,
                nodes=nodes.pop() if len(nodes) == 1 else None,
                members=members,
                nvls=self._used_nvls(draft) if members else None,
            )

    def _used_nvls(self, draft: CommunicatorDraft) -> bool | None:
        """Whether NVLS was connected. A single rank may log it, and perhaps without naming the
        communicator."""
        connected: bool | None = False
        for rank, held in draft.members.items():
            process = draft.process(rank)
            pointers = self._logged.nvls.get(process)
            if pointers is None:
                continue
            if isinstance(held, Init) and held.pointer in pointers:
                return True
            if None in pointers and len(pointers) == 1:  # it does not name the communicator
                claims = self.claims.get(process, ())
                if len({draft.index for claim in claims for draft in claim.drafts}) <= 1:
                    return True
                connected = None
        return connected

    # -- By init lines ----------------------------------------------------------------------------

    def _from_inits(self) -> None:
        groups: dict[tuple[str | None, int], list[Init]] = defaultdict(list)
        for init in self._logged.inits:
            groups[init.comm_id, init.ranks].append(init)
        most = max((ranks for _, ranks in groups), default=0)
        logged = {init.rank for init in self._logged.inits if init.ranks == most}
        for (name, ranks), inits in groups.items():
            members = _group_by_rank(inits, by_pointer=name is not None)
            turns = {len(lives) for lives in members.values()}
            if _has_process_with_two_ranks(
                [init for init in inits if name is None or init.shared_id]
            ):
                for init in inits:
                    self._add_communicator(name, ranks, [[init]])
            elif len(turns) > 1 or any(len(_collect_gpus(lives)) > 1 for lives in members.values()):
                self._add_ambiguous(name, ranks, members)
            elif name is not None or ranks == most or _is_whole(ranks, inits, len(logged) == most):
                # The k-th inits of all ranks make one communicator. The largest one is
                # taken to have all ranks of the job, so its processes share it.
                for turn in range(turns.pop()):
                    self._add_communicator(name, ranks, [lives[turn] for lives in members.values()])
            else:  # nothing shows that these processes share a communicator
                self._add_separate(ranks, inits)

    def _add_communicator(self, name: str | None, ranks: int, lives: list[list[Init]]) -> None:
        draft = self._add_draft(name, ranks)
        for init in (init for inits in lives for init in inits):
            held = draft.members.get(init.rank)
            # If an init was read twice (the same log given twice), keep the more complete one.
            if not isinstance(held, Init) or (
                held.completed is None and init.completed is not None
            ):
                draft.members[init.rank] = init
            self.claims[init.process].append(Claim((draft,), init.rank, init))

    def _add_ambiguous(self, name: str | None, ranks: int, members: Members) -> None:
        """Add several communicators, one for each process of the rank that has the most processes.
        Which of them the other ranks belong to stays open."""
        seed = max(members, key=lambda rank: (len(members[rank]), -rank))
        first = len(self.drafts)
        for inits in members[seed]:
            self._add_communicator(name, ranks, [inits])
        drafts = tuple(self.drafts[first:])
        for rank, lives in members.items():
            for init in (init for inits in lives for init in inits if rank != seed):
                self.claims[init.process].append(Claim(drafts, rank, init))

    def _add_separate(self, ranks: int, inits: list[Init]) -> None:
        by_process: dict[NcclProcess | None, list[Init]] = defaultdict(list)
        for init in inits:
            by_process[init.process].append(init)
        for mine in by_process.values():
            members = _group_by_rank(mine, by_pointer=False)
            for turn in range(max(map(len, members.values()))):
                present = [lives[turn] for lives in members.values() if turn < len(lives)]
                self._add_communicator(None, ranks, present)

    # -- By the edges alone ------------------------------------------------------------------------

    def _from_edges(self) -> None:
        """Two processes with the same rank, or one GPU's process with two ranks, show that there
        are two communicators."""
        if not self._logged.edges and not self._logged.quoted:
            return
        processes: dict[int, dict[NcclProcess, None]] = defaultdict(dict)
        ranks: dict[tuple[NcclProcess, str], dict[int, None]] = defaultdict(dict)
        for (thread_index, source, destination, variant), _ in iterate_edges(self._logged.edges):
            own = own_rank(source, destination, self._logged.variants[variant])
            if thread_index >= 0 and own is not None:
                thread = self._logged.threads[thread_index]
                processes[own][thread.process] = None
                if thread.process.pid.isdigit():  # quoted logs hide the process
                    ranks[thread.process, thread.device][own] = None
        self.overlapping = any(len(mine) > 1 for mine in ranks.values())
        seed = max(processes, key=lambda rank: (len(processes[rank]), -rank), default=0)
        if self.overlapping or len(processes.get(seed, ())) > 1:
            for process in processes[seed]:
                self._add_draft(None, None).members[seed] = process
            if len(self.drafts) == 1:
                self._add_draft(None, None)
        else:
            members = self._add_draft(None, None).members
            members.update({rank: next(iter(owners)) for rank, owners in processes.items()})

    def _add_draft(self, name: str | None, ranks: int | None) -> CommunicatorDraft:
        self.drafts.append(CommunicatorDraft(len(self.drafts), name, ranks))
        return self.drafts[-1]


# Rank -> its inits, grouped by communicator.
Members = dict[int, list[list[Init]]]


def _group_by_rank(inits: list[Init], by_pointer: bool) -> Members:
    """Inits by rank. An init that was read twice has the same pointer both times, but so may two
    consecutive inits; without a name these cannot be distinguished by pointer."""
    groups: dict[int, dict[object, list[Init]]] = defaultdict(dict)
    for init in inits:
        key = (init.process, init.pointer) if by_pointer else init.index
        groups[init.rank].setdefault(key, []).append(init)
    return {rank: list(lives.values()) for rank, lives in groups.items()}


def _has_process_with_two_ranks(inits: list[Init]) -> bool:
    """Whether a GPU's process has two ranks, which takes two communicators. Quoted logs, which hide
    the process, do not show it."""
    ranks: dict[tuple[NcclProcess | None, int | None], set[int]] = defaultdict(set)
    for init in inits:
        if init.process is not None and init.process.pid.isdigit() and init.cuda_device is not None:
            ranks[init.process, init.cuda_device].add(init.rank)
    return any(len(mine) > 1 for mine in ranks.values())


def _is_whole(ranks: int, inits: list[Init], all_logged: bool) -> bool:
    """Whether these are all ranks of one communicator, rather than some ranks of several: none is
    missing, and either the whole job logged or all of them are on one host."""
    hosts = {(init.process.scope, init.process.host) for init in inits if init.process is not None}
    return len({init.rank for init in inits}) == ranks and (all_logged or len(hosts) <= 1)


def _collect_gpus(lives: list[list[Init]]) -> set[tuple[NcclProcess | None, int | None]]:
    """The process and GPU of each init: a process may have several GPUs, each with its own rank."""
    return {(init.process, init.cuda_device) for inits in lives for init in inits}


def own_rank(source: int, destination: int, variant: Variant) -> int | None:
    """The rank of the process that logged; None if the line does not say."""
    if variant.role is None:
        return None
    return destination if variant.role == "receive" else source
