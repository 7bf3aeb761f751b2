"""Measures a rank's own step: forward, backward and optimizer, without waiting for any other rank.

Synchronous training makes all ranks as slow as the slowest, so the time of a step does not show
which rank is slow. These passes do: after a barrier each rank repeats the step that it has just
done, with the bare model and `torch.autograd.grad`, as a proof does. The optimizer steps on scratch
copies of a few parameters. Weights, gradients, moments, random state and buffers stay as they were.

Of a model that is sharded over ranks, one block is repeated alone, with whole parameters: its times
count for all blocks.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..evidence.telemetry import typical_s
from . import process_group
from .leaves import find_on_disk, gathers_parameters, local_part, waits_in_blocks
from .lone_block import LoneBlock
from .proof import Proof, find_optimizer
from .replay import Randomness, Replay, Unrepeatable

PASSES = 5
# What the optimizer steps on: elements, at most. The time counts for all that it steps on.
BUCKET_ELEMENTS = 2**22
PARTS = FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"


@dataclass(frozen=True)
class Instant:
    """A moment: of the device's queue on CUDA, of the wall on CPU; and the process's CPU time."""

    moment: Any
    cpu_s: float

    def until(self, end: Instant) -> tuple[float, float]:
        """Wall seconds and CPU seconds; on CUDA the device must have passed `end`."""
        if isinstance(self.moment, float):
            return end.moment - self.moment, end.cpu_s - self.cpu_s
        return self.moment.elapsed_time(end.moment) / 1000, end.cpu_s - self.cpu_s


@dataclass(frozen=True)
class Bucket:
    """A scratch optimizer, and how many times as many elements the real one steps on."""

    optimizer: Any
    scale: float


@dataclass
class PartTimes:
    """Seconds of one part of each pass."""

    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)


class OwnStep:
    """Call `measure` on all ranks between two steps, as often as wanted, and `fields` at the end.

    A step that cannot be repeated is not measured. An optimizer whose class cannot be built from
    the settings of its first group is left out.
    """

    def __init__(self, proof: Proof, device: Any) -> None:
        self._proof = proof
        self._device = device
        self._parameters = [p for p in proof.model.parameters() if p.requires_grad]
        self._parts: dict[str, PartTimes] = {}
        self._blocks: float | None = None
        self._is_sharded = gathers_parameters(proof.model)
        # Why it cannot be measured: known before any rank waits for another.
        self._reason = waits_in_blocks(proof.model) or find_on_disk(proof.model.parameters())

    def measure(self, index: int, progress: Callable[[], None]) -> None:
        """Repeat step `index` (from 0), the last that was done; `progress` is called after each
        pass."""
        if self._reason:
            return
        import torch

        replay = Replay(
            self._proof.model,
            self._parameters,
            lambda: self._proof.local_loss(index),
            Randomness(),
        )
        process_group.barrier(self._device)
        try:
            with replay.as_before(), torch.enable_grad():
                if self._is_sharded:
                    block = LoneBlock(self._proof.model, lambda: next(replay.losses()))
                    self._blocks = block.scale
                    process_group.barrier(self._device)
                    self._run_passes(block, block.scale, progress)
                else:
                    self._run_passes(replay, 1.0, progress)
        except Unrepeatable as error:
            self._reason = str(error)

    def _run_passes(
        self, work: Replay | LoneBlock, scale: float, progress: Callable[[], None]
    ) -> None:
        """`scale`: how many times as long the whole model takes."""
        import torch

        bucket = self._fill_bucket()
        scales = {FORWARD: scale, BACKWARD: scale, OPTIMIZER: bucket.scale if bucket else 1.0}
        for number in range(PASSES + 1):
            spans = self._run_pass(work, bucket)
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            if number:  # the first warms up caches and the allocator
                self._add(spans, scales)
            progress()

    @property
    def typical_s(self) -> float | None:
        """The typical pass, in seconds of the device; on CPU of CPU time, since the wall's depend
        on what else runs there. None if it cannot be measured."""
        clock = "seconds" if self._device.type == "cuda" else "cpu_seconds"
        return None if self._reason else typical_s(self._totals(clock))

    def fields(self) -> dict[str, Any]:
        """The fields of the `own_steps` event: wall (on CUDA device) and CPU seconds of each pass,
        and of its parts, and how many blocks of a sharded model they count for; or why there are
        none. Ranks with as many parameters do the same work; a sharded model has whole ones."""
        if self._reason:
            return {"not_measured": self._reason}
        held = sum(parameter.numel() for parameter in self._proof.model.parameters())
        trained = sum(parameter.numel() for parameter in self._parameters)
        return {
            "parameters": None if self._is_sharded else held,
            "trained": None if self._is_sharded else trained,
            "seconds": self._totals("seconds"),
            "cpu_seconds": self._totals("cpu_seconds"),
            "parts": {name: vars(times) for name, times in self._parts.items()},
            **({} if self._blocks is None else {"blocks": self._blocks}),
        }

    def _totals(self, clock: str) -> list[float]:
        parts = (vars(times)[clock] for times in self._parts.values())
        return [sum(parts_of_pass) for parts_of_pass in zip(*parts, strict=True)]

    def _run_pass(
        self, work: Replay | LoneBlock, bucket: Bucket | None
    ) -> dict[str, list[tuple[Instant, Instant]]]:
        """One pass over all micro batches; where each part began and ended."""

        spans: dict[str, list[tuple[Instant, Instant]]] = {FORWARD: [], BACKWARD: []}
        begin = self._mark()
        for loss in work.losses():
            forward_done = self._mark()
            work.differentiate(loss)
            backward_done = self._mark()
            spans[FORWARD].append((begin, forward_done))
            spans[BACKWARD].append((forward_done, backward_done))
            begin = backward_done
        if bucket is not None:
            begin = self._mark()
            bucket.optimizer.step()
            spans[OPTIMIZER] = [(begin, self._mark())]
        return spans

    def _add(
        self, spans: dict[str, list[tuple[Instant, Instant]]], scales: dict[str, float]
    ) -> None:
        for name, pairs in spans.items():
            scale = scales[name]
            passed = [begin.until(end) for begin, end in pairs]
            times = self._parts.setdefault(name, PartTimes())
            times.seconds.append(scale * sum(wall_s for wall_s, _ in passed))
            times.cpu_seconds.append(scale * sum(cpu_s for _, cpu_s in passed))

    def _mark(self) -> Instant:
        import torch

        if self._device.type != "cuda":
            return Instant(time.perf_counter(), time.process_time())
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return Instant(event, time.process_time())

    def _fill_bucket(self) -> Bucket | None:
        """A new optimizer of the given one's class on copies of some of its parameters; None
        without one, or if the class can neither be built anew nor step by itself."""
        optimizer = find_optimizer(self._proof)
        if optimizer is None:
            return None
        group = optimizer.param_groups[0]
        copies, room = [], BUCKET_ELEMENTS
        for parameter in map(local_part, group["params"]):
            if room <= 0 or not parameter.numel():
                continue
            rows = max(1, room * len(parameter) // parameter.numel()) if parameter.dim() else None
            copies.append(_copy_with_gradient(parameter.detach()[:rows] if rows else parameter))
            room -= copies[-1].numel()
        known = inspect.signature(type(optimizer)).parameters
        settings = {name: _own(value) for name, value in group.items() if name in known}
        try:
            scratch = type(optimizer)(**(settings | {"params": copies}))
            scratch.step()
        except Exception:  # it needs more than gradients, such as a closure
            return None
        elements = sum(
            local_part(p).numel() for group in optimizer.param_groups for p in group["params"]
        )
        return Bucket(scratch, elements / (BUCKET_ELEMENTS - room)) if copies else None


def _copy_with_gradient(values: Any) -> Any:
    import torch

    copy = values.detach().clone().requires_grad_()
    copy.grad = torch.ones_like(copy)
    return copy


def _own(value: Any) -> Any:
    """A setting that the scratch optimizer may change: a tensor is copied."""
    return value.detach().clone() if hasattr(value, "detach") else value
