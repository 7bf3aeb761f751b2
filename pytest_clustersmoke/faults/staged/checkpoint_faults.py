"""Truncated, wrong and incomplete checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from ...rank.leaves import is_partitioned
from .staging import Staging, cannot_stage


class Truncated(Staging):
    """Truncates the largest file to half its size after saving, as a failing disk might."""

    def saved(self) -> None:
        if self.rank.is_main:
            files = [path for path in self.rank.output_dir.rglob("*") if path.is_file()]
            largest = max(files, key=lambda path: path.stat().st_size, default=None)
            if largest is None or not largest.stat().st_size:
                raise cannot_stage("its checkpoint contains no file with data")
            self.stage()
            os.truncate(largest, largest.stat().st_size // 2)
        self.rank.barrier()


class Foreign(Staging):
    """Gives the smallest parameter other values while the program saves; under ZeRO-3, which saves
    the optimizer's masters in place of the weights, the first of them."""

    def save(self, save: Callable[[], object]) -> None:
        import torch

        if not self.parameters:
            raise cannot_stage("the program gave no proof and called no verify_gradients")
        saved = min(self.find_saved(), key=lambda tensor: tensor.numel())
        before = saved.detach().clone()
        self.stage()
        with torch.no_grad():
            saved.add_(1.0)
            save()
            saved.copy_(before)

    def find_saved(self) -> Sequence[Any]:
        """The tensors that the checkpoint has the trained values from."""
        if not is_partitioned(self.parameters):
            return self.parameters
        optimizer = None if self.proof is None else self.proof.optimizer
        masters = getattr(optimizer, "fp32_partitioned_groups_flat", None)
        if not masters:
            raise cannot_stage("its proof names no optimizer of ZeRO-3, whose masters are saved")
        return list(masters)


class OnlyMain(Staging):
    """All ranks but rank 0 skip saving their part of the checkpoint."""

    def save(self, save: Callable[[], object]) -> None:
        if self.rank.is_main:
            save()
        else:
            self.stage()


STAGINGS: dict[str, type[Staging]] = {
    "checkpoint-truncated": Truncated,
    "checkpoint-foreign": Foreign,
    "checkpoint-rank0-only": OnlyMain,
}
