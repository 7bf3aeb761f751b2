"""train_mlp.py with DDP's reduction left out: every rank trains on its own gradients."""

from __future__ import annotations

import importlib
from typing import Any

from torch.nn.parallel import DistributedDataParallel

train_mlp: Any = importlib.import_module("train_mlp")


class Unsynced(DistributedDataParallel):
    def forward(self, *inputs: Any, **named: Any) -> Any:
        with self.no_sync():  # DDP decides in the forward pass whether the backward reduces
            whole: Any = super().forward
            return whole(*inputs, **named)


if __name__ == "__main__":
    train_mlp.DistributedDataParallel = Unsynced
    train_mlp.main()
