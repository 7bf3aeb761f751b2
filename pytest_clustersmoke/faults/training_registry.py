"""The faults of training: gradients, weights, losses, data, and the model that is trained."""

from __future__ import annotations

from .fault import ALONE, Fault

FINITE = "test_loss_is_finite_on_every_rank"
FALLS = "test_loss_over_all_ranks_falls"
GRADIENTS = "test_gradients_are_in_sync"
REPEATED = "test_repeated_steps_give_the_same_gradients"
OTHERS = "test_other_ranks_compute_the_same_gradients"
TWIN = "test_twin_run_gives_the_same_bits"
REPLICAS = "test_replicas_stay_equal"
DATA = "test_ranks_train_on_their_own_data"
PRECISION = "test_precision_is_the_one_declared"
SAMPLES = "test_samples_are_those_that_the_model_saw"
RELOAD = "test_reloaded_checkpoint_equals_the_saved"
THROUGHPUT = "test_throughput_meets_the_reference"
BEHIND = "test_no_rank_falls_behind"

GRADIENTS_AND_LOSSES = (
    Fault(
        "all-slow",
        "every rank sleeps in each step for as long as the step takes, at least 0.25 s",
        "ranks",
        frozenset({THROUGHPUT}),
        trains=True,
        slower_than_baseline=True,
    ),
    Fault(
        "no-gradient-sync",
        "DistributedDataParallel does not reduce gradients",
        "ranks",
        frozenset({GRADIENTS}),
        # The ranks' weights diverge, and only rank 0's are saved.
        follows=frozenset({REPLICAS, RELOAD}),
        ranks=2,
        trains=True,
        mark="ddp",
    ),
    Fault(
        "no-gradient-sync-late",
        "DistributedDataParallel does not reduce gradients from the third step on; before they are "
        "saved, all ranks get rank 0's parameters",
        "ranks",
        frozenset({GRADIENTS, REPLICAS}),
        # The optimizer's moments still differ.
        follows=frozenset({RELOAD, TWIN}),
        ranks=2,
        trains=True,
        mark="ddp",
    ),
    Fault(
        "gradients-summed",
        "DistributedDataParallel adds up the ranks' gradients and does not divide by their number",
        "ranks",
        frozenset({GRADIENTS}),
        # The steps are larger by the number of ranks, unless the optimizer scales them.
        follows=frozenset({FALLS, FINITE}),
        ranks=2,
        trains=True,
        mark="ddp",
    ),
    Fault(
        "no-gradient-sync-zero",
        "DeepSpeed does not reduce gradients",
        "ranks",
        frozenset({GRADIENTS}),
        ranks=2,
        trains=True,
        mark="deepspeed",
    ),
    Fault(
        "gradient-flipped",
        "the sign of one parameter's gradient is flipped on one rank after the reduction",
        "rank",
        frozenset({GRADIENTS}),
        follows=frozenset({REPLICAS, RELOAD, TWIN}),
        blames=ALONE,
        ranks=2,
        trains=True,
        mark="ddp",
    ),
    Fault(
        "gradient-corrupted",
        "one number of a gradient is wrong in every second pass on one rank, before any reduction",
        "rank",
        frozenset({REPEATED}),
        # It leaves out steps that a rank cannot repeat; with three ranks, others repeat them too.
        follows=frozenset({GRADIENTS, OTHERS, TWIN}),
        blames=ALONE,
        ranks=2,
        trains=True,
        mark="ddp",
    ),
    Fault(
        "always-wrong",
        "one number of each linear layer's output is wrong on one rank, each time in the same way",
        "rank",
        frozenset({OTHERS}),
        blames=ALONE,
        ranks=3,
        trains=True,
        mark="deepspeed",
    ),
    Fault(
        "weight-flipped",
        "one bit of a weight is flipped on one rank at the third step",
        "rank",
        frozenset({REPLICAS}),
        follows=frozenset({RELOAD, TWIN}),
        ranks=2,
        trains=True,
        mark="ddp",
    ),
    Fault(
        "weights-flipped",
        "the same bit of a weight is flipped on every rank at the third step, under `proof: twin`",
        "ranks",
        frozenset({TWIN}),
        trains=True,
        proof="twin",
    ),
    Fault(
        "master-flipped",
        "one bit of ZeRO's master weights is flipped on one rank at the third step, under `proof: "
        "twin`",
        "rank",
        frozenset({TWIN}),
        blames=ALONE,
        ranks=2,
        trains=True,
        mark="deepspeed",
        proof="twin",
    ),
    Fault(
        "loss-nan",
        "one number of the last batch is NaN on one rank",
        "rank",
        frozenset({FINITE}),
        # The mean of the last losses is NaN, and the batch is whole when the step is repeated.
        follows=frozenset({FALLS, REPEATED, TWIN}),
        blames=ALONE,
        ranks=2,
        trains=True,
    ),
    Fault(
        "loss-flat",
        "every update of the parameters is undone",
        "ranks",
        frozenset({FALLS}),
        trains=True,
    ),
)
DATA_AND_MODEL = (
    *(
        Fault(
            name,
            f"every rank trains on rank 0's batches, under {engine}",
            "ranks",
            frozenset({DATA}),
            # Equal gradients do not show whether they were reduced.
            follows=frozenset({GRADIENTS}),
            ranks=2,
            trains=True,
            mark=mark,
        )
        for name, engine, mark in (
            ("same-data", "DistributedDataParallel", "ddp"),
            ("same-data-zero", "DeepSpeed", "deepspeed"),
        )
    ),
    Fault(
        "samples-overstated",
        "the program counts ten times as many samples as it trains on",
        "ranks",
        frozenset({SAMPLES}),
        trains=True,
    ),
    Fault(
        "precision-wrong",
        "linear layers compute in bf16 where the program declares fp32, else in fp32",
        "ranks",
        frozenset({PRECISION}),
        trains=True,
    ),
    # The suite marks its criterion of what is trained with `detects`.
    Fault(
        "lora-projection-frozen",
        "the LoRA adapters of one projection are not trained",
        "ranks",
        frozenset(),
        trains=True,
        mark="lora",
    ),
    Fault(
        "lora-base-trainable",
        "one weight under the LoRA adapters is trained",
        "ranks",
        frozenset(),
        follows=frozenset({RELOAD}),  # it is not saved with the adapters
        trains=True,
        mark="lora",
    ),
)
TRAINING = (*GRADIENTS_AND_LOSSES, *DATA_AND_MODEL)
