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
    """Run the model once, in training mode, and compare what each batch norm used with an average
    of our own over all samples: the mean (`error`, in standard deviations) and the variance
    (`variance_error`, a share of it). `local_error` is how far the mean of the rank's own samples
    is from that of all. All ranks must call this; running statistics move on."""
    found: list[tuple[float, float, float]] = []
    norms: list[Any] = [
        m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)
    ]
    before = {norm: (norm.running_mean.clone(), norm.running_var.clone()) for norm in norms}

    def compare(norm: Any, inputs: tuple[torch.Tensor], _output: torch.Tensor) -> None:
        own = inputs[0].double()
        sums = torch.stack([torch.ones_like(own), own, own**2]).sum(1)
        dist.all_reduce(sums)
        samples, mean = sums[0], sums[1] / sums[0]
        variance = (sums[2] / samples - mean**2) * samples / (samples - 1)
        moved = zip((norm.running_mean, norm.running_var), before[norm], strict=True)
        kept = 1 - norm.momentum
        used, used_variance = ((after - was * kept) / norm.momentum for after, was in moved)
        apart = (
            (used - mean).abs() / variance.sqrt(),
            (used_variance / variance - 1).abs(),
            (own.mean(0) - mean).abs() / variance.sqrt(),
        )
        found.append((float(apart[0].max()), float(apart[1].max()), float(apart[2].max())))

    handles = [norm.register_forward_hook(compare) for norm in norms]
    model.train()(inputs)
    for handle in handles:
        handle.remove()
    return {
        "layers": len(found),
        "error": max(error for error, _, _ in found),
        "variance_error": max(error for _, error, _ in found),
        "local_error": min(local for _, _, local in found),
    }
