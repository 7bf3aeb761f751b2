"""What must hold for a phase: classes to inherit from, and what a criterion sees of a phase."""

from .phase_criteria import PhaseView, Started, TalkedBetweenNodes, TalkedInsideNodes, Trained

__all__ = ["PhaseView", "Started", "TalkedBetweenNodes", "TalkedInsideNodes", "Trained"]
