"""Which communicators there are, and which of their ranks a process is, or may be.

From 2.17 on NCCL names a communicator (commId) or says from which it was split. Before, and where
a log is not whole, they are told apart by who is which rank: a rank is one process.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from .nccl_log import Communicator, Member, NcclProcess
from .observations import Init, Observations, Variant, each


@dataclass(eq=False)
class CommunicatorDraft:
    """A communicator while it is put together."""

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
    """A process is this rank, by this init of its, of one of these communicators."""

    drafts: tuple[CommunicatorDraft, ...]
    rank: int
    init: Init


class Communicators:
    """The communicators of a log, and by process the ranks of them that it claims."""

    def __init__(self, logged: Observations) -> None:
        self._logged = logged
        self.drafts: list[CommunicatorDraft] = []
        self.claims: dict[NcclProcess | None, list[Claim]] = defaultdict(list)
        self._from_inits()
        self.inferred = not self.drafts
        # Without a line of init: whether one process is several ranks, and so whose edges are open.
        self.overlapping = False
        if self.inferred:
            self._from_edges()

    def finished(self) -> Iterator[Communicator]:
        for draft in self.drafts:
            members = {rank: draft.member(rank) for rank in sorted(draft.members)}
            inits = [one for one in draft.members.values() if isinstance(one, Init)]
            nodes = {one.nodes for one in inits} - {None}
            yield Communicator(
                index=draft.index,
                id=draft.id,
                ranks=draft.ranks,
                nodes=nodes.pop() if len(nodes) == 1 else None,
                members=members,
                nvls=self._nvls(draft) if members else None,
            )

    def _nvls(self, draft: CommunicatorDraft) -> bool | None:
        """One rank alone may say it. A process of several communicators may not say of which."""
        found: bool | None = False
        for rank, held in draft.members.items():
            process = draft.process(rank)
            pointers = self._logged.nvls.get(process)
            if pointers is None:
                continue
            if isinstance(held, Init) and held.pointer in pointers:
                return True
            if None in pointers and len(pointers) == 1:  # it never says of which
                claims = self.claims.get(process, ())
                if len({draft.index for claim in claims for draft in claim.drafts}) <= 1:
                    return True
                found = None
        return found

    # -- By the lines of their inits ---------------------------------------------------------------

    def _from_inits(self) -> None:
        groups: dict[tuple[str | None, int], list[Init]] = defaultdict(list)
        for init in self._logged.inits:
            groups[init.comm_id, init.ranks].append(init)
        most = max((ranks for _, ranks in groups), default=0)
        logged = {init.rank for init in self._logged.inits if init.ranks == most}
        for (name, ranks), inits in groups.items():
            members = _members(inits, by_pointer=name is not None)
            turns = {len(lives) for lives in members.values()}
            if _twice([init for init in inits if name is None or init.shared_id]):
                for init in inits:
                    self._one(name, ranks, [[init]])
            elif len(turns) > 1 or any(len(_gpus(lives)) > 1 for lives in members.values()):
                self._open(name, ranks, members)
            elif name is not None or ranks == most or _whole(ranks, inits, len(logged) == most):
                # The k-th of each rank. The largest is that of all ranks, of which there is one.
                for turn in range(turns.pop()):
                    self._one(name, ranks, [lives[turn] for lives in members.values()])
            else:  # nothing tells that these processes are in one
                self._apart(ranks, inits)

    def _one(self, name: str | None, ranks: int, lives: list[list[Init]]) -> None:
        draft = self._draft(name, ranks)
        for init in (init for told in lives for init in told):
            held = draft.members.get(init.rank)
            # The same init told twice (a log given twice) keeps what says most.
            if not isinstance(held, Init) or (
                held.completed is None and init.completed is not None
            ):
                draft.members[init.rank] = init
            self.claims[init.process].append(Claim((draft,), init.rank, init))

    def _open(self, name: str | None, ranks: int, members: Members) -> None:
        """There are several: as many as the rank has processes that has most. Who of the other
        ranks is whose is open."""
        seed = max(members, key=lambda rank: (len(members[rank]), -rank))
        first = len(self.drafts)
        for told in members[seed]:
            self._one(name, ranks, [told])
        drafts = tuple(self.drafts[first:])
        for rank, lives in members.items():
            for init in (init for told in lives for init in told if rank != seed):
                self.claims[init.process].append(Claim(drafts, rank, init))

    def _apart(self, ranks: int, inits: list[Init]) -> None:
        by_process: dict[NcclProcess | None, list[Init]] = defaultdict(list)
        for init in inits:
            by_process[init.process].append(init)
        for mine in by_process.values():
            members = _members(mine, by_pointer=False)
            for turn in range(max(map(len, members.values()))):
                told = [lives[turn] for lives in members.values() if turn < len(lives)]
                self._one(None, ranks, told)

    # -- By the edges alone ------------------------------------------------------------------------

    def _from_edges(self) -> None:
        """A rank that two processes are, or a GPU's process that is two ranks, shows two."""
        if not self._logged.edges and not self._logged.quoted:
            return
        processes: dict[int, dict[NcclProcess, None]] = defaultdict(dict)
        ranks: dict[tuple[NcclProcess, str], dict[int, None]] = defaultdict(dict)
        for (thread_index, source, destination, variant), _ in each(self._logged.edges):
            own = own_rank(source, destination, self._logged.variants[variant])
            if thread_index >= 0 and own is not None:
                thread = self._logged.threads[thread_index]
                processes[own][thread.process] = None
                if thread.process.pid.isdigit():  # quoted logs hide which process it is
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
            members.update({rank: next(iter(who)) for rank, who in processes.items()})

    def _draft(self, name: str | None, ranks: int | None) -> CommunicatorDraft:
        self.drafts.append(CommunicatorDraft(len(self.drafts), name, ranks))
        return self.drafts[-1]


# Rank -> its inits, those of one communicator together.
Members = dict[int, list[list[Init]]]


def _members(inits: list[Init], by_pointer: bool) -> Members:
    """By rank. An init that is told twice has one pointer; so may two have where nothing names
    them, one after the other."""
    found: dict[int, dict[object, list[Init]]] = defaultdict(dict)
    for init in inits:
        key = (init.process, init.pointer) if by_pointer else init.index
        found[init.rank].setdefault(key, []).append(init)
    return {rank: list(lives.values()) for rank, lives in found.items()}


def _twice(inits: list[Init]) -> bool:
    """Whether a GPU's process is two ranks, as it is of two communicators alone. Quoted logs hide
    which process it is."""
    ranks: dict[tuple[NcclProcess | None, int | None], set[int]] = defaultdict(set)
    for init in inits:
        if init.process is not None and init.process.pid.isdigit() and init.cuda_device is not None:
            ranks[init.process, init.cuda_device].add(init.rank)
    return any(len(mine) > 1 for mine in ranks.values())


def _whole(ranks: int, inits: list[Init], all_logged: bool) -> bool:
    """Whether these are the ranks of one, and not some of each of several whose others did not log:
    as many as it has, of a job that logged as a whole or on one host."""
    hosts = {(one.process.scope, one.process.host) for one in inits if one.process is not None}
    return len({one.rank for one in inits}) == ranks and (all_logged or len(hosts) <= 1)


def _gpus(lives: list[list[Init]]) -> set[tuple[NcclProcess | None, int | None]]:
    """Who is a rank: a process may have several GPUs, a rank each."""
    return {(init.process, init.cuda_device) for told in lives for init in told}


def own_rank(source: int, destination: int, variant: Variant) -> int | None:
    """The rank of the process that logged; None where the line does not tell."""
    if variant.role is None:
        return None
    return destination if variant.role == "receive" else source
