"""One rank calls different collectives from the others, at step 3.

--how skips | shape | type | order | other | late    --at-rank R    --steps N

`late` is late by more than the process group's own time limit (--timeout-s).
"""

from __future__ import annotations

import argparse
import importlib
import threading
from typing import Any

import torch
import torch.distributed as dist

from pytest_clustersmoke.rank import Rank

staging: Any = importlib.import_module("staging")
AT_STEP = 3


def reduce_gradients(size: int = 400, dtype: torch.dtype = torch.float32) -> None:
    dist.all_reduce(torch.ones(size, dtype=dtype))


def share_scale() -> None:
    dist.broadcast(torch.ones(6), src=0)


def reduce_loss() -> None:
    dist.all_reduce(torch.ones(9))


def gather_losses() -> None:
    dist.all_gather([torch.ones(9) for _ in range(dist.get_world_size())], torch.ones(9))


def in_step() -> None:
    reduce_gradients()
    share_scale()
    reduce_loss()


def out_of_step(how: str) -> None:
    if how == "late":
        threading.Event().wait()
    if how == "order":
        share_scale()
        reduce_gradients()
    elif how == "shape":
        reduce_gradients(size=800)
        share_scale()
    elif how == "type":
        reduce_gradients(dtype=torch.float64)
        share_scale()
    else:
        if how != "skips":
            gather_losses()
        share_scale()
    reduce_loss()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--how", required=True)
    parser.add_argument("--at-rank", type=int, required=True)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--timeout-s", type=float, default=120)
    args = parser.parse_args()
    with Rank.start(timeout_s=args.timeout_s) as rank:
        for step in rank.steps(args.steps, samples_per_rank=1):
            if step.index == AT_STEP and rank.rank == args.at_rank:
                staging.staged()
                out_of_step(args.how)
            else:
                in_step()
            step.record(loss=1.0)


if __name__ == "__main__":
    main()
