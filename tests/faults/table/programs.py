"""Rank programs that are broken on purpose."""

from __future__ import annotations

from ..harness import SMALL
from .model import FALLS, FINITE, GRADIENTS, RELOAD, Fault

SMALL_ZERO = {"hidden_size": 32, "layers": 1, "micro_batch": 8, "steps": 8, "learning_rate": 0.01}


def _ends(how: str, finding: str, nodes: int = 1, rank: int = 1) -> Fault:
    args = {**SMALL, "how": how, "at_rank": rank}
    name = f"{how.replace('-', '_')}_on_{nodes}_node"
    family = "hang" if how == "hangs" else "death"
    return Fault(name, "ends.py", family, finding=finding, rank=rank, nodes=nodes, args=args)


PROGRAMS = (
    # Without sync the ranks' weights drift apart, and only rank 0's are saved.
    Fault("ddp_without_sync", "ddp_without_sync.py", "gradients", frozenset({GRADIENTS, RELOAD})),
    Fault("ddp_trained_bare", "ddp_trained_bare.py", "gradients", frozenset({RELOAD})),
    Fault(
        "zero_without_reductions",
        "zero_without_reductions.py",
        "gradients",
        frozenset({GRADIENTS}),
        args=SMALL_ZERO,
    ),
    Fault(
        "other_checkpoint",
        "other_checkpoint.py",
        "checkpoint",
        frozenset({RELOAD}),
        ranks_per_node=1,
    ),
    Fault("nan_loss_on_one_rank", "nan_loss.py", "numbers", frozenset({FINITE, FALLS})),
    Fault(
        "leaves_in_good_order",
        "leaves.py",
        "death",
        finding="rank-left-early",
        rank=1,
        args={"steps": 8},
    ),
    _ends("exits-0", "rank-died"),
    _ends("exits-3", "rank-died"),
    _ends("killed", "rank-died"),
    _ends("raises", "rank-error"),
    _ends("hangs", "hang"),
)
