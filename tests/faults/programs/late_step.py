"""Rank 1 takes 2 s for one step and again for its checkpoint, while the others wait: slow, but
within its limit of 4 s."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from pytest_clustersmoke.rank import Rank

LATE_S = 2.0


def main() -> None:
    with Rank.start() as rank:
        for step in rank.steps(6, samples_per_rank=1):
            if rank.rank == 1 and step.index == 3:
                time.sleep(LATE_S)
            loss = torch.ones(1)
            dist.all_reduce(loss)
            step.record(loss=loss)
        if rank.rank == 1:
            time.sleep(LATE_S)
        rank.save_checkpoint(lambda: None)


if __name__ == "__main__":
    main()
