"""Hardware faults replayed from recorded text: each is found by its signature, rank and host."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.faults import staged
from tests.faults.table import REPLAYED, Fault
from tests.support.harness import Outcome


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=fault.name, marks=[pytest.mark.slow] if fault.slow else [])
        for fault in REPLAYED
    ],
)
def test_recorded_fault_is_found_by_its_signature(
    fault: Fault,
    staged_together: Callable[[Fault], Outcome],
    record_property: Callable[[str, object], None],
) -> None:
    """The finding has the known cause, and names the rank and host that wrote the recorded text."""
    staged.check(fault, staged_together(fault), record_property)
