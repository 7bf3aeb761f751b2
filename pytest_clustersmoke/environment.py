"""What can be said of the variables that a node will see."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .phase import Phase

# Names like NCCL's that no NCCL reads (its source, 2.3.5 to 2.30.7), with what to use instead.
NOT_NCCL = {
    "NCCL_TIMEOUT": "the timeout that counts is that of init_process_group",
    "NCCL_NET_DISABLE": "NCCL_IB_DISABLE turns InfiniBand off, NCCL_NET chooses the network",
}


def remarks(phase: Phase) -> Iterator[str]:
    """One line for each variable that does nothing."""
    for name, one in phase.env_set.items():
        if name in NOT_NCCL:
            yield f"{one.source}: {name} is no variable of NCCL and does nothing; {NOT_NCCL[name]}"
