"""train_zero.py if it is given a ZeRO stage, else train_lora_sft.py, where the backward pass of
rank 1 takes four times its time."""

from __future__ import annotations

import importlib
import sys
import time
from typing import Any

import torch

from pytest_clustersmoke.rank import Proof, Rank, StepLog

program: Any = importlib.import_module("train_zero" if "--stage" in sys.argv else "train_lora_sft")
burn: Any = importlib.import_module("slow_backward").burn
SLOW_RANK, TIMES = 1, 4
step_log = Rank.step_log


class SlowBackward:
    """From the gradient of the model's output to that of its first parameter, a pass of the model
    that the engine wraps takes so many times as long."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._began_s = 0.0
        model.register_forward_hook(self.watch_output)
        first = next(p for p in model.parameters() if p.requires_grad)
        first.register_hook(self.wait)

    def watch_output(self, _model: Any, _inputs: Any, output: Any) -> None:
        result: torch.Tensor = getattr(output, "loss", output)
        if result.requires_grad:
            result.register_hook(self.begin)

    def begin(self, _gradient: torch.Tensor) -> None:
        self._began_s = time.process_time()

    def wait(self, _gradient: torch.Tensor) -> None:
        burn((TIMES - 1) * (time.process_time() - self._began_s))


def slow_step_log(rank: Rank, count: int, *, proof: Proof, **rest: Any) -> StepLog:
    if rank.rank == SLOW_RANK:
        SlowBackward(proof.model)
    return step_log(rank, count, proof=proof, **rest)


if __name__ == "__main__":
    Rank.step_log = slow_step_log  # type: ignore[method-assign, assignment]
    program.main()
