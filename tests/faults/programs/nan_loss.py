"""train_ddp.py where rank 1 meets a NaN in its data at step 3."""

from __future__ import annotations

import importlib
from typing import Any

import torch

train_ddp: Any = importlib.import_module("train_ddp")
teacher: Any = importlib.import_module("teacher")


class Spoilt:
    """The teacher, and one bad number. Step 0 is the gradient probe's too."""

    def __init__(self, width: int, batch_size: int, rank: int, device: torch.device) -> None:
        self._whole = teacher.Teacher(width, batch_size, rank, device)
        self._bad = rank == 1

    def batch(self, step: int) -> Any:
        inputs, targets = self._whole.batch(step)
        if self._bad and step == 3:
            inputs = inputs.clone()
            inputs[0, 0] = float("nan")
        return inputs, targets


if __name__ == "__main__":
    train_ddp.Teacher = Spoilt
    train_ddp.main()
