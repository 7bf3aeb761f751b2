"""train_mlp.py whose ranks train on their loss times a weight: --weights 0.5,0.5. Proof.local_loss
computes it without the weight."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import Any

import torch

train_mlp: Any = importlib.import_module("train_mlp")
backward: Any = torch.Tensor.backward  # the proof differentiates without it


def train_with_weight(weight: float) -> None:
    def backward_of_weighted(loss: torch.Tensor) -> None:
        backward(loss * weight)

    torch.Tensor.backward = backward_of_weighted  # type: ignore[method-assign,assignment]
    train_mlp.main()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--weights", required=True)
    args, sys.argv[1:] = parser.parse_known_args()
    train_with_weight(float(args.weights.split(",")[int(os.environ["RANK"])]))
