"""What the tests of faults share: a suite of their own, and that nothing of it is left running."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .harness import Suite


@pytest.fixture
def broken(tmp_path: Path, leftovers: tuple[str, Callable[[], list[str]]]) -> Suite:
    """An empty suite on a local cluster; no process of it may be left when the test ends."""
    return Suite(tmp_path, leftovers[0])
