"""A trace of some steps by torch.profiler, in Chrome's format, and where their time went.

On CUDA the device's kernels and copies are counted; on the CPU the operators of all threads. The
traced steps take longer, so they are left out of every rate and of the peak memory, on all ranks.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import shutil
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

DEFAULT_STEPS = 3
GZIP_LEVEL = 3  # a trace of 3.4 MB: 0.01 s and 296 KB; with level 9, 0.10 s and 224 KB
# Collectives as torch names them: NCCL's kernels (ncclDevKernel_...), and c10d's operators.
COMMUNICATION = re.compile(r"nccl|^(?:c10d|gloo|mpi|ucc)[:_]", re.IGNORECASE)
# Categories of the trace's events. Annotations, which the device's timeline repeats, have others.
KERNEL, COPIES, OPERATOR, ANNOTATION = (
    "kernel",
    ("gpu_memcpy", "gpu_memset"),
    "cpu_op",
    "user_annotation",
)
IN_USE = "the program's own profiler is running, and torch has one a process"
NOT_BEGUN = "the loop stopped before the first step that was to be traced"
STEP = "step {}"  # our annotation of a step
US = 1e-6
Span = tuple[float, float]  # begin and end, in µs


def choose_steps(
    first: int | None, last: int | None, count: int, warmup: int, proven: Collection[int]
) -> tuple[range, str]:
    """The steps (from 0) to be traced, and why there are none, if so.

    `first` and `last` count from 1; without them the last `DEFAULT_STEPS` in a row that are not
    proven, or fewer in a short loop: a profiler may slow the steps after it. One step after warm-up
    must be left to be timed.
    """
    timed = [step for step in range(warmup, count) if step not in proven]
    if first is None or last is None:
        for number in range(DEFAULT_STEPS, 0, -1):
            for start in reversed(timed):
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
    """Call `start` before the first of the `steps` (from 0), `begin` and `end` around each, and
    `write` after the last, on all ranks. Only a rank with a `path` records; the others leave the
    same steps out. No failure of the profiler reaches the training."""

    def __init__(self, steps: range, path: Path | None, on_cuda: bool) -> None:
        self.steps = steps
        self._path = path
        self._on_cuda = on_cuda
        self._profiler: Any = None
        self._step: Any = None
        self._reason = NOT_BEGUN

    def start(self) -> None:
        if self._path is None:
            return
        from torch._C._autograd import _profiler_enabled
        from torch.profiler import ProfilerActivity, profile

        if _profiler_enabled():  # torch 2.2 would start ours, and the program's could not end
            self._reason = IN_USE
            return
        cuda = [ProfilerActivity.CUDA] if self._on_cuda else []
        try:
            self._profiler = profile(activities=[ProfilerActivity.CPU, *cuda])
            self._profiler.__enter__()
        except Exception as error:  # one whose library for the device cannot be loaded, say
            self._profiler, self._reason = None, _describe(error)

    def begin(self, index: int) -> None:
        if self._profiler is not None:
            from torch.profiler import record_function

            self._step = record_function(STEP.format(index + 1))
            self._step.__enter__()

    def end(self) -> None:
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None

    def write(self) -> dict[str, Any] | None:
        """Write the file, and return the fields of the event, with a `reason` if that failed; None
        on a rank that records nothing."""
        if self._path is None:
            return None
        if self._profiler is None:
            return {"reason": self._reason}
        profiler, self._profiler = self._profiler, None
        try:
            profiler.__exit__(None, None, None)
            return _write(profiler, self._path, self._on_cuda)
        except Exception as error:  # a full disk, say
            return {"reason": _describe(error)}


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _write(profiler: Any, path: Path, on_cuda: bool) -> dict[str, Any]:
    # torch would compress a file in TMPDIR, and does not notice if that one is incomplete.
    plain, draft = path.with_name(f".{path.stem}"), path.with_name(f".{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(plain))
        with plain.open(encoding="utf-8", errors="replace") as stream:
            events = json.load(stream)["traceEvents"]
        shares = summarize(events, on_cuda)
        with plain.open("rb") as source, gzip.open(draft, "wb", compresslevel=GZIP_LEVEL) as target:
            shutil.copyfileobj(source, target)
        draft.replace(path)
        return shares
    finally:
        for left in (plain, draft):
            with contextlib.suppress(OSError):
                left.unlink()


def summarize(events: Iterable[Mapping[str, Any]], on_cuda: bool) -> dict[str, float]:
    """Seconds by class of kernel, from the first step's begin to the last step's end.

    `events` are those of Chrome's format. Each class is the time in which at least one of its
    kernels (on the CPU: operators) ran, and `overlapped_s` the part of the communication during
    which something was computed or copied; `idle_s` is the time in which nothing ran. Raises
    ValueError if there is no step, or on CUDA no kernel.
    """
    spans = [
        (str(event.get("cat")), str(event.get("name")), (event["ts"], event["ts"] + event["dur"]))
        for event in events
        if event.get("ph") == "X"
    ]
    of_step = re.compile(STEP.format(r"\d+"))
    steps = [span for cat, name, span in spans if cat == ANNOTATION and of_step.fullmatch(name)]
    counted = {KERNEL, *COPIES} if on_cuda else {OPERATOR}
    kernels = [
        (cat, name, span)
        for cat, name, span in spans
        # gloo annotates what it does in its own threads.
        if cat in counted or (not on_cuda and cat == ANNOTATION and COMMUNICATION.search(name))
    ]
    if not steps or not kernels:
        lacks = "step" if not steps else "kernel of the device" if on_cuda else "operator"
        raise ValueError(f"the profiler recorded no {lacks}")
    begin, end = min(first for first, _ in steps), max(last for _, last in steps)
    communication: list[Span] = []
    copy: list[Span] = []
    compute: list[Span] = []
    for cat, name, (first, last) in kernels:
        if first >= end or last <= begin:
            continue
        is_copy = cat in COPIES or name == "aten::copy_"
        kind = communication if COMMUNICATION.search(name) else copy if is_copy else compute
        # Operators of other kinds only wrap those of aten, and the communication.
        if on_cuda or kind is not compute or name.startswith("aten::"):
            kind.append((max(first, begin), min(last, end)))
    work_us = _length([*compute, *copy])
    busy_us = _length([*compute, *copy, *communication])
    return {
        "span_s": (end - begin) * US,
        # On the CPU a copy is part of the operator that asks for it.
        "compute_s": (_length(compute) if on_cuda else work_us - _length(copy)) * US,
        "communication_s": _length(communication) * US,
        "copy_s": _length(copy) * US,
        "overlapped_s": (work_us + _length(communication) - busy_us) * US,
        "idle_s": (end - begin - busy_us) * US,
    }


def _length(spans: Iterable[Span]) -> float:
    """The length of the spans' union."""
    total, reached = 0.0, float("-inf")
    for first, last in sorted(spans):
        total += max(0.0, last - max(first, reached))
        reached = max(reached, last)
    return total
