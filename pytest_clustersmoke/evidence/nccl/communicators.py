"""Which communicators exist, and which of their ranks a process is or may be.

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
    """By its own init a process is this rank of one of these communicators."""

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
        # Without init lines: whether a process is several ranks, so its edges cannot be attributed.
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
                nvls=self._nvls(draft) if members else None,
            )

    def _nvls(self, draft: CommunicatorDraft) -> bool | None:
        """Whether NVLS was connected. One rank may say so, and perhaps without the communicator."""
        found: bool | None = False
        for rank, held in draft.members.items():
            process = draft.process(rank)
            pointers = self._logged.nvls.get(process)
            if pointers is None:
                continue
            if isinstance(held, Init) and held.pointer in pointers:
                return True
            if None in pointers and len(pointers) == 1:  # it never says for which
                claims = self.claims.get(process, ())
                if len({draft.index for claim in claims for draft in claim.drafts}) <= 1:
                    return True
                found = None
        return found

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
                    self._one(name, ranks, [[init]])
            elif len(turns) > 1 or any(len(_collect_gpus(lives)) > 1 for lives in members.values()):
                self._open(name, ranks, members)
            elif name is not None or ranks == most or _is_whole(ranks, inits, len(logged) == most):
                # The k-th init of each rank. The largest communicator has all ranks, and is one.
                for turn in range(turns.pop()):
                    self._one(name, ranks, [lives[turn] for lives in members.values()])
            else:  # nothing shows that these processes share one
                self._apart(ranks, inits)

    def _one(self, name: str | None, ranks: int, lives: list[list[Init]]) -> None:
        draft = self._draft(name, ranks)
        for init in (init for inits in lives for init in inits):
            held = draft.members.get(init.rank)
            # If an init was read twice (a log given twice), keep the one that says more.
            if not isinstance(held, Init) or (
                held.completed is None and init.completed is not None
            ):
                draft.members[init.rank] = init
            self.claims[init.process].append(Claim((draft,), init.rank, init))

    def _open(self, name: str | None, ranks: int, members: Members) -> None:
        """Make several communicators, one for each process of the rank that has most. Which of them
        the other ranks belong to is open."""
        seed = max(members, key=lambda rank: (len(members[rank]), -rank))
        first = len(self.drafts)
        for inits in members[seed]:
            self._one(name, ranks, [inits])
        drafts = tuple(self.drafts[first:])
        for rank, lives in members.items():
            for init in (init for inits in lives for init in inits if rank != seed):
                self.claims[init.process].append(Claim(drafts, rank, init))

    def _apart(self, ranks: int, inits: list[Init]) -> None:
        by_process: dict[NcclProcess | None, list[Init]] = defaultdict(list)
        for init in inits:
            by_process[init.process].append(init)
        for mine in by_process.values():
            members = _group_by_rank(mine, by_pointer=False)
            for turn in range(max(map(len, members.values()))):
                present = [lives[turn] for lives in members.values() if turn < len(lives)]
                self._one(None, ranks, present)

    # -- By the edges alone ------------------------------------------------------------------------

    def _from_edges(self) -> None:
        """Two processes of one rank, or two ranks of one GPU's process, show two communicators."""
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
                self._draft(None, None).members[seed] = process
            if len(self.drafts) == 1:
                self._draft(None, None)
        else:
            members = self._draft(None, None).members
            members.update({rank: next(iter(owners)) for rank, owners in processes.items()})

    def _draft(self, name: str | None, ranks: int | None) -> CommunicatorDraft:
        self.drafts.append(CommunicatorDraft(len(self.drafts), name, ranks))
        return self.drafts[-1]


# Rank -> its inits, grouped by communicator.
Members = dict[int, list[list[Init]]]


def _group_by_rank(inits: list[Init], by_pointer: bool) -> Members:
    """Inits by rank. An init that was read twice has one pointer; but without a name two inits, one
    after the other, may have the same pointer."""
    groups: dict[int, dict[object, list[Init]]] = defaultdict(dict)
    for init in inits:
        key = (init.process, init.pointer) if by_pointer else init.index
        groups[init.rank].setdefault(key, []).append(init)
    return {rank: list(lives.values()) for rank, lives in groups.items()}


def _has_process_with_two_ranks(inits: list[Init]) -> bool:
    """Whether a GPU's process is two ranks, which needs two communicators. Quoted logs hide the
    process."""
    ranks: dict[tuple[NcclProcess | None, int | None], set[int]] = defaultdict(set)
    for init in inits:
        if init.process is not None and init.process.pid.isdigit() and init.cuda_device is not None:
            ranks[init.process, init.cuda_device].add(init.rank)
    return any(len(mine) > 1 for mine in ranks.values())


def _is_whole(ranks: int, inits: list[Init], all_logged: bool) -> bool:
    """Whether these are all ranks of one communicator, rather than some ranks of several: the count
    is complete, and the whole job logged or all are on one host."""
    hosts = {(init.process.scope, init.process.host) for init in inits if init.process is not None}
    return len({init.rank for init in inits}) == ranks and (all_logged or len(hosts) <= 1)


def _collect_gpus(lives: list[list[Init]]) -> set[tuple[NcclProcess | None, int | None]]:
    """Process and GPU of each init: a process may have several GPUs, each a rank."""
    return {(init.process, init.cuda_device) for inits in lives for init in inits}


def own_rank(source: int, destination: int, variant: Variant) -> int | None:
    """The rank of the process that logged; None if the line does not say."""
    if variant.role is None:
        return None
    return destination if variant.role == "receive" else source
