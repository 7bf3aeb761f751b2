"""What the ranks trained on: shares of the data, samples and tokens, and the precision."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pytest_clustersmoke.criteria.workload import (
    _vary_beyond_rounding,
    check_data,
    check_precision,
    check_samples,
)
from pytest_clustersmoke.evidence.metric import Unmeasured
from tests.support.evidence import Evidence

PROOF = {
    "step": 1,
    "dtypes": {"float32": ["0", "2"]},
    "adapter_dtypes": [],
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


COARSE = [10.375, 10.4375, 10.375, 10.3125, 10.25]  # bf16 holds sixteenths there


@pytest.mark.parametrize(
    ("batches", "whole", "answer"),
    [
        ((7, 8), True, ""),  # equal by chance
        ((7, 7), True, "the data is not sharded: the local losses of all 2 ranks"),
        ((7, 7), False, "may be equal by chance"),  # the data may be in what was not compared
        ((7, None), True, "may be equal by chance"),
        ((), True, "may be equal by chance"),  # nothing was proven
    ],
)
def test_equal_losses_of_16_bits_need_equal_batches(
    pair: Evidence, batches: tuple[int | None, ...], whole: bool, answer: str
) -> None:
    """Two ranks with data of their own may have one loss in bf16 in each step. The fingerprints of
    what their models got tell it; without them nothing is known, which is not a pass."""
    pair.each("losses", mean=COARSE, local_first=COARSE)
    for rank, batch in enumerate(batches):
        pair.rank(rank, ("proof", {**PROOF, "batch": batch, "batch_is_whole": whole}))
    result = pair.result()
    if answer:
        with pytest.raises(AssertionError if "shard" in answer else Unmeasured, match=answer):
            check_data(result)
    else:
        check_data(result)
    assert ("data" in result.judged) == (not answer)


@pytest.fixture
def quad(tmp_path: Path) -> Evidence:
    """A job of two nodes and four ranks that is done; ranks 0 and 2, and 1 and 3, had one loss."""
    evidence = Evidence(tmp_path, 2, 2).done()
    for rank in range(4):
        own = [0.5 + (rank % 2) / 10 - step / 20 for step in range(5)]
        evidence.rank(rank, ("losses", {"mean": SHARED, "local_first": own}))
    return evidence


def test_data_divided_by_the_local_rank_is_not_sharded(quad: Evidence) -> None:
    """Each node then trains on the same data, though ranks of one node have data of their own."""
    quad.each("replicas", equal=True, compared=3)
    words = r"the local losses of rank 0 \(n0\) and rank 2 \(n1\) are identical in each of 5 steps"
    with pytest.raises(AssertionError, match=f"{words}; that holds for 2 pairs of ranks in all"):
        check_data(quad.result())


@pytest.mark.parametrize("replicas", [{}, {"equal": False}, {"sharded": True}])
def test_ranks_that_may_hold_parts_of_one_model_must_be_named_if_they_share_data(
    quad: Evidence, replicas: dict[str, Any]
) -> None:
    """Under FSDP or ZeRO-3 nothing shows whether they are replicas, which must not share data."""
    if replicas:
        quad.each("replicas", **replicas)
    result = quad.result()
    with pytest.raises(
        Unmeasured, match=r"2 pairs of ranks in all. Either the data is not sharded"
    ):
        check_data(result)
    assert "data" not in result.judged


def test_data_divided_by_the_local_rank_shows_under_dropout(quad: Evidence) -> None:
    """Each rank drops other numbers, so the losses differ, and what the models got does not."""
    quad.each("replicas", equal=True, compared=3)
    for rank in range(4):
        own = [2.5 + rank / 7, 2.25, 2.0, 1.75, 1.5]
        quad.rank(rank, ("losses", {"mean": SHARED, "local_first": own}))
        quad.rank(rank, ("proof", {**PROOF, "batch": rank % 2, "batch_is_whole": True}))
    words = (
        r"rank 0 \(n0\) and rank 2 \(n1\) got identical batches at each proven step \(1\), although"
    )
    with pytest.raises(AssertionError, match=words):
        check_data(quad.result())
    for rank in range(4):
        quad.rank(rank, ("proof", {**PROOF, "batch": rank % 2, "batch_is_whole": False}))
    check_data(quad.result())


def test_two_replicas_with_equal_losses_of_16_bits_need_equal_batches(quad: Evidence) -> None:
    """With hundreds of ranks, some two have the same loss in bf16 for a while. Whether it is by
    chance shows in what their models got; without that nothing is known, which is not a pass."""
    quad.each("replicas", equal=True, compared=3)
    for rank in range(4):
        own = [10.375, 10.4375, 10.375 + rank % 2 / 16, 10.3125, 0.0]
        quad.rank(rank, ("losses", {"mean": SHARED, "local_first": own}))
    words = r"of rank 0 \(n0\) and rank 2 \(n1\) are identical in each of 5 steps, but have 16 bits"
    with pytest.raises(Unmeasured, match=words):
        check_data(quad.result())
    for rank in range(4):
        quad.rank(rank, ("proof", {**PROOF, "batch": rank, "batch_is_whole": True}))
    check_data(quad.result())
    for rank in range(4):
        quad.rank(rank, ("proof", {**PROOF, "batch": rank % 2, "batch_is_whole": True}))
    with pytest.raises(AssertionError, match="that holds for 2 pairs of ranks"):
        check_data(quad.result())


def round_losses(losses: Iterable[float], bits: int) -> list[float]:
    """As a number with a significand of so many bits holds them."""
    parts = map(math.frexp, losses)
    return [math.ldexp(round(part * 2**bits), power - bits) for part, power in parts]


def train(rng: Random, noise: float, steps: int) -> list[float]:
    """Losses of a model that learns, with this noise of a batch."""
    return [6 * 0.97**step + 2 + rng.gauss(0, noise) for step in range(steps)]


@pytest.mark.parametrize("bits", [8, 11])
@pytest.mark.parametrize(
    ("noise", "steps", "known"),
    [
        (1.5, 20, True),
        (1.5, 100, True),
        (0.1, 100, False),  # the batches are so large that their losses hardly differ
        (1.5, 19, False),
    ],
)
def test_equal_losses_of_16_bits_that_vary_are_no_chance(
    pair: Evidence, bits: int, noise: float, steps: int, known: bool
) -> None:
    """In 20 steps or more, if they vary by more than their rounding; the noise is given in units
    of what numbers between 4 and 8 are rounded to."""
    own = round_losses(train(Random(1), noise * 2.0 ** (3 - bits), steps), bits)
    pair.each("losses", mean=own, local_first=own)
    with pytest.raises(
        AssertionError if known else Unmeasured,
        match="the data is not sharded" if known else "may be equal by chance",
    ):
        check_data(pair.result())


def test_no_healthy_ranks_share_losses_of_16_bits_that_vary(pair: Evidence) -> None:
    """Whatever the noise of their batches: of 200 pairs with one loss in each of 20 steps,
    none may be taken for ranks that share their data."""
    rng, equal = Random(7), 0
    while equal < 200:
        noise = rng.choice([0.02, 0.05, 0.1]) / 32
        first, second = (round_losses(train(rng, noise, 20), 8) for _ in range(2))
        if first == second:
            equal += 1
            assert not _vary_beyond_rounding(first)


def test_two_replicas_whose_losses_of_16_bits_vary_share_their_data(quad: Evidence) -> None:
    """Although what their models got is known in part only."""
    quad.each("replicas", equal=True, compared=3)
    for rank in range(4):
        own = round_losses(train(Random(rank % 2), 0.1, 30), 8)
        quad.rank(rank, ("losses", {"mean": own, "local_first": own}))
        quad.rank(rank, ("proof", {**PROOF, "batch": rank % 2, "batch_is_whole": False}))
    with pytest.raises(AssertionError, match="that holds for 2 pairs of ranks"):
        check_data(quad.result())


def test_two_replicas_with_one_loss_in_fewer_than_five_steps_pass(quad: Evidence) -> None:
    quad.each("replicas", equal=True, compared=3)
    for rank in range(4):
        quad.rank(rank, ("losses", {"mean": SHARED, "local_first": [0.5, 0.4, rank % 2, 0.2]}))
    check_data(quad.result())


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


@pytest.mark.parametrize(
    ("batches", "whole", "red"),
    [
        ((7, 7), True, True),
        ((7, 8), True, False),
        ((None, None), True, False),
        (("7", "7"), True, False),
        ((7, 7), False, False),  # the data may be in what was not compared
        ((7, 7), None, False),
        ((7, 7), "yes", False),
    ],
)
def test_same_batch_on_every_rank_is_not_sharded(
    pair: Evidence, batches: tuple[Any, Any], whole: Any, red: bool
) -> None:
    """Although dropout makes the losses differ; one proven step with batches of their own is
    enough to pass."""
    for rank, batch in enumerate(batches):
        pair.rank(rank, ("losses", {"local_first": [0.5, 0.4 + rank]}))
        for step in (1, 4):
            record = {**PROOF, "step": step, "batch": batch, "batch_is_whole": whole}
            pair.rank(rank, ("proof", record))
    if red:
        words = r"all 2 models got identical batches at each proven step \(1, 4\), although"
        with pytest.raises(AssertionError, match=words):
            check_data(pair.result())
    for rank in range(2):
        record = {**PROOF, "step": 9, "batch": rank, "batch_is_whole": True}
        pair.rank(rank, ("proof", record))
    check_data(pair.result())


def test_models_that_got_no_tensor_are_unmeasured(pair: Evidence) -> None:
    share_model(pair, None, None)
    with pytest.raises(Unmeasured, match="no argument of the model is a tensor to compare"):
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


BOTH = {"bfloat16": ["0", "1"], "float32": ["2"]}


@pytest.mark.parametrize(
    ("precision", "dtypes", "words"),
    [
        ("bf16", {"float32": ["0"]}, r"layers computed in float32 \(0\) on rank 0 .* expected bf"),
        ("fp32", {"bfloat16": ["0"]}, r"computed in bfloat16 \(0\) on rank 0 .* expected float32"),
        (
            "bf16",
            BOTH,
            r"computed in float32 \(2\) on rank 0 .* expected bfloat16, since the program",
        ),
        ("fp32", BOTH, r"computed in bfloat16 \(0, 1\) on rank 0"),
        ("fp32", {"bfloat16": [*"abcd"]}, r"bfloat16 \(a, b, c and others\) on rank 0"),
        ("bf16", {"bfloat16": ["0"]}, ""),
        ("fp32", {"float32": ["0"]}, ""),
    ],
)
def test_other_precision_than_declared_fails(
    pair: Evidence, precision: str, dtypes: dict[str, list[str]], words: str
) -> None:
    """Every linear layer computes in it; those that do not are named."""
    gradients = {"precision": precision}
    pair.each("proof", **{**PROOF, "dtypes": dtypes, "gradients": gradients})
    if not words:
        check_precision(pair.result())
        return
    with pytest.raises(AssertionError, match=words):
        check_precision(pair.result())


@pytest.mark.parametrize(
    ("precision", "adapters", "red"),
    [
        ("bf16", ["float32"], False),
        ("bf16", ["bfloat16"], False),
        ("bf16", ["float16"], True),
        ("fp32", ["bfloat16"], True),
    ],
)
def test_adapters_may_compute_in_fp32(
    pair: Evidence, precision: str, adapters: list[str], red: bool
) -> None:
    """peft keeps them in fp32 over a base of 16 bits."""
    base = {"fp32": "float32", "bf16": "bfloat16"}[precision]
    record = {**PROOF, "dtypes": {base: ["base"]}, "adapter_dtypes": adapters}
    pair.each("proof", **{**record, "gradients": {"precision": precision}})
    if not red:
        check_precision(pair.result())
        return
    with pytest.raises(AssertionError, match=rf"the adapters computed in {adapters[0]} on rank 0"):
        check_precision(pair.result())


@pytest.mark.parametrize("dtypes", [None, {}, [], "x", 3])
def test_model_without_linear_layers_is_unmeasured(pair: Evidence, dtypes: Any) -> None:
    pair.each("proof", **{**PROOF, "dtypes": dtypes})
    with pytest.raises(Unmeasured, match="the model has no linear layer"):
        check_precision(pair.result())


@pytest.mark.parametrize("asked", ["bf16", "bfloat16"])
def test_program_that_ignores_the_precision_asked_for_fails(tmp_path: Path, asked: str) -> None:
    """It says truly what it computes in; the phase's argument is another."""
    ignored = Evidence(tmp_path, 1, 2, args={"precision": asked}).done().each("proof", **PROOF)
    words = f"the phase's argument is precision={asked!r}, but the program says precision='fp32'"
    with pytest.raises(AssertionError, match=words):
        check_precision(ignored.result())


@pytest.mark.parametrize("asked", ["fp32", "float32", "auto", 16, None])
def test_precision_as_asked_for_passes(tmp_path: Path, asked: Any) -> None:
    """Words that name no type are not compared."""
    as_asked = Evidence(tmp_path, 1, 2, args={"precision": asked}).done().each("proof", **PROOF)
    check_precision(as_asked.result())
