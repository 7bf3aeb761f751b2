"""train_mlp.py on a rank whose address space has no room for the optimizer's state.

As in a full fine-tune, the weights fit, but the first step, which makes Adam's two moments of each,
does not.
"""

from __future__ import annotations

import importlib
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_clustersmoke.rank import Rank, Step

train_mlp: Any = importlib.import_module("train_mlp")
staging: Any = importlib.import_module("staging")
AT_RANK = 1
SPARE_BYTES = 4 * 2**20


def limit() -> None:
    """Limit the address space to what this process has now, and little more."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + SPARE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def steps(rank: Rank, count: int, **sizes: Any) -> Iterator[Step]:
    for step in whole_steps(rank, count, **sizes):
        if rank.rank == AT_RANK and step.index == 0:
            staging.staged()
            limit()
        yield step


if __name__ == "__main__":
    whole_steps = Rank.steps
    Rank.steps = steps  # type: ignore[method-assign, assignment]
    train_mlp.main()
