"""train_zero.py whose checkpoint is incomplete.

--fault rank-0-only    only rank 0 saves, as is right for DDP: the other ranks' shares are missing
        shard-cut      rank 1's share of the optimizer is cut in half once it is written
        shard-gone     it is removed
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from pytest_clustersmoke.rank import Rank

train_zero: Any = importlib.import_module("train_zero")
staging: Any = importlib.import_module("staging")


def save_badly(rank: Rank, save: Callable[[], object]) -> None:
    if fault == "rank-0-only":
        if rank.is_main:
            staging.staged()
        whole_save(rank, save if rank.is_main else lambda: None)
        return
    whole_save(rank, save)
    if rank.rank == 1:
        (shard,) = rank.output_dir.glob("**/*zero_pp_rank_1_*optim_states.pt")
        staging.staged()
        if fault == "shard-cut":
            os.truncate(shard, shard.stat().st_size // 2)
        else:
            shard.unlink()
    rank.barrier()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=("rank-0-only", "shard-cut", "shard-gone"))
    options, sys.argv[1:] = parser.parse_known_args()
    fault = options.fault
    whole_save = Rank.save_checkpoint
    Rank.save_checkpoint = save_badly  # type: ignore[method-assign, assignment]
    train_zero.main()
