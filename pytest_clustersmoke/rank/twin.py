"""The twin run: the loop trains again from the same state in the same processes.

Both passes must give the same bits: a device or a memory that is wrong in one of them is found at
the first step that differs, also if its error then spreads to all ranks. Nothing is repeated within
a step; the timed pass takes fingerprints besides, and waits for none.

`Rank.steps` begins the second pass with the second step: DistributedDataParallel orders its buckets
anew after the first, and another order of addition gives other bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

from ..evidence.telemetry import MARK_EVERY_S
from .leaves import is_sharded
from .pass_watch import PassWatch
from .proof import FP16, Proof, StepProver, find_optimizer
from .rank_environment import RankMisuse
from .rank_events import RankEventWriter
from .replay import Randomness, Replay, Unrepeatable, must_repeat
from .watches import Rows

NO_OPTIMIZER = "the program's Proof names no optimizer, so its state cannot be restored"
LOSS_SCALE = "a dynamic loss scale, in fp16, is not restored"
SHARDED = "the parameters are sharded; a twin run keeps and compares whole ones"
NO_PASSES = "the program calls log.start(); a twin run needs `for log in log.passes()`"


class Snapshot:
    """The state that training goes on from, kept on the host; frozen parameters are left out."""

    def __init__(self, proof: Proof) -> None:
        """Raises RankMisuse if the optimizer is not one of torch's, nor wraps one."""
        import torch

        self._optimizer: Any = find_optimizer(proof)
        known = isinstance(self._optimizer, torch.optim.Optimizer | None)
        if not known:
            raise RankMisuse(f"the state of {type(self._optimizer).__name__} is not known")
        groups = [] if self._optimizer is None else self._optimizer.param_groups
        stepped = [parameter for group in groups for parameter in group["params"]]
        trained = [p for p in proof.model.parameters() if p.requires_grad]
        tensors = {id(t): t for t in (*trained, *proof.model.buffers(), *stepped)}
        self._tensors = [(tensor, _copy(tensor)) for tensor in tensors.values()]
        self._state = [(p, _copy(self._optimizer.state.get(p))) for p in stepped]
        self._settings = [
            {name: _copy(value) for name, value in group.items() if name != "params"}
            for group in groups
        ]
        self._randomness = Randomness()

    @property
    def size_bytes(self) -> int:
        state = [value for _, saved in self._state for value in (saved or {}).values()]
        tensors = [saved for _, saved in self._tensors]
        return sum(v.numel() * v.element_size() for v in (*tensors, *state) if hasattr(v, "numel"))

    def restore(self) -> None:
        """Put everything back in place: all tensors stay where they are, since the engine's buckets
        and flat buffers are views of them."""
        for tensor, saved in self._tensors:
            tensor.data.copy_(saved)
        for parameter, saved in self._state:
            if saved is None:
                self._optimizer.state.pop(parameter, None)
            else:
                _put_back(self._optimizer.state[parameter], saved)
        if self._optimizer is not None:
            for group, saved in zip(self._optimizer.param_groups, self._settings, strict=True):
                _put_back(group, saved | {"params": group["params"]})
        self._randomness.restore()


def _copy(value: Any) -> Any:
    """A copy on the host."""
    if hasattr(value, "detach"):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {name: _copy(inner) for name, inner in value.items()}
    return value


def _put_back(current: dict[str, Any], saved: dict[str, Any]) -> None:
    for name in current.keys() - saved.keys():
        del current[name]
    for name, value in saved.items():
        if hasattr(value, "detach") and hasattr(current.get(name), "detach"):
            current[name].data.copy_(value)
        else:
            current[name] = value


class Twin:
    """What a `StepLog` needs for a twin run. `first` is the step (from 0) with which the second
    pass begins; None until the program says that its loop can run twice."""

    def __init__(self, proof: Proof) -> None:
        self.proof = proof
        self.first: int | None = None
        # Why there is no second pass.
        self.reason = NO_OPTIMIZER if proof.optimizer is None else ""
        if any(map(is_sharded, proof.model.parameters())):
            self.reason = SHARDED
        elif proof.precision == FP16:
            self.reason = LOSS_SCALE
        self._snapshot: Snapshot | None = None

    def take_snapshot(self) -> int:
        """Keep the state before step `first`; how many bytes of the host that takes."""
        if not self.reason:
            try:
                self._snapshot = Snapshot(self.proof)
            except RankMisuse as error:
                self.reason = str(error)
        return self._snapshot.size_bytes if self._snapshot is not None else 0

    def restore(self) -> None:
        assert self._snapshot is not None
        self._snapshot.restore()

    def compare(self, timed: PassWatch, log: TwinLog) -> dict[str, Any]:
        """The fields of the `twin` event: how many steps were compared of each kind of number, and
        for each kind that differs the first step (from 1) and the name of the number. `log` is that
        of the second pass."""
        first, again = self.first or 0, log._watch
        left, right = timed.rows(first), again.rows(first)
        found = {kind: _find_difference(rows, right[kind]) for kind, rows in left.items()}
        differing = {kind: place for kind, place in found.items() if place is not None}
        rates = timed.rates(), again.rates()
        return {
            "first_step": first + 1,
            "compared": {kind: len(rows.steps) for kind, rows in left.items()},
            "differing": differing,
            "rate_differs_at": min(
                (s for s in rates[1] if rates[0].get(s) != rates[1][s]), default=None
            ),
            "nondeterministic": self._find_kernels(len(timed.losses), bool(differing), log._mark),
        }

    def _find_kernels(self, count: int, differs: bool, progress: Callable[[], None]) -> list[str]:
        """The kernels that may add in any order, if anything differs on this rank: then two passes
        need not be equal."""
        proof = self.proof
        if not must_repeat(differs, proof.model):
            return []
        parameters = [p for p in proof.model.parameters() if p.requires_grad]
        losses = partial(proof.local_loss, count - 1)
        replay = Replay(proof.model, parameters, losses, Randomness(), progress)
        with suppress(Unrepeatable):
            kernels = replay.find_kernels()
            return kernels if differs else []
        return []


def _find_difference(left: Rows, right: Rows) -> dict[str, Any] | None:
    """The first step at which the numbers differ, and the first name among those."""
    if list(left.steps) != list(right.steps) or list(left.names) != list(right.names):
        step = min([*left.steps, *right.steps], default=0)
        return {"step": step, "name": "not the same numbers in both passes"}
    places = (left.values != right.values).nonzero()
    if not len(places):
        return None
    row, column = places[0].tolist()
    return {"step": left.steps[row], "name": left.names[column]}


class TwinLog:
    """Takes the place of the `StepLog` in the second pass: it marks progress and times nothing.

    Kernels add in the same order as in the first pass: in a fixed one in steps that were proven.
    """

    def __init__(
        self,
        events: RankEventWriter,
        watch: PassWatch,
        count: int,
        first: int,
        prover: StepProver | None,
    ) -> None:
        self.recorded = first
        self._watch = watch
        self._events = events
        self._count = count
        self._prover = prover
        self._kernels = ExitStack()
        self._marked_at = time.perf_counter()
        self._fix_order()

    def begin(self) -> None:
        pass

    def local_done(self) -> None:
        pass

    def backward_done(self) -> None:
        pass

    def record(self, loss: Any = None) -> None:
        self._kernels.close()
        self.recorded += 1
        self._watch.step_done(self.recorded, loss)
        self._mark()
        self._fix_order()

    def _fix_order(self) -> None:
        """In the step that begins, if it was proven in the first pass."""
        if self._prover is not None:
            self._kernels.enter_context(self._prover.fixed_order(self.recorded))

    def _mark(self) -> None:
        """Mark progress, also between two steps."""
        now = time.perf_counter()
        if now - self._marked_at >= MARK_EVERY_S:
            self._marked_at = now
            self._events.event("twin_step", step=self.recorded, steps=self._count)
