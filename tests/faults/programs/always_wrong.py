"""train_mlp.py in which a matrix product of rank 1 is wrong in every pass, and in the same way, as
on a GPU with a defect that does not come and go."""

from __future__ import annotations

import functools
import importlib
import os
from typing import Any

import torch

train_mlp: Any = importlib.import_module("train_mlp")
staging: Any = importlib.import_module("staging")
AT_RANK = 1
stage_once = functools.cache(staging.staged)


def spoil(_layer: Any, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
    stage_once()
    wrong = output.clone()
    wrong[0, 0] *= 1.5
    return wrong


def spoilt_model(*sizes: int) -> Any:
    model = whole_model(*sizes)
    if int(os.environ["RANK"]) == AT_RANK:
        model[0].register_forward_hook(spoil)
    return model


if __name__ == "__main__":
    whole_model = train_mlp.build_model
    train_mlp.build_model = spoilt_model
    train_mlp.main()
