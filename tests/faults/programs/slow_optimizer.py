"""train_mlp.py where the optimizer of rank 1 takes four times its time."""

from __future__ import annotations

import importlib
import os
import time
from typing import Any

import torch

train_mlp: Any = importlib.import_module("train_mlp")
burn: Any = importlib.import_module("slow_backward").burn
SLOW_RANK, TIMES = 1, 4


class AdamW(torch.optim.AdamW):
    def step(self, closure: Any = None) -> Any:
        began = time.process_time()
        loss = super().step(closure)
        burn((TIMES - 1) * (time.process_time() - began))
        return loss


if __name__ == "__main__":
    if int(os.environ["RANK"]) == SLOW_RANK:
        torch.optim.AdamW = AdamW  # type: ignore[misc]
    train_mlp.main()
