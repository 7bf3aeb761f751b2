"""train_mlp.py whose ranks take RANK for LOCAL_RANK: right on the first node alone."""

from __future__ import annotations

import importlib
import os
from typing import Any

train_mlp: Any = importlib.import_module("train_mlp")

if __name__ == "__main__":
    os.environ["LOCAL_RANK"] = os.environ["RANK"]
    train_mlp.main()
