"""What a staged fault is, and the criteria of the phase that it is staged in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Sizes that train within seconds; the loss still falls by more than the criterion requires.
SMALL: Mapping[str, Any] = {
    "hidden_size": 32,
    "batch_size": 8,
    "steps": 8,
    "learning_rate": 0.01,
}
SMALL_LORA: Mapping[str, Any] = {
    "model": "tiny",
    "dataset": "shipped",
    "subset_size": 64,
    "seq_len": 64,
    "learning_rate": 0.005,
    "max_steps": 4,
    "micro_batch": 1,
}
# The limit for a step; a step of these sizes takes milliseconds.
STEP_LIMIT_S = 4
# A hang is reported within its stage's limit plus 15 s.
HANG_WITHIN_S = STEP_LIMIT_S + 15.0

REFERENCES = "test_other_references_are_met"
PEAKS = "test_devices_reach_their_peaks"  # skips where the profile has `peaks: never`
HEALTH = "test_hardware_stays_healthy"  # skips where no node has RDMA ports or GPUs
# Criteria of the base class `Trained` that skip on a small cluster, whose metrics have neither a
# reference nor a past.
UNMEASURED = frozenset(
    {
        "test_throughput_meets_the_reference",
        "test_memory_meets_the_reference",
        "test_metrics_are_as_in_the_past",
        "test_each_gpu_is_as_fast_as_it_was",
        REFERENCES,
        PEAKS,
        HEALTH,
    }
)
GRADIENTS = "test_gradients_are_in_sync"
RELOAD = "test_reloaded_checkpoint_equals_the_saved"
FINITE = "test_loss_is_finite_on_every_rank"
FALLS = "test_loss_over_all_ranks_falls"
REPEATED = "test_repeated_steps_give_the_same_gradients"
OTHERS = "test_other_ranks_compute_the_same_gradients"  # skips with fewer than three ranks
REPLICAS = "test_replicas_stay_equal"
TWIN = "test_twin_run_gives_the_same_bits"  # skips unless the phase has `proof: twin`
DATA = "test_ranks_train_on_their_own_data"
PRECISION = "test_precision_is_the_one_declared"
SAMPLES = "test_samples_are_those_that_the_model_saw"
BEHIND = "test_no_rank_falls_behind"  # skips if there is only one rank
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
    REPEATED,
    OTHERS,
    TWIN,
    REPLICAS,
    DATA,
    PRECISION,
    SAMPLES,
    RELOAD,
    BEHIND,
}

ADAPTERS = "test_only_adapters_are_trained"
# What each base class of a staged phase requires. FineTuned is that of the suite's LoRA phases.
BASES: Mapping[str, frozenset[str]] = {
    "Trained": CRITERIA,
    "FineTuned": CRITERIA
    | {
        ADAPTERS,
        "test_model_is_wrapped_in_ddp",
        "test_base_weights_are_trained",
        "test_rank_0_tokenised_once_for_all",
        "test_ranks_end_with_the_same_weights",
        "test_ranks_train_on_different_examples",
        "test_metrics_are_written_by_rank_0_alone",
        "test_checkpoint_holds_the_adapter",
        "test_transports_inside_nodes_are_those_expected",
    },
}
# A base of random weights and gloo leave these nothing to judge.
SKIPPED_BY_BASE: Mapping[str, frozenset[str]] = {
    "Trained": frozenset(),
    "FineTuned": frozenset(
        {"test_base_weights_are_trained", "test_transports_inside_nodes_are_those_expected"}
    ),
}


@dataclass(frozen=True)
class Fault:
    """A fault that is really staged, and its required result, one of three:

    - `failed`: the criteria that must fail while the job passes; all others pass, or skip if they
      are in UNMEASURED or `skipped`. With a `rank`, they name it and its node.
    - `finding`: the job does not pass; this is its primary finding's id, `rank` the rank and `host`
      the node that it must name (any, if neither is given), `signature` its known cause, `words`
      what its text must contain. Every criterion is skipped and refers to the job.
    - `usage`: pytest ends with this usage error, and nothing is submitted.
    """

    name: str
    program: str
    family: str  # program, checkpoint, data, hang, death, memory, disk, configuration, node, ...
    failed: frozenset[str] = frozenset()
    skipped: frozenset[str] = frozenset()  # criteria that the fault leaves nothing to judge
    finding: str = ""
    signature: str = ""
    maybe: str = ""  # a signature that may be found, depending on which of two processes is faster
    words: tuple[str, ...] = ()
    usage: tuple[str, ...] = ()
    rank: int | None = None
    host: str = ""
    outcome: str = "failed"  # of the job, if `finding` is given
    base: str = "Trained"  # of the phase's class, one of BASES
    nodes: int = 1
    ranks_per_node: int = 2
    args: Mapping[str, Any] = field(default_factory=lambda: SMALL)
    profile: Mapping[str, Any] = field(default_factory=dict)  # added to the cluster's
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the phase in the profile
    within_s: float = 10.0  # from the fault to the finding
    since: str = "staged"  # the event just before the fault, of a rank or of a node
    since_s: float = 0.0  # how long after that event the fault comes
    timed: bool = True  # whether the finding's delay is known; not if nothing ran
    unknown: bool = False  # the cause cannot be known, and the finding says so
    replayed: bool = False  # recorded text, because the fault itself cannot be staged here
    of_nobody: bool = False  # a limit, a cancellation: no rank and no node is at fault
    slow: bool = False  # only in `make test-all`; one or two of each family are not slow

    @property
    def criteria(self) -> frozenset[str]:
        """The criteria of the phase that it is staged in, with its job."""
        return BASES[self.base]

    @property
    def of(self) -> str:
        """What the finding names: a rank with its host, a node, or nobody."""
        if self.of_nobody:
            return "nobody"
        return "rank" if self.rank is not None or not self.host else "node"
