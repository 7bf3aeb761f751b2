"""Losses and gradients that are not finite: in which step, and on which rank first.

A loss shows a NaN on the rank that has it; a reduction passes it to all ranks, whose losses show it
one step later. The gradients that each rank watched before their reduction show where it began.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..evidence.job_results import RankResult
from ..evidence.metric import fail
from ..evidence.phase_result import PhaseResult
from ..evidence.telemetry import parse_number
from ..text import plural


@dataclass(frozen=True, order=True)
class _NotFinite:
    """One rank's first value that is not finite. In a step, the loss comes before the gradients."""

    step: float
    order: int
    rank: int
    subject: str


def check_finite_values(phase: PhaseResult) -> None:
    """Fails if a rank's loss or watched gradient is not finite, naming the first; if a rank did not
    report its losses; and if some ranks watched their gradients and others did not."""
    __tracebackhide__ = True
    losses, watched = phase.events("losses"), phase.events("gradient_watch")
    everyone = list(range(phase.world_size))
    if sorted(losses) != everyone:
        fail(
            f"only ranks {sorted(losses)} of {phase.world_size} reported their losses; expected "
            "step.record(loss=...) with a loss in every step, on every rank"
        )
    if watched and sorted(watched) != everyone:
        fail(f"only ranks {sorted(watched)} of {phase.world_size} watched their gradients")
    bad = [
        _NotFinite(_step(event), 0, rank, "the loss is")
        for rank, event in losses.items()
        if event.get("local_finite") is not True
    ]
    bad += [
        _NotFinite(_step(event), 1, rank, f"the gradient of {event.get('not_finite_in')} is")
        for rank, event in watched.items()
        if event.get("not_finite_at") is not None
    ]
    if bad:
        _fail(min(bad), bad, phase.ranks)
    assert all(math.isfinite(loss) for loss in phase.losses)


def find_first_step(phase: PhaseResult) -> float:
    """The first step (from 1) in which a rank had a value that is not finite; infinite if none."""
    events = [*phase.events("losses").values(), *phase.events("gradient_watch").values()]
    return min((_step(event) for event in events), default=math.inf)


def _step(event: dict[str, Any]) -> float:
    step = parse_number(event.get("not_finite_at"))
    return step if step is not None and step >= 1 else math.inf


def _fail(first: _NotFinite, bad: list[_NotFinite], ranks: Sequence[RankResult]) -> None:
    __tracebackhide__ = True
    same = {value.rank for value in bad if (value.step, value.order) == (first.step, first.order)}
    where = ", ".join(str(ranks[rank]) for rank in sorted(same))
    step = f"step {first.step:g}" if math.isfinite(first.step) else "an unknown step"
    fail(
        f"{first.subject} not finite, first at {step} on {where}; "
        f"on {plural(len({value.rank for value in bad}), 'rank')} in all"
    )
