"""Timing, losses and memory of a training loop, without waiting for the device at any step.

On CUDA each step ends with a copy of the loss into pinned memory and an event on the stream. Both
are read once the device has passed them, so the queue of kernels never stalls. There is one
synchronisation before the first step and one after the last. Steps that are proven (`proof.py`) or
traced (`trace.py`) take longer and need more memory; they are left out of every rate and of the
peak memory.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..text import plural
from .own_step import OwnStep
from .pass_watch import PassWatch
from .peak_memory import PeakMemory
from .process_group import meet
from .proof import StepProver
from .rank_environment import RankMisuse, TraceOrder
from .rank_events import RankEventWriter
from .step_clock import CpuClock, CudaClock, rate_steps
from .step_marks import LoopMarks
from .trace import StepTrace, choose_steps
from .twin import NO_PASSES, Twin, TwinLog

if TYPE_CHECKING:
    import torch

MOST_STEP_TIMES = 10_000
LOSSES_A_LINE = 10_000  # a longer line is no event


class Step:
    """One step of `Rank.steps`; its `index` counts from 0."""

    def __init__(self, index: int, log: StepLog | TwinLog) -> None:
        self.index = index
        self._log = log

    def record(self, loss: torch.Tensor | float | None = None) -> None:
        """End the step. The loss stays on its device, so nothing waits for it."""
        self._log.record(loss)

    def local_done(self) -> None:
        """Mark the end of this rank's own work in the step (its batch, its forward pass), before
        the step's first collective. After it the ranks wait for each other, so only the time
        until here shows a slow rank."""
        self._log.local_done()

    def backward_done(self) -> None:
        """Mark the moment between the backward pass and the optimizer's step, where a step can be
        proven; needed if `steps` got a proof. All ranks must call it."""
        self._log.backward_done()


class StepLog:
    """Call record() at the end of each step, and local_done() and backward_done() within it, in a
    loop of all steps for each of `passes`; or start() before a single loop and finish() after it.

    The steady figures (`steady_steps_per_s`, percentiles of the step time) leave out the first
    `warmup` steps, by default min(5, count // 5); `steps_per_s` counts all steps but those that are
    proven or traced. `gradients_of` is the argument of `Rank.steps`; `prover` proves steps, if the
    program gave a proof, and `own_step` then measures the rank's own step after warm-up and at the
    end; `twin` makes `passes` yield a second time. `trace` orders a trace of some steps, which this
    rank writes to the order's `path`, if there is one. `before_step(index, count)` is called as
    each step begins.
    """

    def __init__(
        self,
        *,
        events: RankEventWriter,
        device: torch.device,
        world_size: int,
        count: int,
        samples_per_rank: float,
        tokens_per_rank: float | None = None,
        warmup: int | None = None,
        gradients_of: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
        prover: StepProver | None = None,
        own_step: OwnStep | None = None,
        twin: Twin | None = None,
        trace: TraceOrder | None = None,
        before_step: Callable[[int, int], None] | None = None,
    ) -> None:
        if count < 1:
            raise RankMisuse(f"count={count} steps; expected at least 1")
        self.count = count
        self.warmup = min(5, count // 5) if warmup is None else warmup
        if not 0 <= self.warmup < count:
            raise RankMisuse(
                f"warmup={self.warmup} steps; expected at least 0 and fewer than count={count}"
            )
        self.recorded = 0
        self._events = events
        self._device = device
        self._world_size = world_size
        self._replicas = world_size if prover is None else prover.replicas
        self._samples_per_rank = samples_per_rank
        self._tokens_per_rank = tokens_per_rank
        self._clock: CpuClock
        self.metrics: dict[str, float] = {}
        self._watched = None if gradients_of is None else list(gradients_of)
        self._watch: PassWatch
        self._prover = prover
        self._own_step = own_step
        self._twin = twin
        self._trace = self._plan_trace(trace) if trace is not None else None
        self._own_step_after = max(1, self.warmup)
        if self._trace is not None and self._own_step_after in self._trace.steps:
            self._own_step_after = self._trace.steps[-1] + 1
        self._untimed_s = 0.0  # how long measurements took, between steps
        self._memory = PeakMemory(str(device))
        self._before_step = before_step or (lambda index, count: None)
        self._begins_itself = True
        self._marks = LoopMarks(events, count)

    def number_from(self, first: int, total: int) -> None:
        """Count steps in marks from `first`, of `total`: another attempt did those before."""
        self._marks.first, self._marks.total = first, total

    def _plan_trace(self, order: TraceOrder) -> StepTrace | None:
        steps, reason = choose_steps(order.first, order.last, self.count, self.warmup, self._proven)
        if not reason:
            return StepTrace(steps, order.path, self._device.type == "cuda")
        if order.path is not None:
            self._events.event("trace", reason=reason)
        return None

    def passes(self, first: int = 0, calls_begin: bool = False) -> Iterator[StepLog | TwinLog]:
        """Yield the log for each pass over the loop: this one, then, in a twin run, a `TwinLog`.
        Before the second pass the state is restored to what it was before step `first` (from 0).
        If that is the first step, the program must build its optimizer and engine anew. With
        `calls_begin` the caller calls `begin` before each step; otherwise `record` begins the next.
        """
        self._begins_itself = not calls_begin
        if self._twin is not None:
            self._twin.first = min(first, self.count - 1)
        self.start()
        yield self
        self.metrics = self.finish()
        if self._twin is not None:
            yield from self._train_twin(self._twin)

    def _train_twin(self, twin: Twin) -> Iterator[TwinLog]:
        if twin.reason:
            self._events.event("twin", reason=twin.reason)
            return
        first, began = twin.first or 0, time.perf_counter()
        self._events.event("stage", name="twin", state="begin")
        twin.restore()
        watch = self._make_watch(first)
        log = TwinLog(self._events, watch, self.count, first, self._prover)
        yield log
        if log.recorded != self.count:
            raise RankMisuse(
                f"{plural(log.recorded, 'step')} recorded in the second pass; expected {self.count}"
            )
        watch.close()
        fields = twin.compare(self._watch, log)
        seconds = time.perf_counter() - began
        self._events.event("twin", **fields, seconds=seconds)
        self._events.event("stage", name="twin", state="end", seconds=seconds)

    def _make_watch(self, first: int) -> PassWatch:
        twin = None if self._twin is None or self._twin.reason else self._twin.proof
        return PassWatch(
            self._watched,
            self.count,
            self._world_size,
            self._device,
            twin=twin,
            first=first,
            proof=None if self._prover is None else self._prover.proof,
        )

    def start(self) -> None:
        self._events.event("stage", name="train", state="begin", steps=self.count)
        self._memory.begin()
        self._watch = self._make_watch(0)
        self._began = self._marks.began = time.perf_counter()
        self._clock = CudaClock() if self._device.type == "cuda" else CpuClock()
        self._clock.tick()
        if self._prover is not None:
            self._prover.mark_entry(self._clock.local_done)
        if self._begins_itself:
            self.begin()

    def record(self, loss: torch.Tensor | float | None = None) -> None:
        if self.recorded == self.count:
            raise RankMisuse(
                f"a step was recorded after the last; expected {plural(self.count, 'step')}"
            )
        self.recorded += 1
        self._watch.step_done(self.recorded, loss)
        self._end_proof()
        self._clock.tick()
        self._end_trace()
        now = time.perf_counter()
        if self._marks.are_due(now):
            self._marks.mark(self._clock.passed_steps(), now, self._watch.seen_losses)
        if self.recorded < self.count:
            if self.recorded == self._own_step_after:
                self._measure_own_step()
            if self._begins_itself:
                self.begin()

    def backward_done(self) -> None:
        """Prove the current step, if it is one of those drawn."""
        if self._prover is None or not self._prover.is_open:
            return
        with self._watch.paused():
            fields = self._prover.prove(self.recorded, self._mark_again)
        fields["tokens_per_rank"] = self._tokens_per_rank
        self._events.event("proof", **fields, samples_per_rank=self._samples_per_rank)

    def begin(self) -> None:
        """Begin a step: what the program did after the step before is no part of it."""
        if self._twin is not None and self.recorded == self._twin.first:
            with self.untimed():
                self._memory.held += self._twin.take_snapshot()
        if self._prover is not None and self.recorded in self._prover.steps:
            self._memory.pause()
            self._prover.begin(self.recorded)
        if self._trace is not None and self.recorded in self._trace.steps:
            if self.recorded == self._trace.steps[0]:
                self._start_trace(self._trace)
            self._trace.begin(self.recorded)
        self._before_step(self.recorded, self.count)

    def _end_proof(self) -> None:
        """End the step just recorded, if it was to be proven."""
        if self._prover is None or self.recorded - 1 not in self._prover.steps:
            return
        if self._prover.is_open:
            raise RankMisuse(
                f"step {self.recorded} was recorded without step.backward_done(); expected it "
                "between the backward pass and the optimizer's step, since `proof` was given"
            )
        self._memory.resume()

    def _start_trace(self, trace: StepTrace) -> None:
        """Start the profiler, and let all ranks begin the first traced step together."""
        self._memory.pause()
        with self.untimed(), self._memory.left_out():
            trace.start()
            meet(self._device)

    def _end_trace(self) -> None:
        """End the step just recorded, if it was traced; after the last of them all ranks wait until
        the traces are written, so that no later step does."""
        if self._trace is None or self.recorded - 1 not in self._trace.steps:
            return
        if self.recorded - 1 != self._trace.steps[-1]:
            self._trace.end()
            return
        self._clock.wait()
        self._trace.end()
        self._write_trace(self._trace)
        self._memory.resume()

    def _write_trace(self, trace: StepTrace) -> None:
        """Write the trace of the steps done. That may take longer than the limit of a step, also
        for the ranks that only wait."""
        self._events.event("trace_write", state="begin")
        with self.untimed(), self._memory.left_out():
            if (fields := trace.write()) is not None:
                first, last = trace.steps[0] + 1, self.recorded
                proven = sorted(s + 1 for s in self._proven & self._traced if s < last)
                self._events.event("trace", first=first, last=last, proven=proven, **fields)
            meet(self._device)
        self._events.event("trace_write", state="end")

    def _measure_own_step(self) -> None:
        if self._own_step is not None:
            with self.untimed():
                self._own_step.measure(self.recorded - 1, self._mark_again)

    @contextmanager
    def untimed(self) -> Iterator[None]:
        """Leave what happens between two steps out of all rates and peaks, and out of the watch."""
        self._clock.wait()
        began = time.perf_counter()
        self._memory.pause()
        with self._watch.paused():
            yield
        self._memory.resume()
        self._clock.restart()
        self._untimed_s += time.perf_counter() - began

    def local_done(self) -> None:
        """Mark the end of the rank's own work in the current step, unless the forward pass itself
        waits for other ranks: where it gathers parameters, its beginning is the mark."""
        if self._prover is None or not self._prover.waits_in_forward:
            self._clock.local_done()

    def finish(self) -> dict[str, float]:
        """Write the results, and return this rank's metrics by their names. Losses are averaged
        over the ranks, so all ranks must call this."""
        if self.recorded != self.count:
            raise RankMisuse(
                f"{plural(self.recorded, 'step')} recorded before finish(); expected {self.count}"
            )
        self._clock.wait()
        ended = time.perf_counter()
        wall_s = ended - self._began - self._untimed_s
        if self._marks.is_first:
            self._marks.mark(1, ended, self._watch.seen_losses)
        self._marks.mark(self.count, ended, self._watch.seen_losses)
        self._measure_own_step()
        means = self._watch.average_losses(self.recorded)
        self._events.event("stage", name="train", state="end", seconds=wall_s)
        seconds = self._clock.step_seconds()
        values = self._metrics(wall_s, seconds, means)
        self._events.event("metrics", values=values)
        if self._own_step is not None:
            self._events.event("own_steps", **self._own_step.fields())
        self._events.event(
            "step_times",
            seconds=seconds[:MOST_STEP_TIMES],
            warmup=self.warmup,
            local_seconds=self._clock.local_seconds()[:MOST_STEP_TIMES],
            proven=sorted(self._proven & self._left_out),
            traced=sorted(self._traced),
            proof_seconds=sum(self._prover.seconds.values()) if self._prover else 0.0,
        )
        self._finish_watch(means)
        if self._twin is not None and self._twin.first is None:
            self._events.event("twin", reason=NO_PASSES)
        return values

    def finish_early(self) -> None:
        """End a loop before its last step, on all ranks; it has no rates."""
        self._clock.wait()
        if self._trace is not None and self.recorded <= self._trace.steps[-1]:
            self._write_trace(self._trace)
        means = self._watch.average_losses(self.recorded)
        self._events.event("stage", name="train", state="end")
        self._finish_watch(means)

    def _finish_watch(self, means: list[float]) -> None:
        """Write what was watched in all steps."""
        if (gradients := self._watch.close()) is not None:
            self._events.event("gradient_watch", **gradients)
        compared = self._watch.replicas.close() if self._watch.replicas is not None else None
        if compared is not None:
            self._events.event("replicas", **compared)
        if means:
            replica = None if self._prover is None else self._prover.replica
            local = self._watch.describe_losses(self.recorded)
            last = (len(means) - 1) // LOSSES_A_LINE * LOSSES_A_LINE
            for first in range(0, last, LOSSES_A_LINE):
                part = means[first : first + LOSSES_A_LINE]
                self._events.event("earlier_losses", first=first, mean=part)
            self._events.event("losses", first=last, mean=means[last:], **local, replica=replica)

    def _mark_again(self) -> None:
        self._marks.mark_again(self.recorded)

    def _metrics(self, wall_s: float, seconds: list[float], means: list[float]) -> dict[str, float]:
        values = rate_steps(
            seconds,
            wall_s,
            left_out=self._left_out,
            warmup=self.warmup,
            samples=self._samples_per_rank * self._replicas,
            tokens_per_rank=self._tokens_per_rank,
        )
        if means:
            values |= {"first_loss": means[0], "train_loss": statistics.fmean(means)}
            values["final_loss"] = means[-1]
        own_step_s = self._own_step.typical_s if self._own_step is not None else None
        if own_step_s is not None:
            values["own_step_s"] = own_step_s
        return values | self._memory.metrics()

    @property
    def _left_out(self) -> frozenset[int]:
        """The steps (from 0) that are proven or traced. A loop in which no other step is left is
        timed as it is."""
        left_out = self._proven | self._traced
        return left_out if set(range(self.warmup, self.count)) - left_out else frozenset()

    @property
    def _proven(self) -> frozenset[int]:
        return frozenset(self._prover.steps) if self._prover is not None else frozenset()

    @property
    def _traced(self) -> frozenset[int]:
        return frozenset(self._trace.steps) if self._trace is not None else frozenset()
