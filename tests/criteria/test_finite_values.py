"""Which rank had a NaN first, judged from the ranks' events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.criteria.finite_values import check_finite_values
from tests.support.evidence import Evidence

WHOLE = {"parameters": 6, "not_finite_at": None, "not_finite_in": None}


def losses(at: int | None = None) -> dict[str, Any]:
    mean = [1.0 if at is None or step < at else "nan" for step in range(1, 7)]
    return {"mean": mean, "local_finite": at is None, "not_finite_at": at}


def gradient(at: int, name: str = "0.weight") -> dict[str, Any]:
    return {**WHOLE, "not_finite_at": at, "not_finite_in": name}


def failure(folder: Path, *values: tuple[dict[str, Any] | None, ...]) -> str:
    """The check's message; `values` are the losses and the watched gradients of each rank. Empty
    if the check passes."""
    evidence = Evidence(folder, ranks_per_node=len(values))
    for rank, events in enumerate(values):
        named = zip(("losses", "gradient_watch"), events, strict=True)
        start = ("start", {"rank": rank, "node": "n0", "host": "h0"})
        evidence.rank(rank, start, *((name, event) for name, event in named if event is not None))
    try:
        check_finite_values(evidence.result())
    except AssertionError as error:
        return str(error)
    return ""


def test_finite_values_pass(tmp_path: Path) -> None:
    """With watched gradients or without."""
    assert not failure(tmp_path / "a", (losses(), WHOLE), (losses(), WHOLE))
    assert not failure(tmp_path / "b", (losses(), None), (losses(), None))


def test_rank_whose_gradient_spread_is_named(tmp_path: Path) -> None:
    """One step later all losses and gradients are NaN; the gradient before them is the cause."""
    message = failure(tmp_path, (losses(5), gradient(5)), (losses(5), gradient(4, "2.bias")))
    assert message == (
        "the gradient of 2.bias is not finite, first at step 4 on rank 1 (n0); on 2 ranks in all"
    )


def test_loss_comes_before_the_gradients_of_its_step(tmp_path: Path) -> None:
    """If one rank's data had the NaN, its loss shows it first."""
    message = failure(tmp_path, (losses(5), gradient(5)), (losses(4), gradient(4)))
    assert message == "the loss is not finite, first at step 4 on rank 1 (n0); on 2 ranks in all"


def test_gradient_of_the_last_step_fails_without_a_loss(tmp_path: Path) -> None:
    """No later loss shows it, but the saved weights are NaN."""
    message = failure(tmp_path, (losses(), gradient(6)), (losses(), WHOLE))
    assert message.startswith(
        "the gradient of 0.weight is not finite, first at step 6 on rank 0 (n0)"
    )


def test_losses_alone_show_the_first_ranks(tmp_path: Path) -> None:
    """All ranks whose losses turn NaN in the same first step are named."""
    message = failure(tmp_path, (losses(5), None), (losses(5), None))
    assert message == (
        "the loss is not finite, first at step 5 on rank 0 (n0), rank 1 (n0); on 2 ranks in all"
    )


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (((losses(), WHOLE), (None, WHOLE)), "only ranks [0] of 2 reported their losses"),
        (((losses(), WHOLE), (losses(), None)), "only ranks [0] of 2 watched their gradients"),
        (((losses(), WHOLE), (losses(), {**WHOLE, "not_finite_at": []})), "at an unknown step"),
        (((losses(), WHOLE), (losses(), gradient(2, "\x1b[31m"))), "gradient of �[31m is"),
    ],
)
def test_missing_or_invalid_events_fail(
    values: tuple[tuple[dict[str, Any] | None, ...], ...], words: str, tmp_path: Path
) -> None:
    """Missing events do not pass; events are hostile text."""
    assert words in failure(tmp_path, *values)
