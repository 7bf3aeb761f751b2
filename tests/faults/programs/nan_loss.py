"""A program in which rank 1 has a NaN at step 3: --where data | gradient | parameter."""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import Any

import torch

teacher: Any = importlib.import_module("teacher")
staging: Any = importlib.import_module("staging")
AT_RANK, AT_STEP = 1, 3


class Spoilt:
    """The teacher, with one bad number. The gradient probe also uses step 0."""

    where = "data"
    model: Any = None
    spoils_gradient = False

    def __init__(self, width: int, batch_size: int, rank: int, *more: Any) -> None:
        self._whole = teacher.Teacher(width, batch_size, rank, *more)
        self._bad = rank == AT_RANK

    def batch(self, step: int) -> Any:
        inputs, targets = self._whole.batch(step)
        now = self._bad and step == AT_STEP
        if now:
            staging.staged()
        Spoilt.spoils_gradient = now and self.where == "gradient"
        if now and self.where == "data":
            inputs = inputs.clone()
            inputs[0, 0] = float("nan")
        if now and self.where == "parameter":
            with torch.no_grad():
                next(Spoilt.model.parameters())[0, 0] = float("nan")
        return inputs, targets


def spoilt_model(*sizes: int) -> Any:
    """The model; the gradient of its first weight can be spoilt before it is reduced."""
    model = whole_model(*sizes)

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        return gradient * float("nan") if Spoilt.spoils_gradient else gradient

    weight: Any = next(model.parameters())
    weight.register_hook(spoil)
    Spoilt.model = Spoilt.model or model
    return model


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--where", choices=("data", "gradient", "parameter"), default="data")
    parser.add_argument("--program", choices=("train_mlp", "train_zero"), default="train_mlp")
    options, sys.argv[1:] = parser.parse_known_args()
    Spoilt.where = options.where
    program: Any = importlib.import_module(options.program)
    models: Any = importlib.import_module(
        "zero_engine" if options.program == "train_zero" else options.program
    )
    whole_model = models.build_model
    models.build_model = spoilt_model
    program.Teacher = Spoilt
    program.main()
