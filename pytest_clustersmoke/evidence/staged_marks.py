"""What the ranks wrote of a fault that they staged; and a fault that nobody asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .job_results import RankResult
from .phase_result import PhaseResult


def named_in(spec: Mapping[str, Any]) -> str:
    """The fault that a phase's spec names; empty for a normal run."""
    fault = spec.get("fault")
    return str(fault.get("name", "")) if isinstance(fault, dict) else ""


def staged(result: PhaseResult) -> dict[int, dict[str, Any]]:
    """rank -> its first `staged` event of the fault that the spec names."""
    name = named_in(result.spec)
    found: dict[int, dict[str, Any]] = {}
    for rank in result.ranks:
        for record in rank.events.named("staged"):
            if record.get("name") == name:
                found.setdefault(rank.rank, record)
    return found


def stray(result: PhaseResult) -> tuple[RankResult, dict[str, Any]] | None:
    """A rank that staged a fault by name which its phase's spec does not name, and what it wrote.

    Programs that are broken by themselves may mark that, too; they have no name of ours."""
    name = named_in(result.spec)
    for rank in result.ranks:
        for record in rank.events.named("staged"):
            if record.get("name") not in (None, name or None):
                return rank, record
    return None
