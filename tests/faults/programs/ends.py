"""train_mlp.py in which one rank ends or hangs.

--how exits-0 | exits-3 | killed | raises | hangs    --at-rank R
--when init        before its process group is open
       model       after the group is open, before any collective of the training
       step        in training, at the step --at-step (from 0), before the step's collective
       collective  at that step, inside a collective, while it waits for a rank that is late
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from pytest_clustersmoke.rank import Rank, Step

train_mlp: Any = importlib.import_module("train_mlp")
staging: Any = importlib.import_module("staging")
LOOK_EVERY_S = 0.02
INSIDE_S = 0.5


def raises() -> None:
    raise ValueError("staged: this rank has had enough")


def hangs() -> None:
    threading.Event().wait()


ENDS: dict[str, Callable[[], object]] = {
    "exits-0": lambda: os._exit(0),
    "exits-3": lambda: os._exit(3),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "raises": raises,
    "hangs": hangs,
}


class Ending:
    """Stage the fault, if this is its rank and its moment."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.how, self.when, self.at_step = args.how, args.when, args.at_step
        self.here = int(os.environ["RANK"]) == args.at_rank

    def come(self, when: str, step: int = 0) -> None:
        if self.here and self.when == when and step == self.at_step * (when == "step"):
            staging.staged()
            ENDS[self.how]()

    def inside_a_collective(self, step: int) -> None:
        """This rank waits in an all-reduce and ends there; the others join once it has ended."""
        if self.when != "collective" or step != self.at_step:
            return
        pid = torch.tensor([os.getpid() if self.here else 0])
        dist.all_reduce(pid)
        if self.here and self.how == "raises":
            staging.staged()
            dist.all_reduce(torch.ones(1), op=dist.ReduceOp.BAND)  # gloo has it for whole numbers
        if self.here:
            threading.Thread(target=self._end_while_it_waits, daemon=True).start()
        else:
            wait_for_the_end_of(int(pid))
        dist.all_reduce(torch.ones(1))

    def _end_while_it_waits(self) -> None:
        """End once the main thread has been in the collective for a while."""
        since = time.monotonic()
        while time.monotonic() - since < INSIDE_S:
            time.sleep(LOOK_EVERY_S)
            frame = sys._current_frames()[threading.main_thread().ident or 0]
            if frame.f_code.co_name != "all_reduce":
                since = time.monotonic()
        staging.staged()
        ENDS[self.how]()


def wait_for_the_end_of(pid: int) -> None:
    """Wait until the process has ended, even if torchrun, its parent, has not reaped it yet."""
    import psutil

    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(LOOK_EVERY_S)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--how", choices=ENDS, required=True)
    parser.add_argument("--at-rank", type=int, required=True)
    parser.add_argument("--at-step", type=int, default=3)
    parser.add_argument("--when", choices=("init", "model", "step", "collective"), default="step")
    args, rest = parser.parse_known_args()
    ending = Ending(args)
    whole_steps, whole_model, whole_init = (
        Rank.steps,
        train_mlp.build_model,
        dist.init_process_group,
    )

    def steps(rank: Rank, count: int, **sizes: Any) -> Iterator[Step]:
        for step in whole_steps(rank, count, **sizes):
            ending.come("step", step.index)
            ending.inside_a_collective(step.index)
            yield step

    def build_model(hidden_size: int) -> Any:
        ending.come("model")
        return whole_model(hidden_size)

    def init_process_group(*words: Any, **named: Any) -> None:
        ending.come("init")
        whole_init(*words, **named)

    Rank.steps = steps  # type: ignore[method-assign, assignment]
    train_mlp.build_model = build_model
    dist.init_process_group = init_process_group
    sys.argv[1:] = rest
    train_mlp.main()


if __name__ == "__main__":
    main()
