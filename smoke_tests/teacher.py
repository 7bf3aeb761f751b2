"""Data that can be learnt: a fixed pool of inputs, with targets from a linear teacher of low rank.

On these data the loss of a model that trains must fall; on random targets it would stay where it
was and prove nothing. Every rank draws its own pool, so that local gradients differ and a missing
reduction is detected; the teacher is the same on all ranks.
"""

from __future__ import annotations

import torch

TEACHER_SEED = 1234
TEACHER_RANK = 8
POOL_BATCHES = 4


class Teacher:
    """`batch(step)` returns (inputs, targets), each of shape (batch_size, width), on the device."""

    def __init__(
        self,
        width: int,
        batch_size: int,
        rank: int,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        shared = torch.Generator().manual_seed(TEACHER_SEED)
        narrow = torch.randn(width, TEACHER_RANK, generator=shared) / width**0.5
        widen = torch.randn(TEACHER_RANK, width, generator=shared) / TEACHER_RANK**0.5
        own = torch.Generator().manual_seed(TEACHER_SEED + 1 + rank)
        inputs = torch.randn(POOL_BATCHES, batch_size, width, generator=own)
        targets = inputs @ narrow @ widen  # variance about 1, like the inputs
        self._inputs = inputs.to(device=device, dtype=dtype)
        self._targets = targets.to(device=device, dtype=dtype)

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        index = step % POOL_BATCHES
        return self._inputs[index], self._targets[index]
