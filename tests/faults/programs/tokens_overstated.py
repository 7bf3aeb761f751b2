"""train_lora_sft.py that counts ten times as many tokens as it trains on."""

from __future__ import annotations

import importlib
from typing import Any

from pytest_clustersmoke.rank import Rank, StepLog

train_lora_sft: Any = importlib.import_module("train_lora_sft")


def step_log(rank: Rank, count: int, *, tokens_per_rank: int, **rest: Any) -> StepLog:
    return whole_log(rank, count, tokens_per_rank=10 * tokens_per_rank, **rest)


if __name__ == "__main__":
    whole_log = Rank.step_log
    Rank.step_log = step_log  # type: ignore[method-assign, assignment]
    train_lora_sft.main()
