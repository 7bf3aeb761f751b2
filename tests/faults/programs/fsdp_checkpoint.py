"""train_fsdp.py whose checkpoint has a wrong shard.

--fault shard-gone       rank 1's shard is removed once it is written
        shard-foreign    one of a save by one rank is in its place
        shard-stopped    rank 1's shard of what the next attempt goes on from is removed
"""

from __future__ import annotations

import argparse
import importlib
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from pytest_clustersmoke.rank import Rank

train_fsdp: Any = importlib.import_module("train_fsdp")
staging: Any = importlib.import_module("staging")


def save_badly(model: Any, optimizer: Any, rank: Rank) -> None:
    save(model, optimizer, rank)
    whole = {name: weight.full_tensor() for name, weight in model.named_parameters()}
    if rank.rank == 1:
        shard = rank.output_dir / train_fsdp.SHARDS / "__1_0.distcp"
        staging.staged()
        if fault == "shard-gone":
            shard.unlink()
        else:
            alone = rank.output_dir.parent / "save_of_one_rank"
            train_fsdp.save_shards({"model": whole}, checkpoint_id=str(alone), no_dist=True)
            shutil.copy(alone / "__0_0.distcp", shard)


def lose_progress(state: Any, *, checkpoint_id: str) -> None:
    save_shards(state, checkpoint_id=checkpoint_id)
    if dist.get_rank() == 1 and Path(checkpoint_id).name == train_fsdp.STOPPED:
        staging.staged()
        (Path(checkpoint_id) / "__1_0.distcp").unlink()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=("shard-gone", "shard-foreign", "shard-stopped"))
    options, sys.argv[1:] = parser.parse_known_args()
    fault = options.fault
    save: Callable[[Any, Any, Rank], None] = train_fsdp.save
    save_shards: Callable[..., Any] = train_fsdp.save_shards
    if fault == "shard-stopped":
        train_fsdp.save_shards = lose_progress
    else:
        train_fsdp.save = save_badly
    train_fsdp.main()
