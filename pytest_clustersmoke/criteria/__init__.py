"""What must hold for a phase: base classes of criteria, and the view of a phase that they get."""

from ..evidence.metric import Unmeasured, fail
from ..text import format_bytes
from . import bandwidth, node_pairs
from .phase_criteria import (
    PhaseView,
    Resumed,
    Started,
    TalkedBetweenNodes,
    TalkedInsideNodes,
    Trained,
)

__all__ = [
    "PhaseView",
    "Resumed",
    "Started",
    "TalkedBetweenNodes",
    "TalkedInsideNodes",
    "Trained",
    "Unmeasured",
    "bandwidth",
    "fail",
    "format_bytes",
    "node_pairs",
]
