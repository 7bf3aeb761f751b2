"""Batch norm over the batches of all ranks, and an independent check of what it averaged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


class MeanOverRanks(torch.autograd.Function):
    """The mean of a tensor over all ranks, through which gradients flow back to all of them."""

    apply: Callable[[torch.Tensor], torch.Tensor]

    @staticmethod
    def forward(_context: Any, own: torch.Tensor) -> torch.Tensor:
        mean = own / dist.get_world_size()
        dist.all_reduce(mean)
        return mean

    @staticmethod
    def backward(_context: Any, gradient: torch.Tensor) -> torch.Tensor:
        return MeanOverRanks.forward(_context, gradient)


class CpuSyncBatchNorm(nn.BatchNorm1d):
    """What torch's SyncBatchNorm does on a GPU, on a CPU. Takes (samples, features), and as many
    samples on each rank."""

    running_mean: torch.Tensor
    running_var: torch.Tensor
    momentum: float

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return super().forward(inputs)
        mean = MeanOverRanks.apply(inputs.mean(0))
        variance = MeanOverRanks.apply(((inputs - mean) ** 2).mean(0))
        with torch.no_grad():
            samples = len(inputs) * dist.get_world_size()
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * samples / (samples - 1), self.momentum)
        scale: torch.Tensor = self.weight / torch.sqrt(variance + self.eps)
        return (inputs - mean) * scale + self.bias


def make_batch_norm(features: int, device: torch.device) -> nn.Module:
    return (CpuSyncBatchNorm if device.type == "cpu" else nn.SyncBatchNorm)(features)


@torch.no_grad()
def check_statistics(model: nn.Module, inputs: torch.Tensor) -> dict[str, Any]:
    """Run the model once, in training mode, and compare the mean that each batch norm used with one
    of our own: `error` over all samples, and `local_error` of the rank's own samples, both in
    standard deviations. All ranks must call this; running statistics move on."""
    found: list[tuple[float, float]] = []
    norms: list[Any] = [
        m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)
    ]
    before = {norm: norm.running_mean.clone() for norm in norms}

    def compare(norm: Any, inputs: tuple[torch.Tensor], _output: torch.Tensor) -> None:
        own = inputs[0].double()
        sums = torch.stack([torch.ones_like(own), own, own**2]).sum(1)
        dist.all_reduce(sums)
        mean, square = sums[1] / sums[0], sums[2] / sums[0]
        deviation = (square - mean**2).sqrt()
        used = (norm.running_mean - before[norm] * (1 - norm.momentum)) / norm.momentum
        apart = [((other - mean).abs() / deviation).max() for other in (used, own.mean(0))]
        found.append((float(apart[0]), float(apart[1])))

    handles = [norm.register_forward_hook(compare) for norm in norms]
    model.train()(inputs)
    for handle in handles:
        handle.remove()
    return {
        "layers": len(found),
        "error": max(error for error, _ in found),
        "local_error": min(local for _, local in found),
    }
