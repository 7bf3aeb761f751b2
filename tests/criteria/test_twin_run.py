"""The twin run: which rank is named, and what is not measured."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.criteria.twin_run import check_twin
from pytest_clustersmoke.evidence.metric import Unmeasured
from pytest_clustersmoke.evidence.run_directory import read_json, write_json
from pytest_clustersmoke.evidence.telemetry import UNNAMED_KERNELS
from tests.support.evidence import Evidence

EQUAL: dict[str, Any] = {
    "first_step": 2,
    "compared": {"loss": 29},
    "differing": {},
    "rate_differs_at": None,
    "nondeterministic": [],
    "seconds": 3.0,
}


def differs(*names: str, **steps: int) -> dict[str, Any]:
    """A record in which these kinds differ first at these steps."""
    name = names[0] if names else "0.weight"
    return EQUAL | {"differing": {kind: {"step": at, "name": name} for kind, at in steps.items()}}


def make_job(folder: Path, ranks: int) -> Evidence:
    """A job of one node under `proof: twin` that is done."""
    evidence = Evidence(folder, 1, ranks).done()
    write_json(evidence.dir.spec, {**(read_json(evidence.dir.spec) or {}), "proof": "twin"})
    return evidence


@pytest.fixture
def four(tmp_path: Path) -> Evidence:
    """Such a job of four ranks."""
    return make_job(tmp_path, 4)


def test_equal_passes_pass(four: Evidence) -> None:
    """Every rank compared its steps, and nothing differs."""
    phase = four.each("twin", **EQUAL).result()
    check_twin(phase)
    assert phase.judged == {"twin"}  # else the phase is not FIT


def test_sampled_phase_is_skipped(tmp_path: Path) -> None:
    """The twin run is asked for; nothing is missing without it."""
    result = Evidence(tmp_path, 1, 1).done().result()
    with pytest.raises(pytest.skip.Exception, match="`proof` is not `twin`") as skipped:
        check_twin(result)
    assert not isinstance(skipped.value, Unmeasured)


@pytest.mark.parametrize(
    ("own", "others"),
    [
        # A wrong product, or a weight: its own loss or gradient, and the others one step later.
        ({"loss": 10, "gradient": 10, "parameter": 10}, {"loss": 11, "parameter": 10}),
        ({"gradient": 10, "loss": 11}, {"loss": 11, "gradient": 11, "parameter": 10}),
        # A master weight under ZeRO: all ranks get it within the step.
        ({"partition": 10, "loss": 11}, {"parameter": 10, "loss": 11, "partition": 11}),
        # A moment that never shows in a weight.
        ({"moment": 20}, {}),
    ],
)
def test_rank_that_differs_before_the_others_is_named(
    four: Evidence, own: dict[str, int], others: dict[str, int]
) -> None:
    """With its host; the others got its error."""
    for rank in range(4):
        four.rank(rank, ("twin", differs(**(own if rank == 2 else others))))
    with pytest.raises(AssertionError) as failed:
        check_twin(four.result())
    text = str(failed.value)
    by_itself = ("loss" in own and own["loss"] == min(own.values())) or "gradient" in own
    assert text.startswith("rank 2 (n0) on h disagrees with itself: ") == by_itself
    assert "on rank 2 (n0) on h before the other ranks" in text or by_itself
    assert re.search(rf"at step {min(own.values())}\b.*; expected the same bits", text)
    assert not any(f"rank {rank} " in text for rank in (0, 1, 3))


def test_single_rank_is_named(tmp_path: Path) -> None:
    """It has no other to compare with, and needs none."""
    evidence = make_job(tmp_path, 1).each("twin", **differs(parameter=10))
    with pytest.raises(AssertionError, match=r"differ, first parameter \(0.weight\) at step 10"):
        check_twin(evidence.result())


@pytest.mark.parametrize(
    ("steps", "is_named"),
    [
        # Passes of a device that is wrong now and then may differ once, and then agree for a while.
        ("equal equal equal equal equal", True),
        ("equal unexplained unexplained equal equal", True),
        # Its passes with deterministic kernels differ sooner or later.
        ("unexplained unexplained unexplained differs equal", True),
        # A kernel that adds in any order does so in most steps, and never when it may not.
        ("unexplained equal unexplained unexplained equal", False),
    ],
)
@pytest.mark.parametrize("shared", [False, True])
def test_difference_that_no_kernel_explains_must_last(
    tmp_path: Path, steps: str, is_named: bool, shared: bool
) -> None:
    """A rank alone, or ranks that share the statistics of batch norms, cannot show by their number
    that they add in any order; the proven steps can."""
    job = make_job(tmp_path, 2 if shared else 1)
    job.each("twin", **(differs(loss=10) | {"nondeterministic": [UNNAMED_KERNELS]}))
    for step, kind in enumerate(steps.split(), 1):
        kernels = [UNNAMED_KERNELS] if kind == "unexplained" else []
        record = {"differing_count": int(kind != "equal"), "nondeterministic": kernels}
        job.each("proof", step=step, replayed=4, shares_sums=shared, **record)
    named = "on 0-1 of 2 ranks at once" if shared else "rank 0 .* disagrees with itself"
    unnamed = "not deterministic: passes of one step differ"
    with pytest.raises((AssertionError, Unmeasured), match=named if is_named else unnamed):
        check_twin(job.result())


def test_reduction_is_blamed_if_most_ranks_differ_at_once(four: Evidence) -> None:
    """Their loss or their gradients, whichever shows it; nobody is named."""
    for rank, kinds in enumerate(({"loss": 7}, {"gradient": 7}, {"loss": 7}, {"gradient": 8})):
        four.rank(rank, ("twin", differs(**kinds)))
    with pytest.raises(AssertionError, match=r"on 0-2 of 4 ranks at once.*step 6 or 7") as failed:
        check_twin(four.result())
    assert "disagrees with itself" not in str(failed.value)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"reason": "names no optimizer"}, "names no optimizer"),
        (EQUAL | {"compared": {"loss": 0}}, r"rank 0 \(n0\) compared no step"),
        (EQUAL | {"compared": "x"}, r"rank 0 \(n0\) compared no step"),
        (EQUAL | {"rate_differs_at": 9}, "learning rate.*from step 9 on"),
        (differs(batch=2, loss=2), "saw other data in step 2"),
        (differs(loss=3) | {"nondeterministic": ["index_add"]}, "not deterministic: .*index_add"),
        (differs(loss=3) | {"nondeterministic": [UNNAMED_KERNELS]}, "not deterministic: passes"),
    ],
)
def test_passes_that_need_not_be_equal_are_unmeasured(
    four: Evidence, record: dict[str, Any], words: str
) -> None:
    """The phase is then not FIT, and nobody is accused."""
    with pytest.raises(Unmeasured, match=words) as skipped:
        check_twin(four.each("twin", **record).result())
    assert skipped.value.kind == "twin"


def test_other_data_on_some_ranks_accuse_no_device(four: Evidence) -> None:
    """A generator of the program's own goes on where it was; the rank's device is not at fault."""
    for rank in range(4):
        differing = differs(batch=2, loss=2) if rank == 1 else differs(loss=3, parameter=2)
        four.rank(rank, ("twin", differing))
    with pytest.raises(Unmeasured, match="saw other data in step 2 of the second pass on rank 1;"):
        check_twin(four.result())


def test_first_difference_after_a_reduction_names_the_place_but_no_device(four: Evidence) -> None:
    """The reduced gradient that the rank received may be at fault, so links are not excluded."""
    for rank in range(4):
        own = differs(partition=6, parameter=6) if rank == 2 else differs(parameter=6, loss=7)
        four.rank(rank, ("twin", own))
    with pytest.raises(AssertionError, match=r"rank 2 .*first partition .* at step 6") as failed:
        check_twin(four.result())
    assert "links" in str(failed.value) and "out of service" not in str(failed.value)


def test_missing_event_is_unmeasured(four: Evidence) -> None:
    """A program without a Proof trains once."""
    with pytest.raises(Unmeasured, match="no `proof`"):
        check_twin(four.result())


@pytest.mark.parametrize("differing", [None, "x", {"loss": 3}, {"other": {"step": 3}}])
def test_record_that_is_not_sound_fails(four: Evidence, differing: Any) -> None:
    """It does not say that nothing differs."""
    with pytest.raises(AssertionError, match="on 0-3 of 4 ranks at once"):
        check_twin(four.each("twin", **(EQUAL | {"differing": differing})).result())


def test_missing_rank_fails(four: Evidence) -> None:
    """A rank that reported nothing is named."""
    with pytest.raises(AssertionError, match="rank 1 reported no result of the twin run"):
        check_twin(four.rank(0, ("twin", EQUAL)).result())
