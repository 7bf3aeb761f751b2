"""Rank 1 never calls the second all_reduce, so rank 0 hangs in it."""

from __future__ import annotations

import threading

import torch
import torch.distributed as dist

from pytest_clustersmoke.rank import Rank


def stay_away() -> None:
    threading.Event().wait()


def main() -> None:
    with Rank.start(timeout_s=300) as rank:
        dist.all_reduce(torch.ones(3))
        rank.fact(hangs_next=True)
        if rank.rank == 1:
            stay_away()
        dist.all_reduce(torch.ones(5))


if __name__ == "__main__":
    main()
