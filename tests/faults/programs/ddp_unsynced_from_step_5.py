"""train_mlp.py under no_sync from step 5 on; at the end rank 0's parameters go to all ranks."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from pytest_clustersmoke.rank import Rank

train_mlp: Any = importlib.import_module("train_mlp")
FIRST_UNSYNCED = 5


class Unsynced(DistributedDataParallel):
    forwards = 0
    trained: Any = None

    def forward(self, *inputs: Any, **named: Any) -> Any:
        Unsynced.trained = self.module
        self.forwards += 1
        whole: Any = super().forward
        if self.forwards < FIRST_UNSYNCED:
            return whole(*inputs, **named)
        with self.no_sync():
            return whole(*inputs, **named)


def save_equal_parameters(rank: Rank, save: Callable[[], object]) -> None:
    for parameter in Unsynced.trained.parameters():
        dist.broadcast(parameter.data, src=0)
    whole_save(rank, save)


if __name__ == "__main__":
    whole_save = Rank.save_checkpoint
    Rank.save_checkpoint = save_equal_parameters  # type: ignore[method-assign, assignment]
    train_mlp.DistributedDataParallel = Unsynced
    train_mlp.main()
