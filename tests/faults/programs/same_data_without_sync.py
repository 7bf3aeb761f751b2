"""train_mlp.py with the same data on every rank, and with DDP's reduction left out."""

from __future__ import annotations

import importlib
from typing import Any

same_data: Any = importlib.import_module("same_data")
ddp_without_sync: Any = importlib.import_module("ddp_without_sync")

if __name__ == "__main__":
    same_data.program.DistributedDataParallel = ddp_without_sync.Unsynced
    same_data.program.main()
