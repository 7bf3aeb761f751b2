"""Ranks that the others waited for, and ranks that called a different collective.

Flight recorders show which rank reached which collective. Without them stacks decide, and where
stacks show nothing, stages and steps. A rank that waits is never named as the culprit.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from ..evidence.finding import Finding
from ..evidence.phase_result import PhaseResult
from ..text import ranges, sanitize_line
from . import call_order
from .call_order import Absence, Mismatch
from .failure_evidence import MAX_LINES, FailureEvidence, is_consequence, line_of, text_of
from .flight_recorder import CollectiveCall
from .rank_failures import rank_deaths
from .rank_positions import Stack, describe_position, ranks_behind, ranks_elsewhere

TIMED_OUT = re.compile(r"timed out|timeout", re.I)
STACKS = "dumps/ of the run directory has the stacks and flight recorders of all ranks"
NETWORK = (
    "check the network between these hosts: links and their error counters, NCCL's logs in nccl/ "
    "of the run directory, and the all-reduce phases between pairs of nodes; with NCCL, check that "
    "InfiniBand is enabled where intended, and unset NCCL_SOCKET_IFNAME if interface names differ "
    "between nodes; " + STACKS
)
# Gilbreth HPC Training Guide, 6.3: "Init COMPLETE", and the first collective never ends.
IN_ONE_NODE = (
    "all ranks are on one node, so check the transport between its GPUs (NCCL's logs in nccl/ of "
    "the run directory): with NCCL, set NCCL_IB_DISABLE=1, NCCL_P2P_LEVEL=NVL and "
    "NCCL_SHM_DISABLE=0 (env.single_node in cluster.yaml); if it works with NCCL_P2P_DISABLE=1, "
    "P2P is at fault (ACS, IOMMU); " + STACKS
)
CALL_ALIKE = (
    "make every rank call the same collectives in the same order, with equal shapes and types: "
    "check these lines for anything that depends on the rank or on its data"
)
UNDECIDED = "it is unknown which of them is wrong"
HOW = {
    "skipped": "; the others make the first of these calls next: a call was skipped, or two were "
    "swapped",
    "extra": ", and makes the others' call next: there is one call too many",
    "order": "; the two calls are swapped",
    "shape": "; the sizes differ",
    "type": "; the types differ",
    "collective": "; the collectives differ",
}


def find_library_timeout(case: FailureEvidence) -> list[Finding]:
    """A hang that the library's own timeout ended: every rank that failed had waited for ranks
    that are still alive. The errors and aborts of the failed ranks are not the cause."""
    if _stall_reason(case.result):
        return []
    deaths = {rank for one in rank_deaths(case) for rank in one.ranks}
    if any(not is_consequence(error) for error in case.errors.values()):
        return []
    failed = {*deaths, *case.errors}
    if not failed:
        return []
    found = call_order.find_absences(case.records, len(case.ranks), failed)
    live = [one for one in found if not failed & set(one.absent)]
    waited = {rank for one in live for rank in one.waiters}
    ended = {rank for rank in case.ranks if case.ranks[rank].done}
    if live and failed <= waited and not any(ended & set(one.absent) for one in live):
        return [_absent(case, one, "a library timeout ended it") for one in live]
    timed_out = {
        rank for rank, error in case.errors.items() if TIMED_OUT.search(str(error.get("message")))
    }
    if case.records or not timed_out or deaths:
        return []
    left = [rank for rank in case.world if rank not in failed and rank in case.stacks]
    away = [rank for rank in left if not case.stacks[rank].perhaps_in_collective]
    return [_elsewhere(case, away, sorted(timed_out), "a library timeout ended it")] if away else []


def find_hang(case: FailureEvidence) -> list[Finding]:
    """Ranks that the others waited for, if a rank made no progress for its stage's limit."""
    why = _stall_reason(case.result)
    if not why:
        return []
    found = call_order.find_absences(case.records, len(case.ranks), case.errors)
    waits = call_order.pending_calls(case.records)
    findings = [
        _absent(case, one, why)
        for one in found
        if not set(one.absent) <= waits.keys() | case.errors.keys()
    ]
    if findings:
        return [replace(one, primary=not index) for index, one in enumerate(findings)]
    crossed = call_order.find_mutual_waits(case.records, len(case.ranks))
    if crossed:
        return [_mutual_wait(case, crossed, why)]
    silent = [rank for rank in case.world if rank not in case.records]
    if waits and not silent:
        return [_all_arrived(case, waits, why)]
    return _by_stacks(case, why, silent if waits else [])


def _by_stacks(case: FailureEvidence, why: str, silent: list[int]) -> list[Finding]:
    """Ranks whose stack is outside a collective; `silent` are the ranks without a record, where the
    records of the others show that these wait."""
    away = ranks_elsewhere(case.stacks, case.world)
    if silent:
        away = [
            rank
            for rank in silent
            if rank not in case.stacks or not case.stacks[rank].perhaps_in_collective
        ]
    if away and len(away) < len(case.world):
        waiters = [rank for rank in case.world if rank not in away]
        return [_elsewhere(case, away, waiters, why)]
    in_collective = [rank for rank in case.world if _in_collective(case.stacks.get(rank))]
    if in_collective and len(in_collective) == len(case.world):
        return [_all_in_collective(case, why)]
    least = ranks_behind(case.result, case.world)
    if least:
        return [_furthest_behind(case, least, why)]
    if case.stacks and not in_collective and set(case.stacks) >= set(case.world):
        return [_none_in_collective(case, why)]
    return []


def _absent(case: FailureEvidence, absence: Absence, why: str) -> Finding:
    waits = call_order.pending_calls(case.records)
    culprits = tuple(rank for rank in absence.absent if rank not in waits) or absence.absent
    places = [f"{case.position(rank)}" for rank in culprits if rank in case.stacks][:MAX_LINES]
    line = line_of(case, absence.call, absence.waiters)
    cause = (
        f"{case.name_ranks(culprits)} never reached {absence.call.kind} {absence.number} of group "
        f"{absence.group}, in which {text_of(absence.waiters)} "
        f"{'waits' if len(absence.waiters) == 1 else 'wait'}"
        + (f" (at {line})" if line else "")
        + (f"; stuck at {'; '.join(dict.fromkeys(places))}" if places else "")
        + f"; {why}"
    )
    detail = case.detail(
        group=sanitize_line(absence.group),
        number=absence.number,
        collective=sanitize_line(str(absence.call)),
        waiters=list(absence.waiters),
        lines=case.lines(culprits),
        waiters_at=sanitize_line(line),
    )
    return _hang_finding(case, culprits, cause, absence.waiters, detail)


def _elsewhere(case: FailureEvidence, away: list[int], waiters: list[int], why: str) -> Finding:
    places = [f"{case.position(rank)}" for rank in away if rank in case.stacks][:MAX_LINES]
    at = "; ".join(dict.fromkeys(places)) or "an unknown place (it left no stack)"
    lines = case.lines(waiters)
    line = next(iter(lines.values()), "")
    cause = (
        f"{case.name_ranks(away)} {'is' if len(away) == 1 else 'are'} stuck at {at}, while "
        f"{text_of(waiters)} {'waits' if len(waiters) == 1 else 'wait'} in a collective"
        + (f" (at {line})" if line else "")
        + f"; {why}"
    )
    detail = case.detail(waiters=waiters, lines=case.lines(away), waiters_at=line)
    return _hang_finding(case, tuple(away), cause, waiters, detail)


def _furthest_behind(case: FailureEvidence, least: list[int], why: str) -> Finding:
    rank = case.ranks[least[0]]
    place = case.position(least[0])
    cause = (
        f"{case.name_ranks(least)} fell behind the others: {describe_position(rank)}"
        + (f", at {place}" if place else "")
        + f"; {why}"
    )
    return _hang_finding(case, tuple(least), cause, (), case.detail(lines=case.lines(least)))


def _none_in_collective(case: FailureEvidence, why: str) -> Finding:
    """No rank makes progress, and none is in a collective."""
    ranks = tuple(case.world)
    cause = (
        f"{case.name_ranks(ranks)} made no progress, each on its own and none in a collective, at "
        f"{case.position(ranks[0])}; {why}"
    )
    return _hang_finding(case, ranks, cause, (), case.detail(lines=case.lines(ranks)))


def _mutual_wait(case: FailureEvidence, waits: list[Absence], why: str) -> Finding:
    """Ranks that wait for each other, each in a collective that the other never reached. If more
    than half of all ranks wait for a few, those are wrong; otherwise it is unknown which are."""
    most = waits[0]
    has_majority = 2 * len(most.waiters) > len(case.ranks)
    culprits = (
        most.absent if has_majority else tuple(sorted({r for one in waits for r in one.waiters}))
    )
    each = [
        f"{case.name_ranks(one.waiters)} in {one.call.kind} {one.number} of group {one.group}"
        f"{f' (at {line})' if (line := line_of(case, one.call, one.waiters)) else ''}"
        for one in waits[:MAX_LINES]
    ]
    who = f"{case.name_ranks(culprits)} departed from the majority" if has_majority else UNDECIDED
    cause = (
        "ranks wait for each other, each in a collective that the other never reached: "
        f"{'; '.join(each)}; {who}; {why}"
    )
    detail = case.detail(waiters=list(most.waiters), lines=case.lines(culprits))
    return _hang_finding(case, culprits, cause, most.waiters if has_majority else (), detail)


def _all_arrived(
    case: FailureEvidence, waits: dict[int, tuple[str, CollectiveCall]], why: str
) -> Finding:
    """All ranks of a group reached the collective, but it never completed: none fell behind."""
    idle = call_order.find_idle_devices(case.records)
    group, call = min(waits.values(), key=lambda one: one[1].created_s or 0.0)
    ranks = [
        rank for rank, (name, one) in waits.items() if (name, one.number) == (group, call.number)
    ]
    line = line_of(case, call, ranks)
    what = f"{call.kind} {call.number} of group {group}" + (f" at {line}" if line else "")
    detail = case.detail(
        group=sanitize_line(group),
        number=call.number,
        collective=sanitize_line(str(call)),
        waiters=ranks,
        lines=case.lines(idle),
        waiters_at=sanitize_line(line),
    )
    if idle:
        cause = f"the device of {case.name_ranks(idle)} never started {what}; others did; {why}"
        return _hang_finding(case, idle, cause, ranks, detail)
    cause = f"all {len(ranks)} ranks reached {what}, which never completed: none fell behind; {why}"
    hosts = case.hosts(ranks)
    evidence = tuple(case.evidence(ranks[:2]))
    return Finding("hang", cause, _all_came(hosts), True, evidence, hosts, (), detail)


def _all_in_collective(case: FailureEvidence, why: str) -> Finding:
    """The same, judged by stacks alone."""
    ranks = case.world
    lines = case.lines(ranks)
    line = next(iter(lines.values()), "")
    cause = (
        f"all {len(ranks)} ranks wait in a collective (at {line}) that never completed: none is "
        f"known to have fallen behind; {why}"
    )
    detail = case.detail(waiters=ranks, lines={}, waiters_at=line)
    hosts = case.hosts(ranks)
    evidence = tuple(case.evidence(ranks[:2]))
    return Finding("hang", cause, _all_came(hosts), True, evidence, hosts, (), detail)


def _all_came(hosts: Collection[str]) -> str:
    """What to do if no rank fell behind."""
    return NETWORK if len(hosts) > 1 else IN_ONE_NODE


def _hang_finding(
    case: FailureEvidence,
    culprits: tuple[int, ...],
    cause: str,
    waiters: Collection[int],
    detail: Any,
) -> Finding:
    first = next((rank for rank in culprits if rank in case.stacks), None)
    at = f"look at {case.stacks[first].program} on that rank; " if first is not None else ""
    return Finding(
        "hang",
        cause,
        at + STACKS,
        evidence=(*case.evidence(culprits[:2]), *case.evidence(list(waiters)[:1])),
        hosts=case.hosts(culprits),
        ranks=culprits,
        detail=detail,
    )


def _stall_reason(result: PhaseResult) -> str:
    """The reason given by the first node whose watch saw a rank stall; empty if none did."""
    reasons = (
        str(node.result.get("why"))
        for node in result.nodes
        if node.result.get("reason") == "stalled"
    )
    return next(reasons, "")


def _in_collective(stack: Stack | None) -> bool:
    return stack is not None and stack.in_collective


def find_mismatch(case: FailureEvidence) -> list[Finding]:
    """Ranks that called a different collective from the others, under the same number."""
    found = call_order.find_first_mismatch(case.records, len(case.ranks))
    if found is None or _failed_before(case, found):
        return []
    (usual, most), *odd = found.sides
    if found.has_majority:
        subject = case.name_ranks(found.culprits)
        are = "is" if len(found.culprits) == 1 else "are"
        calls = "; ".join(f"{_call(case, call, ranks)} on {text_of(ranks)}" for call, ranks in odd)
        cause = (
            f"{subject} {are} out of step in group {found.group}: collective {found.number} is "
            f"{calls}, but {_call(case, usual, most)} on {text_of(most)}{HOW[found.how]}"
        )
    else:
        calls = "; ".join(
            f"on {text_of(ranks)} it is {_call(case, call, ranks)}" for call, ranks in found.sides
        )
        cause = (
            f"{case.name_ranks(found.culprits)} are out of step with each other in group "
            f"{found.group}: collective {found.number} differs; {calls}; no side has a majority, "
            f"so {UNDECIDED}"
        )
    lines = {ranges(ranks): line_of(case, call, ranks) for call, ranks in found.sides}
    detail = case.detail(
        group=sanitize_line(found.group),
        number=found.number,
        how=found.how if found.has_majority else "unknown",
        calls={
            ranges(ranks): sanitize_line(_call(case, call, ranks)) for call, ranks in found.sides
        },
        lines={ranks: sanitize_line(line) for ranks, line in lines.items()},
    )
    shown = [ranks[0] for _, ranks in (*odd, found.sides[0])]
    return [
        Finding(
            "collective-mismatch",
            cause,
            CALL_ALIKE,
            evidence=tuple(case.evidence(shown)),
            hosts=case.hosts(found.culprits),
            ranks=found.culprits,
            detail=detail,
        )
    ]


def _failed_before(case: FailureEvidence, found: Mismatch) -> bool:
    """Whether a rank failed for a reason of its own before the calls differed: then the difference
    is a consequence. The times of one rank are from one clock."""
    calls = {rank: call for call, ranks in found.sides for rank in ranks}
    for rank, error in case.errors.items():
        if is_consequence(error):
            continue
        created = calls[rank].created_s if rank in calls else None
        own = case.records[rank].calls if rank in case.records else {}
        for group in own.values():
            if found.number in group and rank in calls:
                created = group[found.number].created_s or created
        if created is None or error["time"] < created:
            return True
    return False


def _call(case: FailureEvidence, call: CollectiveCall, ranks: Collection[int]) -> str:
    line = line_of(case, call, ranks)
    return str(call) if call.line or not line else f"{call} at {line}"
