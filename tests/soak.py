"""The ladder many times over on a healthy lab: no failure and no finding (`make soak`)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.ladder import check_phases, run_on_lab


@pytest.mark.parametrize("turn", range(int(os.environ.get("SOAK", "20"))))
def test_healthy_lab_stays_fit(lab_dir: Path, turn: int) -> None:
    """Nothing is staged, so nothing fails and nothing is found."""
    check_phases(run_on_lab(lab_dir))
