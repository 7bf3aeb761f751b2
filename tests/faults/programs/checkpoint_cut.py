"""train_mlp.py whose checkpoint is cut in half once it is written."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

from pytest_clustersmoke.rank import Rank

train_mlp: Any = importlib.import_module("train_mlp")
staging: Any = importlib.import_module("staging")


def save_and_cut(rank: Rank, save: Callable[[], object]) -> None:
    whole_save(rank, save)
    if rank.is_main:
        path = rank.output_dir / "ddp.pt"
        staging.staged()
        os.truncate(path, path.stat().st_size // 2)
    rank.barrier()


if __name__ == "__main__":
    whole_save = Rank.save_checkpoint
    Rank.save_checkpoint = save_and_cut  # type: ignore[method-assign, assignment]
    train_mlp.main()
