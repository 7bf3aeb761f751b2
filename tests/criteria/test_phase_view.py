"""A criterion's view of a phase: its evidence, its transports and its past."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from pytest_clustersmoke.criteria.phase_criteria import view_phase
from pytest_clustersmoke.evidence.metric import Unmeasured
from pytest_clustersmoke.evidence.phase_result import PhaseResult, collect_phase
from tests.support.evidence import Evidence


@pytest.fixture
def result(tmp_path: Path) -> PhaseResult:
    return collect_phase(Evidence(tmp_path, 1, 2).done().dir)


def test_view_has_the_same_evidence(result: PhaseResult) -> None:
    """All criteria share what one marks as judged, and no file is read twice."""
    view = view_phase(result)
    for field in fields(PhaseResult):
        assert getattr(view, field.name) is getattr(result, field.name)


def test_view_compares_with_the_past(result: PhaseResult) -> None:
    """Evidence collected without a report directory has no past to compare with."""
    with pytest.raises(Unmeasured, match="no history to compare with"):
        view_phase(result).check_past()


def test_transports_of_a_view_are_joined_once(result: PhaseResult) -> None:
    """Both sides, and all criteria on them, share one join of logs and events."""
    view = view_phase(result)
    sides = (view.transports.intra_node, view.transports.inter_node)
    assert {id(side.transports.placed) for side in sides} == {id(view.transports.placed)}
