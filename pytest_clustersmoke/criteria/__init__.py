"""What must hold for a phase: base classes of criteria, and the view of a phase that they get.

phase_criteria.py holds the base classes. A criterion is a short method there; what judges is in
one of the other modules:

training       workload.py (data, batches, precision), training_proofs.py (reduction, replicas,
               reload), repeated_passes.py, outvoted_ranks.py, finite_values.py, twin_run.py,
               resumption.py
slow ranks     stragglers.py, peer_judge.py (by their peers), gpu_past.py (by their own past)
devices        device_peaks.py, hardware_health.py
communication  transport_sides.py, placed_links.py, bandwidth.py, node_pairs.py
the past       past_criterion.py, drift_confirmation.py (by reruns), past_annotation.py (what the
               record says)

A screen of nodes runs no phase. screen_judge.py and screen_peaks.py judge its answers, and
screen_clearance.py says which earlier evidence against a node it ends.
"""

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
