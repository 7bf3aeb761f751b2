"""train_mlp.py under a DDP that adds the ranks' gradients and does not divide by their number."""

from __future__ import annotations

import importlib
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

train_mlp: Any = importlib.import_module("train_mlp")


def add_gradients(buffer: torch.Tensor) -> Any:
    """All-reduce without a division."""
    work: Any = dist.all_reduce(buffer, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


class Summed(DistributedDataParallel):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        # A lambda, since DDP compares the annotations of a hook.
        self.register_comm_hook(None, lambda state, bucket: add_gradients(bucket.buffer()))


if __name__ == "__main__":
    train_mlp.DistributedDataParallel = Summed
    train_mlp.main()
