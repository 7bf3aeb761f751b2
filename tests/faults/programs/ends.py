"""train_ddp.py in which one rank ends, or stops, in the middle of training.

--how exits-0 | exits-3 | killed | raises | hangs    --at-rank R    --at-step S (from 0)
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

from pytest_clustersmoke.rank import Rank, Step

train_ddp: Any = importlib.import_module("train_ddp")


def raises() -> None:
    raise ValueError("staged: this rank has had enough")


def hangs() -> None:
    threading.Event().wait()


ENDS = {
    "exits-0": lambda: os._exit(0),
    "exits-3": lambda: os._exit(3),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "raises": raises,
    "hangs": hangs,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--how", choices=ENDS, required=True)
    parser.add_argument("--at-rank", type=int, required=True)
    parser.add_argument("--at-step", type=int, default=3)
    given, rest = parser.parse_known_args()
    whole_steps = Rank.steps

    def steps(rank: Rank, count: int, **sizes: Any) -> Iterator[Step]:
        for step in whole_steps(rank, count, **sizes):
            if rank.rank == given.at_rank and step.index == given.at_step:
                ENDS[given.how]()
            yield step

    Rank.steps = steps  # type: ignore[method-assign, assignment]
    sys.argv[1:] = rest
    train_ddp.main()


if __name__ == "__main__":
    main()
