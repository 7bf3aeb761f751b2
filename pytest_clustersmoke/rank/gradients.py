"""The gradient probe: are the gradients that the engine applies the mean of the local gradients?

Each rank computes its local gradients with the bare model, where no hook of DDP or DeepSpeed runs,
and averages them with a separate all-reduce in float32. Then the engine runs its own forward and
backward on the same batch, and the probe compares each gradient it produced with that mean. Equal
parameters on all ranks would prove nothing under ZeRO: its all-gather makes them equal even with
every reduction removed. Clipping plays no part, because engines clip in the step that follows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .leaves import Groups, Leaves, gather_whole, is_partial, whole_shape
from .rank_environment import RankMisuse
from .replay import Randomness

if TYPE_CHECKING:
    import torch

# The largest relative error that still counts as in sync. Healthy runs on 2 and 8 ranks gave up to
# 4e-8 in fp32 (the order of additions) and up to 4e-3 in bf16 (DeepSpeed adds in bf16, rounding to
# 8 bits each time; the error grows with the square root of the number of ranks). In the same runs
# an omitted reduction put the least affected parameter off by 0.19. fp16, rounded to 11 bits, gave
# up to 3.3e-4.
TOLERANCES = {"fp32": 1e-4, "bf16": 2e-2, "fp16": 5e-3}
# A gradient smaller than this share of what is typical for its size is judged against that share:
# the rounding error of a gradient close to zero says nothing.
FLOOR = 1e-3
MOST_NAMES = 5  # of parameters out of sync, in the event
# Whether all gradients are off by the same factor shows in this many elements of each.
SAMPLED = 2**16
# Gradients are averaged together, up to so many elements (64 MiB): each collective has a latency.
BUCKET = 2**24
# On the CPU so many elements are compared at a time (1 MiB): what is computed on the way stays in a
# cache.
PIECE = 2**18
# An unreduced gradient must exceed the tolerance by this factor; otherwise the probe cannot fail.
SENSITIVE_BY = 10.0


@dataclass(frozen=True)
class Probe:
    """Compares gradients. `applied(p) * scale` is the gradient that the engine would apply to p."""

    parameters: list[tuple[str, torch.nn.Parameter]]
    applied: Callable[[torch.nn.Parameter], torch.Tensor | None]
    precision: str
    scale: float
    world_size: int
    model: Any = None  # needed if the parameters are sharded
    groups: Groups | None = None  # if the model is split over ranks

    def __post_init__(self) -> None:
        if not self.parameters:
            raise RankMisuse("no parameter requires a gradient, so there is nothing to probe")
        if self.precision not in TOLERANCES:
            raise RankMisuse(
                f"precision={self.precision!r}; expected one of {', '.join(TOLERANCES)}"
            )

    @property
    def ranks(self) -> int:
        """How many ranks' gradients a mean has."""
        return self.world_size if self.groups is None else int(self.groups.data.size())

    def run(
        self, local_loss: Callable[[], torch.Tensor], backward: Callable[[], object]
    ) -> dict[str, Any]:
        """Compute the local gradients, then those of the engine, and compare them."""
        import torch

        randomness = Randomness()
        parameters = [parameter for _, parameter in self.parameters]
        leaves = Leaves(self.model, parameters)
        loss = local_loss()
        local: list[torch.Tensor | None] = list(
            torch.autograd.grad(loss, leaves.tensors, allow_unused=True)
        )
        leaves.close()
        randomness.restore()  # dropout must be the same in both passes
        backward()
        return self.compare(local)

    def compare(self, local: list[torch.Tensor | None]) -> dict[str, Any]:
        """Compare the engine's gradients with the mean of the ranks' `local` ones, which are freed
        on the way; the fields of the `gradients` event.

        All ranks call this, and visit the parameters in the same order: each needs collectives.
        """
        import torch
        import torch.distributed as dist

        rows = [row for bucket in self._buckets() for row in self._compare_bucket(bucket, local)]
        # Columns: squared norms of local, (applied - mean), (local - mean), and
        # of samples of applied and mean, and the product of these two.
        table = torch.stack(rows)
        _, error, spread, *products = table.unbind(dim=1)
        typical = table[:, 0].clone() / self.world_size
        dist.all_reduce(typical)
        sizes = torch.tensor(
            [math.prod(whole_shape(p)) for _, p in self.parameters], device=table.device
        )
        expected = sizes * (typical.sum() / sizes.sum())
        scale = torch.maximum(typical, FLOOR**2 * expected)
        errors = _relative(error, scale)
        spreads = _relative(spread, scale)
        worst = max(range(len(errors)), key=lambda i: _badness(errors[i]))
        tolerance = TOLERANCES[self.precision]
        off = [
            name for (name, _), e in zip(self.parameters, errors, strict=True) if not e <= tolerance
        ]
        # Where the model is split over all ranks, nothing is to be reduced.
        reduced = self.ranks > 1 or any(is_partial(p) for _, p in self.parameters)
        return {
            "parameters": len(self.parameters),
            "compared": len(errors),
            "max_relative_error": errors[worst],
            "tolerance": tolerance,
            "worst": self.parameters[worst][0],
            "off": off[:MOST_NAMES],
            "off_count": len(off),
            "precision": self.precision,
            "local_spread": max(spreads),
            "least_local_spread": min(spreads),
            "sensitive": max(spreads) > SENSITIVE_BY * tolerance or not reduced,
            "ranks": self.ranks,
            "synced": errors[worst] <= tolerance,  # false for NaN
            "factor": _common_factor([float(column.sum()) for column in products], tolerance),
        }

    def _compare_bucket(
        self, bucket: Sequence[int], local: list[torch.Tensor | None]
    ) -> list[torch.Tensor]:
        """The squared norms for each of these parameters. What it holds is free at its end: two
        buckets of a large model need not fit into memory beside it."""
        parameters = [self.parameters[index][1] for index in bucket]
        parts = []
        for index, parameter in zip(bucket, parameters, strict=True):
            parts.append(self._own(parameter, local[index]))
            local[index] = None
        means = self._average([part for _, part in parts])
        return [
            self._distances(parameter, alone, part, mean)
            for parameter, (alone, part), mean in zip(parameters, parts, means, strict=True)
        ]

    def _buckets(self) -> list[list[int]]:
        """The indices of the parameters whose gradients are averaged together, in order."""
        buckets: list[list[int]] = []
        room = 0
        for index, (_, parameter) in enumerate(self.parameters):
            elements = math.prod(whole_shape(parameter))
            if not buckets or elements > room:
                buckets.append([])
                room = BUCKET
            buckets[-1].append(index)
            room -= elements
        return buckets

    def _own(
        self, parameter: torch.nn.Parameter, own: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """This rank's gradient, and that of its replica of the model: the same, unless each rank
        has a part of the sequence. A missing gradient counts as zero."""
        import torch.distributed as dist

        alone = _zeros_for(parameter) if own is None else own.float()
        if self.groups is None or not is_partial(parameter):
            return alone, alone
        local = alone.clone()
        dist.all_reduce(local, group=self.groups.model)
        return alone, local

    def _average(self, parts: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The means of these gradients over the replicas, flat."""
        import torch
        import torch.distributed as dist

        flat = torch.cat([part.reshape(-1) for part in parts])
        flat /= self.ranks
        dist.all_reduce(flat, group=None if self.groups is None else self.groups.data)
        means: Sequence[torch.Tensor] = flat.split([part.numel() for part in parts])
        return means

    def _distances(
        self,
        parameter: torch.nn.Parameter,
        alone: torch.Tensor,
        local: torch.Tensor,
        mean: torch.Tensor,
    ) -> torch.Tensor:
        """Squared norms for one parameter.

        Errors are relative to the root mean square of the ranks' local norms, not to the norm of
        the mean: where local gradients nearly cancel, rounding is as large as the mean.
        """
        import torch

        gradient = self.applied(parameter)
        applied = _zeros_for(parameter) if gradient is None else gather_whole(gradient)
        flat = [tensor.reshape(-1) for tensor in (applied, alone, local)]
        size = PIECE if mean.device.type == "cpu" else max(1, len(mean))
        pieces = zip(*(tensor.split(size) for tensor in (*flat, mean)), strict=True)
        norms = [
            (_square(whole), _square(theirs.float() * self.scale - means), _square(own - means))
            for theirs, own, whole, means in pieces
        ]
        sums = [torch.stack(column).sum() for column in zip(*norms, strict=True)]
        every = max(1, len(mean) // SAMPLED)
        theirs, means = flat[0][::every].double() * self.scale, mean[::every].double()
        return torch.stack([*sums, theirs.dot(theirs), means.dot(means), theirs.dot(means)])


def _zeros_for(parameter: torch.nn.Parameter) -> torch.Tensor:
    """A gradient of zeros, of the whole tensor's shape if the parameter is sharded."""
    import torch

    return torch.zeros(whole_shape(parameter), dtype=torch.float32, device=parameter.device)


def _square(tensor: torch.Tensor) -> torch.Tensor:
    """The squared norm, added in float64."""
    import torch

    norm: torch.Tensor = torch.linalg.vector_norm(tensor, dtype=torch.float64)
    return norm.square()


def _common_factor(products: Sequence[float], tolerance: float) -> float | None:
    """The factor between the applied gradients and the mean; None if it is not the same for all.

    `products`: over all parameters, the squared norms of the applied gradients and of the mean, and
    the product of the two, of every n-th element. The part of the applied gradients that is not a
    multiple of the mean has the squared norm applied - product**2 / mean.
    """
    applied, mean, product = products
    if not (0 < applied < math.inf and 0 < mean < math.inf):
        return None
    rest = max(0.0, applied - product**2 / mean)
    return product / mean if math.sqrt(rest / applied) <= tolerance else None


def _relative(squared: torch.Tensor, scale: torch.Tensor) -> list[float]:
    """Square roots of the ratios; 0 where both numbers are 0."""
    import torch

    ratio = torch.where((squared == 0) & (scale == 0), torch.zeros_like(squared), squared / scale)
    values: list[float] = ratio.sqrt().tolist()
    return values


def _badness(error: float) -> float:
    """The error as a sort key; NaN counts as infinite."""
    return error if error == error else float("inf")
