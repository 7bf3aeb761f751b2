"""The ranks' events about staged faults, and faults that were not requested."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .job_results import RankResult
from .phase_result import PhaseResult

# How the message of a rank begins that cannot stage its fault.
CANNOT_STAGE = "the fault cannot be staged in this program"


def fault_name(spec: Mapping[str, Any]) -> str:
    """The name of the fault in a phase's spec; empty for a normal run."""
    fault = spec.get("fault")
    return str(fault.get("name", "")) if isinstance(fault, dict) else ""


def find_staged_events(result: PhaseResult) -> dict[int, dict[str, Any]]:
    """rank -> its first `staged` event of the fault in the spec."""
    name = fault_name(result.spec)
    events: dict[int, dict[str, Any]] = {}
    for rank in result.ranks:
        for record in rank.events.named("staged"):
            if record.get("name") == name:
                events.setdefault(rank.rank, record)
    return events


def find_unrequested_fault(result: PhaseResult) -> tuple[RankResult, dict[str, Any]] | None:
    """A rank that staged a named fault which is not in its phase's spec, and its event.

    Programs that are broken on purpose may write the event as well, without a name."""
    name = fault_name(result.spec)
    for attempt in (*result.earlier, result):
        for rank in attempt.ranks:
            for record in rank.events.named("staged"):
                if record.get("name") not in (None, name or None):
                    return rank, record
    return None


def find_refusal(result: PhaseResult) -> str:
    """Why a rank could not stage the fault, in its own words; empty if none says so."""
    errors = [rank.error for rank in result.ranks if rank.error is not None]
    return next((e.message for e in errors if e.message.startswith(CANNOT_STAGE)), "")
