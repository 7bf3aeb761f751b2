"""train_mlp.py whose loop trains the bare module: only the first pass, which is the probe's, goes
through DDP, so the probe finds nothing wrong."""

from __future__ import annotations

import importlib
from typing import Any

from torch.nn.parallel import DistributedDataParallel

train_mlp: Any = importlib.import_module("train_mlp")


class OnceWrapped(DistributedDataParallel):
    probed = False

    def forward(self, *inputs: Any, **named: Any) -> Any:
        if self.probed:
            return self.module(*inputs, **named)
        self.probed = True
        whole: Any = super().forward
        return whole(*inputs, **named)


if __name__ == "__main__":
    train_mlp.DistributedDataParallel = OnceWrapped
    train_mlp.main()
