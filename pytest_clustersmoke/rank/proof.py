"""Proves single steps of a training loop while it runs, at steps that the program cannot foresee.

At a proven step each rank repeats its own pass (`replay.py`), the gradients that the engine is
about to apply are compared with the mean of the ranks' local ones (`gradients.py`), and two other
ranks repeat the pass as well (`cross_replay.py`). Proven steps are the first, the last, and some
between them that are drawn from a seed: a program that behaves well in its first step alone is
found as well.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from .attention import fixed_attention
from .cross_replay import RANKS, CrossReplay
from .engine_pass import EnginePass, ModelInputs, watch_inputs
from .gradients import Probe
from .leaves import Groups, gathers_parameters, shares_sums, waits_in_forward
from .rank_environment import RankMisuse
from .replay import MOST_NAMES, Randomness, Replay, Unrepeatable

if TYPE_CHECKING:
    import torch

FP16 = "fp16"
# Of a short loop at most this share is drawn, so that enough steps remain for the rates.
MOST_DRAWN_SHARE = 0.2


@dataclass(frozen=True)
class Proof:
    """What a rank needs to prove a step of a training loop.

    `model` is the bare model that DDP or DeepSpeed wraps. `local_loss(index)` computes, with that
    bare model, the loss of this rank's own batch of step `index` (from 0), scaled as for the
    engine's backward pass; with several micro batches it yields the loss of each in turn.
    `applied`, `precision` and `scale` are those of `Rank.verify_gradients`. In fp16 `local_loss` is
    multiplied by the current loss scale, as the engine does before its backward pass; a step whose
    gradients overflow then proves nothing, and is no failure; the engine must divide before it
    adds them up, or their sum may overflow where they do not. `batch_dim` is the dimension of the
    model's first tensor argument that counts samples; None if there is none.
    `peer_loss(index, rank)` computes here, with the bare model, what `local_loss(index)` computes
    on that rank; with three ranks or more, each then also repeats the passes of two others.
    `optimizer`, or a function that returns it, is measured as part of the rank's own step: a new
    one of its class steps on copies; the optimizer itself is never called. Of an optimizer that
    wraps another (DeepSpeed, accelerate) the inner one is taken. `groups` says which ranks hold
    which part of a model that is split over ranks (tensor parallelism); without it all ranks hold
    the whole model, or parts of it that the engine gathers.
    """

    model: torch.nn.Module
    local_loss: Callable[[int], torch.Tensor | Iterable[torch.Tensor]]
    applied: Callable[[torch.nn.Parameter], torch.Tensor | None] | None = None
    precision: str = "fp32"
    scale: float = 1.0
    batch_dim: int | None = 0
    optimizer: torch.optim.Optimizer | Callable[[], Any] | None = None
    peer_loss: Callable[[int, int], torch.Tensor | Iterable[torch.Tensor]] | None = None
    groups: Groups | None = None


def find_optimizer(proof: Proof) -> Any:
    """The innermost optimizer; None if there is none yet."""
    optimizer: Any = proof.optimizer
    if callable(optimizer):
        optimizer = optimizer()
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def find_kept_optimizer(proof: Proof) -> Any:
    """The optimizer after the loop; None if the program has deleted it, or it is not one of
    torch's."""
    import torch

    try:
        optimizer = find_optimizer(proof)
    except Exception:  # a function of the program's, whose variables are gone
        return None
    return optimizer if isinstance(optimizer, torch.optim.Optimizer) else None


def draw_steps(count: int, drawn: int, seed: str) -> list[int]:
    """The steps (from 0) to be proven: the first, the last, and up to `drawn` others."""
    between = range(1, count - 1)
    number = min(drawn, int(len(between) * MOST_DRAWN_SHARE))
    return sorted({0, count - 1, *random.Random(seed).sample(between, number)})


class StepProver:
    """Call `begin` as a step begins and `prove` between its backward pass and the optimizer's step.
    All ranks must do so, since a proof needs collectives."""

    def __init__(
        self,
        proof: Proof,
        steps: Iterable[int],
        world_size: int,
        after_backward: Callable[[], None],
    ) -> None:
        self.steps = frozenset(steps)
        self.seconds: dict[int, float] = {}  # step -> how long its proof took
        self._proof = proof
        self._after_backward = after_backward
        named = [(name, p) for name, p in proof.model.named_parameters() if p.requires_grad]
        self._names = [name for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        self._probe = Probe(
            parameters=named,
            applied=proof.applied or (lambda parameter: parameter.grad),
            precision=proof.precision,
            scale=proof.scale,
            world_size=world_size,
            groups=proof.groups,
        )
        self.replicas = world_size if proof.groups is None else proof.groups.replicas
        proven = sorted(self.steps)
        # Two more passes each: a drawn step and the last are enough for a device that is wrong each
        # time.
        self._crossed = {proven[at] for at in ((len(proven) - 1) // 2, -1) if proven}
        self._cross: CrossReplay | None = None
        if proof.peer_loss is not None and world_size >= RANKS:
            self._cross = CrossReplay(proof.model, named, proof.peer_loss)
        self._pass: EnginePass | None = None
        self._kernels = ExitStack()
        self.waits_in_forward = bool(waits_in_forward(proof.model))

    def mark_entry(self, mark: Callable[[], None]) -> None:
        """Call `mark` whenever a forward pass begins that gathers parameters from other ranks:
        until then a rank works alone."""
        if gathers_parameters(self._proof.model):
            # Before the hook that gathers.
            self._proof.model.register_forward_pre_hook(lambda *_: mark(), prepend=True)

    @property
    def proof(self) -> Proof:
        return self._proof

    @property
    def replica(self) -> int | None:
        """Which share of the data this rank trains on, if the model is split over ranks."""
        return None if self._proof.groups is None else int(self._proof.groups.data.rank())

    @property
    def is_open(self) -> bool:
        """Whether a step that must be proven has begun and is not proven yet."""
        return self._pass is not None

    def fixed_order(self, index: int) -> AbstractContextManager[None]:
        """A context in which passes of step `index` give the same bits, if it is to be proven."""
        return fixed_attention(self._proof.model) if index in self.steps else nullcontext()

    def begin(self, index: int) -> None:
        if index in self.steps:
            proof = self._proof
            self._kernels.enter_context(self.fixed_order(index))
            self._pass = EnginePass(proof.model, self._parameters, proof.batch_dim)

    def prove(self, index: int, progress: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Prove the step; the fields of the `proof` event, with the reason in `not_measured` if it
        cannot be repeated. `progress` is called after each pass.

        `seconds` begins once the device has done the step's own work, which is queued when the
        program calls this, and ends once it has done that of the proof. What the hooks add to the
        step's own pass is part of the step.

        Raises RankMisuse if the model did not run in the step.
        """
        engine, self._pass = self._pass, None
        if engine is None:
            raise RankMisuse(f"step {index + 1} is not to be proven, or has been already")
        self._after_backward()
        self._wait()
        began = time.perf_counter()
        prints = engine.close()
        if engine.randomness is None:
            raise RankMisuse(
                f"Proof.model did not run in step {index + 1}; expected the bare model that the "
                "engine wraps, and step.backward_done() after the backward pass"
            )
        try:
            with self._kernels:
                fields = self._repeat(index, engine, engine.randomness, prints, progress)
        except Unrepeatable as error:
            fields = {"not_measured": str(error), "gradients": {"precision": self._probe.precision}}
        self._wait()
        self.seconds[index] = time.perf_counter() - began
        return {
            "step": index + 1,
            "seconds": self.seconds[index],
            **self._describe(engine.inputs),
            "outside": self._count_outside(),
            "dtypes": engine.dtypes,
            "adapter_dtypes": sorted(engine.adapter_dtypes),
            **fields,
        }

    def _count_outside(self) -> int:
        """How many trained parameters the optimizer has beside those of `Proof.model`. 0 where it
        has others in their place, such as masters or parts."""
        optimizer = find_kept_optimizer(self._proof)
        groups = optimizer.param_groups if optimizer is not None else []
        stepped = {id(p) for group in groups for p in group["params"] if p.requires_grad}
        own = set(map(id, self._parameters))
        return len(stepped - own) if own <= stepped else 0

    def _wait(self) -> None:
        """Until the device has done what is queued."""
        import torch

        device = self._parameters[0].device
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def _describe(self, inputs: ModelInputs) -> dict[str, Any]:
        """What the model got, in fields of the `proof` event. The ranks of a model that is split
        see the same tokens, of which each counts its share."""
        groups = self._proof.groups
        tokens = inputs.tokens
        if tokens is not None and groups is not None:
            tokens /= groups.model.size()
        return {
            "samples": inputs.samples,
            "tokens": tokens,
            "batch": inputs.batch,
            "batch_is_whole": inputs.is_whole,
        }

    def _repeat(
        self,
        index: int,
        engine: EnginePass,
        randomness: Randomness,
        engine_prints: torch.Tensor,
        progress: Callable[[], None],
    ) -> dict[str, Any]:
        """Repeat the engine's pass, which gave these fingerprints; what that shows."""
        import torch

        model, local_loss = self._proof.model, self._proof.local_loss
        losses = partial(local_loss, index)
        replay = Replay(
            model, self._parameters, losses, randomness, progress, buffers=engine.buffers
        )
        with watch_inputs(model, self._proof.batch_dim) as repeated:
            local, prints = replay.gradients()
        first, own = torch.stack([engine_prints, prints]).tolist()
        progress()
        overflowed = self._proof.precision == FP16 and self._any_overflowed(local)
        differing, kernels = replay.find_differences(first, own)
        fields = {
            "repeated_batch": repeated.batch,
            "replayed": len(own),
            "differing": [self._names[at] for at in differing[:MOST_NAMES]],
            "differing_count": len(differing),
            # Of the engine's pass and the first repetition, whichever passes are compared above.
            "unequal_count": sum(a != b for a, b in zip(first, own, strict=True)),
            "nondeterministic": kernels,
            "shares_sums": shares_sums(model),
            "overflowed": overflowed,
            "gradients": (
                {"precision": self._proof.precision} if overflowed else self._probe.compare(local)
            ),
        }
        if self._cross is not None and index in self._crossed:
            fields["cross"] = self._cross.compare(index, randomness, own)
        return fields

    def _any_overflowed(self, local: Iterable[torch.Tensor | None]) -> bool:
        """Whether a local gradient of any rank is not finite, so that the engine skips the step."""
        import torch
        import torch.distributed as dist

        sums = [part.sum(dtype=torch.float32) for part in local if part is not None]
        flag = (~torch.isfinite(torch.stack(sums))).any().to(torch.int32)
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        return bool(flag)
