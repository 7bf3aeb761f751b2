"""Ranks that the others waited for, and ranks that called a different collective.

Flight recorders show which rank reached which collective. Without them stacks decide, and where
stacks show nothing, stages and steps. A rank that waits is never named as the culprit.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from ..evidence.finding import UNDECIDED, Finding
from ..evidence.phase_result import PhaseResult
from ..text import name_ranks, ranges, sanitize_line
from . import call_order
from .call_order import UNKNOWN, Absence, Mismatch
from .failure_evidence import MAX_LINES, FailureEvidence, is_consequence, line_of
from .flight_recorder import CollectiveCall
from .rank_failures import find_dead_ranks
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
HOW = {
    "skipped": "; the others make the first-named call next: a call was skipped, or two were "
    "swapped",
    "extra": "; the first-named call is followed by the others' call: there is one call too many",
    "order": "; the two calls are swapped",
    "shape": "; the sizes differ",
    "type": "; the types differ",
    "collective": "; the collectives differ",
}


def find_library_timeout(evidence: FailureEvidence) -> list[Finding]:
    """A hang that the library's own timeout ended: every rank that failed had waited for ranks
    that are still alive. The errors and aborts of the failed ranks are not the cause."""
    if _stall_reason(evidence.result):
        return []
    deaths = find_dead_ranks(evidence)
    if any(not is_consequence(error) for error in evidence.errors.values()):
        return []
    failed = {*deaths, *evidence.errors}
    if not failed:
        return []
    absences = call_order.find_absences(evidence.records, len(evidence.ranks), failed)
    live = [absence for absence in absences if not failed & set(absence.absent)]
    waited = {rank for absence in live for rank in absence.waiters}
    ended = {rank for rank in evidence.ranks if evidence.ranks[rank].done}
    if live and failed <= waited and not any(ended & set(absence.absent) for absence in live):
        return [_absent(evidence, absence, "a library timeout ended it") for absence in live]
    timed_out = {rank for rank, error in evidence.errors.items() if TIMED_OUT.search(error.message)}
    if evidence.records or not timed_out or deaths:
        return []
    left = [rank for rank in evidence.world if rank not in failed and rank in evidence.stacks]
    away = [rank for rank in left if not evidence.stacks[rank].perhaps_in_collective]
    if not away:
        return []
    return [_elsewhere(evidence, away, sorted(timed_out), "a library timeout ended it")]


def find_hang(evidence: FailureEvidence) -> list[Finding]:
    """Ranks that the others waited for, if a rank made no progress for its stage's limit."""
    why = _stall_reason(evidence.result)
    if not why:
        return []
    absences = call_order.find_absences(evidence.records, len(evidence.ranks), evidence.errors)
    waits = call_order.pending_calls(evidence.records)
    findings = [
        _absent(evidence, absence, why)
        for absence in absences
        if not set(absence.absent) <= waits.keys() | evidence.errors.keys()
    ]
    if findings:
        return [replace(finding, primary=not index) for index, finding in enumerate(findings)]
    crossed = call_order.find_mutual_waits(evidence.records, len(evidence.ranks))
    if crossed:
        return [_mutual_wait(evidence, crossed, why)]
    silent = [rank for rank in evidence.world if rank not in evidence.records]
    if waits and not silent:
        return [_all_arrived(evidence, waits, why)]
    return _by_stacks(evidence, why, silent if waits else [])


def _by_stacks(evidence: FailureEvidence, why: str, silent: list[int]) -> list[Finding]:
    """Ranks whose stack is outside a collective; `silent` are the ranks without a record, where the
    records of the others show that these wait."""
    away = ranks_elsewhere(evidence.stacks, evidence.world)
    if silent:
        away = [
            rank
            for rank in silent
            if rank not in evidence.stacks or not evidence.stacks[rank].perhaps_in_collective
        ]
    if away and len(away) < len(evidence.world):
        waiters = [rank for rank in evidence.world if rank not in away]
        return [_elsewhere(evidence, away, waiters, why)]
    in_collective = [rank for rank in evidence.world if _in_collective(evidence.stacks.get(rank))]
    if in_collective and len(in_collective) == len(evidence.world):
        return [_all_in_collective(evidence, why)]
    least = ranks_behind(evidence.result, evidence.world)
    if least:
        return [_furthest_behind(evidence, least, why)]
    if evidence.stacks and not in_collective and set(evidence.stacks) >= set(evidence.world):
        return [_none_in_collective(evidence, why)]
    return []


def _absent(evidence: FailureEvidence, absence: Absence, why: str) -> Finding:
    waits = call_order.pending_calls(evidence.records)
    culprits = tuple(rank for rank in absence.absent if rank not in waits) or absence.absent
    at = [evidence.position(rank) for rank in culprits if rank in evidence.stacks]
    places = dict.fromkeys(at[:MAX_LINES])
    line = line_of(evidence, absence.call, absence.waiters)
    cause = (
        f"{evidence.name_ranks(culprits)} never reached {absence.call.kind} {absence.number} of "
        f"group {absence.group}, in which {name_ranks(absence.waiters)} "
        f"{'waits' if len(absence.waiters) == 1 else 'wait'}"
        + (f" (at {line})" if line else "")
        + (f"; stuck at {'; '.join(places)}" if places else "")
        + f"; {why}"
    )
    detail = evidence.detail(
        group=sanitize_line(absence.group),
        number=absence.number,
        collective=sanitize_line(str(absence.call)),
        waiters=list(absence.waiters),
        lines=evidence.lines(culprits),
        waiters_at=sanitize_line(line),
    )
    return _hang_finding(evidence, culprits, cause, absence.waiters, detail)


def _elsewhere(evidence: FailureEvidence, away: list[int], waiters: list[int], why: str) -> Finding:
    places = [evidence.position(rank) for rank in away if rank in evidence.stacks][:MAX_LINES]
    at = "; ".join(dict.fromkeys(places)) or "an unknown place (it left no stack)"
    lines = evidence.lines(waiters)
    line = next(iter(lines.values()), "")
    cause = (
        f"{evidence.name_ranks(away)} {'is' if len(away) == 1 else 'are'} stuck at {at}, while "
        f"{name_ranks(waiters)} {'waits' if len(waiters) == 1 else 'wait'} in a collective"
        + (f" (at {line})" if line else "")
        + f"; {why}"
    )
    detail = evidence.detail(waiters=waiters, lines=evidence.lines(away), waiters_at=line)
    return _hang_finding(evidence, tuple(away), cause, waiters, detail)


def _furthest_behind(evidence: FailureEvidence, least: list[int], why: str) -> Finding:
    rank = evidence.ranks[least[0]]
    place = evidence.position(least[0])
    cause = (
        f"{evidence.name_ranks(least)} fell behind the others: {describe_position(rank)}"
        + (f", at {place}" if place else "")
        + f"; {why}"
    )
    return _hang_finding(
        evidence, tuple(least), cause, (), evidence.detail(lines=evidence.lines(least))
    )


def _none_in_collective(evidence: FailureEvidence, why: str) -> Finding:
    """No rank makes progress, and none is in a collective."""
    ranks = tuple(evidence.world)
    cause = (
        f"{evidence.name_ranks(ranks)} made no progress, each on its own and none in a collective, "
        f"at {evidence.position(ranks[0])}; {why}"
    )
    detail = evidence.detail(lines=evidence.lines(ranks)) | {UNDECIDED: True}
    return _hang_finding(evidence, ranks, cause, (), detail)


def _mutual_wait(evidence: FailureEvidence, waits: list[Absence], why: str) -> Finding:
    """Ranks that wait for each other, each in a collective that the other never reached. If more
    than half of all ranks wait for a few, those are wrong; otherwise it is unknown which are."""
    most = waits[0]
    has_majority = 2 * len(most.waiters) > len(evidence.ranks)
    culprits = (
        most.absent if has_majority else tuple(sorted({r for wait in waits for r in wait.waiters}))
    )
    each = [
        f"{evidence.name_ranks(wait.waiters)} in {wait.call.kind} {wait.number} of group "
        f"{wait.group}"
        f"{f' (at {line})' if (line := line_of(evidence, wait.call, wait.waiters)) else ''}"
        for wait in waits[:MAX_LINES]
    ]
    who = f"{evidence.name_ranks(culprits)} departed from the majority" if has_majority else UNKNOWN
    cause = (
        "ranks wait for each other, each in a collective that the other never reached: "
        f"{'; '.join(each)}; {who}; {why}"
    )
    detail = evidence.detail(waiters=list(most.waiters), lines=evidence.lines(culprits))
    detail |= {} if has_majority else {UNDECIDED: True}
    return _hang_finding(evidence, culprits, cause, most.waiters if has_majority else (), detail)


def _all_arrived(
    evidence: FailureEvidence, waits: dict[int, tuple[str, CollectiveCall]], why: str
) -> Finding:
    """All ranks of a group reached the collective, but it never completed: none fell behind."""
    idle = call_order.find_idle_devices(evidence.records)
    group, call = min(waits.values(), key=lambda pending: pending[1].created_s or 0.0)
    ranks = [
        rank
        for rank, (name, pending) in waits.items()
        if (name, pending.number) == (group, call.number)
    ]
    line = line_of(evidence, call, ranks)
    collective = f"{call.kind} {call.number} of group {group}" + (f" at {line}" if line else "")
    detail = evidence.detail(
        group=sanitize_line(group),
        number=call.number,
        collective=sanitize_line(str(call)),
        waiters=ranks,
        lines=evidence.lines(idle),
        waiters_at=sanitize_line(line),
    )
    if idle:
        cause = (
            f"the device of {evidence.name_ranks(idle)} never started {collective}; others did; "
            f"{why}"
        )
        return _hang_finding(evidence, idle, cause, ranks, detail)
    cause = (
        f"all {len(ranks)} ranks reached {collective}, which never completed: none fell behind; "
        f"{why}"
    )
    hosts = evidence.hosts(ranks)
    stacks = tuple(evidence.evidence_of(ranks[:2]))
    detail |= {UNDECIDED: True}
    return Finding("hang", cause, _transport_fix(hosts), True, stacks, hosts, (), detail)


def _all_in_collective(evidence: FailureEvidence, why: str) -> Finding:
    """All ranks are in a collective that never completed, as far as stacks alone show."""
    ranks = evidence.world
    lines = evidence.lines(ranks)
    line = next(iter(lines.values()), "")
    cause = (
        f"all {len(ranks)} ranks wait in a collective (at {line}) that never completed: none is "
        f"known to have fallen behind; {why}"
    )
    detail = evidence.detail(waiters=ranks, lines={}, waiters_at=line)
    hosts = evidence.hosts(ranks)
    stacks = tuple(evidence.evidence_of(ranks[:2]))
    detail |= {UNDECIDED: True}
    return Finding("hang", cause, _transport_fix(hosts), True, stacks, hosts, (), detail)


def _transport_fix(hosts: Collection[str]) -> str:
    """What to do if no rank fell behind."""
    return NETWORK if len(hosts) > 1 else IN_ONE_NODE


def _hang_finding(
    evidence: FailureEvidence,
    culprits: tuple[int, ...],
    cause: str,
    waiters: Collection[int],
    detail: Any,
) -> Finding:
    first = next((rank for rank in culprits if rank in evidence.stacks), None)
    at = f"look at {evidence.stacks[first].program} on that rank; " if first is not None else ""
    return Finding(
        "hang",
        cause,
        at + STACKS,
        evidence=(*evidence.evidence_of(culprits[:2]), *evidence.evidence_of(list(waiters)[:1])),
        hosts=evidence.hosts(culprits),
        ranks=culprits,
        detail=detail,
    )


def _stall_reason(result: PhaseResult) -> str:
    """The reason given by the first node whose watch saw a rank stall; empty if none did."""
    return next((node.why for node in result.nodes if node.reason == "stalled"), "")


def _in_collective(stack: Stack | None) -> bool:
    return stack is not None and stack.in_collective


def find_mismatch(evidence: FailureEvidence) -> list[Finding]:
    """Ranks that called a different collective from the others, under the same number."""
    mismatch = call_order.find_first_mismatch(evidence.records, len(evidence.ranks))
    if mismatch is None or _failed_before(evidence, mismatch):
        return []
    (usual, most), *odd = mismatch.sides
    if mismatch.has_majority:
        subject = evidence.name_ranks(mismatch.culprits)
        are = "is" if len(mismatch.culprits) == 1 else "are"
        calls = "; ".join(
            f"{_call(evidence, call, ranks)} on {name_ranks(ranks)}" for call, ranks in odd
        )
        cause = (
            f"{subject} {are} out of step in group {mismatch.group}: collective {mismatch.number} "
            f"is {calls}, but {_call(evidence, usual, most)} on {name_ranks(most)}"
            f"{HOW[mismatch.how]}"
        )
    else:
        calls = "; ".join(
            f"on {name_ranks(ranks)} it is {_call(evidence, call, ranks)}"
            for call, ranks in mismatch.sides
        )
        cause = (
            f"{evidence.name_ranks(mismatch.culprits)} are out of step with each other in group "
            f"{mismatch.group}: collective {mismatch.number} differs; {calls}; no side has a "
            f"majority, so {UNKNOWN}"
        )
    lines = {ranges(ranks): line_of(evidence, call, ranks) for call, ranks in mismatch.sides}
    detail = evidence.detail(
        group=sanitize_line(mismatch.group),
        number=mismatch.number,
        how=mismatch.how if mismatch.has_majority else "unknown",
        calls={
            ranges(ranks): sanitize_line(_call(evidence, call, ranks))
            for call, ranks in mismatch.sides
        },
        lines={ranks: sanitize_line(line) for ranks, line in lines.items()},
    )
    detail |= {} if mismatch.has_majority else {UNDECIDED: True}
    shown = [ranks[0] for _, ranks in (*odd, mismatch.sides[0])]
    return [
        Finding(
            "collective-mismatch",
            cause,
            call_order.CALL_ALIKE,
            evidence=tuple(evidence.evidence_of(shown)),
            hosts=evidence.hosts(mismatch.culprits),
            ranks=mismatch.culprits,
            detail=detail,
        )
    ]


def _failed_before(evidence: FailureEvidence, mismatch: Mismatch) -> bool:
    """Whether a rank failed for a reason of its own before the calls differed: then the difference
    is a consequence. The times of one rank are from one clock."""
    calls = {rank: call for call, ranks in mismatch.sides for rank in ranks}
    for rank, error in evidence.errors.items():
        if is_consequence(error):
            continue
        created = calls[rank].created_s if rank in calls else None
        own = evidence.records[rank].calls if rank in evidence.records else {}
        for group in own.values():
            if mismatch.number in group and rank in calls:
                created = group[mismatch.number].created_s or created
        if created is None or error.time < created:
            return True
    return False


def _call(evidence: FailureEvidence, call: CollectiveCall, ranks: Collection[int]) -> str:
    line = line_of(evidence, call, ranks)
    return str(call) if call.line or not line else f"{call} at {line}"
