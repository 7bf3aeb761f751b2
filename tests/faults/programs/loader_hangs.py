"""The data set of one rank hangs at an item: in the rank itself (--workers 0), or in a worker of
its DataLoader (--workers 1), for which the rank then waits.

--at-rank R    --workers N    --steps N
"""

from __future__ import annotations

import argparse
import importlib
import threading
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from pytest_clustersmoke.rank import Rank

staging: Any = importlib.import_module("staging")
HANGS_AT = 3


class Items(Dataset[torch.Tensor]):
    def __init__(self, count: int, hangs: bool) -> None:
        self._count, self._hangs = count, hangs

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._hangs and index == HANGS_AT:
            staging.staged()
            threading.Event().wait()
        return torch.ones(4)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--at-rank", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--steps", type=int, default=8)
    args = parser.parse_args()
    with Rank.start() as rank:
        items = Items(args.steps, hangs=rank.rank == args.at_rank)
        batches = iter(DataLoader(items, batch_size=1, num_workers=args.workers))
        for step in rank.steps(args.steps, samples_per_rank=1):
            loss = next(batches).sum()
            dist.all_reduce(loss)
            step.record(loss=loss)


if __name__ == "__main__":
    main()
