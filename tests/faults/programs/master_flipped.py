"""train_zero.py in which rank 1 flips one bit of its state before step 6, as a memory error would.

--state master    of its master weights: the optimizer passes the wrong weight on to all ranks
        copy      of the copy in bf16 that its own forward and backward passes read
"""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import Any

import torch

train_zero: Any = importlib.import_module("train_zero")
weight_flipped: Any = importlib.import_module("weight_flipped")
BIT_OF_BF16 = 6  # the highest bit of the mantissa

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--state", choices=("master", "copy"), default="master")
    chosen, sys.argv[1:] = parser.parse_known_args()
    engines: list[Any] = []

    def flip() -> None:
        if chosen.state == "master":
            master = engines[0].optimizer.single_partition_of_fp32_groups[0].data
            master.view(torch.int32)[master.abs().argmax()] ^= 1 << weight_flipped.BIT
        else:
            copy = next(engines[0].module.parameters()).data
            assert copy.dtype == torch.bfloat16
            copy.view(torch.int16)[0, 0] ^= 1 << BIT_OF_BF16

    weight_flipped.Flipping.at_rank = 1
    weight_flipped.Flipping.flip = staticmethod(flip)
    train_zero.build = weight_flipped.keep_first(train_zero.build, engines)
    train_zero.Teacher = weight_flipped.Flipping
    train_zero.main()
