"""Faults that can be staged on purpose, by name.

model.py      what a fault is
registry.py   all of them

staged/       what a rank does to stage one; `prove/` stages them on a cluster.
"""

from __future__ import annotations

from .fault import HOOK, JOB, NOTHING, Fault
from .fault_registry import FAULTS

__all__ = ["FAULTS", "HOOK", "JOB", "NOTHING", "Fault"]
