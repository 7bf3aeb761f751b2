"""train_mlp.py with the same data on every rank, and dropout, under which the losses differ."""

from __future__ import annotations

import importlib
import os
from typing import Any

import torch

train_mlp: Any = importlib.import_module("same_data").program


def build_with_dropout(*given: Any) -> Any:
    model, optimizer = whole_build(*given)
    for layer in [m for m in model if isinstance(m, torch.nn.GELU)]:
        layer.register_forward_hook(lambda each, _, output: dropout(output, each.training))
    torch.manual_seed(int(os.environ["RANK"]))  # other elements are dropped on each rank
    return model, optimizer


def dropout(output: torch.Tensor, is_training: bool) -> torch.Tensor:
    return torch.nn.functional.dropout(output, 0.1, is_training)


if __name__ == "__main__":
    whole_build = train_mlp.build
    train_mlp.build = build_with_dropout
    train_mlp.main()
