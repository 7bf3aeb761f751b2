"""A gate as pytest collects it: every fault of every phase, of which the suite keeps the best."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..faults import FAULTS, Fault
from ..items import PhaseClass, PhaseItem, suite_of

PREFIX = "prove-"


class GateItem(PhaseItem):
    """One fault staged in one phase: passes where it turned its criterion red, as it must."""

    def __init__(self, *, fault: Fault, **given: Any) -> None:
        super().__init__(**given)
        self.fault = fault

    @property
    def staged_name(self) -> str:
        """The name of the phase in which the fault is staged."""
        return f"{PREFIX}{self.fault.name}"

    def runtest(self) -> None:
        suite_of(self.config).run_gate(self)


def gates(cls: PhaseClass) -> Iterator[GateItem]:
    for fault in FAULTS.values():
        gate: GateItem = GateItem.from_parent(cls, name=f"prove[{fault.name}]", fault=fault)
        yield gate
