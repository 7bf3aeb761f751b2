"""Which communicators there are, who is which of their ranks, and whose an edge is.

NCCL numbers the ranks of each communicator from 0, and its edges do not name theirs. What tells:
the process that logged and its own rank, the devices of both ends, the number of ranks, and up to
NCCL 2.21, which connects within init, the init that its thread was in. Where that leaves several
they are all named; where it leaves none, none is.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from .evidence import Init, Logged, Moment, Variant
from .model import Communicator, Member, Process

# From here on connections are made when a collective first needs them (NCCL_RUNTIME_CONNECT).
LAZY_FROM = (2, 22)
VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})")


@dataclass
class Draft:
    """A communicator while it is put together."""

    index: int
    id: str | None
    ranks: int | None
    members: dict[int, Init | Process | None] = field(default_factory=dict)

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

    def process(self, rank: int) -> Process | None:
        held = self.members.get(rank)
        return held.process if isinstance(held, Init) else held


@dataclass(frozen=True)
class Claim:
    """A process may be this rank of this communicator, by this init of its."""

    draft: Draft
    rank: int
    init: Init


class Communicators:
    """The communicators of a log, and the owner of each edge."""

    def __init__(self, logged: Logged) -> None:
        self._logged = logged
        self.drafts: list[Draft] = []
        self._claims: dict[Process | None, list[Claim]] = defaultdict(list)
        numbers = [VERSION.match(version) for version in logged.versions]
        versions = [(int(found[1]), int(found[2])) for found in numbers if found]
        self._lazy = min(versions) >= LAZY_FROM if versions else None
        self._from_inits()
        if not self.drafts:
            self._from_edges()

    def finished(self) -> Iterator[Communicator]:
        for draft in self.drafts:
            members = {rank: draft.member(rank) for rank in sorted(draft.members)}
            inits = [one for one in draft.members.values() if isinstance(one, Init)]
            nodes = {one.nodes for one in inits} - {None}
            # One process alone may say whether a communicator of several used NVLS.
            said = [member.process in self._logged.nvls for member in members.values()]
            yield Communicator(
                index=draft.index,
                id=draft.id,
                ranks=draft.ranks,
                nodes=nodes.pop() if len(nodes) == 1 else None,
                members=members,
                nvls=any(said) if said else None,
            )

    # -- Which there are ---------------------------------------------------------------------------

    def _from_inits(self) -> None:
        by_id: dict[tuple[str, int], list[Init]] = defaultdict(list)
        nameless: dict[int, list[Init]] = defaultdict(list)
        for init in self._logged.inits:
            if init.comm_id is not None:
                by_id[init.comm_id, init.ranks].append(init)
            else:
                nameless[init.ranks].append(init)
        for (name, ranks), inits in by_id.items():
            if len({(init.rank, init.process) for init in inits}) > len({i.rank for i in inits}):
                # Splits of one parent and colour share a name before 2.23.
                self._nameless(ranks, inits, name)
                continue
            draft = self._draft(name, ranks)
            for init in inits:
                self._join(draft, init)
        for ranks, inits in nameless.items():
            self._nameless(ranks, inits)

    def _nameless(self, ranks: int, inits: list[Init], name: str | None = None) -> None:
        """Before 2.17 nothing names a communicator. Where each rank is one process, the k-th inits
        belong together; where a rank is several, there are several, and who is whose is open."""
        by_rank: dict[int, list[Init]] = defaultdict(list)
        for init in inits:
            by_rank[init.rank].append(init)
        crowds = {rank: len({i.process for i in group}) for rank, group in by_rank.items()}
        most = max(crowds.values())
        if most == 1:
            for turn in range(max(map(len, by_rank.values()))):
                draft = self._draft(name, ranks)
                for group in by_rank.values():
                    if turn < len(group):
                        self._join(draft, group[turn])
            return
        seed = next(rank for rank in sorted(crowds) if crowds[rank] == most)
        drafts = []
        for init in by_rank.pop(seed):
            drafts.append(self._draft(name, ranks))
            self._join(drafts[-1], init)
        for init in (one for group in by_rank.values() for one in group):
            self._claims[init.process] += [Claim(draft, init.rank, init) for draft in drafts]

    def _from_edges(self) -> None:
        """Without a line of init: a rank that two processes claim shows two communicators."""
        claims: dict[int, dict[Process, None]] = defaultdict(dict)
        for (thread, source, destination, variant), _ in self._logged.edges.items():
            own = own_rank(source, destination, self._logged.variants[variant])
            if thread >= 0 and own is not None:
                claims[own][self._logged.threads[thread].process] = None
        if not self._logged.edges and not self._logged.quoted:
            return
        most = max(map(len, claims.values()), default=0)
        if most <= 1:
            draft = self._draft(None, None)
            draft.members.update({rank: next(iter(who)) for rank, who in claims.items()})
            return
        seed = next(rank for rank in sorted(claims) if len(claims[rank]) == most)
        for process in claims[seed]:
            self._draft(None, None).members[seed] = process

    def _draft(self, name: str | None, ranks: int | None) -> Draft:
        self.drafts.append(Draft(len(self.drafts), name, ranks))
        return self.drafts[-1]

    def _join(self, draft: Draft, init: Init) -> None:
        held = draft.members.get(init.rank)
        # The same init told twice (a log given twice) keeps what says most.
        if not isinstance(held, Init) or (held.completed is None and init.completed is not None):
            draft.members[init.rank] = init
        self._claims[init.process].append(Claim(draft, init.rank, init))

    # -- Whose an edge is --------------------------------------------------------------------------

    def owners(
        self, thread: int, source: int, destination: int, variant: Variant
    ) -> tuple[int, ...]:
        """The indices of the communicators that an edge may belong to."""
        process = self._logged.threads[thread].process if thread >= 0 else None
        own = own_rank(source, destination, variant)
        highest = max(source, destination)
        if process is not None and process in self._claims:
            fitting = [
                claim
                for claim in self._claims[process]
                if own in (None, claim.rank)
                and (claim.draft.ranks is None or claim.draft.ranks > highest)
                and _same_device(claim.draft.members.get(source), variant.source_id)
                and _same_device(claim.draft.members.get(destination), variant.destination_id)
            ]
            if fitting:
                timely = list(self._timely(fitting, thread, variant))
                return tuple(sorted({claim.draft.index for claim in timely}))
        return self._by_exclusion(process, own, highest)

    def _timely(self, fitting: list[Claim], thread: int, variant: Variant) -> Iterable[Claim]:
        """Those that the moment of the line allows; all, where it says nothing."""
        moment = variant.moment
        if moment is None:
            return fitting
        if not self._lazy and variant.connection in (0, None):
            inside = self._init_at(thread, moment)
            within = [claim for claim in fitting if claim.init.index == inside]
            if within:
                return within
            if self._lazy is False and variant.connection == 0:
                # Connected within init, so not in one that was over.
                return [claim for claim in fitting if not _over(claim.init, moment)]
        if self._lazy is None:
            return fitting
        return [claim for claim in fitting if _over(claim.init, moment)] or fitting

    def _init_at(self, thread: int, moment: Moment) -> int | None:
        """The init that the thread was in: begun and not ended, or else the next to be complete."""
        if moment.open is not None:
            return moment.open
        completed = self._logged.threads[thread].completed
        here = moment.completed_here
        return completed[here] if here < len(completed) else None

    def _by_exclusion(
        self, process: Process | None, own: int | None, highest: int
    ) -> tuple[int, ...]:
        """Where the process said nothing of itself: the only communicator there is, if it fits."""
        if len(self.drafts) != 1:
            inferred = [d.index for d in self.drafts if d.ranks is None]
            mine = [
                i
                for i in inferred
                if own is not None
                and process is not None
                and self.drafts[i].members.get(own) == process
            ]
            return tuple(mine or inferred)
        draft = self.drafts[0]
        if draft.ranks is not None and highest >= draft.ranks:
            return ()
        if own is not None and process is not None:
            if draft.process(own) not in (None, process):
                return ()
            draft.members.setdefault(own, process)
        return (0,)


def own_rank(source: int, destination: int, variant: Variant) -> int | None:
    if variant.role is None:
        return None
    return destination if variant.role == "receive" else source


def _over(init: Init, moment: Moment) -> bool:
    return init.completed is not None and init.completed < moment.completed


def _same_device(member: Init | Process | None, name: str | None) -> bool:
    """Whether an edge's `a[name]` can be that rank: nvmlDev or busId, by version."""
    if name is None or not isinstance(member, Init):
        return True
    if member.nvml_device is not None and name == str(member.nvml_device):
        return True
    if member.bus_id is None:
        return True
    return name == member.bus_id or (member.nvml_device is None and len(name) <= 2)
