"""train_mlp.py where rank 1 has three batches fewer than the others and ends its loop early."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from itertools import islice
from typing import Any

from pytest_clustersmoke.rank import Rank, Step

train_mlp: Any = importlib.import_module("train_mlp")
staging: Any = importlib.import_module("staging")
SHORT_RANK, SHORT_BY = 1, 3


def steps(rank: Rank, count: int, **sizes: Any) -> Iterator[Step]:
    """As `zip(rank.steps(count), batches)`, with fewer batches on one rank."""
    if rank.rank != SHORT_RANK:
        yield from whole_steps(rank, count, **sizes)
        return
    yield from islice(whole_steps(rank, count, **sizes), count - SHORT_BY)
    staging.staged()


if __name__ == "__main__":
    whole_steps = Rank.steps
    Rank.steps = steps  # type: ignore[method-assign, assignment]
    train_mlp.main()
