"""train_mlp.py in which a matrix product of rank 1 is wrong in every second backward pass, before
any reduction, as on a GPU that computes wrongly now and then."""

from __future__ import annotations

import importlib
import os
from typing import Any

import torch

train_mlp: Any = importlib.import_module("train_mlp")
staging: Any = importlib.import_module("staging")
AT_RANK = 1


def corrupt_now_and_then(model: Any) -> None:
    passes = 0

    def corrupt(gradient: torch.Tensor) -> torch.Tensor:
        nonlocal passes
        passes += 1
        if passes % 2:
            return gradient
        staging.staged()
        wrong = gradient.clone()
        wrong[0, 0] *= 2
        return wrong

    next(model.parameters()).register_hook(corrupt)


def spoilt_model(*sizes: int) -> Any:
    model = whole_model(*sizes)
    if int(os.environ["RANK"]) == AT_RANK:
        corrupt_now_and_then(model)
    return model


if __name__ == "__main__":
    whole_model = train_mlp.build_model
    train_mlp.build_model = spoilt_model
    train_mlp.main()
