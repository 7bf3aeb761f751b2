"""The rank as its program sees it: start, stages, facts, training steps, checks, an orderly end."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..config.metrics import METRICS
from . import checkpoint, process_group
from .device import choose_device, start_facts
from .gradients import Probe
from .hook import RankHook, load_hook
from .rank_dumps import Dumps, leave_soon
from .rank_environment import RankEnvironment, read_rank_environment
from .rank_events import RankEventWriter
from .steps import Step, StepLog

if TYPE_CHECKING:
    import torch

Result = TypeVar("Result")
# A step that takes longer than this is marked again while it lasts.
MARK_AGAIN_S = 1.0


class Rank:
    """One rank of a phase. Made by `Rank.start`, used inside its `with`.

    Under the launcher it writes its events to the phase's directory. By hand, with torchrun or
    plain `python`, it writes none: rank 0 prints what matters, and the output goes to a temporary
    directory that is removed at the end.
    """

    def __init__(self, place: RankEnvironment, timeout_s: float | None) -> None:
        self.rank = place.rank
        self.local_rank = place.local_rank
        self.world_size = place.world_size
        self.local_world_size = place.local_world_size
        self.node_rank = place.node_rank
        self.timeout_s = place.timeout_s if timeout_s is None else timeout_s
        self.device: torch.device
        self._place = place
        self._voice = RankEventWriter(place)
        self._output_dir: Path | None = None
        self._began = time.monotonic()
        self._marked: tuple[int, float] = (0, 0.0)  # the last mark: step, monotonic seconds
        self._hook: RankHook = load_hook(self, place.fault, self._voice.event)

    @classmethod
    @contextmanager
    def start(cls, init: str = "torch", timeout_s: float | None = None) -> Iterator[Rank]:
        """Open the process group and give the rank; close it after a clean end.

        `init` says who opens the group: "torch", "deepspeed", or "trainer" (a library, later: the
        program then calls `group_opened`). `timeout_s` is that of the group; without it
        CLUSTERSMOKE_PG_TIMEOUT_S, else 600 s. An exception is written down and goes on its way; the
        group is then left as it is, since closing it would wait for the others.
        """
        if init not in process_group.INITS:
            raise ValueError(f"init={init!r}; expected one of {', '.join(process_group.INITS)}")
        rank = cls(read_rank_environment(), timeout_s)
        dumps = None
        try:
            if rank._place.phase_dir is not None:
                dumps = Dumps(rank._place.phase_dir, rank.rank)
            rank._open(init)
            yield rank
            rank._close()
        except BaseException as error:
            rank._failed(error, dumps)
            raise
        if dumps is not None:
            dumps.close()

    # -- What a program asks and says --------------------------------------------------------------

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def output_dir(self) -> Path:
        """Where the program writes: one directory for all ranks, which exists."""
        if self._output_dir is None:
            if self._place.phase_dir is None:
                raise RuntimeError(
                    "output_dir is not known before the process group is open: outside the "
                    "launcher the ranks agree on a temporary directory then"
                )
            self._output_dir = self._place.phase_dir.output
            self._output_dir.mkdir(parents=True, exist_ok=True)
        return self._output_dir

    def stage(self, name: str, function: Callable[[], Result]) -> Result:
        """Run one stage, marked, so that a hang is known by its stage."""
        self._voice.event("stage", name=name, state="begin")
        started = time.perf_counter()
        result = function()
        seconds = time.perf_counter() - started
        self._voice.event("stage", name=name, state="end", seconds=seconds)
        return result

    def fact(self, **values: Any) -> None:
        """Record what the program measured or read back."""
        self._voice.event("fact", values=values)

    def say(self, text: str) -> None:
        """Print on rank 0."""
        self._voice.say(text)

    def barrier(self) -> None:
        process_group.barrier(self.device)

    def group_opened(self) -> None:
        """Record the process group, and try it with a barrier over all ranks.

        With init="trainer" the program calls this on every rank once its library has opened the
        group (inside its own `rank.stage("init", ...)`); otherwise `start` does.
        """
        import torch.distributed as dist

        world_size = dist.get_world_size()
        if world_size != self.world_size or dist.get_rank() != self.rank:
            raise RuntimeError(
                f"the process group has this rank as {dist.get_rank()} of {world_size}; expected "
                f"{self.rank} of {self.world_size}, as RANK and WORLD_SIZE say"
            )
        backend = dist.get_backend()
        self._voice.event("group", backend=backend, world_size=world_size, timeout_s=self.timeout_s)
        self._voice.event("barrier", seconds=process_group.barrier(self.device))
        if self._place.phase_dir is None:
            mine = tempfile.mkdtemp(prefix="clustersmoke-") if self.is_main else ""
            self._output_dir = Path(process_group.share_text(mine))
            self._output_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._hook.opened()

    # -- Training ----------------------------------------------------------------------------------

    def step_log(
        self,
        count: int,
        *,
        samples_per_rank: int,
        tokens_per_rank: int | None = None,
        warmup: int | None = None,
        gradients_of: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
    ) -> StepLog:
        """The timing behind `steps`, for loops that are not ours (a Trainer's callback)."""
        return StepLog(
            voice=self._voice,
            device=self.device,
            world_size=self.world_size,
            count=count,
            samples_per_rank=samples_per_rank,
            tokens_per_rank=tokens_per_rank,
            warmup=warmup,
            gradients_of=gradients_of,
            before_step=self._hook.before_step,
        )

    def steps(
        self,
        count: int,
        *,
        samples_per_rank: int,
        tokens_per_rank: int | None = None,
        warmup: int | None = None,
        gradients_of: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
    ) -> Iterator[Step]:
        """Time `count` training steps, each ended by `step.record(loss=...)`, in stage "train".

        `samples_per_rank` and `tokens_per_rank` are those of one step on one rank. `warmup` steps
        are left out of the steady figures: at most 5, and at most a fifth of all, if not given.
        `gradients_of` names the parameters (`model.named_parameters()`) whose gradients must be
        finite on this rank in every step, before any reduction; leave it out under a loss scale
        that is found by overflow (fp16).
        """
        log = self.step_log(
            count,
            samples_per_rank=samples_per_rank,
            tokens_per_rank=tokens_per_rank,
            warmup=warmup,
            gradients_of=gradients_of,
        )
        log.start()
        for index in range(count):
            yield Step(index, log)
            if log.recorded != index + 1:
                raise RuntimeError(
                    f"step {index + 1} was recorded {log.recorded - index} times; expected one "
                    "step.record(loss=...) at the end of each step"
                )
        log.finish()

    def verify_gradients(
        self,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]],
        *,
        local_loss: Callable[[], torch.Tensor],
        backward: Callable[[], object],
        applied: Callable[[torch.nn.Parameter], torch.Tensor | None] | None = None,
        precision: str = "fp32",
        scale: float = 1.0,
    ) -> bool:
        """Compare the gradients the engine would apply with the mean of the ranks' own.

        `local_loss` computes the loss of this rank's batch with the bare model, so that no hook of
        the engine runs; `backward` runs the engine's own forward and backward on the same batch;
        `applied` gives a parameter's gradient afterwards (`p.grad` if not given) and `scale` what
        it must be multiplied with where the engine scales. All ranks call this, before a step is
        taken; it leaves the engine's gradients in place. See `gradients.py`.
        """
        named = list(named_parameters)
        self._hook.parameters = [parameter for _, parameter in named]

        def backward_with_hook() -> None:
            backward()
            self._hook.after_backward()

        probe = Probe(
            parameters=[(name, p) for name, p in named if p.requires_grad],
            local_loss=local_loss,
            backward=backward_with_hook,
            applied=applied or (lambda parameter: parameter.grad),
            precision=precision,
            scale=scale,
            world_size=self.world_size,
        )
        result = self.stage("probe", probe.run)
        self._voice.event("gradients", **result)
        return bool(result["synced"])

    # -- Programs that are no training loop --------------------------------------------------------

    def mark(self, step: int, steps: int) -> None:
        """Mark progress, inside `rank.stage("train", ...)`: `step` of `steps` are done.

        The same step may be marked again, as often as the program likes, while the next one lasts:
        a mark a second is written, so that slow is not taken for hung.
        """
        done, at = self._marked
        if step != done or time.monotonic() - at >= MARK_AGAIN_S:
            self._marked = step, time.monotonic()
            self._voice.event("step", step=step, steps=steps)

    def measured(self, what: str, **values: Any) -> None:
        """Record one measurement as an event of its own, on its way before this returns."""
        self._voice.event("measured", what=what, **values)

    def metrics(self, **values: float) -> None:
        """Record the phase's metrics, all at once, by their names in `telemetry.METRICS`."""
        unknown = set(values) - set(METRICS)
        if unknown:
            raise ValueError(f"unknown metrics {sorted(unknown)}; expected {', '.join(METRICS)}")
        self._voice.event("metrics", values=values)

    # -- Checkpoints -------------------------------------------------------------------------------

    def save_checkpoint(self, save: Callable[[], object]) -> None:
        """Run `save` on all ranks in stage "checkpoint"; then rank 0 lists what lies there."""

        def save_and_wait() -> None:
            self._hook.save(save)
            self.barrier()

        started = time.perf_counter()
        self.stage("checkpoint", save_and_wait)
        if self.is_main:
            files = checkpoint.list_files(self.output_dir)
            seconds = time.perf_counter() - started
            self._voice.event("checkpoint", files=files, seconds=seconds)
        self._hook.saved()

    def digest(self, state: Any) -> checkpoint.Digest:
        """What `verify_reload` compares, for a state too large to be kept until then."""
        return checkpoint.digest(state)

    def verify_reload(self, before: Any, reload: Callable[[], Any]) -> bool:
        """Compare the state before saving with that of a model built anew and loaded, bit for bit.

        `before` is a nested state (dicts, lists, tensors, plain values) or its `digest`. `reload`
        builds the model, loads the checkpoint and returns the same nested state.
        """
        expected = before if isinstance(before, checkpoint.Digest) else self.digest(before)
        found = self.stage("reload", lambda: self.digest(reload()))
        mismatched = checkpoint.mismatched(expected, found)
        self._voice.event(
            "reload",
            equal=not mismatched,
            tensors=found.tensors,
            mismatched=mismatched[:10],
            source="model built anew",
        )
        return not mismatched

    # -- Start and end -----------------------------------------------------------------------------

    def _open(self, init: str) -> None:
        if init == "trainer":
            self._introduce(init)
        else:
            self.stage("init", lambda: self._open_group(init))

    def _introduce(self, init: str) -> None:
        self.device = choose_device(self._place)
        process_group.prepare(init, self.device)
        self._voice.event("start", **start_facts(self._place, self.device), init=init)
        self._hook.introduced()

    def _open_group(self, init: str) -> None:
        self._introduce(init)
        process_group.open_group(init, self.device, self.timeout_s)
        self.group_opened()

    def _close(self) -> None:
        if self._place.phase_dir is None and self._output_dir is not None:
            self.barrier()  # the others may still be reading what is removed now
            if self.local_rank == 0:
                shutil.rmtree(self._output_dir, ignore_errors=True)
        process_group.close_group()
        self._voice.event("done", seconds=time.monotonic() - self._began)
        self._voice.close()

    def _failed(self, error: BaseException, dumps: Dumps | None) -> None:
        # Before the error is told: the node's watch ends the phase on it, and where ranks were out
        # of step the record of the one that raised is needed to say which.
        if dumps is not None and self.world_size > 1:
            dumps.ask()
        self._voice.event(
            "error",
            type=type(error).__name__,
            message=str(error),
            traceback="".join(traceback.format_exception(error)),
        )
        self._voice.close()
        if dumps is not None and self.world_size > 1:
            dumps.finish()
        # Registered last, so it runs first: from here on the interpreter's end is bounded.
        atexit.register(leave_soon)
