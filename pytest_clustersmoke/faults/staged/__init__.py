"""What a rank does to stage a fault, only in a phase whose spec names it, under `--cluster-prove`.

staging.py             the base class
rank_faults.py         ranks that die, hang, fall behind or call other collectives; sick devices
training_faults.py     wrong gradients, losses and results
reduction_faults.py    gradients that are not reduced, or not averaged
data_faults.py         the same data on all ranks; wrong evidence of what was trained
model_faults.py        another precision, and other weights trained, than the program says
checkpoint_faults.py   truncated, wrong and incomplete checkpoints
setting_faults.py      wrong configurations; faults that the job's settings stage
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...rank.core import Rank
from . import (
    checkpoint_faults,
    data_faults,
    model_faults,
    rank_faults,
    reduction_faults,
    setting_faults,
    training_faults,
)
from .staging import Staging

STAGINGS: dict[str, type[Staging]] = {
    **rank_faults.STAGINGS,
    **training_faults.STAGINGS,
    **reduction_faults.STAGINGS,
    **data_faults.STAGINGS,
    **model_faults.STAGINGS,
    **checkpoint_faults.STAGINGS,
    **setting_faults.STAGINGS,
}


def make_staging(rank: Rank, fault: Mapping[str, Any], event: Callable[..., None]) -> Staging:
    """Make the hook of a rank in a phase whose spec names `fault`. Raises ValueError if unknown."""
    name, at_rank = fault.get("name"), fault.get("rank")
    if name not in STAGINGS or type(at_rank) is not int:
        raise ValueError(
            f"a rank cannot stage {fault!r}; expected the name of one of {', '.join(STAGINGS)}"
        )
    return STAGINGS[name](rank, name, rank.rank == at_rank, event)
