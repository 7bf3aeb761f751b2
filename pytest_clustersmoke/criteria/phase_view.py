"""What a criterion sees of a finished phase: its evidence, its transports and its past runs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

from ..evidence.phase_result import PhaseResult
from .transport_sides import Transports


@dataclass(frozen=True, repr=False)
class PhaseView(PhaseResult):
    """A phase's evidence with the checks that need more than the evidence: what the cluster
    expects of its transports, and what the phase reached in the past.

    A subclass, so that what takes a PhaseResult takes this too, with the same typed attributes.
    """

    @cached_property
    def transports(self) -> Transports:
        """NCCL's connections, inside nodes and between them."""
        return Transports(self)

    def check_past(self) -> None:
        """No metric is off what this phase reached in the past, on the same hardware and versions.

        Unmeasured where there is not enough history, or where the profile says `warn`.
        """
        __tracebackhide__ = True
        from .past_criterion import judge_past

        judge_past(self)


def view_phase(result: PhaseResult) -> PhaseView:
    """The same evidence, as criteria see it."""
    return PhaseView(**{field.name: getattr(result, field.name) for field in fields(PhaseResult)})
