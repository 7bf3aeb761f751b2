"""Checkpoints that are cut, foreign or partial."""

from __future__ import annotations

import os
from collections.abc import Callable

from .staging import Staging, cannot


class Truncated(Staging):
    """The largest file is cut in half once it is written, as on a disk that lost its last part."""

    def saved(self) -> None:
        if self.rank.is_main:
            files = [path for path in self.rank.output_dir.rglob("*") if path.is_file()]
            largest = max(files, key=lambda path: path.stat().st_size, default=None)
            if largest is None or not largest.stat().st_size:
                raise cannot("its checkpoint contains no file with data")
            self.stage()
            os.truncate(largest, largest.stat().st_size // 2)
        self.rank.barrier()


class Foreign(Staging):
    """While the program saves, its smallest parameter has other values."""

    def save(self, save: Callable[[], object]) -> None:
        import torch

        if not self.parameters:
            raise cannot("it passed no parameter to verify_gradients")
        one = min(self.parameters, key=lambda parameter: parameter.numel())
        before = one.detach().clone()
        self.stage()
        with torch.no_grad():
            one.add_(1.0)
            save()
            one.copy_(before)


class OnlyMain(Staging):
    """The other ranks leave their share of the checkpoint out."""

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
