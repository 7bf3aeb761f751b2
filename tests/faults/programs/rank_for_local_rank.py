"""train_mlp.py whose ranks use RANK as LOCAL_RANK, which is right only on the first node."""

from __future__ import annotations

import importlib
import os
from typing import Any

train_mlp: Any = importlib.import_module("train_mlp")

if __name__ == "__main__":
    os.environ["LOCAL_RANK"] = os.environ["RANK"]
    train_mlp.main()
