"""Marks of progress, by which the node's watch tells a slow rank from one that hangs."""

from __future__ import annotations

import math
import time
from typing import Any

from ..evidence.telemetry import MARK_EVERY_S
from .rank_events import RankEventWriter

# A step of a program without a loop that lasts longer than this may be marked again.
PROGRAM_AGAIN_S = 1.0
# During a long measurement between two steps, a mark shows that the rank is alive.
LOOP_AGAIN_S = 5.0


class ProgramMarks:
    """Those of a program without a loop of `Rank.steps`."""

    def __init__(self, events: RankEventWriter) -> None:
        self._events = events
        self._last: tuple[int, float] = (0, 0.0)  # step, monotonic seconds

    def mark(self, step: int, steps: int) -> None:
        last_step, marked_at = self._last
        if step != last_step or time.monotonic() - marked_at >= PROGRAM_AGAIN_S:
            self._last = step, time.monotonic()
            self._events.event("step", step=step, steps=steps)


class LoopMarks:
    """Those of a loop that began at `began`. They count its steps from `first`, of `total`, since
    another attempt may have done those before."""

    def __init__(self, events: RankEventWriter, total: int) -> None:
        self.first, self.total = 0, total
        self.began = 0.0
        self._events = events
        self._marked, self._marked_at = 0, -math.inf

    @property
    def is_first(self) -> bool:
        """Whether nothing is marked yet."""
        return self._marked == 0

    def are_due(self, now: float) -> bool:
        return self.is_first or now - self._marked_at >= MARK_EVERY_S

    def mark(self, passed: int, now: float, losses: Any = None) -> None:
        """Mark the steps that the device has finished, not those that the host has queued."""
        if passed <= self._marked:
            return
        self._marked, self._marked_at = passed, now
        fields: dict[str, float] = {"steps_per_s": passed / (now - self.began)}
        if losses is not None:
            fields["loss"] = float(losses[passed - 1])
        self._events.event("step", step=self.first + passed, steps=self.total, **fields)

    def mark_again(self, recorded: int) -> None:
        """Mark progress within a step: a pass of a large model may take long."""
        now = time.perf_counter()
        step = self.first + recorded
        if step and now - self._marked_at >= LOOP_AGAIN_S:  # the first step has a limit of its own
            self._marked_at = now
            self._events.event("step", step=step, steps=self.total)
