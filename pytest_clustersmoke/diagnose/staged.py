"""A fault that was staged in a run that did not ask for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..findings import Evidence, Finding
from ..staged_marks import stray

if TYPE_CHECKING:
    from ..result import PhaseResult


def stray_fault(result: PhaseResult) -> list[Finding]:
    """Whatever such a run says, it says of the fault and not of the cluster."""
    found = stray(result)
    if found is None:
        return []
    rank, record = found
    line = rank.events.line_of(record)
    return [
        Finding(
            "fault-staged-unasked",
            f"{rank} staged the fault {str(record.get('name'))!r}, which this run did not ask for",
            "find out what set CLUSTERSMOKE_FAULT on the node, or wrote the event; faults are "
            "staged by --cluster-prove alone",
            evidence=(Evidence(str(rank.events.path), line, "the event `staged`"),),
            hosts=(rank.node,),
            ranks=(rank.rank,),
        )
    ]
