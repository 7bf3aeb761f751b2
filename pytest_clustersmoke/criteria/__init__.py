"""What must hold for a phase: base classes of criteria, and the view of a phase that they get.

phase_criteria.py     the base classes; a criterion is a short method there, and judges elsewhere
workload.py           data, batches and precision that the ranks trained with
training_proofs.py    reduction, repetition, replicas, reload; outvoted_ranks.py: three or more
twin_run.py           the second pass over the training loop; finite_values.py: losses, gradients
resumption.py         a training that stopped went on as if it had not
stragglers.py         slow ranks; peer_judge.py: how their peers judge them, gpu_past.py: their past
transport_sides.py    transports against `expect`; placed_links.py: which there were
bandwidth.py          what collectives reached; node_pairs.py: which pair of nodes is slow
past_criterion.py     metrics against past runs; drift_confirmation.py: by reruns,
                      past_annotation.py: what the record says of them
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
