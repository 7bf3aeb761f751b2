"""Finds the communicator that an edge belongs to.

NCCL's edges do not name their communicator. It follows from the process that logged the edge and
its own rank, the devices of both ends, the number of ranks, and the time. A thread inside an init
(Init START to Init COMPLETE, 2.17 and later) connects that communicator and no other; otherwise it
connects one whose init is complete. Up to 2.21, and later if cuMem is off, rings and trees are
connected within init; send/recv is not. If several communicators remain, all are listed; if none
remains, the list is empty.
"""

from __future__ import annotations

import re
from collections import defaultdict

from .communicators import Claim, CommunicatorDraft, Communicators, own_rank
from .nccl_log import NcclProcess
from .observations import EdgeKey, Init, InitMoment, Observations, Thread, Variant, iterate_edges

# From this version on, if cuMem is on, connections are made when a collective first needs them
# (NCCL_RUNTIME_CONNECT).
LAZY_FROM = (2, 22)
SEND_RECV_FROM = (2, 7)
VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})")
# If more communicators than this are possible, none is listed.
MAX_CANDIDATES = 64
# If a process has more claims than this on one rank, no communicator is listed.
MAX_CLAIMS = 4096
LOW_32_BITS = 2**32 - 1


class Attribution:
    """Finds the communicators that an edge may belong to."""

    def __init__(self, logged: Observations, communicators: Communicators) -> None:
        self._threads, self._inits = logged.threads, logged.inits
        self._communicators = communicators
        self._sole = self._only_one(communicators)
        self._variants = logged.variants
        # Thread, variant and own rank (which many edges share) -> the claims that fit.
        self._claimed: dict[tuple[int, int, int | None], list[Claim] | None] = {}
        self._same: dict[tuple[int, ...], tuple[int, ...]] = {}
        matches = [VERSION.match(version) for version in logged.versions]
        versions = [(int(match[1]), int(match[2])) for match in matches if match]
        # Whether everything that collectives need is connected within init.
        self._eager = (
            max(versions) < LAZY_FROM
            if versions
            else not any(init.started or init.comm_id for init in logged.inits)
        )
        self._send_recv = not versions or max(versions) >= SEND_RECV_FROM
        self._by_rank: dict[tuple[NcclProcess | None, int], list[Claim]] = defaultdict(list)
        for process, claims in communicators.claims.items():
            for claim in claims:
                self._by_rank[process, claim.rank].append(claim)
        drafts = communicators.drafts
        self._all = tuple(draft.index for draft in drafts) if len(drafts) <= MAX_CANDIDATES else ()
        self._members = {
            (rank, draft.process(rank)): (draft.index,)
            for draft in drafts
            for rank in draft.members
        }
        if self._sole is not None and len(self._sole.members) != self._sole.ranks:
            self._adopt(logged, self._sole)

    def of(self, key: EdgeKey) -> tuple[int, ...]:
        """The indices of the communicators that an edge may belong to."""
        thread, source, destination, index = key
        variant = self._variants[index]
        own = own_rank(source, destination, variant)
        ends = (thread, index, own)
        claimed = self._claimed[ends] if ends in self._claimed else self._claims(ends, key)
        if claimed is not None:
            drafts = (draft for claim in claimed for draft in claim.drafts)
            indices = tuple(
                sorted(
                    {
                        draft.index
                        for draft in drafts
                        if _can_hold(draft, source, destination, variant)
                    }
                )
            )
        elif self._communicators.inferred:
            indices = self._inferred(thread, own)
        else:
            fits = self._sole and _can_hold(self._sole, source, destination, variant)
            indices = self._by_exclusion(thread, own) if fits else ()
        return self._same.setdefault(indices, indices)

    def _claims(self, ends: tuple[int, int, int | None], key: EdgeKey) -> list[Claim] | None:
        """The process's claims that an edge can belong to by its time; None if the process has no
        claim."""
        thread, index, own = ends
        ranks, process = key[1:3] if own is None else (own,), self._process(thread)
        mine = [claim for rank in ranks for claim in self._by_rank.get((process, rank), ())]
        variant = self._variants[index]
        own_id = variant.destination_id if variant.role == "receive" else variant.source_id
        fitting = None
        if process is not None and mine:
            claims = [c for c in mine[:MAX_CLAIMS] if own is None or _same_device(c.init, own_id)]
            fitting = self._timely(claims, self._threads[thread], variant) if claims else None
            if (
                len(mine) > MAX_CLAIMS
                or sum(len(claim.drafts) for claim in fitting or ()) > MAX_CANDIDATES
            ):
                fitting = []
        if own is not None:
            self._claimed[ends] = fitting
        return fitting

    def _process(self, thread: int) -> NcclProcess | None:
        return self._threads[thread].process if thread >= 0 else None

    # -- By time -----------------------------------------------------------------------------------

    def _timely(self, claims: list[Claim], thread: Thread, variant: Variant) -> list[Claim]:
        """The claims that the moment of the line allows; all, if the moment says nothing."""
        moment = variant.moment
        # A hidden pid may stand for several processes.
        if moment is None or not thread.process.pid.isdigit():
            return claims
        claims = [claim for claim in claims if not _is_destroyed(claim.init, moment)]
        inside, surely = self._inside(thread, moment)
        within = [claim for claim in claims if claim.init.index == inside]
        if surely:
            return within
        if self._eager and self._for_collectives(variant):
            return within or [claim for claim in claims if not _is_complete(claim.init, moment)]
        return [
            claim
            for claim in claims
            if claim in within
            or _is_complete(claim.init, moment)
            or claim.init.completed is None  # its end, or another's start, may be lost
            or (inside is None and not claim.init.started)
        ]

    def _inside(self, thread: Thread, moment: InitMoment) -> tuple[int | None, bool]:
        """The init that the thread was in, and whether that is certain."""
        if moment.open is not None:
            # An init without an end may have failed earlier, or its end is lost.
            return moment.open, self._inits[moment.open].completed is not None
        if moment.completed_here < len(thread.completed):
            following = thread.completed[moment.completed_here]
            if not self._inits[following].started:  # before 2.17, or its start is lost
                return following, False
            return -1, False
        return None, False

    def _for_collectives(self, variant: Variant) -> bool:
        """Whether the connection is certainly not for send/recv. Lines before 2.12 and those of SHM
        do not say."""
        return variant.connection == 0 or (variant.connection is None and not self._send_recv)

    # -- By the other communicators ----------------------------------------------------------------

    @staticmethod
    def _only_one(communicators: Communicators) -> CommunicatorDraft | None:
        is_sole = len(communicators.drafts) == 1 and not communicators.inferred
        return communicators.drafts[0] if is_sole else None

    def _adopt(self, logged: Observations, sole: CommunicatorDraft) -> None:
        """Fill in members of the only communicator whose inits were not logged: a process becomes
        the rank as which it logs edges, if no other process does so and it logs as no other rank.
        """
        ranks: dict[tuple[NcclProcess, str], set[int]] = defaultdict(set)
        processes: dict[int, set[NcclProcess]] = defaultdict(set)
        for (index, source, destination, number), _ in iterate_edges(logged.edges):
            variant = logged.variants[number]
            own = own_rank(source, destination, variant)
            if index < 0 or own is None or own in sole.members:
                continue
            thread = self._threads[index]
            if self._stranger(thread) and _can_hold(sole, source, destination, variant):
                ranks[thread.process, thread.device].add(own)
                processes[own].add(thread.process)
        for (process, _), mine in ranks.items():
            if len(mine) == 1 and all(len(processes[rank]) == 1 for rank in mine):
                sole.members.update(dict.fromkeys(mine, process))

    def _stranger(self, thread: Thread) -> bool:
        """Whether no init shows the rank of this process and GPU."""
        claims = self._communicators.claims.get(thread.process, ())
        devices = [claim.init.cuda_device for claim in claims]
        return None not in devices and thread.device not in map(str, devices)

    def _inferred(self, thread: int, own: int | None) -> tuple[int, ...]:
        """Without any logged init: the communicators in which the process is that rank, or all."""
        process = self._process(thread)
        if process is not None and own is not None and not self._communicators.overlapping:
            mine = self._members.get((own, process))
            if mine is not None:
                return mine
        return self._all

    def _by_exclusion(self, thread: int, own: int | None) -> tuple[int, ...]:
        """The log's only communicator, if this process may belong to it although none of its inits
        fits; otherwise nothing."""
        process = self._process(thread)
        if process is None:
            return (0,)
        if own is None or self._sole is None:
            return () if process in self._communicators.claims else (0,)
        held = self._sole.members.get(own)
        # An init line that lost its header shows that the rank exists, not its process.
        nobody = isinstance(held, Init) and held.process is None
        return (0,) if held == process or nobody else ()


def _can_hold(draft: CommunicatorDraft, source: int, destination: int, variant: Variant) -> bool:
    return (
        (draft.ranks is None or draft.ranks > max(source, destination))
        and _same_device(draft.members.get(source), variant.source_id)
        and _same_device(draft.members.get(destination), variant.destination_id)
    )


def _is_complete(init: Init, moment: InitMoment) -> bool:
    return init.completed is not None and init.completed < moment.completed


def _is_destroyed(init: Init, moment: InitMoment) -> bool:
    return init.ended is not None and init.ended < moment.completed


def _same_device(member: Init | NcclProcess | None, name: str | None) -> bool:
    """Whether the id in an edge's `rank[id]`, nvmlDev or busId by version, can be that member's."""
    if name is None or not isinstance(member, Init):
        return True
    if member.nvml_device is not None and name == str(member.nvml_device):
        return True
    if member.bus_id is None or name == member.bus_id:
        return True
    if len(name) <= 2:
        return member.nvml_device is None
    # Before 2.8 init lines cut the bus id to 32 bits; edges do not.
    return int(name, 16) & LOW_32_BITS == int(member.bus_id, 16) & LOW_32_BITS
