"""What a staged fault is, and the criteria of the phase it is staged in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.faults.harness import SMALL

# What the base class `Trained` judges; a small cluster has metrics without a reference and without
# a past: these skip.
UNMEASURED = frozenset(
    {
        "test_throughput_meets_the_reference",
        "test_memory_meets_the_reference",
        "test_metrics_are_as_in_the_past",
        "test_other_references_are_met",
    }
)
GRADIENTS = "test_gradients_are_in_sync"
RELOAD = "test_reloaded_checkpoint_equals_the_saved"
FINITE = "test_loss_is_finite_on_every_rank"
FALLS = "test_loss_over_all_ranks_falls"
BEHIND = "test_no_rank_falls_behind"  # skips where there is one rank
DEVICE = "test_every_rank_has_a_device_of_its_own"
INTERFACES = "test_pinned_interfaces_are_on_every_node"
CRITERIA = UNMEASURED | {
    "job",
    "test_every_node_is_allocated_once",
    "test_all_ranks_are_done",
    "test_world_size_is_the_one_asked_for",
    "test_all_ranks_passed_the_barrier",
    DEVICE,
    "test_all_ranks_run_the_versions_expected",
    INTERFACES,
    "test_all_steps_are_done",
    FINITE,
    FALLS,
    GRADIENTS,
    RELOAD,
    BEHIND,
}


@dataclass(frozen=True)
class Fault:
    """A fault that is staged for real, and what must come of it: one of three.

    - `failed`: the criteria that must fail while the job passes; every other one stays green, or
      skipped where it is of UNMEASURED. With a `rank`, they name it and its node.
    - `finding`: the job does not pass; this is its primary finding's id, `rank` the rank and `host`
      the node that it must name (any, where neither is given), `signature` the known cause behind
      it, `words` what its text has to say. Every criterion points to the job.
    - `usage`: pytest ends with a usage error that says this, and nothing is submitted.
    """

    name: str
    program: str
    family: str  # program, checkpoint, data, hang, death, memory, disk, configuration, node, ...
    failed: frozenset[str] = frozenset()
    finding: str = ""
    signature: str = ""
    maybe: str = ""  # a signature that is found, or not, by which of two processes is quicker
    words: tuple[str, ...] = ()
    usage: tuple[str, ...] = ()
    rank: int | None = None
    host: str = ""
    outcome: str = "failed"  # the job's, where `finding` is given
    nodes: int = 1
    ranks_per_node: int = 2
    args: Mapping[str, Any] = field(default_factory=lambda: SMALL)
    profile: Mapping[str, Any] = field(default_factory=dict)  # added to the cluster's
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the phase in the profile
    within_s: float = 10.0  # from the fault to the finding
    since: str = "staged"  # the event just before the fault, of a rank or of a node
    since_s: float = 0.0  # how long after that event the fault comes
    timed: bool = True  # a finding's seconds are known; not so where nothing ran
    unknown: bool = False  # nobody can know its cause, and the finding says so
    replayed: bool = False  # recorded text, where the fault itself cannot be staged here
    of_nobody: bool = False  # a limit, a cancellation: no rank and no node is at fault
    slow: bool = False  # only in `make test-all`; of each family one or two are not

    @property
    def of(self) -> str:
        """What is at fault, and named: a rank with its host, a node, or nobody."""
        if self.of_nobody:
            return "nobody"
        return "rank" if self.rank is not None or not self.host else "node"
