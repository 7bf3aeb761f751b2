"""Faults that can be staged on purpose, to prove that the criteria and findings detect them.

fault.py               the description of a fault
fault_registry.py      all faults
training_registry.py   those of training
gate.py                judges whether a staged fault was detected as it must be
staged/                what a rank does to stage a fault

`--cluster-prove` stages them on a cluster (`session/gates.py`, `session/prove_suite.py`).
"""

from __future__ import annotations

from .fault import HOOK, JOB, NOTHING, Fault
from .fault_registry import FAULTS

__all__ = ["FAULTS", "HOOK", "JOB", "NOTHING", "Fault"]
