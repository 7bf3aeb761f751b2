"""Passes that each rank repeated, and whom they name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.criteria.outvoted_ranks import check_cross_replay
from pytest_clustersmoke.criteria.repeated_passes import check_replay
from pytest_clustersmoke.criteria.twin_run import check_twin
from pytest_clustersmoke.evidence.metric import Unmeasured
from pytest_clustersmoke.evidence.telemetry import UNNAMED_KERNELS
from tests.criteria.proofs import GRADIENTS, PROOF, UNEXPLAINED, WRONG
from tests.support.evidence import Evidence


@pytest.fixture
def pair(tmp_path: Path) -> Evidence:
    """A job of one node and two ranks that is done."""
    return Evidence(tmp_path, 1, 2).done()


def test_rank_that_disagrees_with_itself_is_named(pair: Evidence) -> None:
    """It is named with its host and GPU; its wrong gradients are no reason to blame others."""
    pair.rank(1, ("start", {"node": "n0", "host": "h0", "gpu_uuid": "GPU-1"}))
    pair.rank(0, ("proof", {**PROOF, "gradients": {**GRADIENTS, "synced": False}}))
    pair.rank(1, ("proof", {**PROOF, **WRONG, "gradients": {**GRADIENTS, "synced": False}}))
    pair.each("proof", **{**PROOF, "step": 2})
    words = (
        r"^rank 1 \(n0\) on h0, GPU-1 disagrees with itself: .* step 1 gave other gradients for 1"
    )
    with pytest.raises(AssertionError, match=words):
        check_replay(pair.result())
    pair.result().check_gradients()


@pytest.mark.parametrize("kernels", [[], [UNNAMED_KERNELS]])
def test_step_repeated_with_another_batch_accuses_no_device(
    pair: Evidence, kernels: list[str]
) -> None:
    """The program's `local_loss` drew its batch anew, on one rank or all of them: the device is
    not at fault, and neither are its kernels."""
    wrong = {**PROOF, **WRONG, "nondeterministic": kernels, "batch": 7}
    pair.each("proof", **{**wrong, "repeated_batch": 8})
    with pytest.raises(AssertionError, match=r"^all ranks repeated step 1 with another batch"):
        check_replay(pair.result())
    named = {**wrong, "repeated_batch": 8, "nondeterministic": ["x does not have a ..."]}
    with pytest.raises(Unmeasured, match="not deterministic: x does not have"):
        check_replay(pair.each("proof", **named).result())


def test_step_repeated_with_its_own_batch_accuses_the_device(pair: Evidence) -> None:
    """Also if the model runs for something else as well in every step, so that the tensors that it
    got show nothing."""
    pair.rank(0, ("proof", PROOF))
    other = {"batch": 7, "repeated_batch": 8}
    for batches in ({"batch": 7, "repeated_batch": 7}, {"batch": 7, "repeated_batch": None}, other):
        pair.each("proof", **{**PROOF, **other, "step": 4})
        pair.rank(1, ("proof", {**PROOF, **WRONG, **batches}))
        with pytest.raises(AssertionError, match=r"^rank 1 .* disagrees with itself"):
            check_replay(pair.result())


@pytest.mark.parametrize(
    ("steps", "others", "ranks", "is_named"),
    [(5, 0, 4, True), (4, 0, 4, False), (5, 1, 4, False), (5, 0, 3, False)],
)
def test_rank_that_alone_differs_in_every_step_is_named_whatever_its_kernels(
    tmp_path: Path, steps: int, others: int, ranks: int, is_named: bool
) -> None:
    """The others run the same kernels, and give the same bits each time: in five steps, on three
    other ranks or more."""
    evidence = Evidence(tmp_path, 1, ranks).done()
    named = {**WRONG, "nondeterministic": ["cumsum_cuda_kernel"]}
    for step in range(1, steps + 1):
        evidence.each("proof", **{**PROOF, "step": step})
        evidence.rank(2, ("proof", {**PROOF, **named, "step": step}))
    for _ in range(others):
        evidence.rank(0, ("proof", {**PROOF, **named, "step": 1}))
    error, words = (AssertionError, "^rank 2 .* disagrees") if is_named else (Unmeasured, "not det")
    with pytest.raises(error, match=words):
        check_replay(evidence.result())


def test_kernels_in_any_order_are_unmeasured(pair: Evidence) -> None:
    """If all ranks disagree with themselves and torch says that a kernel adds in any order, nothing
    is shown; without such a kernel, or if only some ranks disagree, they are named."""
    pair.each("proof", **{**PROOF, **WRONG, "nondeterministic": ["cumsum_cuda_kernel"]})
    with pytest.raises(Unmeasured, match="not deterministic"):
        check_replay(pair.result())
    pair.each("proof", **{**PROOF, **WRONG, "step": 2})
    with pytest.raises(Unmeasured, match="not deterministic"):
        check_replay(pair.result())


def test_rank_whose_loop_has_another_loss_accuses_no_device(pair: Evidence) -> None:
    """All its gradients differ in each proven step, and its repetitions agree: `local_loss` is not
    what it trains on. A device is accused if any step, or any parameter, gave the same bits."""
    whole = {**PROOF, **UNEXPLAINED, "differing_count": 4}
    pair.rank(1, ("start", {"node": "n0", "host": "h0", "gpu_uuid": "GPU-1"}))
    for step in (1, 4, 9):
        pair.rank(0, ("proof", {**PROOF, "step": step}))
        pair.rank(1, ("proof", {**whole, "step": step}))
    words = (
        r"^rank 1 \(n0\) trained on another loss than .* in each of the 3 proven steps all .* If "
        r"it is the same, test rank 1 \(n0\) on h0, GPU-1 "
    )
    with pytest.raises(AssertionError, match=words):
        check_replay(pair.result())
    better: dict[str, Any]
    for better in ({"differing_count": 3}, {"differing_count": 0}, {"nondeterministic": []}):
        pair.rank(1, ("proof", {**whole, "step": 9, **better}))
        with pytest.raises(AssertionError, match=r"^rank 1 .* disagrees with itself"):
            check_replay(pair.result())


def test_difference_that_no_kernel_explains_must_last(tmp_path: Path) -> None:
    """Of a kernel that torch does not know it shows in most steps; an error that came and went does
    not, and also names a rank that has no other to compare with."""
    alone = Evidence(tmp_path, 1, 1).done()
    alone.each("proof", **PROOF).each("proof", **{**PROOF, **UNEXPLAINED, "step": 2})
    alone.each("proof", **{**PROOF, "step": 3})
    with pytest.raises(AssertionError, match=r"^rank 0 .* disagrees with itself: .* step 2"):
        check_replay(alone.result())
    for step in (4, 5):
        alone.each("proof", **{**PROOF, **UNEXPLAINED, "step": step})
    with pytest.raises(Unmeasured, match="not deterministic"):
        check_replay(alone.result())


def test_single_rank_has_no_excuse_where_deterministic_passes_differ(tmp_path: Path) -> None:
    """Most steps of a device that is often wrong differ, and by chance its deterministic passes
    agree in the first of them; a kernel that adds in any order does not differ in others."""
    alone = Evidence(tmp_path, 1, 1).done().each("proof", **PROOF)
    for step, kernels in ((2, [UNNAMED_KERNELS]), (3, []), (4, [UNNAMED_KERNELS])):
        alone.each("proof", **{**PROOF, **WRONG, "step": step, "nondeterministic": kernels})
    with pytest.raises(
        (AssertionError, Unmeasured), match=r"^rank 0 .* disagrees with itself: .* step 2"
    ):
        check_replay(alone.result())


def test_all_ranks_that_differ_once_are_not_blamed(pair: Evidence) -> None:
    """An error of several devices at once is less likely than a kernel that torch does not know."""
    pair.each("proof", **PROOF).each("proof", **{**PROOF, **UNEXPLAINED, "step": 2})
    pair.each("proof", **{**PROOF, "step": 3})
    with pytest.raises(Unmeasured, match="not deterministic"):
        check_replay(pair.result())


def test_rank_is_not_blamed_for_statistics_that_all_share(pair: Evidence) -> None:
    """One rank's error once reached both through their batch norms."""
    shared = {**PROOF, "shares_sums": True}
    pair.each("proof", **shared).each("proof", **{**shared, **UNEXPLAINED, "step": 2})
    pair.each("proof", **{**shared, "step": 3})
    with pytest.raises(AssertionError, match=r"all ranks disagree with themselves: .*each may be"):
        check_replay(pair.result())


def test_ranks_of_which_one_reaches_the_other_fail_though_no_pass_repeats(pair: Evidence) -> None:
    """A device that is wrong in most passes of tensor parallel ranks is no excuse."""
    for step in (1, 4, 9):
        pair.each("proof", **{**PROOF, **WRONG, "step": step, "shares_sums": True})
    with pytest.raises(AssertionError, match=r"all ranks disagree with themselves: .*each may be"):
        check_replay(pair.result())


def test_single_rank_can_disagree_with_itself(tmp_path: Path) -> None:
    """One rank is enough to show that its device computes wrongly."""
    alone = Evidence(tmp_path, 1, 1).done().each("proof", **{**PROOF, **WRONG})
    with pytest.raises(AssertionError, match=r"rank 0 .* disagrees with itself"):
        check_replay(alone.result())


def test_program_whose_passes_never_repeat_accuses_no_device(tmp_path: Path) -> None:
    """An extension's kernels, or a generator of its own: all ranks differ, in most steps, and
    deterministic passes as well. If one rank repeats its passes, the others are named."""
    four = Evidence(tmp_path, 1, 4).done()
    cross = {"checkers": [1, 2], "alone": None, "compared": 4, "differing": ["w"]}
    for step in (1, 4, 9):
        for rank in range(4):
            voted = {**cross, "checkers": [(rank + 1) % 4, (rank + 2) % 4], "differing_count": 1}
            four.rank(rank, ("proof", {**PROOF, **WRONG, "step": step, "cross": voted}))
    for check in (check_replay, check_cross_replay):
        with pytest.raises(Unmeasured, match="no rank gives the same bits twice"):
            check(four.result())
    # With deterministic kernels the passes agree: the majority has equal passes to vote by.
    unexplained = Evidence(tmp_path / "kernels", 1, 4).done()
    for step in (1, 4, 9):
        for rank in range(4):
            checkers = [(rank - 1) % 4, (rank - 2) % 4]
            alone = 1 if 1 in (rank, *checkers) else None
            voted = {**cross, "checkers": checkers, "alone": alone}
            voted["differing_count"] = 0 if alone is None else 1
            unexplained.rank(
                rank, ("proof", {**PROOF, **UNEXPLAINED, "step": step, "cross": voted})
            )
    with pytest.raises(AssertionError, match=r"rank 1 .* is outvoted"):
        check_cross_replay(unexplained.result())
    for step in (1, 4):
        four.rank(2, ("proof", {**PROOF, "step": step}))
    with pytest.raises(AssertionError, match=r"rank 0 .* disagrees with itself"):
        check_replay(four.result())


def test_twin_run_of_a_program_whose_passes_never_repeat_is_unmeasured(pair: Evidence) -> None:
    pair.dir.spec.write_text(pair.dir.spec.read_text().replace("{", '{"proof": "twin", ', 1))
    differing = {"gradient": {"step": 1, "name": "w"}}
    pair.each("twin", compared={"loss": 9}, differing=differing, nondeterministic=[])
    with pytest.raises(AssertionError, match="a reduction between them"):
        check_twin(pair.result())
    for step in (1, 4, 9):
        pair.each("proof", **{**PROOF, **WRONG, "step": step})
    with pytest.raises(Unmeasured, match="no rank gives the same bits twice"):
        check_twin(pair.result())


def test_difference_behind_a_named_kernel_is_no_pass(tmp_path: Path) -> None:
    """Passes with deterministic kernels are compared there, and agree; the rank that alone differed
    before is named."""
    four = Evidence(tmp_path, 1, 4).done().each("proof", **{**PROOF, "unequal_count": 0})
    check_replay(four.result())
    hidden = {**PROOF, "unequal_count": 2, "nondeterministic": ["cumsum_cuda_kernel"]}
    four.rank(1, ("proof", hidden))
    words = "not deterministic: cumsum_cuda_kernel; only rank 1 .* differs: test it"
    with pytest.raises(Unmeasured, match=words):
        check_replay(four.result())
    four.each("proof", **hidden)
    with pytest.raises(Unmeasured, match=r"not deterministic: cumsum_cuda_kernel$"):
        check_replay(four.result())
