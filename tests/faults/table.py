"""Deliberately broken rank programs, and what each must make of a phase's criteria."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .harness import SMALL

# What the base class `Trained` judges; two have no reference on a small cluster, so they skip.
UNMEASURED = frozenset({"test_throughput_meets_the_reference", "test_memory_meets_the_reference"})
GRADIENTS = "test_gradients_are_in_sync"
RELOAD = "test_reloaded_checkpoint_equals_the_saved"
FINITE = "test_loss_is_finite_on_every_rank"
FALLS = "test_loss_over_all_ranks_falls"
CRITERIA = UNMEASURED | {
    "job",
    "test_every_node_is_allocated_once",
    "test_all_ranks_are_done",
    "test_world_size_is_the_one_asked_for",
    "test_all_ranks_passed_the_barrier",
    "test_every_rank_has_a_device_of_its_own",
    "test_all_ranks_run_the_versions_expected",
    "test_pinned_interfaces_are_on_every_node",
    "test_all_steps_are_done",
    FINITE,
    FALLS,
    GRADIENTS,
    RELOAD,
}
SMALL_ZERO = {"hidden_size": 32, "layers": 1, "micro_batch": 8, "steps": 8, "learning_rate": 0.01}


@dataclass(frozen=True)
class Fault:
    """`failed` are the criteria that must fail while the job passes; every other one stays green,
    or skipped where it is of UNMEASURED. Where the job itself fails, `finding` is its primary
    finding's id, `rank` the rank it must name, and every criterion points to the job."""

    name: str
    program: str
    failed: frozenset[str] = frozenset()
    finding: str = ""
    rank: int | None = None
    nodes: int = 1
    ranks_per_node: int = 2
    args: Mapping[str, Any] = field(default_factory=lambda: SMALL)


def _ends(how: str, finding: str, nodes: int = 1, rank: int = 1) -> Fault:
    args = {**SMALL, "how": how, "at_rank": rank}
    name = f"{how.replace('-', '_')}_on_{nodes}_node"
    return Fault(name, "ends.py", finding=finding, rank=rank, nodes=nodes, args=args)


FAULTS = (
    # Without sync the ranks' weights drift apart, and only rank 0's are saved.
    Fault("ddp_without_sync", "ddp_without_sync.py", frozenset({GRADIENTS, RELOAD})),
    Fault("ddp_trained_bare", "ddp_trained_bare.py", frozenset({RELOAD})),
    Fault(
        "zero_without_reductions",
        "zero_without_reductions.py",
        frozenset({GRADIENTS}),
        args=SMALL_ZERO,
    ),
    Fault("other_checkpoint", "other_checkpoint.py", frozenset({RELOAD}), ranks_per_node=1),
    Fault("nan_loss_on_one_rank", "nan_loss.py", frozenset({FINITE, FALLS})),
    Fault(
        "leaves_in_good_order", "leaves.py", finding="rank-left-early", rank=1, args={"steps": 8}
    ),
    _ends("exits-0", "rank-died"),
    _ends("exits-3", "rank-died"),
    _ends("killed", "rank-died"),
    _ends("raises", "rank-error"),
    _ends("hangs", "hang"),
)
