"""train_zero.py in which rank 1 flips one bit of its master weights before step 6, as a memory
error would; the optimizer then passes the wrong weight on to all ranks."""

from __future__ import annotations

import importlib
from typing import Any

import torch

train_zero: Any = importlib.import_module("train_zero")
weight_flipped: Any = importlib.import_module("weight_flipped")

if __name__ == "__main__":
    engines: list[Any] = []

    def flip() -> None:
        master = engines[0].optimizer.single_partition_of_fp32_groups[0].data
        master.view(torch.int32)[master.abs().argmax()] ^= 1 << weight_flipped.BIT

    weight_flipped.Flipping.at_rank = 1
    weight_flipped.Flipping.flip = staticmethod(flip)
    train_zero.build = weight_flipped.keep_first(train_zero.build, engines)
    train_zero.Teacher = weight_flipped.Flipping
    train_zero.main()
