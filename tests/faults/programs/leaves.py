"""Rank 1 returns from its program at step 3, cleanly and with status 0; rank 0 keeps training."""

from __future__ import annotations

import argparse
import importlib
from typing import Any

import torch
import torch.distributed as dist

from pytest_clustersmoke.rank import Rank

staging: Any = importlib.import_module("staging")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    args = parser.parse_args()
    with Rank.start(timeout_s=60) as rank:
        for step in rank.steps(args.steps, samples_per_rank=1):
            if rank.rank == 1 and step.index == 3:
                staging.staged()
                return
            loss = torch.ones(1)
            dist.all_reduce(loss)
            step.record(loss=loss)


if __name__ == "__main__":
    main()
