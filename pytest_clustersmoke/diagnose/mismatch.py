"""Ranks that called another collective than the others."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from .. import clean
from ..findings import Finding
from ..text import ranges
from . import out_of_step
from .case import Case, is_consequence, line_of, text_of
from .flight_recorder import Call
from .out_of_step import Mismatch

if TYPE_CHECKING:
    from ..result import PhaseResult

CALL_ALIKE = (
    "have every rank call the same collectives in the same order, with equal shapes and types: "
    "look at these lines for what depends on the rank or on its data"
)
HOW = {
    "skipped": ", behind which the others call the former: one was skipped, or two were called in "
    "the other order",
    "extra": ", and what the others called only then: one too many",
    "order": ": the two calls in the other order",
    "shape": ": another size",
    "type": ": another type",
    "collective": ": another collective",
}


def mismatch(result: PhaseResult) -> list[Finding]:
    """Ranks that called another collective than the others, under the same number."""
    case = Case(result)
    found = out_of_step.mismatch(case.records, len(case.ranks))
    if found is None or _failed_before(case, found):
        return []
    (usual, most), *odd = found.sides
    if found.told:
        subject = case.named(found.culprits)
        are = "is" if len(found.culprits) == 1 else "are"
        calls = "; ".join(f"{_call(case, call, ranks)} on {text_of(ranks)}" for call, ranks in odd)
        cause = (
            f"{subject} {are} out of step in group {found.group}: collective {found.number} is "
            f"{calls}, while it is {_call(case, usual, most)} on {text_of(most)}{HOW[found.how]}"
        )
    else:
        calls = "; ".join(
            f"on {text_of(ranks)} it is {_call(case, call, ranks)}" for call, ranks in found.sides
        )
        cause = (
            f"{case.named(found.culprits)} are out of step with each other in group {found.group}: "
            f"collective {found.number} differs; {calls}; no side has the majority, so which of "
            "them is wrong cannot be told"
        )
    lines = {ranges(ranks): line_of(case, call, ranks) for call, ranks in found.sides}
    detail = case.detail(
        group=clean.line(found.group),
        number=found.number,
        how=found.how if found.told else "cannot be told",
        calls={ranges(ranks): clean.line(_call(case, call, ranks)) for call, ranks in found.sides},
        lines={ranks: clean.line(line) for ranks, line in lines.items()},
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


def _failed_before(case: Case, found: Mismatch) -> bool:
    """Whether a rank failed for a reason of its own before the calls differed: then the difference
    is what came of it. Times of one rank are by one clock."""
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


def _call(case: Case, call: Call, ranks: Collection[int]) -> str:
    line = line_of(case, call, ranks)
    return str(call) if call.line or not line else f"{call} at {line}"
