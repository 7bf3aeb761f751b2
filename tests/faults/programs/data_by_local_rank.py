"""train_mlp.py whose ranks draw their data by the local rank, as if there were one node.

--dropout    with dropout, under which the losses of ranks with the same data differ
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import Any

import torch

train_mlp: Any = importlib.import_module("train_mlp")
Teacher: Any = train_mlp.Teacher
build: Any = train_mlp.build


def make_teacher_of_local_rank(width: int, batch_size: int, rank: int, *rest: Any) -> Any:
    return Teacher(width, batch_size, rank % int(os.environ["LOCAL_WORLD_SIZE"]), *rest)


def build_with_dropout(*given: Any) -> Any:
    model, optimizer = build(*given)
    for layer in [m for m in model if isinstance(m, torch.nn.GELU)]:
        layer.register_forward_hook(lambda each, _, output: dropout(output, each.training))
    torch.manual_seed(int(os.environ["RANK"]))  # other elements are dropped on each rank
    return model, optimizer


def dropout(output: torch.Tensor, is_training: bool) -> torch.Tensor:
    return torch.nn.functional.dropout(output, 0.1, is_training)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--dropout", action="store_true")
    options, sys.argv[1:] = parser.parse_known_args()
    train_mlp.Teacher = make_teacher_of_local_rank
    if options.dropout:
        train_mlp.build = build_with_dropout
    train_mlp.main()
