"""What a rank watches in one pass over its training loop; a twin run (`twin.py`) compares two.

The gradients and the parameters have watches of their own (`watches.py`). A twin run also compares
the batches that the model sees, the optimizer's moments, and two things that under ZeRO last for
one step only. A wrong partition of the master weights: the all-gather passes it on to all ranks,
and only the rank's own partition shows whose it was. A wrong copy of a weight that the forward pass
reads: the next all-gather overwrites it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite
from typing import Any

from .proof import FP16, Proof, find_optimizer
from .replay import fingerprint
from .watches import GradientWatch, ReplicaWatch, Rows

# This many steps show whether the ranks train on the same data.
MOST_LOCAL_LOSSES = 100


class PassWatch:
    """Call `step_done` after each step, and `close` at the end; the pass begins with step `first`
    (from 0).

    `losses` are this rank's own, on the host, there once the device has passed them. With `twin`
    the numbers of every step are kept for `rows`. In fp16 gradients overflow on purpose, under
    dynamic loss scaling, and are not watched.
    """

    def __init__(
        self,
        watched: list[tuple[str, Any]] | None,
        count: int,
        world_size: int,
        device: Any,
        twin: Proof | None = None,
        first: int = 0,
        proof: Proof | None = None,
    ) -> None:
        import torch

        self.losses = torch.zeros(count, dtype=torch.float64, pin_memory=device.type == "cuda")
        self.has_loss = True
        self.gradients: GradientWatch | None = None
        self.replicas: ReplicaWatch | None = None
        keeps = twin is not None
        if watched is not None:
            model, groups = (None, None) if proof is None else (proof.model, proof.groups)
            if proof is None or proof.precision != FP16:
                self.gradients = GradientWatch(watched, count - first, device, keeps, model)
            self.replicas = ReplicaWatch(watched, count, world_size, device, keeps, groups)
        self.states: StateWatch | None = None
        if twin is not None:
            whole = self.replicas is not None and self.replicas.takes_every_step
            self.states = StateWatch(twin, device, with_weights=whole)
        self._first = first
        self._world_size, self._device = world_size, device

    @property
    def seen_losses(self) -> Any:
        """The losses; None if a step was recorded without one."""
        return self.losses if self.has_loss else None

    def step_done(self, step: int, loss: Any) -> None:
        """`step` (from 1) is done, with its update of the parameters."""
        import torch

        if loss is None:
            self.has_loss = False
        elif isinstance(loss, torch.Tensor):
            slot = self.losses[step - 1]
            slot.copy_(loss.detach().to(torch.float64).reshape(()), non_blocking=True)
        else:
            self.losses[step - 1] = loss
        if self.gradients is not None:
            self.gradients.step_done()
        if self.replicas is not None:
            self.replicas.step_done(step)
            if self.states is not None:
                self.states.step_done(step, self.replicas.is_due(step))

    def average_losses(self, recorded: int) -> list[float]:
        """The mean over all ranks at each step; NaN if any rank had NaN, empty if a rank recorded a
        step without a loss: all ranks must know it, as they add up their losses together."""
        import torch
        import torch.distributed as dist

        is_alone = not (dist.is_available() and dist.is_initialized())
        if not is_alone:
            flag = torch.tensor(int(self.has_loss), device=self._device)
            dist.all_reduce(flag, dist.ReduceOp.MIN)
            self.has_loss = bool(flag)
        if not self.has_loss:
            return []
        losses = self.losses[:recorded].to(self._device, copy=True)
        if not is_alone:
            dist.all_reduce(losses)
            losses /= self._world_size
        means: list[float] = losses.tolist()
        return means

    def describe_losses(self, recorded: int) -> dict[str, Any]:
        """This rank's own losses, as fields of the `losses` event."""
        local = self.losses[:recorded].tolist()
        return {
            "local_finite": all(map(isfinite, local)),
            "not_finite_at": next((i for i, v in enumerate(local, 1) if not isfinite(v)), None),
            "local_final": local[-1],
            "local_first": local[:MOST_LOCAL_LOSSES],
        }

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out what is not the loop's own pass."""
        watches = [watch for watch in (self.gradients, self.states) if watch is not None]
        try:
            for watch in watches:
                watch.is_paused = True
            yield
        finally:
            for watch in watches:
                watch.is_paused = False

    def close(self) -> dict[str, Any] | None:
        """Remove all hooks; the fields of the `gradient_watch` event, None without that watch."""
        if self.states is not None:
            self.states.close()
        return None if self.gradients is None else self.gradients.close()

    def rates(self) -> dict[int, tuple[Any, ...]]:
        """The optimizer's learning rates after each step (from 1)."""
        return {} if self.states is None else self.states.rates

    def rows(self, first: int) -> dict[str, Rows]:
        """All that a twin run compares, from step `first` (from 0) on, in the order in which a step
        makes it; after `close`."""
        import torch

        assert self.gradients is not None and self.replicas is not None and self.states is not None
        steps = range(self._first + 1, len(self.losses) + 1)
        losses = self.losses[self._first :].view(torch.int64).view(-1, 1)
        rows = {
            "batch": self.states.batches.rows(),
            "weight": self.states.weights.rows(),
            "loss": Rows(steps, ["loss"], losses),
            "gradient": self.gradients.rows(self._first),
            "partition": self.states.partitions.rows(),
            "parameter": self.replicas.rows(),
            "moment": self.states.moments.rows(),
        }
        return {kind: _from_step(first, each) for kind, each in rows.items()}


def _from_step(first: int, rows: Rows) -> Rows:
    at = next((row for row, step in enumerate(rows.steps) if step > first), len(rows.steps))
    return Rows(rows.steps[at:], rows.names, rows.values[at:])


class Prints:
    """Fingerprints of some tensors, after some steps; they stay on the device until `rows`."""

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._rows: list[tuple[list[str], Any]] = []

    def add(self, step: int, named: dict[str, Any]) -> None:
        """`named` are scalars (int64). One tensor keeps them: each of them would take 512 bytes."""
        import torch

        if named:
            self._steps.append(step)
            self._rows.append((list(named), torch.stack(list(named.values()))))

    def rows(self) -> Rows:
        """The names that every step has: an optimizer makes its state when it is first needed."""
        import torch

        sets = [set(names) for names, _ in self._rows]
        names = [n for n in self._rows[0][0] if all(n in of_row for of_row in sets)] if sets else []
        if not names:
            return Rows([], [], torch.zeros((0, 0), dtype=torch.int64))
        values = [row[[of_row.index(name) for name in names]] for of_row, row in self._rows]
        return Rows(self._steps, names, torch.stack(values).cpu())


def _copy_rate(rate: Any) -> Any:
    """A rate that a scheduler cannot change afterwards, as it does with a tensor."""
    return rate.detach().clone() if hasattr(rate, "detach") else rate


def _is_moment(value: Any, parameter: Any) -> bool:
    """Of what an optimizer keeps for a parameter: not a counter of steps, which may lie on another
    device."""
    import torch

    if not isinstance(value, torch.Tensor) or value.device != parameter.device:
        return False
    return value.numel() > 1 or value.shape == parameter.shape


class StateWatch:
    """Takes fingerprints of what else changes on a rank, and the learning rates; with
    `with_weights` also of the weights that the first forward pass of each step reads."""

    def __init__(self, proof: Proof, device: Any, with_weights: bool) -> None:
        import torch

        self.batches, self.weights = Prints(), Prints()
        self.partitions, self.moments = Prints(), Prints()
        self.rates: dict[int, tuple[Any, ...]] = {}
        self._proof = proof
        self._names = {id(p): name for name, p in proof.model.named_parameters()}
        self._batch = torch.zeros((), dtype=torch.int64, device=device)
        trained = {n: p for n, p in proof.model.named_parameters() if p.requires_grad}
        self._trained = trained if with_weights else {}
        self._weights: dict[str, Any] = {}
        self.is_paused = False
        self._handle = proof.model.register_forward_pre_hook(self._see_batch, with_kwargs=True)

    def step_done(self, step: int, with_moments: bool) -> None:
        self.batches.add(step, {"batch": self._batch.clone()})
        self._batch.zero_()
        self.weights.add(step, self._weights)
        self._weights = {}
        optimizer = find_optimizer(self._proof)
        if not hasattr(optimizer, "param_groups"):
            return
        own = dict(self._own_tensors(optimizer))
        self.partitions.add(
            step, {name: fingerprint(p) for name, p in own.items() if id(p) not in self._names}
        )
        self.rates[step] = tuple(_copy_rate(group.get("lr")) for group in optimizer.param_groups)
        if with_moments:
            self.moments.add(
                step,
                {
                    f"{key} of {name}": fingerprint(value)
                    for name, parameter in own.items()
                    for key, value in optimizer.state.get(parameter, {}).items()
                    if _is_moment(value, parameter)
                },
            )

    def close(self) -> None:
        self._handle.remove()

    def _own_tensors(self, optimizer: Any) -> Iterator[tuple[str, Any]]:
        """What the optimizer steps on: parameters of the model, or under ZeRO this rank's part of
        the master weights."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for number, parameter in enumerate(parameters):
            yield self._names.get(id(parameter), f"own partition {number}"), parameter

    def _see_batch(self, _module: Any, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        import torch

        if not self.is_paused:
            if not self._weights:
                self._weights = {name: fingerprint(p) for name, p in self._trained.items()}
            for value in (*inputs, *named.values()):
                if isinstance(value, torch.Tensor):
                    self._batch += fingerprint(value)
