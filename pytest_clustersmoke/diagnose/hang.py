"""Ranks that the others waited for, where one stood still past its stage's limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..findings import Evidence, Finding
from . import suspects

if TYPE_CHECKING:
    from ..result import PhaseResult


def hang(result: PhaseResult) -> list[Finding]:
    """Ranks that the others waited for, where a rank stood still past its stage's limit."""
    why = [str(n.result.get("why")) for n in result.nodes if n.result.get("reason") == "stalled"]
    absent = suspects.absent_from_collective(result) if why else []
    findings = []
    for index, rank in enumerate(absent):
        stack = suspects.stack_line(result.directory, rank.rank)
        path = str(result.directory.rank_stack(rank.rank))
        findings.append(
            Finding(
                "hang",
                f"{rank} never came to a collective that the other ranks wait in; {why[0]}",
                "read the stacks in dumps/ of the run directory, that of this rank first",
                primary=not index,
                evidence=(Evidence(path, *stack),) if stack else (),
                hosts=(rank.node,),
                ranks=(rank.rank,),
            )
        )
    return findings
