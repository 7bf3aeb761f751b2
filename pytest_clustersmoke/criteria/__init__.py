"""What must hold for a phase: base classes of criteria, and the view of a phase that they get."""

from .phase_criteria import PhaseView, Started, TalkedBetweenNodes, TalkedInsideNodes, Trained

__all__ = ["PhaseView", "Started", "TalkedBetweenNodes", "TalkedInsideNodes", "Trained"]
