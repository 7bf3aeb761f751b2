"""Rank 1 never calls the second all_reduce, so rank 0 hangs in it."""

from __future__ import annotations

import linecache
import sys
import threading
import time
from types import FrameType

import torch
import torch.distributed as dist

from pytest_clustersmoke.rank import Rank


def stay_away(rank: Rank) -> None:
    rank.fact(hangs_next=True)
    threading.Event().wait()


def say_when_it_waits(rank: Rank, main_thread: int) -> None:
    """Once the main thread has called the collective and waits for its end."""
    while not waits_for_work(sys._current_frames()[main_thread]):
        time.sleep(0.01)
    rank.fact(hangs_next=True)


def waits_for_work(frame: FrameType) -> bool:
    code = frame.f_code
    line = linecache.getline(code.co_filename, frame.f_lineno)
    return code.co_name == "all_reduce" and "work.wait()" in line


def main() -> None:
    with Rank.start(timeout_s=300) as rank:
        dist.all_reduce(torch.ones(3))
        if rank.rank == 1:
            stay_away(rank)
        told = (rank, threading.get_ident())
        threading.Thread(target=say_when_it_waits, args=told, daemon=True).start()
        dist.all_reduce(torch.ones(5))


if __name__ == "__main__":
    main()
