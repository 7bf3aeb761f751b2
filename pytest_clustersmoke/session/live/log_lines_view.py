"""The progress of running phases as lines for a log; few of them, since a log keeps every line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .board import RUNNING, PhaseState
from .event_tail import Mark

# A line at each quarter of the steps, unless the last line is less than CALM_S old, and at least
# one a minute.
PARTS, CALM_S, AT_LEAST_S = 4, 5.0, 60.0
# A stage that lasts this long gets a line.
LONG_STAGE_S = 10.0


@dataclass
class _LastLine:
    """The last line of one phase; times are in seconds of the caller's clock."""

    at: float
    stage: str = ""
    stage_since: float = 0.0
    stage_shown: bool = True
    step: int = 0
    part: int = 0


class StepLines:
    """Decides which lines are due, from the last line of each phase."""

    def __init__(self) -> None:
        self._last: dict[str, _LastLine] = {}

    def due(
        self, states: Sequence[PhaseState], marks: Mapping[str, Mark], now: float
    ) -> Iterator[tuple[str, str]]:
        """Pairs of a phase and the line that is due for it."""
        for state in states:
            mark = marks.get(state.phase)
            if state.state != RUNNING or mark is None:
                continue
            last = self._last.setdefault(state.phase, _LastLine(now - CALM_S))
            text = _step(last, mark, now) if mark.step else _stage(last, mark, now)
            if text:
                last.at = now
                yield state.phase, text


def _step(last: _LastLine, mark: Mark, now: float) -> str:
    part = mark.step * PARTS // mark.steps
    calm = now - last.at >= CALM_S
    new = mark.step != last.step
    if not ((part > last.part and calm) or (new and now - last.at >= AT_LEAST_S)):
        return ""
    last.part, last.step = part, mark.step
    loss = f", loss {mark.loss:.4g}" if mark.loss is not None else ""
    rate = f", {mark.steps_per_s:.3g} steps/s" if mark.steps_per_s is not None else ""
    return f"step {mark.step} of {mark.steps}{loss}{rate}"


def _stage(last: _LastLine, mark: Mark, now: float) -> str:
    if mark.stage != last.stage:
        last.stage, last.stage_since, last.stage_shown = mark.stage, now, not mark.stage
        last.step = last.part = 0
    if last.stage_shown or now - last.stage_since < LONG_STAGE_S:
        return ""
    last.stage_shown = True
    return f"stage {mark.stage}"
