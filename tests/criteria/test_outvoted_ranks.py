"""Passes that three ranks had each: who is named, who is only listed, and records of nonsense."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.criteria.outvoted_ranks import check_cross_replay
from pytest_clustersmoke.evidence.metric import Unmeasured
from tests.support.evidence import Evidence

EQUAL: dict[str, Any] = {
    "compared": 4,
    "alone": None,
    "differing": [],
    "differing_count": 0,
    "nondeterministic": [],
}
PROOF = {"replayed": 4, "differing": [], "differing_count": 0}


def cross(rank: int, ranks: int, results: Mapping[int, Any]) -> dict[str, Any]:
    """The record of a rank, where these ranks compute other results than the rest."""
    members = [(rank - by) % ranks for by in range(3)]
    values = [results.get(member, "right") for member in members]
    odd = [at for at, value in enumerate(values) if values.count(value) == 1]
    differing = {"differing": ["w"], "differing_count": 1} if len(set(values)) > 1 else {}
    alone = members[odd[0]] if len(odd) == 1 else None
    return {**EQUAL, "checkers": members[1:], "alone": alone, **differing}


def evidence(folder: Path, ranks: int, *steps: Mapping[int, Any]) -> Evidence:
    """Ranks that proved steps 1, 2, ..., with what each wrong rank computed in the step."""
    made = Evidence(folder, 1, ranks).done()
    for rank in range(ranks):
        made.rank(rank, ("start", {"node": "n0", "host": f"h{rank}", "gpu_uuid": f"GPU-{rank}"}))
        for step, results in enumerate(steps, 1):
            made.rank(
                rank, ("proof", {**PROOF, "step": step, "cross": cross(rank, ranks, results)})
            )
    return made


@pytest.mark.parametrize("ranks", [3, 4, 8])
def test_equal_results_pass(tmp_path: Path, ranks: int) -> None:
    """Every rank's pass was the same on three ranks."""
    check_cross_replay(evidence(tmp_path, ranks, {}, {}).result())


@pytest.mark.parametrize("ranks", [3, 4, 5, 8])
@pytest.mark.parametrize("guilty", [0, 1, 2])
def test_rank_that_is_alone_is_named(tmp_path: Path, ranks: int, guilty: int) -> None:
    """It is named with its host and GPU, and no other rank in the same form."""
    phase = evidence(tmp_path, ranks, {}, {guilty: "wrong"}).result()
    words = (
        rf"^rank {guilty} \(n0\) on h{guilty}, GPU-{guilty} is outvoted by ranks .*"
        r"at step 2 it computed other gradients than both, of 1 of 4 parameters \(w\); .*"
        r"alone in 3 of the 6 passes"
    )
    with pytest.raises(AssertionError, match=words) as caught:
        check_cross_replay(phase)
    assert [rank.rank for rank in phase.ranks if str(rank) in str(caught.value)] == [guilty]
    assert "nothing shows which is right" not in str(caught.value)


def test_rank_that_is_wrong_in_one_pass_alone_is_named(tmp_path: Path) -> None:
    """The same defect may change the results for some inputs only."""
    made = evidence(tmp_path, 4, {})
    for rank in range(4):
        record = cross(rank, 4, {1: "wrong"} if rank == 2 else {})
        made.rank(rank, ("proof", {**PROOF, "step": 2, "cross": record}))
    words = r"^rank 1 \(n0\) .* for the pass of rank 2 at step 2 .* alone in 1 of the 6"
    with pytest.raises(AssertionError, match=words):
        check_cross_replay(made.result())


@pytest.mark.parametrize("pair", [(0, 1), (0, 2), (2, 5)])
def test_two_wrong_ranks_of_eight_are_both_named(tmp_path: Path, pair: tuple[int, int]) -> None:
    """Each is outvoted by healthy ranks in some pass."""
    phase = evidence(tmp_path, 8, dict(zip(pair, "ab", strict=True))).result()
    with pytest.raises(AssertionError) as caught:
        check_cross_replay(phase)
    named = [rank.rank for rank in phase.ranks if str(rank) in str(caught.value)]
    assert named == list(pair)


@pytest.mark.parametrize(
    ("ranks", "results", "listed"),
    [
        (4, {0: "a", 1: "a"}, "ranks 0-3"),  # two halves: each has a majority somewhere
        (3, {0: "a", 1: "b"}, "ranks 0-2"),  # no two agree
        (4, {0: "a", 1: "b", 2: "c", 3: "d"}, "ranks 0-3"),
        (8, {1: "a", 3: "a", 5: "a", 7: "a"}, "ranks 0-7"),
    ],
)
def test_several_explanations_name_nobody(
    tmp_path: Path, ranks: int, results: dict[int, str], listed: str
) -> None:
    """The ranks that differ are listed; none is said to be wrong."""
    phase = evidence(tmp_path, ranks, results).result()
    words = rf"^{listed} compute different gradients .* nothing shows which is right"
    with pytest.raises(AssertionError, match=words) as caught:
        check_cross_replay(phase)
    assert not [rank for rank in phase.ranks if str(rank) in str(caught.value)]


def test_fewer_than_three_ranks_are_skipped(tmp_path: Path) -> None:
    """There is no majority, which is no missing measurement."""
    with pytest.raises(pytest.skip.Exception, match="a majority needs 3 ranks; this phase has 2"):
        check_cross_replay(Evidence(tmp_path, 1, 2).done().result())


def test_what_was_not_compared_is_unmeasured(tmp_path: Path) -> None:
    """Without a proof, without `peer_loss`, or for a reason that the ranks recorded; one step that
    was compared is enough."""
    made = Evidence(tmp_path, 1, 3).done()
    with pytest.raises(Unmeasured, match=r"gave rank\.steps no `proof`"):
        check_cross_replay(made.result())
    made.each("proof", **PROOF, step=1)
    with pytest.raises(Unmeasured, match="has no `peer_loss`"):
        check_cross_replay(made.result())
    other = evidence(tmp_path / "other", 3)
    other.each("proof", step=1, not_measured="reentrant checkpointing")
    other.each("proof", **PROOF, step=2, cross={"not_measured": "the model is compiled"})
    with pytest.raises(Unmeasured, match="reentrant checkpointing"):
        check_cross_replay(other.result())
    for rank in range(3):
        other.rank(rank, ("proof", {**PROOF, "step": 3, "cross": cross(rank, 3, {})}))
    check_cross_replay(other.result())


def test_kernels_in_any_order_are_unmeasured(tmp_path: Path) -> None:
    """If torch says that a kernel adds in any order, a difference shows nothing."""
    made = Evidence(tmp_path, 1, 3).done()
    for rank in range(3):
        record = cross(rank, 3, {1: "wrong"}) | {"nondeterministic": ["cumsum_cuda_kernel"]}
        made.rank(rank, ("proof", {**PROOF, "step": 1, "cross": record}))
    with pytest.raises(Unmeasured, match="not deterministic: cumsum_cuda_kernel"):
        check_cross_replay(made.result())


def test_steps_after_a_number_that_is_not_finite_are_left_out(tmp_path: Path) -> None:
    """They are wrong for another reason, which has a criterion of its own."""
    made = evidence(tmp_path, 3, {}, {1: "wrong"})
    made.each("losses", mean=[1.0, "nan"], local_finite=False, not_finite_at=2)
    check_cross_replay(made.result())


@pytest.mark.parametrize(
    "change",
    [
        {"checkers": None},
        {"checkers": [0, 0]},
        {"checkers": [1]},
        {"checkers": [1, 99]},
        {"checkers": [1, -1]},
        {"checkers": ["1", "0"]},
        {"alone": 2},
        {"alone": 77, "differing_count": 1},
        {"alone": True, "differing_count": 1},
        {"alone": "2", "differing_count": 1},
        {"compared": 0},
        {"compared": None},
        {"differing_count": None},
        {"differing_count": 5},
        {"differing_count": -1},
        {"differing_count": False},
    ],
)
def test_record_without_sense_fails(tmp_path: Path, change: dict[str, Any]) -> None:
    """It is never a pass, and accuses nobody."""
    made = evidence(tmp_path, 3, {})
    record = cross(2, 3, {}) | change
    made.rank(2, ("proof", {**PROOF, "step": 2, "cross": record}))
    for rank in (0, 1):
        made.rank(rank, ("proof", {**PROOF, "step": 2, "cross": cross(rank, 3, {})}))
    with pytest.raises(AssertionError, match=r"rank 2 \(n0\) recorded no readable cross replay of"):
        check_cross_replay(made.result())


@pytest.mark.parametrize("record", [None, 1, "x", [], {}, {"not_measured": 1}])
def test_rank_without_a_record_fails(tmp_path: Path, record: Any) -> None:
    """Where others have one, the rank is named."""
    made = evidence(tmp_path, 3)
    for rank in range(3):
        result = record if rank == 1 else cross(rank, 3, {})
        made.rank(rank, ("proof", {**PROOF, "step": 1, "cross": result}))
    with pytest.raises(AssertionError, match=r"rank 1 \(n0\) recorded no readable cross replay of"):
        check_cross_replay(made.result())
