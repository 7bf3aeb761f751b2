"""What the ranks trained on: shares of the data, samples and tokens, and the precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.criteria.workload import check_data, check_precision, check_samples
from pytest_clustersmoke.evidence.metric import Unmeasured
from tests.support.evidence import Evidence

PROOF = {
    "step": 1,
    "dtypes": ["float32"],
    "samples": 32,
    "samples_per_rank": 32,
    "gradients": {"precision": "fp32"},
}


@pytest.fixture
def pair(tmp_path: Path) -> Evidence:
    """A job of one node and two ranks that is done."""
    return Evidence(tmp_path, 1, 2).done()


def test_same_data_on_every_rank_is_not_sharded(pair: Evidence) -> None:
    """Local losses that are identical in every step, up to rounding, fail; a loss of another rank's
    own in any step is enough to pass, however few the steps are."""
    same = [0.5, 0.4, 0.3, 0.2, 0.1]
    pair.rank(0, ("losses", {"mean": same, "local_first": same}))
    pair.rank(1, ("losses", {"mean": same, "local_first": [loss * (1 + 1e-8) for loss in same]}))
    with pytest.raises(AssertionError, match="the data is not sharded: the local losses of all 2"):
        check_data(pair.result())
    pair.rank(1, ("losses", {"mean": same, "local_first": [*same[:4], 0.11]}))
    check_data(pair.result())
    pair.rank(0, ("losses", {"mean": [0.5], "local_first": [0.5]}))
    pair.rank(1, ("losses", {"mean": [0.5], "local_first": [0.6]}))
    check_data(pair.result())


SHARED = [0.5, 0.4, 0.3, 0.2, 0.1]


def share_model(pair: Evidence, *batches: Any) -> None:
    """Both ranks hold parts of one model, and saw these batches at a proven step."""
    pair.each("losses", mean=SHARED, local_first=SHARED, replica=0)
    for rank, batch in enumerate(batches):
        pair.rank(rank, ("proof", {**PROOF, "batch": batch}))


def test_ranks_of_one_model_share_their_batches(pair: Evidence) -> None:
    """Their losses are equal, as each is computed by both: the batches themselves are compared."""
    share_model(pair, 7, 7)
    with pytest.raises(pytest.skip.Exception, match="the model is split over all ranks"):
        check_data(pair.result())


@pytest.mark.parametrize("other", [8, None, "7", True])
def test_ranks_of_one_model_with_different_batches_fail(pair: Evidence, other: Any) -> None:
    """Also if a rank does not say which batch it saw."""
    share_model(pair, 7, other)
    with pytest.raises(AssertionError, match="ranks 0-1 hold the parts of one model, but saw diff"):
        check_data(pair.result())


def test_ranks_of_one_model_without_a_proof_are_unmeasured(pair: Evidence) -> None:
    share_model(pair)
    with pytest.raises(Unmeasured, match=r"gave rank\.steps no `proof`"):
        check_data(pair.result())


@pytest.mark.parametrize("local", [None, [0.5] * 4, {}])
def test_local_losses_that_show_nothing_are_unmeasured(pair: Evidence, local: Any) -> None:
    """Losses that are missing or too few do not show whether the data is sharded."""
    pair.each("losses", mean=[0.5] * 5, local_first=local)
    with pytest.raises(Unmeasured, match="not every rank recorded a loss of its own in 5 steps"):
        check_data(pair.result())


def test_batch_of_another_size_than_counted_fails(pair: Evidence) -> None:
    """Samples per rank that are not those of the model's batch make the throughput untrue."""
    pair.each("proof", **PROOF)
    check_samples(pair.result())
    pair.each("proof", **{**PROOF, "step": 2, "samples_per_rank": 320})
    with pytest.raises(
        AssertionError, match=r"the model saw 32 samples on rank 0 .* at step 2, but"
    ):
        check_samples(pair.result())
    unknown = {**PROOF, "samples": None}
    other = Evidence(pair.dir.root.parent.parent / "other", 1, 2).done().each("proof", **unknown)
    with pytest.raises(Unmeasured, match="no argument of the model shows the size of a batch"):
        check_samples(other.result())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ""),
        ({"tokens_per_rank": None, "tokens": None}, ""),
        ({"tokens_per_rank": 900}, ""),  # a program may leave padding out
        (
            {"tokens_per_rank": 10240},
            r"saw at most 1024 tokens in a step on rank 0 \(n0\), .* tokens_per_rank=10240",
        ),
        ({"tokens_per_rank": float("nan")}, "tokens_per_rank=nan"),
        ({"tokens_per_rank": "many"}, "tokens_per_rank=many"),
    ],
)
def test_more_tokens_than_the_model_saw_fail(
    pair: Evidence, change: dict[str, Any], words: str
) -> None:
    """Tokens per rank that the model never got in a proven step make the throughput untrue."""
    counted = {**PROOF, "tokens": 1024, "tokens_per_rank": 1024, **change}
    pair.each("proof", **counted)
    pair.each("proof", **{**counted, "step": 2, "tokens": counted["tokens"] and 8})
    if not words:
        check_samples(pair.result())
        return
    with pytest.raises(AssertionError, match=words):
        check_samples(pair.result())


def test_tokens_that_no_argument_shows_are_unmeasured(pair: Evidence) -> None:
    """What a program states is not taken as given."""
    pair.each("proof", **{**PROOF, "tokens": None, "tokens_per_rank": 1024})
    with pytest.raises(Unmeasured, match="no argument of the model is a tensor of integers"):
        check_samples(pair.result())


@pytest.mark.parametrize(
    ("precision", "dtypes", "words"),
    [
        ("bf16", ["float32"], "computed in float32 on rank 0 .* expected bfloat16"),
        ("fp32", ["bfloat16"], "computed in bfloat16 on rank 0 .* expected float32"),
        ("bf16", ["bfloat16", "float32"], ""),
        ("fp32", ["float32"], ""),
    ],
)
def test_other_precision_than_declared_fails(
    pair: Evidence, precision: str, dtypes: list[str], words: str
) -> None:
    """Layers that compute in another precision are named; a mixed model needs one of them."""
    gradients = {"precision": precision}
    pair.each("proof", **{**PROOF, "dtypes": dtypes, "gradients": gradients})
    if not words:
        check_precision(pair.result())
        return
    with pytest.raises(AssertionError, match=words):
        check_precision(pair.result())
