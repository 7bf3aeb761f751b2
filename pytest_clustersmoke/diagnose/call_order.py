"""Which rank fell out of step, from the flight recorders of all: within each process group the
calls of one number belong together.

A call that differs between ranks is a mismatch: where more than half of the group agree, the others
are out of step; else it cannot be told who is. Where all agree, a rank whose calls end before the
one that others wait in never came to it, unless it waits itself, in another group, for a third.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from .flight_recorder import DEFAULT_GROUP, P2P, CollectiveCall, FlightRecord

# All ranks came so many calls past one that differed: then it is a habit of the program's, which
# the library bears. gloo lets some ranks past the call that breaks the others.
HABIT = 3


@dataclass(frozen=True)
class Mismatch:
    """One number of a group, under which ranks called different collectives."""

    group: str  # as people are told it
    number: int
    sides: tuple[tuple[CollectiveCall, tuple[int, ...]], ...]  # the largest first
    culprits: tuple[int, ...]  # both sides where neither has the majority
    told: bool  # whether there is a majority
    how: str  # "skipped", "extra", "order", "shape", "type", "collective"


@dataclass(frozen=True)
class Absence:
    """A collective in which some wait for others that never came to it."""

    group: str
    number: int
    call: CollectiveCall  # as a waiter called it
    absent: tuple[int, ...]
    waiters: tuple[int, ...]


def first_mismatch(records: Mapping[int, FlightRecord], world_size: int) -> Mismatch | None:
    """The first call, near the end of what is recorded, that ranks of one group disagree on."""
    found = [
        one
        for group in sorted({name for record in records.values() for name in record.calls})
        if (one := _mismatch_in(group, records, world_size)) is not None
    ]
    return min(found, key=_when, default=None)


def _when(one: Mismatch) -> float:
    times = [call.created_s for call, _ in one.sides if call.created_s is not None]
    return max(times, default=0.0)


def members(group: str, records: Mapping[int, FlightRecord], world_size: int) -> tuple[int, ...]:
    """The group's ranks; those that called something in it, where no rank says who belongs."""
    if group == DEFAULT_GROUP:
        return tuple(range(world_size))
    said = {record.members[group] for record in records.values() if group in record.members}
    if len(said) == 1:
        return tuple(rank for rank in next(iter(said)) if rank < world_size)
    return tuple(sorted(rank for rank, record in records.items() if group in record.calls))


def _mismatch_in(
    group: str, records: Mapping[int, FlightRecord], world_size: int
) -> Mismatch | None:
    belong = members(group, records, world_size)
    known = {rank: records[rank].calls.get(group, {}) for rank in belong if rank in records}
    all_came_to = min((max(calls, default=0) for calls in known.values()), default=0)
    for number in sorted({one for calls in known.values() for one in calls}):
        sides = _sides(number, known)
        if len(sides) < 2:
            continue
        if number < all_came_to - HABIT:
            return None
        name = next(record for record in records.values() if group in record.calls).name(group)
        majority = sides[0][1] if 2 * len(sides[0][1]) > len(belong) else ()
        ranks = {rank for _, side in sides for rank in side} - set(majority)
        how = _how(number, known[sides[0][1][0]], known[sides[1][1][0]])
        return Mismatch(name, number, sides, tuple(sorted(ranks)), bool(majority), how)
    return None


def _sides(
    number: int, known: Mapping[int, Mapping[int, CollectiveCall]]
) -> tuple[tuple[CollectiveCall, tuple[int, ...]], ...]:
    """What the ranks called under this number, and who; the largest party first."""
    parties: dict[object, list[int]] = defaultdict(list)
    for rank, calls in sorted(known.items()):
        if number in calls:
            parties[calls[number].agrees_on].append(rank)
    ordered = sorted(parties.values(), key=lambda ranks: (-len(ranks), ranks))
    return tuple((known[ranks[0]][number], tuple(ranks)) for ranks in ordered)


def _how(
    number: int, usual: Mapping[int, CollectiveCall], odd: Mapping[int, CollectiveCall]
) -> str:
    """What the odd one did, by the calls from this number on, as far as both go."""
    mine, theirs = odd[number], usual[number]
    following = number + 1
    if following not in usual:
        # The others wait in this one; what they call behind it shows where they called it before.
        before = [n for n in usual if n < number and usual[n].agrees_on == theirs.agrees_on]
        following = max(before, default=number) + 1
    is_next = following in usual and usual[following].agrees_on == mine.agrees_on
    if _same(usual, number, odd, number + 1):
        return "order" if is_next else "extra"
    if _same(usual, following, odd, number):
        return "skipped"
    if mine.kind != theirs.kind:
        return "collective"
    return "type" if mine.elements == theirs.elements else "shape"


def _same(
    one: Mapping[int, CollectiveCall], first: int, other: Mapping[int, CollectiveCall], second: int
) -> bool:
    """Whether the calls from these numbers on are the same, as long as both are recorded."""
    if first not in one or second not in other:
        return False
    last = first
    while last + 1 in one and second + last + 1 - first in other:
        last += 1
    # Where they differ again only at the end, another fault followed; so the first two decide.
    numbers = range(first, min(last, first + 1) + 1)
    return all(one[n].agrees_on == other[second + n - first].agrees_on for n in numbers)


def absences(
    records: Mapping[int, FlightRecord], world_size: int, failed: Iterable[int] = ()
) -> list[Absence]:
    """The collectives in which ranks wait for such as never came; by the latter, who wait for
    nobody themselves. Ranks that `failed` did so in their last call, which may count as ended."""
    waits = _waits(records, world_size, set(failed))
    roots = {rank for one in waits for rank in one.absent} - {one.waiters[0] for one in waits}
    return _gathered(waits, roots)


def mutual(records: Mapping[int, FlightRecord], world_size: int) -> list[Absence]:
    """Where ranks wait for each other in different groups, and so nobody for one who waits for
    none: all these collectives, the one with the most waiters first."""
    waits = _waits(records, world_size, set())
    waiters = {one.waiters[0] for one in waits}
    if any(set(one.absent) - waiters for one in waits):
        return []
    return sorted(_gathered(waits, waiters), key=lambda one: -len(one.waiters))


def _gathered(waits: Iterable[Absence], among: Collection[int]) -> list[Absence]:
    """One for each collective, with all its waiters, and of the absent those `among` these."""
    found: dict[tuple[str, int], Absence] = {}
    for one in waits:
        absent = tuple(rank for rank in one.absent if rank in among)
        if absent:
            key = one.group, one.number
            before = found[key].waiters if key in found else ()
            found[key] = Absence(*key, one.call, absent, (*before, *one.waiters))
    return list(found.values())


def waiting(records: Mapping[int, FlightRecord]) -> dict[int, tuple[str, CollectiveCall]]:
    """Rank -> the group, as people are told it, and the first call in it that has not ended."""
    found: dict[int, tuple[str, CollectiveCall]] = {}
    for rank, record in records.items():
        for group in record.calls:
            call = record.pending(group)
            if call is not None:
                found.setdefault(rank, (record.name(group), call))
    return found


def not_begun(records: Mapping[int, FlightRecord]) -> tuple[int, ...]:
    """Where all ranks wait in one call: those whose device never began it, while others' did. Only
    told where the recorder times the calls (TORCH_NCCL_ENABLE_TIMING)."""
    states = {rank: call.state for rank, (_, call) in waiting(records).items()}
    if set(states.values()) != {"started", "scheduled"}:
        return ()
    return tuple(sorted(rank for rank, state in states.items() if state == "scheduled"))


def _waits(records: Mapping[int, FlightRecord], world_size: int, failed: set[int]) -> list[Absence]:
    """Every rank that waits, with those that never came."""
    found = []
    for rank, record in sorted(records.items()):
        for group, calls in record.calls.items():
            call = record.pending(group)
            if call is None and rank in failed and record.last(group):
                call = calls[record.last(group)]
            if call is None:
                continue
            absent = tuple(
                one
                for one in members(group, records, world_size)
                if one in records and records[one].last(group) < call.number
            )
            if absent:
                found.append(Absence(record.name(group), call.number, call, absent, (rank,)))
        found += _p2p_waits(rank, record, records, world_size)
    return found


def _p2p_waits(
    rank: int, record: FlightRecord, records: Mapping[int, FlightRecord], world_size: int
) -> list[Absence]:
    """A send or receive that has not ended and whose peer has called fewer of its kind: only where
    nothing of either's record was overwritten. Peers are counted within the group."""
    found = []
    for group, calls in record.p2p.items():
        belong = members(group, records, world_size)
        counts: dict[tuple[str, int], int] = defaultdict(int)
        for call in calls:
            match = P2P.search(call.kind)
            if match is None:
                continue
            mine, peer = int(match[2]), int(match[3])
            counts[match[1], peer] += 1
            if call.ended or peer >= len(belong) or belong[peer] not in records:
                continue
            other = records[belong[peer]]
            back = f"recv {peer}<-{mine}" if match[1] == "send" else f"send {peer}->{mine}"
            came = sum(one.kind == back for one in other.p2p.get(group, ()))
            if record.whole and other.whole and came < counts[match[1], peer]:
                absent = (belong[peer],)
                found.append(Absence(record.name(group), call.number, call, absent, (rank,)))
                break
    return found
