"""Multiplies the same two matrices again and again: how fast, and whether the answer is the same.

Both are drawn from a fixed seed, so ranks on equal devices have the same ones. The bits of each
product are added up as integers, and a call whose sum is not the most common one was wrong. 3,000
calls find a device that is wrong in one call of 1,000 with 95 %.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

SEED = 20_250
CALLS = 3_000
LIMIT_S = 4.0  # of all calls whose answer is compared: slow precisions make fewer
TIMED_S = 0.05  # of a batch that is timed
MOST_CALLS = 100_000  # that load the device
# Of the matrices. A large product shows a GPU's peak; the known answers use all of its processors.
TIMED_SIZE = {"cuda": 8192, "cpu": 256}
KNOWN_SIZE = {"cuda": 4096, "cpu": 256}
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
NAMES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
BITS = {2: "int16", 4: "int32"}  # by the bytes of an element
Read = TypeVar("Read")


def choose_precision(asked: str, device: Any) -> str:
    """The precision of the training if it is known; otherwise what the device trains in."""
    name = NAMES.get(asked, asked)
    if name in DTYPES:
        return name
    if device.type == "cpu":
        return "fp32"
    import torch

    return "bf16" if torch.cuda.is_bf16_supported() else "fp16"


def time_call(device: Any, call: Callable[[], object], count: int) -> float:
    """Seconds of one of `count` calls: by the device's clock, on the CPU by this thread's."""
    if device.type != "cuda":
        began = time.thread_time()
        for _ in range(count):
            call()
        return (time.thread_time() - began) / count
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    seconds: float = begin.elapsed_time(end) / 1000
    return seconds / count


def fit_count(seconds: float, limit_s: float, most: int) -> int:
    """How many calls of so many seconds fit into the limit: one at least."""
    return max(1, min(most, int(limit_s / max(seconds, 1e-9))))


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute in this thread alone: its clock then shows the work, whatever else runs."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class KnownAnswer:
    """`time` a batch, and `check` some calls, in turns with other measurements; `multiply` wraps
    each multiplication."""

    def __init__(
        self,
        device: Any,
        precision: str,
        multiply: Callable[[Callable[[], Any]], Any],
    ) -> None:
        import torch

        self._device, self._multiply = device, multiply
        dtype = getattr(torch, DTYPES[precision])
        generator = torch.Generator().manual_seed(SEED)
        size = TIMED_SIZE[device.type]
        self._pair = [
            torch.randn(size, size, generator=generator).to(device, dtype) for _ in range(2)
        ]
        known = KNOWN_SIZE[device.type]
        self._known = [matrix[:known, :known].contiguous() for matrix in self._pair]
        self._flops = 2.0 * size**3
        self._answers: Counter[int] = Counter()
        self._warm_up()

    def _warm_up(self) -> None:
        # A GPU loads a kernel when it is first used, which takes longer than many calls.
        self._product(self._pair)
        self._sum(self._known)
        self._call_s = time_call(self._device, lambda: self._sum(self._known), 3)

    def _product(self, pair: list[Any]) -> Any:
        import torch

        return self._multiply(lambda: torch.mm(*pair))

    def _sum(self, pair: list[Any]) -> Any:
        """The sum of a product's bits, on the device."""
        import torch

        product = self._product(pair)
        bits = product.view(getattr(torch, BITS[product.element_size()]))
        return bits.sum(dtype=torch.int64)

    def time(self) -> float:
        """TFLOP/s of a batch."""
        once_s = time_call(self._device, lambda: self._product(self._pair), 1)
        count = fit_count(once_s, TIMED_S, 50)
        seconds = time_call(self._device, lambda: self._product(self._pair), count)
        return self._flops / max(seconds, 1e-12) / 1e12

    def load(self, seconds: float, read: Callable[[], Read]) -> Read:
        """Multiply for so long, and return what `read` says while the last products run."""
        once_s = time_call(self._device, lambda: self._product(self._pair), 1)
        count = fit_count(once_s, seconds, MOST_CALLS)
        for _ in range(count):
            self._product(self._pair)
        reached = self._mark()
        for _ in range(1 + count // 4):  # a GPU is still at work as its host reads
            self._product(self._pair)
        if reached is not None:
            reached.synchronize()
        return read()

    def _mark(self) -> Any:
        """An event of the GPU behind all that it was given; None on a CPU, which has done it."""
        import torch

        if self._device.type != "cuda":
            return None
        event = torch.cuda.Event()
        event.record()
        return event

    def check(self, rounds: int) -> None:
        """Compare the answers of one of so many rounds."""
        import torch

        calls = fit_count(self._call_s, LIMIT_S / rounds, CALLS // rounds)
        sums = [self._sum(self._known) for _ in range(calls)]
        self._answers.update(torch.stack(sums).tolist())

    def fields(self) -> dict[str, Any]:
        """How many calls were compared, how many were wrong, and the usual answer."""
        calls = self._answers.total()
        answer, right = self._answers.most_common(1)[0] if calls else (None, 0)
        return {"calls": calls, "wrong": calls - right, "answer": answer}
