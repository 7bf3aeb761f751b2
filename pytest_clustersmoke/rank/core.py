"""The API of a rank program: start, stages, facts, training steps, checks, an orderly end."""

from __future__ import annotations

import gc
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..config.metrics import METRICS
from . import checkpoint, process_group
from .attention import fixed_attention
from .device import choose_device, start_facts
from .gradients import Probe
from .hook import RankHook, load_hook
from .leaves import free_whole
from .own_step import OwnStep
from .peaks import STAGE, Peaks
from .proof import Proof, StepProver, draw_steps, find_kept_optimizer
from .rank_dumps import RankDumps, record_failure
from .rank_environment import TWIN, RankEnvironment, RankMisuse, read_rank_environment
from .rank_events import RankEventWriter
from .resume import Resume
from .step_marks import ProgramMarks
from .steps import Step, StepLog
from .twin import Twin

if TYPE_CHECKING:
    import torch

Result = TypeVar("Result")


class Rank:
    """One rank of a phase, made by `Rank.start` and used inside its `with`.

    Under the launcher it writes its events to the phase's directory. Run by hand, with torchrun or
    plain `python`, it writes none: rank 0 prints the main results, and the output goes to a
    temporary directory that is removed at the end.
    """

    def __init__(self, environment: RankEnvironment, timeout_s: float | None) -> None:
        self.rank = environment.rank
        self.local_rank = environment.local_rank
        self.world_size = environment.world_size
        self.local_world_size = environment.local_world_size
        self.node_rank = environment.node_rank
        self.timeout_s = environment.timeout_s if timeout_s is None else timeout_s
        self.device: torch.device
        self._environment = environment
        self._events = RankEventWriter(environment)
        self._output = checkpoint.OutputDirectory(environment)
        self._began = time.monotonic()
        self._marks = ProgramMarks(self._events)
        self._resume = Resume(environment, self._events)
        self._peaks: Peaks | None = None
        self._identity = ""
        self._proof: Proof | None = None
        self._statistics: set[str] = set()  # of the batch norms of its model
        self._hook: RankHook = load_hook(self, environment.fault, self._events.event)

    @classmethod
    @contextmanager
    def start(cls, init: str = "torch", timeout_s: float | None = None) -> Iterator[Rank]:
        """Open the process group and yield the rank; close the group after a clean end.

        `init` says which library opens the group: "torch", "deepspeed", or "trainer" (a library
        opens it later, and the program then calls `group_opened`). `timeout_s` is the timeout of
        the group; the default is CLUSTERSMOKE_PG_TIMEOUT_S, or 600 s if that is not set. An
        exception is recorded and raised again; the group then stays open, since closing it would
        wait for the other ranks.
        """
        if init not in process_group.INITS:
            raise RankMisuse(f"init={init!r}; expected one of {', '.join(process_group.INITS)}")
        rank = cls(read_rank_environment(), timeout_s)
        dumps = None
        try:
            if rank._environment.phase_dir is not None:
                dumps = RankDumps(rank._environment.phase_dir, rank.rank)
            rank._open(init)
            yield rank
            rank._close()
        except BaseException as error:
            record_failure(error, rank._events, dumps if rank.world_size > 1 else None)
            raise
        if dumps is not None:
            dumps.close()

    # -- Facts, stages and the process group -------------------------------------------------------

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def output_dir(self) -> Path:
        """The directory that the program writes to: the same for all ranks; it exists."""
        return self._output.path

    def stage(self, name: str, function: Callable[[], Result]) -> Result:
        """Run one stage and record its begin and end, so that a hang is reported with its stage."""
        self._events.event("stage", name=name, state="begin")
        started = time.perf_counter()
        result = function()
        seconds = time.perf_counter() - started
        self._events.event("stage", name=name, state="end", seconds=seconds)
        if name == "init" and self._peaks is not None:
            self._measure_peaks()
        return result

    def fact(self, **values: Any) -> None:
        """Record values that the program measured or read back."""
        self._events.event("fact", values=values)

    def say(self, text: str) -> None:
        """Print on rank 0."""
        self._events.say(text)

    def barrier(self) -> None:
        process_group.barrier(self.device)

    def run_on_main(self, function: Callable[[], Result]) -> Result:
        """Run `function` on rank 0 alone, and return its result on every rank.

        All ranks must call it. The result is pickled, so it should fit in host memory.
        """
        result: Result = process_group.broadcast_object(function() if self.is_main else None)
        return result

    def group_opened(self) -> None:
        """Record the process group and test it with a barrier over all ranks.

        With init="trainer" the program calls this on every rank once its library has opened the
        group (inside its own `rank.stage("init", ...)`); otherwise `start` calls it. A Trainer
        opens no group for a single rank: this opens one then, since the proofs need it.
        """
        backend = process_group.join_group(self.rank, self.world_size)
        fields = {"backend": backend, "world_size": self.world_size, "timeout_s": self.timeout_s}
        self._events.event("group", **fields)
        self._events.event("barrier", seconds=process_group.barrier(self.device))
        self._output.open()
        self._hook.opened()
        if (order := self._environment.peaks) is not None:
            node = self._environment.node
            identity = self._identity or f"{node}/{self.device.type}:{self.local_rank}"
            self._peaks = Peaks(
                self._environment, order, self.device, identity, self._hook.multiply
            )

    # -- Training ----------------------------------------------------------------------------------

    def step_log(
        self,
        count: int,
        *,
        samples_per_rank: float,
        tokens_per_rank: float | None = None,
        warmup: int | None = None,
        gradients_of: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
        proof: Proof | None = None,
    ) -> StepLog:
        """The timing behind `steps`, for loops that a library runs (a Trainer's callbacks)."""
        if proof is not None:
            free_whole(proof.model)
        if gradients_of is None and proof is not None:
            gradients_of = proof.model.named_parameters()
        return StepLog(
            events=self._events,
            device=self.device,
            world_size=self.world_size,
            count=count,
            samples_per_rank=samples_per_rank,
            tokens_per_rank=tokens_per_rank,
            warmup=warmup,
            gradients_of=gradients_of,
            prover=None if proof is None else self._make_prover(proof, count),
            own_step=None if proof is None else OwnStep(proof, self.device),
            twin=Twin(proof) if proof is not None and self._environment.proof == TWIN else None,
            trace=self._environment.trace,
            before_step=self._hook.before_step,
        )

    def _make_prover(self, proof: Proof, count: int) -> StepProver:
        self._hook.parameters = [p for p in proof.model.parameters() if p.requires_grad]
        self._hook.has_peer_loss = proof.peer_loss is not None
        self._hook.proof = proof
        self._proof = proof
        self._statistics = checkpoint.name_statistics(proof.model)
        seed = process_group.broadcast_object(secrets.token_hex(8))
        steps = draw_steps(count, self._environment.proof_steps, seed)
        self._events.event("proof_plan", seed=seed, steps=[step + 1 for step in steps])
        return StepProver(proof, steps, self.world_size, self._hook.after_backward)

    def steps(
        self,
        count: int,
        *,
        samples_per_rank: float,
        tokens_per_rank: float | None = None,
        warmup: int | None = None,
        gradients_of: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
        proof: Proof | None = None,
    ) -> Iterator[Step]:
        """Time `count` training steps, each ended by `step.record(loss=...)`, in stage "train".

        `samples_per_rank` and `tokens_per_rank` count one step on one rank. The steady figures
        leave out the first `warmup` steps; the default is a fifth of all steps, at most 5.
        `gradients_of` names the parameters (`model.named_parameters()`) whose gradients must be
        finite on this rank in every step, before any reduction, and which must stay equal on all
        ranks. With `proof` the first step, the last and some drawn ones are proven, and each step
        must call `step.backward_done()`; `gradients_of` is by default `proof.model`'s parameters.
        In fp16 give a proof, and no `gradients_of`: gradients overflow on purpose.

        A later attempt goes on at the step at which `should_stop` was true; call `resume` first.
        """
        first, total = self._resume.first, count
        count = self._resume.end_of_loop(total) - first
        log = self.step_log(
            count,
            samples_per_rank=samples_per_rank,
            tokens_per_rank=tokens_per_rank,
            warmup=warmup if warmup is None or count == total else min(warmup, count - 1),
            gradients_of=gradients_of,
            proof=None if proof is None else self._resume.shift(proof),
        )
        log.number_from(first, total)
        yield from self._resume.run_loop(log, str(self.device))

    def verify_gradients(
        self,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]],
        *,
        local_loss: Callable[[], torch.Tensor],
        backward: Callable[[], object],
        applied: Callable[[torch.nn.Parameter], torch.Tensor | None] | None = None,
        precision: str = "fp32",
        scale: float = 1.0,
        model: torch.nn.Module | None = None,
    ) -> bool:
        """Compare the gradients the engine would apply with the mean of the ranks' local ones.

        `local_loss` computes the loss of this rank's batch with the bare model, so that no hook of
        the engine runs. `backward` runs the engine's own forward and backward on the same batch.
        `applied` returns a parameter's gradient afterwards (default: `p.grad`); `scale` is the
        factor that undoes the engine's scaling. `model` is needed if FSDP2 shards the parameters;
        `local_loss` then computes with it, and gathers them as the engine does. All ranks call this
        before the optimizer's step; it leaves the engine's gradients in place. Raises ValueError if
        `precision` is not "fp32", "bf16" or "fp16". See `gradients.py`.
        """
        named = list(named_parameters)
        self._hook.parameters = [parameter for _, parameter in named]

        def backward_with_hook() -> None:
            backward()
            self._hook.after_backward()

        probe = Probe(
            parameters=[(name, p) for name, p in named if p.requires_grad],
            applied=applied or (lambda parameter: parameter.grad),
            precision=precision,
            scale=scale,
            world_size=self.world_size,
            model=model,
        )
        result = self.stage("probe", lambda: probe.run(local_loss, backward_with_hook))
        self._events.event("gradients", **result)
        return bool(result["synced"])

    # -- Programs without a training loop ----------------------------------------------------------

    def mark(self, step: int, steps: int) -> None:
        """Mark progress, inside `rank.stage("train", ...)`: `step` of `steps` are done.

        A program may mark the same step as often as it likes while the next one lasts. One mark a
        second is written, so that a slow rank is not reported as hung.
        """
        self._marks.mark(step, steps)

    def measured(self, what: str, **values: Any) -> None:
        """Record one measurement as an event of its own, written before this returns."""
        self._events.event("measured", what=what, **values)

    def metrics(self, **values: float) -> None:
        """Record the phase's metrics, all at once, by their names in `config.metrics.METRICS`."""
        unknown = set(values) - set(METRICS)
        if unknown:
            raise RankMisuse(f"unknown metrics {sorted(unknown)}; expected {', '.join(METRICS)}")
        self._events.event("metrics", values=values)

    # -- Checkpoints -------------------------------------------------------------------------------

    @property
    def should_stop(self) -> bool:
        """Whether the loop of `steps` ended early: the program must `save_progress` and end."""
        return self._resume.should_stop

    def resume(self, load: Callable[[], Any]) -> int:
        """Load what the attempt before has saved; returns the step, from 0, at which the loop goes
        on, which is 0 in the first attempt.

        `load` loads it into a model and an optimizer built anew, and returns the same nested state
        as `save_progress` was given; it is compared bit by bit. All ranks call this before `steps`.
        Raises RankMisuse if nothing was saved.
        """
        if not self._resume.is_later_attempt:
            return 0
        return self.stage("reload", lambda: self._resume.load(self.output_dir, load))

    def save_progress(
        self,
        save: Callable[[], object],
        *,
        state: Any,
        next_loss: Callable[[int], torch.Tensor] | None = None,
    ) -> None:
        """Run `save` on all ranks in stage "checkpoint", for the next attempt to go on from.

        `state` is what is saved: a nested state (dicts, lists, tensors, plain values). It must be
        complete: what is missing in it cannot be compared. `next_loss(index)`, which `Resumed`
        needs, computes this rank's loss of a step (from 0), without an update: of the next one,
        which the next attempt must find again, and of the first. Raises RankMisuse if not asked to.
        """
        if not self.should_stop:
            raise RankMisuse("save_progress() without rank.should_stop; expected it only then")

        def save_and_wait() -> None:
            save()
            self.barrier()
            # The first step of the next attempt is proven, with attention in a fixed order.
            with nullcontext() if self._proof is None else fixed_attention(self._proof.model):
                self._resume.save(self.output_dir, state, next_loss)

        self.stage("checkpoint", save_and_wait)

    def save_checkpoint(self, save: Callable[[], object]) -> None:
        """Run `save` on all ranks in stage "checkpoint"; then rank 0 lists the files written."""

        def save_and_wait() -> None:
            self._hook.save(save)
            self.barrier()

        started = time.perf_counter()
        self.stage("checkpoint", save_and_wait)
        if self.is_main:
            files = checkpoint.list_files(self.output_dir)
            seconds = time.perf_counter() - started
            self._events.event("checkpoint", files=files, seconds=seconds)
        self._hook.saved()

    def digest(self, state: Any) -> checkpoint.Digest:
        """The digest that `verify_reload` compares, for a state too large to keep until then."""
        return checkpoint.digest(state)

    def checksums(self, named_tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, int]:
        """A 64-bit sum over the bits of each tensor, such as `model.named_parameters()`; the sum
        changes with any element. On a GPU far faster than a digest, for a model of many GiB."""
        return checkpoint.checksums(named_tensors, self.device)

    def verify_reload(self, before: Any, reload: Callable[[], Any]) -> bool:
        """Compare the state before saving with the state of a new model that loaded it, bit by bit.

        `before` is a nested state (dicts, lists, tensors, plain values) or its `digest`. `reload`
        builds the model, loads the checkpoint and returns the same nested state.
        """
        expected = before if isinstance(before, checkpoint.Digest) else self.digest(before)
        if expected is before:
            self._free_proof()
        model = self._proof.model if self._proof is not None else None
        optimizer = find_kept_optimizer(self._proof) if self._proof is not None else None

        def load_and_compare() -> dict[str, Any]:
            loaded = checkpoint.load_shards(self.output_dir, reload)
            return checkpoint.compare_states(
                before, expected, loaded, self._statistics, model, optimizer
            )

        compared = self.stage("reload", load_and_compare)
        self._events.event("reload", **compared, source="model built anew")
        return bool(compared["equal"])

    def _free_proof(self) -> None:
        """Let go of the model and the optimizer that were proven: a second one may not fit beside
        them into the memory of the device."""
        self._proof = self._hook.proof = None
        self._hook.parameters = []
        gc.collect()
        if self.device.type == "cuda":
            import torch

            torch.cuda.empty_cache()

    # -- Start and end -----------------------------------------------------------------------------

    def _open(self, init: str) -> None:
        if init == "trainer":
            self._record_start(init)
        else:
            self.stage("init", lambda: self._open_group(init))

    def _record_start(self, init: str) -> None:
        self.device = choose_device(self._environment)
        process_group.prepare(init, self.device, repeats=self._environment.proof == TWIN)
        facts = start_facts(self._environment, self.device)
        self._identity = facts["gpu_uuid"] or ""
        self._events.event("start", **facts, init=init)
        self._hook.introduced()

    def _open_group(self, init: str) -> None:
        self._record_start(init)
        process_group.open_group(init, self.device, self.timeout_s)
        self.group_opened()

    def _measure_peaks(self) -> None:
        """Measure what the devices can do, after the stage in which the group was opened."""
        peaks, self._peaks = self._peaks, None
        if peaks is not None:
            fields = self.stage(STAGE, peaks.measure) if peaks.claim() else peaks.fields()
            self._events.event("peaks", **fields)
            peaks.mark_done()

    def _close(self) -> None:
        self._resume.check_saved()
        self._output.close(self.device)
        process_group.close_group()
        self._events.event("done", seconds=time.monotonic() - self._began)
        self._events.close()
