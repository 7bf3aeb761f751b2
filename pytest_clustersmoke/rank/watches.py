"""What a rank watches in every step: its gradients before any reduction, and its parameters.

`GradientWatch` finds the rank whose gradient stopped being finite first. A reduction spreads one
rank's NaN to all ranks: from the next step on every loss is NaN, and nothing shows where it came
from. DeepSpeed may skip that step, and then no loss shows anything. So a hook sums each gradient as
autograd produces it; the sum is finite only if all its elements are.

`ReplicaWatch` finds the step from which on the ranks' parameters differ. Data-parallel replicas
start equal and apply the same gradients, so they stay equal bit for bit. A program that lets its
ranks drift apart and makes them equal again before it saves is found by the steps between.

All sums and fingerprints stay on the device, so nothing waits for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .leaves import Groups, Leaves, find_part, is_partitioned, local_part
from .rank_environment import RankMisuse
from .replay import fingerprint

if TYPE_CHECKING:
    import torch

# Sums are kept for this many steps, then reduced to one number per step.
SUM_ROWS = 1000
# A fingerprint of 100 million parameters takes 56 ms on the CPU, 2.5 % of a step: every tenth step
# it is a quarter of a percent. Of a long run at most MOST_PRINTS are taken.
EVERY = 10
MOST_PRINTS = 100
MOST_KEPT = 2**22  # fingerprints of a twin run, which takes them after every step: 32 MiB


@dataclass(frozen=True)
class Rows:
    """Numbers on the host, one row for each of `steps` (from 1), one column for each name."""

    steps: Sequence[int]
    names: Sequence[str]
    values: torch.Tensor  # int64


class GradientWatch:
    """Call `step_done` after each step, `close` at the end. It reads each gradient once a step.
    With `keeps` it reads it again, for a fingerprint: the last bits of a few numbers do not show in
    a sum. Those of all steps are left for `rows`, on the host."""

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]],
        count: int,
        device: torch.device,
        keeps: bool = False,
        model: Any = None,
    ) -> None:
        """`model` is needed if the parameters are sharded."""
        import torch

        trained = [(name, p) for name, p in named_parameters if p.requires_grad]
        if not trained:
            raise RankMisuse("no parameter requires a gradient, so there is nothing to watch")
        self._names = [name for name, _ in trained]
        shape = (min(count, SUM_ROWS), len(trained))
        self._table = torch.zeros(shape, dtype=torch.float32, device=device)
        self._rows = list(self._table.unbind())
        self._row = 0
        # Those of the current step, one for each parameter; of one without a gradient in this step
        # it is that of an earlier step.
        self._current = torch.zeros(len(trained), dtype=torch.float32, device=device)
        self._sums = list(self._current.unbind())
        self._added = [False] * len(trained)  # in the current step
        self.is_paused = False  # in a pass that is not the engine's own
        self._prints = torch.zeros(shape, dtype=torch.int64, device=device) if keeps else None
        self._kept: list[torch.Tensor] = []
        self._folded: list[torch.Tensor] = []
        self._leaves = Leaves(model, [parameter for _, parameter in trained])
        self._leaves.watch(self._add_sum)

    def step_done(self) -> None:
        self._rows[self._row].copy_(self._current)
        self._added = [False] * len(self._added)
        self._row += 1
        if self._row == len(self._rows):
            self._fold()

    def close(self) -> dict[str, Any]:
        """The fields of the `gradient_watch` event: the number of parameters watched, the first
        step (from 1) with a gradient that was not finite, and the name of its parameter nearest to
        the loss; None if all were finite."""
        import torch

        self._leaves.close()
        self._fold()
        parameters = torch.cat(self._folded)  # one index for each step, -1 where all were finite
        bad_steps = (parameters >= 0).nonzero().flatten().tolist()
        return {
            "parameters": len(self._names),
            "not_finite_at": bad_steps[0] + 1 if bad_steps else None,
            "not_finite_in": self._names[int(parameters[bad_steps[0]])] if bad_steps else None,
        }

    def rows(self, first: int) -> Rows:
        """The fingerprints of all steps, the first of which is step `first` (from 0); after
        `close`."""
        import torch

        prints = torch.cat(self._kept)
        return Rows(range(first + 1, first + 1 + len(prints)), self._names, prints)

    def _add_sum(self, index: int, gradient: torch.Tensor) -> None:
        import torch

        if self.is_paused:
            return
        if self._added[index]:  # a step may have several backward passes
            self._sums[index].add_(gradient.detach().sum(dtype=torch.float32))
        elif _is_plain(gradient, self._current.device):
            # One kernel: on small models the launches cost more than the sums.
            torch.sum(gradient, None, dtype=torch.float32, out=self._sums[index])
        else:
            self._sums[index].copy_(gradient.detach().sum(dtype=torch.float32))
        self._added[index] = True
        if self._prints is not None:
            self._prints[self._row, index].add_(fingerprint(gradient))

    def _fold(self) -> None:
        import torch

        bad = ~torch.isfinite(self._table[: self._row])
        # The last parameter of the model: a NaN propagates from the loss to the first layers.
        last = bad.shape[1] - 1 - bad.flip(1).to(torch.int32).argmax(dim=1)
        self._folded.append(torch.where(bad.any(dim=1), last, -1).to(torch.int32))
        if self._prints is not None:
            self._kept.append(self._prints[: self._row].to("cpu", copy=True))
            self._prints.zero_()
        self._row = 0


def _is_plain(gradient: torch.Tensor, device: torch.device) -> bool:
    """Whether its sum can be written in place on this device: not of a sparse one, of one that lies
    elsewhere or that a subclass computes with, or of one that is differentiated again."""
    import torch

    dense = type(gradient) is torch.Tensor and gradient.layout is torch.strided
    return dense and gradient.device == device and not gradient.requires_grad


class ReplicaWatch:
    """Call `step_done` after each step, and `close` on all ranks at the end. A single rank has
    nothing to compare, and takes fingerprints only if it `keeps` them for `rows`."""

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]],
        count: int,
        world_size: int,
        device: torch.device,
        keeps: bool = False,
        groups: Groups | None = None,
    ) -> None:
        import torch

        self._groups = groups
        named = list(named_parameters)
        self._names = [name for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        self._every = max(EVERY, -(-count // MOST_PRINTS))
        if keeps and count * len(named) <= MOST_KEPT:
            self._every = 1
        self._count = count
        self._world_size = world_size
        self._keeps = keeps
        self._done = 0
        self._steps: list[int] = []  # from 1, the steps after which a row was taken
        rows = 1 + -(-count // self._every)
        self._rows = torch.zeros((rows, len(named)), dtype=torch.int64, device=device)

    def step_done(self, step: int) -> None:
        """`step` (from 1) is done, with its update of the parameters."""
        self._done = step
        if self.is_due(step):
            self._take_row()

    def _take_row(self) -> None:
        import torch

        compares = self._world_size > 1 and not is_partitioned(self._parameters)
        if compares or self._keeps:
            prints = [fingerprint(local_part(parameter)) for parameter in self._parameters]
            self._rows[len(self._steps)] = torch.stack(prints)
            self._steps.append(self._done)

    @property
    def takes_every_step(self) -> bool:
        return self._every == 1

    def is_due(self, step: int) -> bool:
        """Whether a fingerprint is taken after `step` (from 1). The first step's shows whether the
        ranks began alike."""
        return step % self._every == 0 or step in (1, self._count)

    def rows(self) -> Rows:
        """The fingerprints taken so far, on the host."""
        return Rows(self._steps, self._names, self._rows[: len(self._steps)].cpu())

    def close(self) -> dict[str, Any] | None:
        """The fields of the `replicas` event, the same on all ranks: the steps compared, the first
        at which ranks differ, the last before it, the parameter that differs, and in groups of the
        same values the ranks that hold the first part of it that differs. Of each parameter only
        ranks that hold the same part are compared. None where there is no other rank."""
        import torch
        import torch.distributed as dist

        if self._world_size < 2 or not self._parameters:
            return None
        fields: dict[str, Any] = {"every": self._every, "compared": len(self._steps)}
        parts: list[Any] = [None] * self._world_size  # of each rank, for each parameter
        dist.all_gather_object(parts, [find_part(p, self._groups) for p in self._parameters])
        if all(len(set(places)) == self._world_size for places in zip(*parts, strict=True)):
            return fields | {"compared": 0, "sharded": True}
        if self._done not in (0, *self._steps[-1:]):  # the loop stopped before its last step
            self._take_row()
            fields["compared"] = len(self._steps)
        rows = self._rows[: len(self._steps)]
        differing = torch.zeros_like(rows, dtype=torch.bool)
        for part in sorted({part for of_rank in parts for part in of_rank}):
            own = [held == part for held in parts[dist.get_rank()]]
            is_own = torch.tensor(own, device=rows.device)
            limits = torch.iinfo(rows.dtype)
            lowest = torch.where(is_own, rows, limits.max)
            highest = torch.where(is_own, rows, limits.min)
            dist.all_reduce(lowest, dist.ReduceOp.MIN)
            dist.all_reduce(highest, dist.ReduceOp.MAX)
            differing |= lowest < highest  # not so where no rank holds this part
        if not differing.any():
            return fields | {"equal": True}
        row, column = differing.nonzero()[0].tolist()
        everyone = [torch.zeros_like(rows[row, column]) for _ in range(self._world_size)]
        dist.all_gather(everyone, rows[row, column].contiguous())
        of_parts: dict[Any, dict[int, list[int]]] = {}
        for rank, (held, value) in enumerate(zip(parts, everyone, strict=True)):
            of_parts.setdefault(held[column], {}).setdefault(int(value), []).append(rank)
        groups = next(of_part for of_part in of_parts.values() if len(of_part) > 1)
        return fields | {
            "equal": False,
            "differ_at": self._steps[row],
            "equal_until": self._steps[row - 1] if row else 0,
            "parameter": self._names[column],
            "groups": sorted(groups.values()),
        }
