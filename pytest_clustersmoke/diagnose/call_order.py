"""Which rank fell out of step, from the flight recorders of all ranks. Within each process group,
calls with the same number on the same backend belong together.

A call that differs between ranks is a mismatch: if more than half of the group agree, the others
are out of step; otherwise it is unknown which are. If all agree, a rank whose calls end before the
one that others wait in never reached it, unless it waits itself for a third rank in another group.

`TorchDumps` makes findings of torch's own dumps, where nothing else is known of a job.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..evidence.finding import UNDECIDED, Evidence, Finding
from ..text import name_ranks, sanitize_line
from .flight_recorder import (
    DEFAULT_GROUP,
    P2P,
    Channel,
    CollectiveCall,
    FlightRecord,
    read_torch_dump,
)

# If all ranks got this many calls past one that differed, the program does so regularly and the
# library tolerates it. gloo lets some ranks past the call that breaks the others.
HABIT = 3
MAX_NAMED = 8
UNKNOWN = "it is unknown which of them is wrong"
ABSENT_FIX = (
    "read the logs of these ranks and take their stacks (py-spy dump): each has died, hangs "
    "outside collectives, or skipped the call, for example under `if rank == 0`"
)
CALL_ALIKE = (
    "make every rank call the same collectives in the same order, with equal shapes and types: "
    "check these lines for anything that depends on the rank or on its data"
)


@dataclass(frozen=True)
class Mismatch:
    """One number of a group, under which ranks called different collectives."""

    group: str  # as shown to users
    number: int
    sides: tuple[tuple[CollectiveCall, tuple[int, ...]], ...]  # the largest first
    culprits: tuple[int, ...]  # both sides if neither has the majority
    has_majority: bool
    how: str  # "skipped", "extra", "order", "shape", "type", "collective"


@dataclass(frozen=True)
class Absence:
    """A collective in which some ranks wait for others that never reached it."""

    group: str
    number: int
    call: CollectiveCall  # as a waiter called it
    absent: tuple[int, ...]
    waiters: tuple[int, ...]


def find_first_mismatch(records: Mapping[int, FlightRecord], world_size: int) -> Mismatch | None:
    """The first call, near the end of the record, on which the ranks of a group disagree."""
    mismatches = [
        mismatch
        for channel in sorted({each for record in records.values() for each in record.calls})
        if (mismatch := _mismatch_in(channel, records, world_size)) is not None
    ]
    return min(mismatches, key=_created_at, default=None)


def _created_at(mismatch: Mismatch) -> float:
    times = [call.created_s for call, _ in mismatch.sides if call.created_s is not None]
    return max(times, default=0.0)


def members(group: str, records: Mapping[int, FlightRecord], world_size: int) -> tuple[int, ...]:
    """The group's ranks; if no record lists them, the ranks that called something in it."""
    if group == DEFAULT_GROUP:
        return tuple(range(world_size))
    listed = {record.members[group] for record in records.values() if group in record.members}
    if len(listed) == 1:
        return tuple(rank for rank in next(iter(listed)) if rank < world_size)
    return tuple(sorted(rank for rank, record in records.items() if _backends(group, record)))


def _backends(group: str, record: FlightRecord) -> set[str]:
    """The backends on which a rank called something in the group."""
    return {channel.backend for channel in (*record.calls, *record.p2p) if channel.group == group}


def name_channel(channel: Channel, records: Mapping[int, FlightRecord]) -> str:
    """The group, as shown to users; with its backend if the ranks used several in it."""
    group, backend = channel
    described = (record.descriptions.get(group, "") for record in records.values())
    words = [next(filter(None, described), "")]
    if len({each for record in records.values() for each in _backends(group, record)}) > 1:
        words.append(backend)
    shown = ", ".join(filter(None, words))
    return f"{group} ({shown})" if shown else group


def _mismatch_in(
    channel: Channel, records: Mapping[int, FlightRecord], world_size: int
) -> Mismatch | None:
    group_ranks = members(channel.group, records, world_size)
    known = {rank: records[rank].calls.get(channel, {}) for rank in group_ranks if rank in records}
    reached_by_all = min((max(calls, default=0) for calls in known.values()), default=0)
    for number in sorted({n for calls in known.values() for n in calls}):
        sides = _sides(number, known)
        if len(sides) < 2:
            continue
        if number < reached_by_all - HABIT:
            return None
        name = name_channel(channel, records)
        majority = sides[0][1] if 2 * len(sides[0][1]) > len(group_ranks) else ()
        ranks = {rank for _, side in sides for rank in side} - set(majority)
        how = _describe_departure(number, known[sides[0][1][0]], known[sides[1][1][0]])
        return Mismatch(name, number, sides, tuple(sorted(ranks)), bool(majority), how)
    return None


def _sides(
    number: int, known: Mapping[int, Mapping[int, CollectiveCall]]
) -> tuple[tuple[CollectiveCall, tuple[int, ...]], ...]:
    """The different calls under this number, each with its ranks; the largest party first."""
    parties: dict[object, list[int]] = defaultdict(list)
    for rank, calls in sorted(known.items()):
        if number in calls:
            parties[calls[number].agrees_on].append(rank)
    ordered = sorted(parties.values(), key=lambda ranks: (-len(ranks), ranks))
    return tuple((known[ranks[0]][number], tuple(ranks)) for ranks in ordered)


def _describe_departure(
    number: int, usual: Mapping[int, CollectiveCall], odd: Mapping[int, CollectiveCall]
) -> str:
    """How the odd rank departed from the others, judged by the calls from this number on."""
    mine, theirs = odd[number], usual[number]
    following = number + 1
    if following not in usual:
        # The others wait in this call; what follows it shows where they made the same call before.
        before = [n for n in usual if n < number and usual[n].agrees_on == theirs.agrees_on]
        following = max(before, default=number) + 1
    is_next = following in usual and usual[following].agrees_on == mine.agrees_on
    if _calls_agree(usual, number, odd, number + 1):
        return "order" if is_next else "extra"
    if _calls_agree(usual, following, odd, number):
        return "skipped"
    if mine.kind != theirs.kind:
        return "collective"
    return "type" if mine.elements == theirs.elements else "shape"


def _calls_agree(
    mine: Mapping[int, CollectiveCall], first: int, other: Mapping[int, CollectiveCall], second: int
) -> bool:
    """Whether the calls of one rank from number `first` on equal those of the other rank from
    number `second` on, as far as both are recorded."""
    if first not in mine or second not in other:
        return False
    last = first
    while last + 1 in mine and second + last + 1 - first in other:
        last += 1
    # If they differ again only at the end, another fault followed; so the first two decide.
    numbers = range(first, min(last, first + 1) + 1)
    return all(mine[n].agrees_on == other[second + n - first].agrees_on for n in numbers)


def find_absences(
    records: Mapping[int, FlightRecord], world_size: int, failed: Iterable[int] = ()
) -> list[Absence]:
    """The collectives in which ranks wait for ranks that never arrived and do not wait themselves.
    Ranks that `failed` did so in their last call, even if it is recorded as ended."""
    waits = _waits(records, world_size, set(failed))
    roots = {rank for wait in waits for rank in wait.absent} - {wait.waiters[0] for wait in waits}
    return _merge_absences(waits, roots)


def find_mutual_waits(records: Mapping[int, FlightRecord], world_size: int) -> list[Absence]:
    """Collectives in which ranks wait for each other, in different groups, so that no rank waits
    for one that is free; the collective with the most waiters first."""
    waits = _waits(records, world_size, set())
    waiters = {wait.waiters[0] for wait in waits}
    if any(set(wait.absent) - waiters for wait in waits):
        return []
    return sorted(_merge_absences(waits, waiters), key=lambda absence: -len(absence.waiters))


def _merge_absences(waits: Iterable[Absence], among: Collection[int]) -> list[Absence]:
    """One absence per collective, with all its waiters and those of the absent that are `among`."""
    merged: dict[tuple[str, int], Absence] = {}
    for wait in waits:
        absent = tuple(rank for rank in wait.absent if rank in among)
        if absent:
            key = wait.group, wait.number
            before = merged[key].waiters if key in merged else ()
            merged[key] = Absence(*key, wait.call, absent, (*before, *wait.waiters))
    return list(merged.values())


def pending_calls(records: Mapping[int, FlightRecord]) -> dict[int, tuple[str, CollectiveCall]]:
    """Rank -> the group, as shown to users, and the first call in it that has not ended."""
    pending: dict[int, tuple[str, CollectiveCall]] = {}
    for rank, record in records.items():
        for channel in record.calls:
            call = record.pending(channel)
            if call is not None:
                pending.setdefault(rank, (name_channel(channel, records), call))
    return pending


def find_idle_devices(records: Mapping[int, FlightRecord]) -> tuple[int, ...]:
    """If all ranks wait in one call: those whose device never started it while others' did. Only
    known if the recorder times the calls (TORCH_NCCL_ENABLE_TIMING)."""
    states = {rank: call.state for rank, (_, call) in pending_calls(records).items()}
    if set(states.values()) != {"started", "scheduled"}:
        return ()
    return tuple(sorted(rank for rank, state in states.items() if state == "scheduled"))


def _waits(records: Mapping[int, FlightRecord], world_size: int, failed: set[int]) -> list[Absence]:
    """Every rank that waits, with the ranks that never arrived."""
    waits = []
    for rank, record in sorted(records.items()):
        for channel, calls in record.calls.items():
            call = record.pending(channel)
            if call is None and rank in failed and record.last(channel):
                call = calls[record.last(channel)]
            if call is None:
                continue
            absent = tuple(
                member
                for member in members(channel.group, records, world_size)
                if member in records and records[member].last(channel) < call.number
            )
            if absent:
                name = name_channel(channel, records)
                waits.append(Absence(name, call.number, call, absent, (rank,)))
        waits += _p2p_waits(rank, record, records, world_size)
    return waits


def _p2p_waits(
    rank: int, record: FlightRecord, records: Mapping[int, FlightRecord], world_size: int
) -> list[Absence]:
    """The sends and receives of a rank that have not ended, and whose peer has made fewer of the
    matching calls. They are judged only if neither record was overwritten. Peers are numbered
    within the group."""
    waits = []
    for channel, calls in record.p2p.items():
        group_ranks = members(channel.group, records, world_size)
        counts: dict[tuple[str, int], int] = defaultdict(int)
        for call in calls:
            match = P2P.search(call.kind)
            if match is None:
                continue
            mine, peer = int(match[2]), int(match[3])
            counts[match[1], peer] += 1
            if call.ended or peer >= len(group_ranks) or group_ranks[peer] not in records:
                continue
            other = records[group_ranks[peer]]
            back = f"recv {peer}<-{mine}" if match[1] == "send" else f"send {peer}->{mine}"
            answered = sum(answer.kind == back for answer in other.p2p.get(channel, ()))
            if record.whole and other.whole and answered < counts[match[1], peer]:
                name, absent = name_channel(channel, records), (group_ranks[peer],)
                waits.append(Absence(name, call.number, call, absent, (rank,)))
                break
    return waits


# -- Dumps of torch itself -------------------------------------------------------------------------


@dataclass
class TorchDumps:
    """The dumps of a job's ranks."""

    records: dict[int, FlightRecord] = field(default_factory=dict)
    world_size: int = 0

    def add(self, path: Path) -> bool:
        """Read a dump; False if the file is not one, or its name has no rank."""
        dump = read_torch_dump(path)
        if dump is None:
            return False
        record, least_size = dump
        self.records[record.rank] = record
        self.world_size = max(self.world_size, least_size)
        return True

    def findings(self) -> list[Finding]:
        """What the dumps show: a call that differs, or the ranks that others wait for."""
        mismatch = find_first_mismatch(self.records, self.world_size)
        if mismatch is not None:
            return [self._differing(mismatch)]
        absences = find_absences(self.records, self.world_size)
        found = [self._absent(absence) for absence in absences]
        if not found and (silent := self._silent()):
            found = [self._finding(silent, f"{name_ranks(silent)} enqueued no collective", silent)]
        missing = self._without_dump()
        if not found and missing and pending_calls(self.records):
            found = [self._finding(missing, self._waits_text(), list(self.records))]
        return found

    def _silent(self) -> list[int]:
        """The ranks that enqueued nothing, where others did."""
        silent = [rank for rank, record in sorted(self.records.items()) if not record.has_calls]
        return silent if len(silent) < len(self.records) else []

    def _without_dump(self) -> list[int]:
        return [rank for rank in range(self.world_size) if rank not in self.records]

    def _absent(self, absence: Absence) -> Finding:
        at = f" at {absence.call.line}" if absence.call.line else ""
        cause = (
            f"{name_ranks(absence.absent)} never reached {absence.call.kind} {absence.number} of "
            f"group {absence.group}, in which {name_ranks(absence.waiters)} "
            f"{'wait' if len(absence.waiters) > 1 else 'waits'}{at}"
        )
        return self._finding(absence.absent, cause, [*absence.absent, *absence.waiters])

    def _waits_text(self) -> str:
        rank, (group, call) = next(iter(pending_calls(self.records).items()))
        return (
            f"{name_ranks(self._without_dump())} left no dump, while rank {rank} and others wait "
            f"in {call.kind} {call.number} of group {group}"
        )

    def _finding(self, ranks: Collection[int], cause: str, shown: Collection[int]) -> Finding:
        missing = self._without_dump()
        if missing and set(missing) != set(ranks):
            cause += f"; no dump from {name_ranks(missing)}"
        evidence = tuple(self._evidence(rank) for rank in shown if rank in self.records)
        detail = {"lines": len(evidence), "more": False}
        return Finding(
            "hang",
            sanitize_line(cause),
            ABSENT_FIX,
            True,
            evidence[:MAX_NAMED],
            (),
            tuple(ranks),
            detail,
        )

    def _evidence(self, rank: int) -> Evidence:
        """The last call of a rank, and whether it has ended."""
        record = self.records[rank]
        if not record.has_calls:
            return record.evidence(f"rank {rank}: no entries; it enqueued no collective")
        channel = min(record.calls or record.p2p or map(Channel, record.enqueued))
        last = record.last(channel)
        call = record.calls.get(channel, {}).get(last)
        state = "" if call is None else ", ended" if call.ended else ", has not ended"
        what = f"{call}{state}" if call is not None else "known only by its number"
        return record.evidence(f"rank {rank}: last call {last} of group {channel.group}: {what}")

    def _differing(self, mismatch: Mismatch) -> Finding:
        sides = [f"{name_ranks(ranks)}: {call}" for call, ranks in mismatch.sides[:3]]
        cause = f"call {mismatch.number} of group {mismatch.group} differs: {'; '.join(sides)}"
        cause += "" if mismatch.has_majority else f"; no side has a majority, so {UNKNOWN}"
        shown = [rank for _, ranks in mismatch.sides for rank in ranks]
        finding = self._finding(mismatch.culprits, cause, shown)
        detail = finding.detail | ({} if mismatch.has_majority else {UNDECIDED: True})
        return replace(finding, id="collective-mismatch", fix=CALL_ALIKE, detail=detail)


def rank_findings(
    findings: list[Finding], dumps: list[Finding], vague: Collection[str]
) -> list[Finding]:
    """Findings of logs and of dumps: an exact cause in a log comes first, since ranks wait for one
    that failed; `vague` are the ids of causes that the dumps make more exact."""
    exact = [finding for finding in findings if finding.primary and finding.id not in vague]
    rest = [finding for finding in findings if finding not in exact]
    hangs = [replace(finding, primary=not exact) for finding in dumps]
    if dumps:
        rest = [replace(finding, primary=False) for finding in rest]
    return [*exact, *hangs, *rest]
