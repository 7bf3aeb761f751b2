"""How far running phases are, as lines for a log: sparse, since nothing erases them there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .board import RUNNING, PhaseState
from .event_tail import Mark

# A line at each quarter of the steps, unless the last one is as recent as that; and once a minute.
PARTS, CALM_S, AT_LEAST_S = 4, 5.0, 60.0
# A stage that lasts as long is worth a line.
LONG_STAGE_S = 10.0


@dataclass
class _Told:
    """What was said of one phase last; times in seconds of the caller's clock."""

    at: float
    stage: str = ""
    stage_since: float = 0.0
    stage_told: bool = True
    step: int = 0
    part: int = 0


class StepLines:
    """Remembers what was said of each phase."""

    def __init__(self) -> None:
        self._told: dict[str, _Told] = {}

    def due(
        self, states: Sequence[PhaseState], marks: Mapping[str, Mark], now: float
    ) -> Iterator[tuple[str, str]]:
        """(phase, what is to be said of it now)."""
        for one in states:
            mark = marks.get(one.phase)
            if one.state != RUNNING or mark is None:
                continue
            told = self._told.setdefault(one.phase, _Told(now - CALM_S))
            text = _step(told, mark, now) if mark.step else _stage(told, mark, now)
            if text:
                told.at = now
                yield one.phase, text


def _step(told: _Told, mark: Mark, now: float) -> str:
    part = mark.step * PARTS // mark.steps
    calm = now - told.at >= CALM_S
    new = mark.step != told.step
    if not ((part > told.part and calm) or (new and now - told.at >= AT_LEAST_S)):
        return ""
    told.part, told.step = part, mark.step
    loss = f", loss {mark.loss:.4g}" if mark.loss is not None else ""
    rate = f", {mark.steps_per_s:.3g} steps/s" if mark.steps_per_s is not None else ""
    return f"step {mark.step} of {mark.steps}{loss}{rate}"


def _stage(told: _Told, mark: Mark, now: float) -> str:
    if mark.stage != told.stage:
        told.stage, told.stage_since, told.stage_told = mark.stage, now, not mark.stage
        told.step = told.part = 0
    if told.stage_told or now - told.stage_since < LONG_STAGE_S:
        return ""
    told.stage_told = True
    return f"stage {mark.stage}"
