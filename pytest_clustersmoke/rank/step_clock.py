"""When each step of a training loop began and ended, and the rates that follow.

On CUDA events on the device's stream are read once the device has passed them, so no step waits.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

WAITED = Path("/proc/thread-self/schedstat")  # its second number; in nanoseconds


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
        pairs = zip(self._begins, self._ends, strict=False)
        return [self._between(begin, end) for begin, end in pairs]

    def local_seconds(self) -> list[float]:
        """Seconds from the beginning of each step to its mark, without those in which the thread
        waited for a core: others took it, and the rank is not slow. Empty if a step had no mark."""
        steps = range(len(self._ends))
        if not all(step in self._locals for step in steps):
            return []
        pairs = ((self._begins[step], self._locals[step]) for step in steps)
        return [max(0.0, self._between(*pair) - self._waited_between(*pair)) for pair in pairs]

    def _now(self) -> Any:
        return time.perf_counter(), _read_waited_s()

    def _between(self, begin: Any, end: Any) -> float:
        return float(end[0] - begin[0])

    def _waited_between(self, begin: Any, end: Any) -> float:
        return float(end[1] - begin[1])


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

    def _waited_between(self, begin: Any, end: Any) -> float:
        return 0.0


def _read_waited_s() -> float:
    """How long this thread has been ready to run without a core, since it began; 0 where the kernel
    does not count it."""
    try:
        return int(WAITED.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def rate_steps(
    seconds: Sequence[float],
    wall_s: float,
    *,
    left_out: Collection[int],
    warmup: int,
    samples: float,
    tokens_per_rank: float | None,
) -> dict[str, float]:
    """A loop's rates by the names of the metrics, from the `seconds` of each step and of all of
    them. A step trains on this many `samples` of all ranks."""
    timed = [(at, value) for at, value in enumerate(seconds) if at not in left_out]
    steady = [value for at, value in timed if at >= warmup]
    steps_per_s = len(timed) / (wall_s - sum(seconds[at] for at in left_out))
    rates = {
        "steps_per_s": steps_per_s,
        "steady_steps_per_s": len(steady) / sum(steady),
        "samples_per_s": steps_per_s * samples,
        "step_time_p50_s": statistics.median(steady),
        "step_time_p95_s": _percentile(steady, 95),
    }
    if tokens_per_rank is not None:
        rates["tokens_per_s_per_rank"] = steps_per_s * tokens_per_rank
    return rates


def _percentile(values: list[float], percent: int) -> float:
    """The nearest-rank percentile, which is always a measured value."""
    ordered = sorted(values)
    return ordered[math.ceil(len(ordered) * percent / 100) - 1]
