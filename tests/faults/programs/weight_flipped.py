"""train_mlp.py in which rank 0 flips one bit of a weight before step 6, as a memory error would."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import torch

teacher: Any = importlib.import_module("teacher")
train_mlp: Any = importlib.import_module("train_mlp")
staging: Any = importlib.import_module("staging")
AT_RANK, AT_STEP, BIT = 0, 5, 22  # the highest bit of the mantissa


class Flipping:
    """The teacher; before the batch of a step `flip` is called on one rank, once."""

    at_rank: int | None = AT_RANK
    flip: Callable[[], None]

    def __init__(self, *sizes: Any) -> None:
        self._whole = teacher.Teacher(*sizes)

    def batch(self, step: int) -> Any:
        if step == AT_STEP and int(os.environ["RANK"]) == Flipping.at_rank:
            Flipping.at_rank = None
            staging.staged()
            Flipping.flip()
        return self._whole.batch(step)


def keep_first(build: Callable[..., Any], built: list[Any]) -> Callable[..., Any]:
    """`build`, which also appends what it builds: the first is trained, later ones are reloads."""

    def build_and_keep(*settings: Any) -> Any:
        built.append(build(*settings))
        return built[-1]

    return build_and_keep


def main() -> None:
    models: list[Any] = []

    def flip() -> None:
        next(models[0].parameters()).data.view(torch.int32)[0, 0] ^= 1 << BIT

    Flipping.flip = staticmethod(flip)
    train_mlp.build_model = keep_first(train_mlp.build_model, models)
    train_mlp.Teacher = Flipping
    train_mlp.main()


if __name__ == "__main__":
    main()
