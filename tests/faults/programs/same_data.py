"""train_mlp.py, or train_zero.py if it is given a ZeRO stage, with the same data on every rank."""

from __future__ import annotations

import importlib
import sys
from typing import Any

program: Any = importlib.import_module("train_zero" if "--stage" in sys.argv else "train_mlp")
Teacher: Any = program.Teacher


def make_same_teacher(width: int, batch_size: int, rank: int, *rest: Any) -> Any:
    return Teacher(width, batch_size, 0, *rest)


program.Teacher = make_same_teacher

if __name__ == "__main__":
    program.main()
