"""Reports of pytest on a criterion, as the session marks them."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_clustersmoke.session.tally import MARKS


def report(
    name: str = "test_a", outcome: Any = "passed", when: Any = "call", **properties: str
) -> pytest.TestReport:
    """One phase of a test; `properties` are its marks."""
    made = pytest.TestReport(
        nodeid=f"test_x.py::TestA::{name}",
        location=("test_x.py", 1, name),
        keywords={},
        outcome=outcome,
        longrepr=None,
        when=when,
    )
    if properties:
        setattr(made, MARKS, properties)
    return made
