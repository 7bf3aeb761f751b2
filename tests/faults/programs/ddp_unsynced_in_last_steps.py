"""train_mlp.py under no_sync in the last three of its 30 steps."""

from __future__ import annotations

import importlib
from typing import Any

from torch.nn.parallel import DistributedDataParallel

train_mlp: Any = importlib.import_module("train_mlp")
FIRST_UNSYNCED = 28


class Unsynced(DistributedDataParallel):
    forwards = 0

    def forward(self, *inputs: Any, **named: Any) -> Any:
        self.forwards += 1
        whole: Any = super().forward
        if self.forwards < FIRST_UNSYNCED:
            return whole(*inputs, **named)
        with self.no_sync():
            return whole(*inputs, **named)


if __name__ == "__main__":
    train_mlp.DistributedDataParallel = Unsynced
    train_mlp.main()
