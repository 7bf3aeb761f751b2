"""The gradient probe: are the gradients that the engine applies the mean of the local gradients?

Each rank computes its local gradients with the bare model, where no hook of DDP or DeepSpeed runs,
and averages them with a separate all-reduce in float32. Then the engine runs its own forward and
backward on the same batch, and the probe compares each gradient it produced with that mean. Equal
parameters on all ranks would prove nothing under ZeRO: its all-gather makes them equal even with
every reduction removed. Clipping plays no part, because engines clip in the step that follows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .leaves import Groups, Leaves, gather_whole, is_flattened, is_partial, whole_shape
from .rank_environment import RankMisuse
from .replay import Randomness, dense

if TYPE_CHECKING:
    import torch

    # What the engine applies to a parameter, the rank's own gradient, its replica's, and the mean.
    Flat = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]

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
# So many elements are compared at a time: what is computed on the way takes as much memory. On the
# CPU (1 MiB) it stays in a cache; a GPU is given as many parameters as it can take in one launch.
PIECE, PIECE_ON_GPU = 2**18, BUCKET
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
        if any(is_flattened(parameter) for _, parameter in self.parameters):
            raise RankMisuse(
                "the parameters are those of FSDP1 (FullyShardedDataParallel), whose passes cannot "
                "be repeated; expected fully_shard (FSDP2), DDP or DeepSpeed, or no proof"
            )
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

        norms: list[torch.Tensor] = []
        products: list[torch.Tensor] = []
        for bucket in self._buckets():
            squared, product = self._compare_bucket(bucket, local)
            norms += squared
            products.append(product)
        table = torch.stack(norms, dim=1)
        table[0] /= self.world_size
        dist.all_reduce(table[0])
        # All numbers in one transfer: each waits for the device.
        numbers = torch.cat([table.flatten(), torch.stack(products).sum(dim=0)]).cpu()
        typical, error, spread = numbers[: table.numel()].view_as(table)
        sizes = torch.tensor([math.prod(whole_shape(p)) for _, p in self.parameters])
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
            "factor": _common_factor(numbers[table.numel() :].tolist(), tolerance),
        }

    def _compare_bucket(
        self, bucket: Sequence[int], local: list[torch.Tensor | None]
    ) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Of each of these parameters the squared norms of local, applied - mean, and local - mean;
        and of samples of all of them together the squared norms of applied and of mean, and the
        product of the two. What it holds is free at its end: two buckets of a large model need not
        fit into memory beside it.

        Errors are relative to the root mean square of the ranks' local norms, not to the norm of
        the mean: where local gradients nearly cancel, rounding is as large as the mean.
        """
        parameters = [self.parameters[index][1] for index in bucket]
        parts = []
        for index, parameter in zip(bucket, parameters, strict=True):
            parts.append(self._own(parameter, local[index]))
            local[index] = None
        means = self._average([part for _, part in parts])
        applied = [self._applied(parameter) for parameter in parameters]
        flat = [
            (theirs, alone.reshape(-1), part.reshape(-1), mean)
            for theirs, (alone, part), mean in zip(applied, parts, means, strict=True)
        ]
        return self._square_distances(flat), self._multiply_samples(flat)

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

        alone = _zeros_for(parameter) if own is None else dense(own).float()
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

    def _applied(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        """What the engine is about to apply, flat, in its own precision; zeros if that is none."""
        gradient = self.applied(parameter)
        applied: torch.Tensor = (
            _zeros_for(parameter) if gradient is None else dense(gather_whole(gradient))
        )
        return applied.reshape(-1)

    def _scaled(self, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """In fp32: in bf16 the factor would be rounded."""
        import torch

        whole = [part.float() for part in parts]
        return whole if self.scale == 1 else list(torch._foreach_mul(whole, self.scale))

    def _square_distances(self, flat: Sequence[Flat]) -> list[torch.Tensor]:
        """The squared norms of `_compare_bucket`, in float64."""
        import torch

        size = PIECE if flat[0][-1].device.type == "cpu" else PIECE_ON_GPU
        squares: list[list[torch.Tensor]] = [[] for _ in flat]
        for group in _group_pieces(flat, size):
            theirs, alone, whole, means = zip(*(pieces for _, pieces in group), strict=True)
            norms = [
                *torch._foreach_norm(whole),
                *torch._foreach_norm(torch._foreach_sub(self._scaled(theirs), means)),
                *torch._foreach_norm(torch._foreach_sub(alone, means)),
            ]
            columns = torch.stack(norms).double().square().view(3, -1).unbind(dim=1)
            for (index, _), column in zip(group, columns, strict=True):
                squares[index].append(column)
        empty = torch.zeros(3, dtype=torch.float64, device=flat[0][-1].device)
        return [sum(columns[1:], columns[0]) if columns else empty for columns in squares]

    def _multiply_samples(self, flat: Sequence[Flat]) -> torch.Tensor:
        """The products of `_compare_bucket`, of every n-th element of each parameter."""
        import torch

        samples = []
        for theirs, _, _, mean in flat:
            every = max(1, -(-len(mean) // SAMPLED))
            samples.append((theirs[::every], mean[::every]))
        applied, means = (torch.cat(parts).double() for parts in zip(*samples, strict=True))
        applied *= self.scale
        return torch.stack([applied.dot(applied), means.dot(means), applied.dot(means)])


def _group_pieces(flat: Sequence[Flat], size: int) -> Iterator[list[tuple[int, Flat]]]:
    """The tensors in pieces, with the index of each; so many together as have `size` elements."""
    group: list[tuple[int, Flat]] = []
    room = size
    for index, tensors in enumerate(flat):
        for pieces in zip(*(tensor.split(size) for tensor in tensors), strict=True):
            if len(pieces[0]) > room:
                yield group
                group, room = [], size
            if len(pieces[0]):
                group.append((index, pieces))
                room -= len(pieces[0])
    if group:
        yield group


def _zeros_for(parameter: torch.nn.Parameter) -> torch.Tensor:
    """A gradient of zeros, of the whole tensor's shape if the parameter is sharded."""
    import torch

    return torch.zeros(whole_shape(parameter), dtype=torch.float32, device=parameter.device)


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
    """Square roots of the ratios; 0 where both numbers are 0. NaN where a gradient is too large to
    be squared in fp32, so that no error is small beside it."""
    import torch

    ratio = torch.where((squared == 0) & (scale == 0), torch.zeros_like(squared), squared / scale)
    ratio = torch.where(scale.isinf(), torch.nan, ratio)
    values: list[float] = ratio.sqrt().tolist()
    return values


def _badness(error: float) -> float:
    """The error as a sort key; NaN counts as infinite."""
    return error if error == error else float("inf")
