"""train_mlp.py that counts ten times as many samples as it trains on."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from pytest_clustersmoke.rank import Rank, Step

train_mlp: Any = importlib.import_module("train_mlp")


def steps(rank: Rank, count: int, *, samples_per_rank: int, **rest: Any) -> Iterator[Step]:
    yield from whole_steps(rank, count, samples_per_rank=10 * samples_per_rank, **rest)


if __name__ == "__main__":
    whole_steps = Rank.steps
    Rank.steps = steps  # type: ignore[method-assign, assignment]
    train_mlp.main()
