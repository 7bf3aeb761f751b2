"""train_mlp.py, or train_zero.py if it is given a ZeRO stage, with the same data on every rank, and
with the engine's reduction left out."""

from __future__ import annotations

import importlib
import sys
from typing import Any

same_data: Any = importlib.import_module("same_data")
ddp_without_sync: Any = importlib.import_module("ddp_without_sync")

if __name__ == "__main__":
    if "--stage" in sys.argv:
        zero_without_reductions: Any = importlib.import_module("zero_without_reductions")
        zero_without_reductions.remove_reductions()
    else:
        same_data.program.DistributedDataParallel = ddp_without_sync.Unsynced
    same_data.program.main()
