"""train_mlp.py under no_sync in the last three of its 30 steps."""

from __future__ import annotations

import importlib
from typing import Any

unsynced: Any = importlib.import_module("ddp_unsynced_from_step_5")

if __name__ == "__main__":
    unsynced.FIRST_UNSYNCED = 28
    unsynced.train_mlp.DistributedDataParallel = unsynced.Unsynced
    unsynced.train_mlp.main()
