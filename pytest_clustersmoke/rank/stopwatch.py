"""Times a call on all ranks as nccl-tests does: in batches of calls, with the device
synchronised before and after each batch.

By default nccl-tests reports the mean over ranks. Here the time is that of the slowest rank, as the
median of several batches, so that a single hiccup does not become the result.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

from .core import Rank

# A batch that would take longer gets fewer iterations: otherwise one size could take minutes on a
# slow network, without proving more.
BATCH_S = 0.5


class Timing(NamedTuple):
    """Seconds of one call."""

    seconds: float  # of the slowest rank, the median over batches
    own_seconds: float  # of this rank, the median over batches
    iterations: int


class Stopwatch:
    """Times calls on all ranks together: all must call `time` and `slowest` in the same order.

    `iterations` calls in a batch at most, `warmup` before the first batch, `repeats` batches. Set
    `steps` to the number of calls that will be timed, which the rank marks as its progress.
    """

    def __init__(self, rank: Rank, iterations: int, warmup: int, repeats: int) -> None:
        self._rank = rank
        self._iterations, self._warmup, self._repeats = iterations, warmup, repeats
        self.steps = 0  # measurements in all, for marking progress
        self._done = 0

    def time(self, call: Callable[[], object] | None) -> Timing:
        """Time a call that was made once before, so that its connections are open. A rank whose
        call is None only takes part in the barriers."""
        first_s = self.slowest([self._batch(call, 1)])[0]
        iterations = max(1, min(self._iterations, int(BATCH_S / max(first_s, 1e-9))))
        self._rank.mark(self._done, self.steps)
        self._batch(call, min(self._warmup, iterations))
        own = []
        for _ in range(self._repeats):
            self._rank.barrier()  # otherwise the time of early ranks includes waiting for late ones
            own.append(self._batch(call, iterations))
            self._rank.mark(self._done, self.steps)
        timing = Timing(median(self.slowest(own)), median(own), iterations)
        self._done += 1
        self._rank.mark(self._done, self.steps)
        return timing

    def _batch(self, call: Callable[[], object] | None, count: int) -> float:
        """Mean seconds of `count` calls on this rank."""
        if call is None or not count:
            return 0.0
        self._synchronize()
        began = time.perf_counter()
        for _ in range(count):
            call()
        self._synchronize()
        return (time.perf_counter() - began) / count

    def _synchronize(self) -> None:
        """Wait for the device."""
        import torch

        if self._rank.device.type == "cuda":  # gloo's calls return once they have finished
            torch.cuda.synchronize(self._rank.device)

    def slowest(self, values: list[float]) -> list[float]:
        """The largest of each value over all ranks."""
        import torch
        import torch.distributed as dist

        tensor = torch.tensor(values, dtype=torch.float64, device=self._rank.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        largest: list[float] = tensor.tolist()
        return largest
