"""train_mlp.py in which rank 0 flips one bit of a weight before step 6, as a memory error would."""

from __future__ import annotations

import importlib
from typing import Any

import torch

teacher: Any = importlib.import_module("teacher")
train_mlp: Any = importlib.import_module("train_mlp")
staging: Any = importlib.import_module("staging")
AT_RANK, AT_STEP, BIT = 0, 5, 22  # the highest bit of the mantissa


class Flipping:
    """The teacher; before the batch of a step it flips the bit, once."""

    model: Any = None

    def __init__(self, width: int, batch_size: int, rank: int, *more: Any) -> None:
        self._whole = teacher.Teacher(width, batch_size, rank, *more)
        self._flips = rank == AT_RANK

    def batch(self, step: int) -> Any:
        if self._flips and step == AT_STEP:
            self._flips = False
            staging.staged()
            weight = next(Flipping.model.parameters())
            weight.data.view(torch.int32)[0, 0] ^= 1 << BIT
        return self._whole.batch(step)


def remember_model(*sizes: int) -> Any:
    model = whole_model(*sizes)
    Flipping.model = Flipping.model or model
    return model


if __name__ == "__main__":
    whole_model = train_mlp.build_model
    train_mlp.build_model = remember_model
    train_mlp.Teacher = Flipping
    train_mlp.main()
