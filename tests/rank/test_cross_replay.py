"""Ranks that repeat each other's passes: who is alone, and that training is left as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytest_clustersmoke.rank.cross_replay import find_alone
from tests.rank.conftest import Run

RANKS, GUILTY = 4, 2


@pytest.mark.parametrize(
    ("results", "alone"),
    [
        ([1, 1, 1], None),
        ([2, 1, 1], 0),
        ([1, 2, 1], 1),
        ([1, 1, 2], 2),
        ([1, 2, 3], None),
        ([[1, 2], [1, 3], [1, 2]], 1),
    ],
)
def test_two_of_three_outvote_the_third(results: list[Any], alone: int | None) -> None:
    """If all differ, none is alone."""
    assert find_alone(results) == alone


@pytest.mark.slow
def test_rank_that_is_always_wrong_is_alone(torchrun: Callable[..., Run]) -> None:
    """It agrees with itself, and is outvoted in its own pass and as a checker of two others.

    Healthy ranks agree with dropout and batch norm, also if a buffer that decides the gradients
    differs; with other parameters, or kernels of a rank's own choice, nothing is compared. Weights,
    gradients, moments, buffers and random state are as without it.
    """
    run = torchrun("cross.py", ranks=RANKS)
    assert run.status == 0, run.output
    for rank in range(RANKS):
        facts = [record["values"] for record in run.events(rank).named("fact")]
        cases = {fact["case"]: fact for fact in facts[:-1]}
        assert facts[-1] == {"left_as_it_was": True}
        assert [fact["own"] for fact in cases.values()] == [[0, 0]] * len(cases)
        cross = {case: fact["cross"] for case, fact in cases.items()}
        checkers = [(rank - 1) % RANKS, (rank - 2) % RANKS]
        equal = {"checkers": checkers, "compared": 6, "alone": None}
        equal |= {"differing": [], "differing_count": 0, "nondeterministic": []}
        assert cross["healthy"] == [equal | {"again": False}] * 2
        assert cross["other buffers"] == [equal | {"again": True}] * 2
        for record in cross["always wrong"]:
            took_part = GUILTY in (rank, *checkers)
            assert record["alone"] == (GUILTY if took_part else None)
            assert bool(record["differing_count"]) is took_part
            assert ("0.weight" in record["differing"]) is took_part
        parameters, compiled = cross["other parameters"][0], cross["compiled"][0]
        assert parameters == {"not_measured": "the ranks hold different parameters"}
        reason = "the model is compiled, so each rank may compute with kernels of its own"
        assert compiled == {"not_measured": reason}
