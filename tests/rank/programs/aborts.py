"""Rank 0 aborts from a thread while it waits in a collective, as gloo and NCCL do."""

from __future__ import annotations

import ctypes
import threading

import torch
import torch.distributed as dist

from pytest_clustersmoke.rank import Rank


def main() -> None:
    with Rank.start(timeout_s=300) as rank:
        dist.all_reduce(torch.ones(3))
        if rank.rank == 1:
            threading.Event().wait()
        # A call through ctypes releases Python's lock.
        threading.Timer(1.0, ctypes.CDLL(None).abort).start()
        dist.all_reduce(torch.ones(5))


if __name__ == "__main__":
    main()
