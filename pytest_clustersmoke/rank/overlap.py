"""How much of a reduction a device hides behind multiplications that run at the same time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from . import process_group
from .known_answer import DTYPES, fit_count

REPEATS = 3
SIZE = 4096
REDUCED_BYTES = 2**28
LEAST_S = 0.02


class Overlap:
    """Takes the memory that `measure` needs, which all ranks of a process group on GPUs call."""

    def __init__(self, device: Any, precision: str) -> None:
        import torch

        self._device = device
        dtype = getattr(torch, DTYPES[precision])
        self._pair = [torch.ones(SIZE, SIZE, dtype=dtype, device=device) for _ in range(2)]
        elements = REDUCED_BYTES // self._pair[0].element_size()
        self._sent = torch.zeros(elements, dtype=dtype, device=device)
        self._multiplications = 1
        self._multiply()  # the first call loads the library

    def measure(self) -> list[float]:
        """The share of the shorter of both that costs no time, of some repeats, by the wall
        clock."""
        self._agree_on_count()
        shares = []
        for _ in range(REPEATS):
            alone_s = self._time(self._multiply), self._time(self._reduce)
            shares.append(share_hidden(*alone_s, self._time(self._do_both)))
        return shares

    def _agree_on_count(self) -> None:
        """As many multiplications on each rank, for some time."""
        import torch

        self._reduce()  # opens connections
        count = fit_count(self._time(self._multiply), LEAST_S, 10_000)
        counts = torch.tensor([count], device=self._device)
        process_group.reduce_max(counts)
        self._multiplications = int(counts.item())

    def _multiply(self) -> None:
        import torch

        for _ in range(self._multiplications):
            torch.mm(*self._pair)

    def _reduce(self) -> None:
        import torch.distributed as dist

        dist.all_reduce(self._sent)

    def _do_both(self) -> None:
        import torch.distributed as dist

        work: Any = dist.all_reduce(self._sent, async_op=True)
        self._multiply()
        work.wait()

    def _time(self, call: Callable[[], object]) -> float:
        import torch

        process_group.barrier(self._device)
        began = time.perf_counter()
        call()
        torch.cuda.synchronize(self._device)
        return time.perf_counter() - began


def share_hidden(first_s: float, second_s: float, both_s: float) -> float:
    """1 if both together take as long as the longer one, 0 if they take as long as one after the
    other."""
    shorter_s = min(first_s, second_s)
    return max(0.0, min(1.0, (first_s + second_s - both_s) / shorter_s)) if shorter_s > 0 else 0.0
