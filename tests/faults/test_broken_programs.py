"""Broken rank programs, run for real on this machine: each fails what it breaks, nothing else."""

from __future__ import annotations

import pytest

from .harness import Suite
from .staged import run
from .table import FAULTS, Fault


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_broken_program_fails_what_it_breaks_and_nothing_else(
    fault: Fault, broken: Suite, request: pytest.FixtureRequest
) -> None:
    """The criteria that fail are exactly the fault's; the finding names its rank."""
    run(fault, broken, request)
