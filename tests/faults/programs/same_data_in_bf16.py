"""train_mlp.py in bf16 and without a `Proof`, with the same data on every rank.

Only losses of 16 bits show it, which are equal in every step.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import torch

from pytest_clustersmoke.rank import Proof, Rank

program: Any = importlib.import_module("same_data").program
build, loss_of, steps = program.build, program.loss_of, Rank.steps


def build_in_bf16(*args: Any) -> Any:
    model, optimizer = build(*args)
    return model.to(torch.bfloat16), optimizer


def loss_in_bf16(model: Any, batch: Any) -> Any:
    return loss_of(model, [tensor.to(torch.bfloat16) for tensor in batch])


def steps_without_proof(rank: Rank, count: int, *, proof: Proof, **named: Any) -> Iterator[Any]:
    return steps(rank, count, gradients_of=proof.model.named_parameters(), **named)


if __name__ == "__main__":
    program.build, program.loss_of = build_in_bf16, loss_in_bf16
    Rank.steps = steps_without_proof  # type: ignore[method-assign,assignment]
    program.main()
