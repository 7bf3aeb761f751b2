"""train_mlp.py where rank 1 takes long for its own part of each step, so that all are slow."""

from __future__ import annotations

import importlib
import time
from typing import Any

train_mlp: Any = importlib.import_module("train_mlp")
teacher: Any = importlib.import_module("teacher")
SLOW_RANK, LATE_S = 1, 0.15


class Slow(teacher.Teacher):  # type: ignore[misc]  # programs import each other by name
    def __init__(self, width: int, batch_size: int, rank: int, device: Any) -> None:
        super().__init__(width, batch_size, rank, device)
        self._late_s = LATE_S if rank == SLOW_RANK else 0.0

    def batch(self, step: int) -> Any:
        time.sleep(self._late_s)
        return super().batch(step)


if __name__ == "__main__":
    train_mlp.Teacher = Slow
    train_mlp.main()
