"""When each step of a training loop began and ended.

On CUDA events on the device's stream are read once the device has passed them, so no step waits.
"""

from __future__ import annotations

import time
from typing import Any


class CpuClock:
    """When each step began and ended. It begins as the one before ends, unless restarted."""

    def __init__(self) -> None:
        self._begins: list[Any] = []
        self._ends: list[Any] = []
        self._locals: dict[int, Any] = {}  # by step

    def tick(self) -> None:
        """End the current step, if there is one, and begin the next."""
        now = self._now()
        if self._begins:
            self._ends.append(now)
        self._begins.append(now)

    def restart(self) -> None:
        """Begin the current step now: nothing of it was done before."""
        self._locals.pop(len(self._begins) - 1, None)
        self._begins[-1] = self._now()

    def local_done(self) -> None:
        step = len(self._begins) - 1
        if step not in self._locals:  # the first of several micro batches counts
            self._locals[step] = self._now()

    def passed_steps(self) -> int:
        return len(self._ends)

    def wait(self) -> None:
        pass

    def step_seconds(self) -> list[float]:
        return self._seconds_until(self._ends)

    def local_seconds(self) -> list[float]:
        """Seconds from the beginning of each step to its mark; empty if a step had no mark."""
        steps = range(len(self._ends))
        if not all(step in self._locals for step in steps):
            return []
        return self._seconds_until([self._locals[step] for step in steps])

    def _seconds_until(self, moments: list[Any]) -> list[float]:
        pairs = zip(self._begins, moments, strict=False)
        return [self._between(begin, end) for begin, end in pairs]

    def _now(self) -> Any:
        return time.perf_counter()

    def _between(self, begin: Any, end: Any) -> float:
        return float(end - begin)


class CudaClock(CpuClock):
    """The same with events on the device's stream."""

    def __init__(self) -> None:
        super().__init__()
        self._passed = 0

    def passed_steps(self) -> int:
        """Steps the device has finished; it does so in order, so no event is queried twice."""
        while self._passed < len(self._ends) and self._ends[self._passed].query():
            self._passed += 1
        return self._passed

    def wait(self) -> None:
        self._begins[-1].synchronize()

    def _now(self) -> Any:
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, begin: Any, end: Any) -> float:
        return float(begin.elapsed_time(end)) / 1000
