"""The peak memory of a training loop, without the steps that are proven or traced.

On CUDA it is what torch's allocator handed out and what it reserved; on the CPU it is the resident
memory of the process. Both peaks can be reset.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

GIB = 2**30
# Writing 5 resets the peak resident memory of this process (Linux 4.0, proc(5)).
CLEAR_REFS, RESET_PEAK = Path("/proc/self/clear_refs"), "5"


class PeakMemory:
    """`begin` with the loop, `pause` before a proven or traced step, `resume` after it, in pairs
    that may be nested; `metrics` at the end of the loop.

    `held` are bytes of the host that are not the training's, such as a snapshot of its state or
    what a profiler keeps; they are subtracted from the peak after the next `resume`.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._highest = 0  # bytes, before the last pause
        self._reserved = 0
        self._pauses = 0
        self.held = 0

    def begin(self) -> None:
        """Begin the loop: what was allocated before and is free counts no longer."""
        if self._device.startswith("cuda"):
            import torch

            torch.cuda.synchronize(self._device)
            torch.cuda.empty_cache()  # otherwise earlier allocations count as reserved
            torch.cuda.reset_peak_memory_stats(self._device)

    def pause(self) -> None:
        if not self._pauses:
            self._highest = max(self._highest, self._peak())
        self._pauses += 1

    def resume(self) -> None:
        self._pauses -= 1
        if self._pauses:
            return
        if self._device.startswith("cuda"):
            import torch

            reserved = torch.cuda.max_memory_reserved(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)
            self._reserved = max(self._reserved, reserved)
            return
        forget_peak()

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """Count what the process keeps of this as no memory of the training."""
        before = _resident_bytes()
        yield
        self.held += max(0, _resident_bytes() - before)

    def metrics(self) -> dict[str, float]:
        """`peak_memory_gib`, and on CUDA `peak_memory_reserved_gib`, which proven steps raise: the
        allocator keeps what they needed."""
        values = {"peak_memory_gib": max(self._highest, self._peak()) / GIB}
        if self._device.startswith("cuda"):
            import torch

            reserved = max(self._reserved, torch.cuda.max_memory_reserved(self._device))
            values["peak_memory_reserved_gib"] = reserved / GIB
        return values

    def _peak(self) -> int:
        if not self._device.startswith("cuda"):
            # Linux reports KiB.
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - self.held
        import torch

        return int(torch.cuda.max_memory_allocated(self._device))


def forget_peak() -> None:
    """Count the resident memory of this process from now on; where the kernel refuses, what was
    before counts as well."""
    with suppress(OSError):
        CLEAR_REFS.write_text(RESET_PEAK)


def _resident_bytes() -> int:
    """The resident memory of this process now."""
    import psutil  # only a traced run needs it

    return int(psutil.Process().memory_info().rss)
