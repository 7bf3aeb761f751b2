"""train_mlp.py where the backward pass of one rank takes several times its time."""

from __future__ import annotations

import importlib
import os
import time
from typing import Any

import torch

train_mlp: Any = importlib.import_module("train_mlp")
SLOW_RANK, TIMES = int(os.environ.get("SLOW_RANK", 1)), int(os.environ.get("SLOW_TIMES", 4))
PASSES = 5


def burn(cpu_s: float) -> None:
    """Compute for as long: sleep would not show in the CPU time."""
    end = time.process_time() + cpu_s
    while time.process_time() < end:
        pass


def backward_cpu_s(model: torch.nn.Module, batch: torch.Tensor) -> float:
    """CPU seconds of a backward pass, the fastest of a few."""
    seconds = []
    for _ in range(PASSES):
        loss = model(batch).square().mean()
        began = time.process_time()
        torch.autograd.grad(loss, list(model.parameters()))
        seconds.append(time.process_time() - began)
    return min(seconds)


def build(args: Any, seed: int, device: torch.device) -> Any:
    model, optimizer = train_mlp.healthy_build(args, seed, device)
    late_s = (TIMES - 1) * backward_cpu_s(model, torch.ones(args.batch_size, args.hidden_size))
    model[0].weight.register_hook(lambda _: burn(late_s))
    return model, optimizer


if __name__ == "__main__":
    if int(os.environ["RANK"]) == SLOW_RANK:
        train_mlp.healthy_build, train_mlp.build = train_mlp.build, build
    train_mlp.main()
