"""The curves of collectives, from what ranks recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.collective_curves import MAX_POINTS, CurveRecord, read_curves
from tests.support.evidence import Evidence


def measured(name: str = "all_reduce", asked: int = 64, **changes: Any) -> tuple[str, Any]:
    """The event of one collective at one size."""
    figures = {"seconds": 2e-5, "algbw_gb_per_s": 3.0, "busbw_gb_per_s": 4.0, "wrong": 0}
    record = {"what": "collective", "collective": name, "asked_bytes": asked, "size_bytes": asked}
    return "measured", {**record, **figures, **changes}


def curves_of(folder: Path, *ranks: list[tuple[str, Any]]) -> list[CurveRecord]:
    evidence = Evidence(folder, 1, len(ranks)).started()
    for rank, events in enumerate(ranks):
        evidence.rank(rank, *events)
    return read_curves(evidence.result().ranks)


def test_point_is_that_of_the_slowest_rank(tmp_path: Path) -> None:
    """Sizes in order, whatever the order of measuring; wrong elements of all ranks together."""
    slow: dict[str, Any] = {
        "seconds": 5e-5,
        "algbw_gb_per_s": 1.0,
        "busbw_gb_per_s": 1.5,
        "wrong": 2,
    }
    (curve,) = curves_of(
        tmp_path,
        [measured(asked=512), measured(asked=64, wrong=1)],
        [measured(asked=512), measured(asked=64, **slow)],
    )
    assert curve.collective == "all_reduce"
    assert [point.asked_bytes for point in curve.points] == [64, 512]
    small, large = curve.points
    assert (small.seconds, small.busbw_gb_per_s, small.wrong) == (5e-5, 1.5, 3)
    assert (large.seconds, large.busbw_gb_per_s, large.wrong) == (2e-5, 4.0, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"seconds": "nan"},
        {"seconds": 0},
        {"busbw_gb_per_s": None},
        {"size_bytes": "64"},
        {"asked_bytes": True},
        {"asked_bytes": 2**63},
        {"size_bytes": 10**400},
        {"collective": ["x"]},
        {"collective": "x" * 99},
    ],
)
def test_point_that_is_not_whole_is_left_out(tmp_path: Path, changes: dict[str, Any]) -> None:
    """A value of one rank that is none; the other points stay."""
    curves = curves_of(tmp_path, [measured(**changes), measured(asked=512)])
    assert [point.asked_bytes for curve in curves for point in curve.points] == [512]


def test_names_that_look_alike_are_one_curve(tmp_path: Path) -> None:
    """Otherwise two series of metrics.prom would have the same labels."""
    (curve,) = curves_of(tmp_path, [measured("a\x00", asked=64), measured("a\x01", asked=512)])
    assert [point.asked_bytes for point in curve.points] == [64, 512]


def test_point_that_a_rank_lacks_is_left_out(tmp_path: Path) -> None:
    """A rank that died measured less: no point is made from the others alone."""
    both, alone = measured(asked=64), measured(asked=512)
    (curve,) = curves_of(tmp_path, [both, alone], [both])
    assert [point.asked_bytes for point in curve.points] == [64]
    assert curves_of(tmp_path / "other", [], [both]) == []


def test_curve_has_no_more_points_than_allowed(tmp_path: Path) -> None:
    """Whatever a job claims."""
    (curve,) = curves_of(tmp_path, [measured(asked=size) for size in range(1, MAX_POINTS + 9)])
    assert len(curve.points) == MAX_POINTS
