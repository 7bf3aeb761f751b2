"""Proofs of training: reduction, replicas, reload, and whom they name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.criteria.repeated_passes import check_replay
from pytest_clustersmoke.criteria.training_proofs import check_gradients, check_replicas
from pytest_clustersmoke.criteria.workload import check_precision, check_samples
from pytest_clustersmoke.evidence.metric import Unmeasured
from tests.criteria.proofs import GRADIENTS, PROOF, UNEXPLAINED, WRONG
from tests.support.evidence import Evidence

REPLICAS = {"every": 10, "compared": 3, "equal": True}
APART = {
    "every": 10,
    "compared": 3,
    "equal": False,
    "differ_at": 20,
    "equal_until": 10,
    "parameter": "0.weight",
}


@pytest.fixture
def pair(tmp_path: Path) -> Evidence:
    """A job of one node and two ranks that is done."""
    return Evidence(tmp_path, 1, 2).done()


@pytest.fixture
def four(tmp_path: Path) -> Evidence:
    """A job of one node and four ranks that is done."""
    return Evidence(tmp_path, 1, 4).done()


def test_gradients_in_sync(pair: Evidence) -> None:
    """Every rank compared every parameter and found it within the tolerance."""
    pair.each("gradients", **GRADIENTS).result().check_gradients()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"synced": False}, "gradients are not in sync on all ranks"),
        ({"synced": "yes"}, "gradients are not in sync on all ranks"),
        ({"synced": False, "factor": 2.0}, r"scaled by 2 \(the world size\): summed, not averaged"),
        ({"synced": False, "factor": 0.5}, "all ranks: scaled by 0.5; relative error"),
        # With 64 ranks that is within the tolerance of the ranks' own gradients.
        ({"synced": True, "factor": 0.9}, "all ranks: scaled by 0.9; relative error"),
        ({"synced": False, "factor": "x"}, "all ranks: relative error"),
        ({"compared": 3}, r"rank 0 \(n0\) compared the gradients of 3 of 4 parameters"),
        (
            {"compared": 0, "parameters": 0},
            r"rank 0 \(n0\) compared the gradients of 0 of 0 parameters",
        ),
    ],
)
def test_gradients_out_of_sync(pair: Evidence, change: dict[str, Any], words: str) -> None:
    """A rank that compared too little, nothing, or found a difference fails the check."""
    pair.each("gradients", **{**GRADIENTS, **change})
    with pytest.raises(AssertionError, match=words):
        pair.result().check_gradients()


def test_every_call_of_a_proof_counts(pair: Evidence) -> None:
    """A program that compares two checkpoints, or gradients before and after its loop."""
    right = {"equal": True, "tensors": 4, "mismatched": []}
    pair.each("reload", **{**right, "equal": False, "mismatched": ["w"]}).each("reload", **right)
    pair.each("gradients", **{**GRADIENTS, "synced": False}).each("gradients", **GRADIENTS)
    with pytest.raises(AssertionError, match="the reloaded checkpoint differs on rank 0"):
        pair.result().check_reload()
    with pytest.raises(AssertionError, match="gradients are not in sync on all ranks"):
        pair.result().check_gradients()


def test_call_of_some_ranks_alone_fails(pair: Evidence) -> None:
    right = {"equal": True, "tensors": 4, "mismatched": []}
    pair.each("reload", **right).rank(0, ("reload", right))
    with pytest.raises(AssertionError, match="rank 1 reported no result of the comparison"):
        pair.result().check_reload()


def test_parameters_outside_of_the_proven_model_leave_the_reduction_unmeasured(
    pair: Evidence,
) -> None:
    """A head beside the wrapped model, which the optimizer trains: nothing reduces it."""
    result = pair.each("proof", **{**PROOF, "outside": 1}).result()
    with pytest.raises(Unmeasured, match="the optimizer has 1 trained parameter that"):
        result.check_gradients()
    assert "gradients" not in result.judged


ALL_OFF = {"off_count": 4, "off": ["a", "b", "c", "d"]}


@pytest.mark.parametrize(
    ("later", "errors", "off", "cause"),
    [
        (True, (1.2, 1.2), ALL_OFF, "gradients of earlier steps may still be there: call"),
        (True, (0.9, 0.9), ALL_OFF, ""),  # as if nothing were reduced any more
        (True, (1.2, 1.3), ALL_OFF, ""),  # nor are they the same on all ranks
        (True, (1.2, 1.2), {"off_count": 2, "off": ["a", "b"]}, ""),  # so they were cleared
        (
            False,
            (1.2, 0.7),
            {"off_count": 1, "off": ["head.w"]},
            "of 1 of 4 parameters are wrong (head.w), the others are not: if their",
        ),
        (
            False,
            (1.2, 0.7),
            {"parameters": 20, "compared": 20, "off_count": 7, "off": [*"abcde"]},
            "of 7 of 20 parameters are wrong (a, b, c, d, e and 2 more), the others are not",
        ),
        (False, (1.2, 1.2), ALL_OFF, ""),
        (False, (1.2, 1.2), {"off_count": "1", "off": 7}, ""),
    ],
)
def test_likely_cause_of_wrong_gradients_is_given(
    pair: Evidence, later: bool, errors: tuple[float, float], off: dict[str, Any], cause: str
) -> None:
    """Gradients that nobody clears are right in the first step alone, and then wrong by the same on
    all ranks; a reduction that stops is not taken for that. Those of a module that stands outside
    the wrapper are wrong in every step, and no others are."""
    if later:
        pair.each("proof", **PROOF)
    for rank, error in enumerate(errors):
        wrong = {**GRADIENTS, "synced": False, "max_relative_error": error, **off}
        proof = {**PROOF, "step": 2 if later else 1, "gradients": wrong}
        pair.rank(rank, ("proof", proof))
    with pytest.raises(AssertionError, match="gradients are not in sync on all ranks") as failed:
        pair.result().check_gradients()
    assert cause in str(failed.value) and (cause != "") == ("; " in str(failed.value))


def test_insensitive_gradient_probe_is_unmeasured(pair: Evidence) -> None:
    """Local gradients that are similar on all ranks prove nothing about a reduction."""
    pair.each("gradients", **{**GRADIENTS, "sensitive": False})
    with pytest.raises(Unmeasured, match="too similar"):
        pair.result().check_gradients()


@pytest.mark.parametrize("check", ["check_gradients", "check_reload"])
def test_a_rank_without_a_result_fails_the_check(pair: Evidence, check: str) -> None:
    """One rank that wrote nothing is named."""
    pair.rank(0, ("gradients", GRADIENTS), ("reload", {"equal": True, "tensors": 1}))
    with pytest.raises(AssertionError, match="rank 1 reported no result"):
        getattr(pair.result(), check)()


@pytest.mark.parametrize("bad", [{"equal": False}, {"equal": 1}, {"tensors": 0}])
def test_a_checkpoint_that_differs(pair: Evidence, bad: dict[str, Any]) -> None:
    """A difference, or a comparison of nothing, fails."""
    pair.each("reload", **{"equal": True, "tensors": 4, "mismatched": ["w"], **bad})
    with pytest.raises(AssertionError, match="the reloaded checkpoint differs on rank 0"):
        pair.result().check_reload()


def test_checkpoint_that_could_not_be_read_is_unmeasured(pair: Evidence) -> None:
    """Never a pass; and a difference elsewhere in the state still fails."""
    record = {"equal": True, "tensors": 0, "mismatched": [], "not_measured": "on a disk"}
    with pytest.raises(Unmeasured, match=r"\(checkpoint\): on a disk"):
        pair.each("reload", **record).result().check_reload()
    with pytest.raises(AssertionError, match="the reloaded checkpoint differs on rank 0"):
        pair.each("reload", **record | {"equal": False}).result().check_reload()


BUFFERS = {"tensors": 9, "mismatched": ["bn.running_mean"], "only_buffers_differ": True}


@pytest.mark.parametrize(
    ("change", "red"),
    [
        ({}, False),
        ({"reloaded_buffers": "of nobody"}, True),
        ({"reloaded_buffers": None, "buffers": None}, True),
        ({"only_buffers_differ": False}, True),
        ({"only_buffers_differ": "yes"}, True),
        ({"tensors": 0}, True),
    ],
)
def test_statistics_of_the_rank_that_saved_are_no_difference(
    pair: Evidence, change: dict[str, Any], red: bool
) -> None:
    """Each replica's batch norms have statistics of their own, and rank 0's are saved."""
    pair.rank(0, ("reload", {"equal": True, "tensors": 9, "buffers": "a", "mismatched": []}))
    other = {"equal": False, "buffers": "b", "reloaded_buffers": "a", **BUFFERS, **change}
    pair.rank(1, ("reload", other))
    if red:
        with pytest.raises(AssertionError, match="the reloaded checkpoint differs on rank 1"):
            pair.result().check_reload()
    else:
        pair.result().check_reload()


def test_checkpoint_that_was_not_loaded_is_unmeasured(pair: Evidence) -> None:
    """The program returned the tensors that it had saved."""
    record = {"equal": True, "tensors": 4, "mismatched": []}
    pair.rank(0, ("reload", record)).rank(1, ("reload", {**record, "shared": ["0.weight"]}))
    with pytest.raises(Unmeasured, match=r"tensors of the state that was saved \(0.weight\)"):
        pair.result().check_reload()


def test_an_equal_checkpoint(pair: Evidence) -> None:
    """Equal on every rank passes."""
    pair.each("reload", equal=True, tensors=4, mismatched=[]).result().check_reload()


def test_every_proven_step_is_compared(pair: Evidence) -> None:
    """Gradients that are out of sync at one of several proven steps fail, with the step."""
    pair.each("proof", **PROOF).each("proof", **{**PROOF, "step": 7}).result().check_gradients()
    pair.rank(1, ("proof", {**PROOF, "step": 9, "gradients": {**GRADIENTS, "synced": False}}))
    pair.rank(0, ("proof", {**PROOF, "step": 9}))
    words = r"not in sync on rank 1 \(n0\) at step 9 \(in sync until step 7\): "
    with pytest.raises(AssertionError, match=words):
        pair.result().check_gradients()


def test_step_proven_by_one_rank_alone_fails(pair: Evidence) -> None:
    """A rank that left out a proof is named."""
    pair.each("proof", **PROOF).rank(0, ("proof", {**PROOF, "step": 7}))
    with pytest.raises(AssertionError, match="rank 1 reported no result of the proof of step 7"):
        pair.result().check_gradients()


def test_scaled_gradients_fail_although_no_step_could_be_repeated(pair: Evidence) -> None:
    """The loop trains on a multiple of `local_loss`: no gradient is as it was, and all are off by
    one factor. Gradients that are off by no common factor show nothing then."""
    scaled = {**GRADIENTS, "synced": False, "factor": 0.5, **ALL_OFF}
    pair.each("proof", **{**PROOF, **UNEXPLAINED, "gradients": scaled})
    words = "scaled by 0.5; relative error .*; if the program clips or scales gradients, call"
    with pytest.raises(AssertionError, match=words):
        pair.result().check_gradients()
    pair.rank(1, ("proof", {**PROOF, **UNEXPLAINED, "gradients": {**scaled, "factor": None}}))
    with pytest.raises(Unmeasured, match="no proven step is left whose numbers are sound"):
        pair.result().check_gradients()


def test_step_that_overflows_in_fp16_proves_nothing(pair: Evidence) -> None:
    """It is left out; if no other step is left, the gradients are not measured."""
    overflowed = {**PROOF, "overflowed": True, "gradients": {"precision": "fp16"}}
    pair.each("proof", **overflowed)
    with pytest.raises(Unmeasured, match="no proven step is left"):
        check_gradients(pair.result())
    pair.each("proof", **{**PROOF, "step": 2, "overflowed": False})
    check_gradients(pair.result())
    pair.each("proof", **{**PROOF, "step": 3, "gradients": {**GRADIENTS, "synced": False}})
    with pytest.raises(AssertionError, match="not in sync on all ranks at step 3"):
        check_gradients(pair.result())


def test_step_that_cannot_be_repeated_is_unmeasured(pair: Evidence) -> None:
    """Neither gradients nor repetition are judged there, and the reason is given; a fault that
    another step shows is named nevertheless. What the model computed in is judged."""
    reason = "reentrant checkpointing cannot be replayed"
    record = {"step": 1, "not_measured": reason, "gradients": {"precision": "fp32"}}
    pair.each("proof", **record, dtypes={"float32": ["0"]}, samples=32, samples_per_rank=32)
    for check in (check_replay, check_gradients):
        with pytest.raises(Unmeasured, match=reason):
            check(pair.result())
    check_precision(pair.result())
    check_samples(pair.result())
    unsynced = {**GRADIENTS, "synced": False}
    pair.each("proof", **{**PROOF, **WRONG, "step": 2})
    pair.each("proof", **{**PROOF, "step": 3, "gradients": unsynced})
    with pytest.raises(AssertionError, match="disagrees with itself"):
        check_replay(pair.result())
    with pytest.raises(AssertionError, match="not in sync on all ranks at step 3"):
        check_gradients(pair.result())


@pytest.mark.parametrize("reason", [1, True, ["x"], None, ""])
def test_reason_of_another_type_excuses_nothing(pair: Evidence, reason: Any) -> None:
    """A proof without results fails unless it says in words why it could not be made."""
    pair.each("proof", step=1, not_measured=reason)
    with pytest.raises(AssertionError, match="repeated no gradient at step 1"):
        check_replay(pair.result())
    with pytest.raises(AssertionError, match="compared the gradients of None"):
        check_gradients(pair.result())


def test_program_without_proof_is_unmeasured(pair: Evidence) -> None:
    """Repetition, replicas and samples need what the program hands over."""
    for check in (check_replay, check_replicas, check_samples, check_precision):
        with pytest.raises(Unmeasured, match=r"the program gave rank\.steps no `proof`"):
            check(pair.result())


def test_two_ranks_that_drift_apart_are_both_named(pair: Evidence) -> None:
    """Nothing shows which of two ranks is right; the steps and the parameter are named."""
    pair.each("replicas", **REPLICAS)
    check_replicas(pair.result())
    pair.each("replicas", **APART, groups=[[0], [1]])
    words = (
        r"ranks 0-1 differ in the parameters from step 20 on \(equal until step 10\); .* 0.weight"
    )
    with pytest.raises(AssertionError, match=words):
        check_replicas(pair.result())


def test_majority_names_the_rank_that_drifted(four: Evidence) -> None:
    """One of four ranks that differs from the rest is named; two against two are not."""
    four.each("replicas", **APART, groups=[[0, 1, 3], [2]])
    with pytest.raises(AssertionError, match=r"^rank 2 \(n0\) differs from most ranks"):
        check_replicas(four.result())
    four.each("replicas", **APART, groups=[[0, 1], [2, 3]])
    with pytest.raises(AssertionError, match=r"^ranks 0-3 differ in the parameters"):
        check_replicas(four.result())


@pytest.mark.parametrize("groups", [None, "x", [], [["a"], [99]], [[0]]])
def test_hostile_groups_of_ranks_still_fail(pair: Evidence, groups: Any) -> None:
    """A record that says that the ranks differ fails, whatever its groups are."""
    pair.each("replicas", **APART, groups=groups)
    with pytest.raises(AssertionError, match="in the parameters from step 20 on"):
        check_replicas(pair.result())


def test_checkpoint_of_ranks_that_drifted_is_not_accused(pair: Evidence) -> None:
    """One rank's checkpoint cannot equal what the others hold, so nothing is shown about it."""
    pair.each("replicas", **APART, groups=[[0], [1]])
    pair.rank(0, ("reload", {"equal": True, "tensors": 4}))
    pair.rank(1, ("reload", {"equal": False, "tensors": 4}))
    with pytest.raises(Unmeasured, match="the ranks trained different parameters"):
        pair.result().check_reload()
