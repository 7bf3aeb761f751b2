"""train_zero.py in which rank 1 flips one bit of its master weights before step 6, as a memory
error would; the optimizer then passes the wrong weight on to all ranks."""

from __future__ import annotations

import importlib
import os
from typing import Any

import torch

teacher: Any = importlib.import_module("teacher")
train_zero: Any = importlib.import_module("train_zero")
staging: Any = importlib.import_module("staging")
AT_RANK, AT_STEP, BIT = 1, 5, 22  # the highest bit of the mantissa


class Flipping:
    """The teacher; before the batch of a step it flips the bit, once."""

    engine: Any = None

    def __init__(self, *sizes: Any) -> None:
        self._whole = teacher.Teacher(*sizes)
        self._flips = int(os.environ["RANK"]) == AT_RANK

    def batch(self, step: int) -> Any:
        if self._flips and step == AT_STEP:
            self._flips = False
            staging.staged()
            master = Flipping.engine.optimizer.single_partition_of_fp32_groups[0].data
            master.view(torch.int32)[master.abs().argmax()] ^= 1 << BIT
        return self._whole.batch(step)


def remember_engine(*settings: Any) -> Any:
    engine = whole_build(*settings)
    Flipping.engine = Flipping.engine or engine
    return engine


if __name__ == "__main__":
    whole_build = train_zero.build
    train_zero.build = remember_engine
    train_zero.Teacher = Flipping
    train_zero.main()
