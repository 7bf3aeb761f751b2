"""A trace of some steps by torch.profiler, in Chrome's format, and where their time went.

On CUDA the device's kernels and copies are counted; on the CPU the operators of all threads. The
traced steps take longer, so they are left out of every rate and of the peak memory, on all ranks.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

DEFAULT_STEPS = 3
# Collectives as torch names them: NCCL's kernels (ncclDevKernel_...), and c10d's operators.
COMMUNICATION = re.compile(r"nccl|^(?:c10d|gloo|mpi|ucc)[:_]", re.IGNORECASE)
COPY = re.compile(r"Mem(?:cpy|set) |aten::copy_$")
OPERATOR = "aten::"
STEP = "step {}"  # our annotation of a step
US = 1e-6
Span = tuple[float, float]  # begin and end, in µs


def choose_steps(
    first: int | None, last: int | None, count: int, warmup: int, proven: Collection[int]
) -> tuple[range, str]:
    """The steps (from 0) to be traced, and why there are none, if so.

    `first` and `last` count from 1; without them the first `DEFAULT_STEPS` after warm-up that are
    not proven, or fewer in a short loop. One step after warm-up must be left to be timed.
    """
    timed = [step for step in range(warmup, count) if step not in proven]
    if first is None or last is None:
        for number in range(DEFAULT_STEPS, 0, -1):
            for start in timed:
                steps = range(start, start + number)
                if len(timed) > number and set(steps) <= set(timed):
                    return steps, ""
        why = "they are in the warm-up, proven or needed for the timing"
        return range(0), f"none of its {count} steps can be traced: {why}"
    if last > count:
        return range(0), f"its loop has {count} steps, and step {last} was to be traced"
    if not set(timed) - set(range(first - 1, last)):
        return range(0), "no step after warm-up would be left to be timed"
    return range(first - 1, last), ""


class StepTrace:
    """Call `begin` before each of the `steps` (from 0) and `end` after it, on all ranks. Only a
    rank with a `path` records; the others leave the same steps out."""

    def __init__(self, steps: range, path: Path | None, on_cuda: bool) -> None:
        self.steps = steps
        self._path = path
        self._on_cuda = on_cuda
        self._profiler: Any = None
        self._step: Any = None

    def begin(self, index: int) -> None:
        if self._path is None:
            return
        from torch.profiler import ProfilerActivity, profile, record_function

        if self._profiler is None:
            cuda = [ProfilerActivity.CUDA] if self._on_cuda else []
            self._profiler = profile(activities=[ProfilerActivity.CPU, *cuda])
            self._profiler.__enter__()
        self._step = record_function(STEP.format(index + 1))
        self._step.__enter__()

    def end(self) -> None:
        """End the step, after the device has finished it."""
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None

    def write(self) -> dict[str, Any] | None:
        """Write the file, and return the fields of the event, with a `reason` if that failed; None
        on a rank that records nothing."""
        if self._path is None:
            return None
        try:
            self._profiler.__exit__(None, None, None)
            shares = summarize(self._profiler.events())
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._profiler.export_chrome_trace(str(self._path))
            return {"bytes": self._path.stat().st_size, **shares}
        except (OSError, RuntimeError, ValueError) as error:  # a full disk, say: no fault of a step
            with contextlib.suppress(OSError):
                self._path.unlink()
            return {"reason": f"{type(error).__name__}: {error}"}


def summarize(events: Iterable[Any]) -> dict[str, float]:
    """Seconds by class of kernel, from the first step's begin to the last step's end.

    `events` are torch's FunctionEvents. Each class is the time in which at least one of its kernels
    (on the CPU: operators) ran, and `overlapped_s` the part of the communication behind which
    something was computed or copied; `idle_s` is the time in which nothing ran.
    """
    on_host: list[tuple[str, Span]] = []
    on_device: list[tuple[str, Span]] = []
    for event in events:
        is_kernel = str(event.device_type).endswith("CUDA")
        span = (event.time_range.start, event.time_range.end)
        (on_device if is_kernel else on_host).append((event.name, span))
    steps = [span for name, span in on_host if re.fullmatch(STEP.format(r"\d+"), name)]
    begin, end = min(first for first, _ in steps), max(last for _, last in steps)
    # Annotations are repeated on the device's timeline under the host's names; no kernel has one.
    hosts = {name for name, _ in on_host}
    kernels = [(name, span) for name, span in on_device if name not in hosts]
    within = [
        (name, (max(first, begin), min(last, end)))
        for name, (first, last) in kernels or on_host
        if first < end and last > begin
    ]
    communication = _merge(span for name, span in within if COMMUNICATION.search(name))
    copy = _merge(span for name, span in within if COPY.search(name))
    compute = _merge(
        span
        for name, span in within
        if (kernels or name.startswith(OPERATOR))
        and not COMMUNICATION.search(name)
        and not COPY.search(name)
    )
    work = _merge([*compute, *copy])
    # On the CPU a copy is part of the operator that asks for it.
    compute_us = _length(compute) if kernels else _length(work) - _length(copy)
    busy_us = _length(_merge([*work, *communication]))
    return {
        "span_s": (end - begin) * US,
        "compute_s": compute_us * US,
        "communication_s": _length(communication) * US,
        "copy_s": _length(copy) * US,
        "overlapped_s": (_length(work) + _length(communication) - busy_us) * US,
        "idle_s": (end - begin - busy_us) * US,
    }


def _merge(spans: Iterable[Span]) -> list[Span]:
    """The union of the spans, in order and disjoint."""
    merged: list[Span] = []
    for first, last in sorted(spans):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged


def _length(merged: Iterable[Span]) -> float:
    return sum(last - first for first, last in merged)
