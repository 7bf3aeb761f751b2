"""Rank programs that are broken on purpose: gradients, numbers, deaths, data, slow ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.faults.table.model import (
    BEHIND,
    DATA,
    DEVICE,
    FALLS,
    FINITE,
    GRADIENTS,
    HANG_WITHIN_S,
    OTHERS,
    PRECISION,
    RELOAD,
    REPEATED,
    REPLICAS,
    SAMPLES,
    SMALL,
    SMALL_LORA,
    TWIN,
    Fault,
)

SMALL_ZERO = {
    "hidden_size": 32,
    "layers": 1,
    "micro_batch": 8,
    "steps": 8,
    "stage": 1,
    "bucket_size": 1_000_000,
    "learning_rate": 0.01,
}


def _ends(how: str, finding: str = "rank-died", when: str = "step", slow: bool = True) -> Fault:
    """Rank 1 of two ends, or stops. torchrun, if it is fast enough, logs the signal."""
    silent = (how, when) == ("exits-0", "step")
    message = "Cannot use ReduceOp.BAND" if when == "collective" else "this rank has had enough"
    # It ends at step 4, but not every step is marked: on a busy machine more of them are.
    marked = ("ended in stage train, after step ", " or later (steps are marked at most every ")
    return Fault(
        f"{how.replace('-', '_')}_in_{when}",
        "ends.py",
        "hang" if how == "hangs" else "death",
        finding=finding,
        maybe="rank_killed" if how == "killed" else "",
        unknown=how == "raises",  # an exception of the program's own
        words=(message,) if how == "raises" else marked if silent else (),
        within_s=HANG_WITHIN_S if how == "hangs" else 10.0,
        rank=1,
        args={**SMALL, "how": how, "at_rank": 1, "when": when},
        slow=slow,
    )


def _gradients(
    name: str,
    *words: str,
    drifts: bool = False,
    slow: bool = True,
    args: Mapping[str, Any] = SMALL,
) -> Fault:
    """Gradients that are not the mean over the ranks, of which no single rank is guilty."""
    return Fault(
        name,
        f"{name}.py",
        "gradients",
        frozenset({GRADIENTS, REPLICAS} if drifts else {GRADIENTS}),
        skipped=frozenset({RELOAD} if drifts else ()),
        words=words,
        of_nobody=True,
        args=args,
        slow=slow,
    )


def _nan(where: str, words: str, slow: bool) -> Fault:
    return Fault(
        f"nan_in_{where}_of_one_rank",
        "nan_loss.py",
        "numbers",
        frozenset({FINITE, FALLS}),
        words=(words,),
        rank=1,
        args={**SMALL, "where": where},
        slow=slow,
    )


PROGRAMS = (
    # Without sync the ranks' weights drift apart. Only rank 0's are saved, and the checkpoint is
    # not blamed for it.
    _gradients(
        "ddp_without_sync",
        "gradients are not in sync on all ranks at step 1: ",
        "ranks 0-1 differ in the parameters from step 1 on (not known to be equal before)",
        drifts=True,
        slow=False,
    ),
    _gradients("ddp_summed", "scaled by 2 (the world size): summed, not averaged"),
    _gradients("ddp_trained_bare", "gradients are not in sync on all ranks at step ", drifts=True),
    _gradients(
        "ddp_unsynced_from_step_5",
        "ranks 0-1 differ in the parameters from step 10 on (equal until step 1)",
        " (in sync until step ",
        drifts=True,
        args={**SMALL, "steps": 30},
    ),
    _gradients(
        "ddp_unsynced_in_last_steps",
        "ranks 0-1 differ in the parameters from step 30 on (equal until step 20)",
        drifts=True,
        args={**SMALL, "steps": 30},
    ),
    _gradients(
        "zero_without_reductions",
        "gradients are not in sync on all ranks at step 1: ",
        args=SMALL_ZERO,
    ),
    # Nothing shows which of two ranks is right, unless the rank disagrees with itself.
    Fault(
        "weight_flipped_in_replica",
        "weight_flipped.py",
        "gradients",
        frozenset({REPLICAS}),
        skipped=frozenset({RELOAD}),
        words=(
            "ranks 0-1 differ in the parameters from step 10 on (equal until step 1)",
            "0.weight",
        ),
        of_nobody=True,
        args={**SMALL, "steps": 30},
    ),
    # A second pass shows it, and the rank disagrees with itself.
    Fault(
        "weight_flipped_without_replica",
        "weight_flipped.py",
        "gradients",
        frozenset({TWIN}),
        words=("rank 0 (local0) on ", "disagrees with itself: trained again from the same state"),
        rank=0,
        ranks_per_node=1,
        args={**SMALL, "steps": 30},
        settings={"proof": "twin"},
        slow=True,
    ),
    # The all-gather passes it to all ranks within the step.
    Fault(
        "master_flipped_under_zero",
        "master_flipped.py",
        "gradients",
        frozenset({TWIN}),
        words=(
            "rank 1 (local0) on ",
            "first partition (own partition 0) at step 6, after the same local gradients",
        ),
        rank=1,
        args=SMALL_ZERO,
        settings={"proof": "twin"},
        slow=True,
    ),
    # Only that rank's passes of one step read it, before the all-gather writes it anew.
    Fault(
        "weight_flipped_under_zero",
        "master_flipped.py",
        "gradients",
        frozenset({TWIN}),
        words=("rank 1 (local0) on ", "disagrees with itself: trained again from the same state"),
        rank=1,
        args={**SMALL_ZERO, "state": "copy"},
        settings={"proof": "twin"},
        slow=True,
    ),
    Fault(
        "gradient_corrupted_before_reduction",
        "gradient_corrupted.py",
        "gradients",
        frozenset({REPEATED}),
        skipped=frozenset({GRADIENTS}),
        words=("rank 1 (local0) on ", "disagrees with itself: repeated from the same state"),
        rank=1,
        slow=True,
    ),
    # No device is wrong, and none is accused.
    Fault(
        "loss_weighted_on_one_rank",
        "loss_weighted.py",
        "gradients",
        frozenset({REPEATED}),
        skipped=frozenset({GRADIENTS}),
        words=("rank 1 (local0) trained on another loss than the one that Proof.local_loss",),
        rank=1,
        args={**SMALL, "weights": "1,1.02"},
        slow=True,
    ),
    Fault(
        "loss_weighted_on_all_ranks",
        "loss_weighted.py",
        "gradients",
        frozenset({GRADIENTS}),
        skipped=frozenset({REPEATED}),
        words=("not in sync on all ranks at step 1: scaled by 0.5; ", "Proof.local_loss must"),
        of_nobody=True,
        args={**SMALL, "weights": "0.5,0.5"},
        slow=True,
    ),
    # It agrees with itself; two of four ranks that repeat its pass do not agree with it.
    Fault(
        "same_wrong_answer_each_time",
        "always_wrong.py",
        "gradients",
        frozenset({OTHERS}),
        words=("rank 1 (local0) on ", "is outvoted by ranks", "in the same way each time"),
        rank=1,
        nodes=2,
        slow=True,
    ),
    Fault(
        "samples_overstated",
        "samples_overstated.py",
        "data",
        frozenset({SAMPLES}),
        words=("the model saw 8 samples on rank 0", "samples_per_rank=80"),
        of_nobody=True,
        slow=True,
    ),
    Fault(
        "tokens_overstated",
        "tokens_overstated.py",
        "data",
        frozenset({SAMPLES}),
        words=("the model saw at most 64 tokens in a step on rank 0", "tokens_per_rank=640"),
        of_nobody=True,
        args={**SMALL_LORA, "max_steps": 60},
        slow=True,
    ),
    Fault(
        "precision_ignored",
        "precision_ignored.py",
        "configuration",
        frozenset({PRECISION}),
        words=("the phase's argument is precision='bf16', but the program says precision='fp32'",),
        of_nobody=True,
        args={**SMALL_LORA, "max_steps": 60, "precision": "bf16"},
        slow=True,
    ),
    # All ranks are at fault. With dropout their losses and local gradients differ.
    Fault(
        "same_data_with_dropout",
        "data_by_local_rank.py",
        "data",
        frozenset({DATA}),
        words=("the data is not sharded: all 2 models got identical batches at each proven step",),
        of_nobody=True,
        nodes=2,
        ranks_per_node=1,
        args={**SMALL, "steps": 30, "dropout": True},
        slow=True,
    ),
    *(
        Fault(
            name,
            "data_by_local_rank.py",
            "data",
            frozenset({DATA}),
            words=(f"the data is not sharded: {words}", "that holds for 2 pairs of ranks in all"),
            of_nobody=True,
            nodes=2,
            args={**SMALL, "steps": 30, **args},
            slow=True,
        )
        for name, words, args in (
            (
                "data_by_local_rank",
                "the local losses of rank 0 (local0) and rank 2 (local1) are identical in each",
                {},
            ),
            (
                "data_by_local_rank_with_dropout",
                "rank 0 (local0) and rank 2 (local1) got identical batches at each proven step",
                {"dropout": True},
            ),
        )
    ),
    # Equal weights and equal gradients on all ranks, with a reduction and without one.
    *(
        Fault(
            name,
            program,
            "data",
            frozenset({DATA}),
            skipped=frozenset({GRADIENTS}),
            words=("the data is not sharded: the local losses of all 2 ranks are identical",),
            of_nobody=True,  # all ranks are
            args=args,
            slow=name != "same_data",
        )
        for name, program, args in (
            ("same_data", "same_data.py", SMALL),
            ("same_data_without_sync", "same_data_without_sync.py", SMALL),
            ("zero_same_data", "same_data.py", SMALL_ZERO),
        )
    ),
    Fault(
        "same_data_in_bf16",
        "same_data_in_bf16.py",
        "data",
        frozenset({DATA, GRADIENTS}),
        skipped=frozenset({REPEATED, PRECISION, SAMPLES}),  # no proof was given
        words=(
            "the local losses of all 2 ranks are identical in each of 30 steps",
            "rank 0 reported no result of the gradient probe",
        ),
        of_nobody=True,
        args={**SMALL, "steps": 30},
        slow=True,
    ),
    # DeepSpeed divides each rank's gradients by the number of ranks, and then adds nothing up.
    Fault(
        "zero_same_data_without_sync",
        "same_data_without_sync.py",
        "data",
        frozenset({DATA, GRADIENTS}),
        words=(
            "the data is not sharded: the local losses of all 2 ranks are identical",
            "gradients are not in sync on all ranks at step 1: ",
        ),
        of_nobody=True,
        args=SMALL_ZERO,
        slow=True,
    ),
    _nan("data", "first at step 4 on rank 1 (local0);", slow=False),
    _nan("parameter", "first at step 4 on rank 1 (local0);", slow=True),
    # The reduction passes it to all ranks before any loss shows it.
    _nan("gradient", "the gradient of 0.weight is not finite, first at step 4", slow=True),
    # DeepSpeed silently skips that step, and no loss ever shows it.
    Fault(
        "nan_in_gradient_of_one_rank_under_zero",
        "nan_loss.py",
        "numbers",
        frozenset({FINITE}),
        words=("the gradient of 0.weight is not finite, first at step 4",),
        rank=1,
        args={**SMALL_ZERO, "where": "gradient", "program": "train_zero"},
        slow=True,
    ),
    Fault("slow_rank", "slow_rank.py", "straggler", frozenset({BEHIND}), rank=1),
    *(
        Fault(
            name,
            f"{name}.py",
            "straggler",
            frozenset({BEHIND}),
            rank=1,
            args={**SMALL, "hidden_size": 256, "batch_size": 64},
            slow=True,
        )
        for name in ("slow_backward", "slow_optimizer")
    ),
    Fault(
        "slow_backward_under_zero",
        "slow_engine.py",
        "straggler",
        frozenset({BEHIND}),
        words=("rank 1 (local0) on ", "falls behind: its backward (CPU time) takes "),
        rank=1,
        # A pass that is slower by less than 3 ms of CPU time is not judged.
        args={**SMALL_ZERO, "hidden_size": 256, "micro_batch": 256},
        slow=True,
    ),
    Fault(
        "slow_backward_under_lora",
        "slow_engine.py",
        "straggler",
        frozenset({BEHIND}),
        words=("rank 1 (local0) on ", "falls behind: its backward (CPU time) takes "),
        rank=1,
        base="FineTuned",
        args={**SMALL_LORA, "max_steps": 8},
        slow=True,
    ),
    _ends("killed", when="init"),
    _ends("killed", when="model"),
    _ends("killed", when="step", slow=False),
    _ends("killed", when="collective"),
    _ends("exits-0", when="step"),
    _ends("exits-0", when="collective"),
    _ends("exits-3", when="init"),
    _ends("exits-3", when="step"),
    _ends("raises", "rank-error", when="model"),
    _ends("raises", "rank-error", when="step"),
    _ends("raises", "rank-error", when="collective"),
    _ends("hangs", "hang"),
    Fault(
        "leaves_in_good_order",
        "leaves.py",
        "death",
        finding="rank-left-early",
        rank=1,
        args={"steps": 8},
        slow=True,
    ),
    Fault(
        "stale_evidence",
        "stale_evidence.py",
        "data",
        finding="foreign-events",
        words=("lacks the word of the node that started the ranks",),
        rank=0,
        args={"steps": 8},
        since="launcher_end",  # no event of the rank counts, and torchrun starts before the fault
    ),
    Fault(
        "stale_evidence_with_the_word",
        "stale_evidence.py",
        "data",
        finding="foreign-events",
        words=("names process ", " s after boot; the node ran this rank from "),
        rank=0,
        args={"steps": 8, "word": True},
        since="launcher_end",
        slow=True,
    ),
    # Two of three ranks agree, so it is known which is wrong.
    Fault(
        "uneven_batches",
        "uneven_batches.py",
        "data",
        finding="collective-mismatch",
        words=("rank 1 (local1) is out of step in group 0",),
        rank=1,
        nodes=3,
        ranks_per_node=1,
        within_s=HANG_WITHIN_S,
        slow=True,
    ),
    Fault(
        "cache_race",
        "cache_race.py",
        "data",
        finding="rank-error",
        signature="hf_datasets_cache_race",
        rank=1,
        args={"steps": 8},
        slow=True,
    ),
    Fault(
        "rank_for_local_rank",
        "rank_for_local_rank.py",
        "configuration",
        frozenset({DEVICE}),
        rank=1,
        nodes=2,
        ranks_per_node=1,
        slow=True,
    ),
)
