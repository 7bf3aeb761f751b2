"""Faults that can be staged on purpose, by name.

model.py      what a fault is
registry.py   all of them
evidence.py   what the ranks wrote of a fault; a fault that nobody asked for

What a rank does to stage one is in `rank/staged/`; `prove/` stages them on a cluster.
"""

from __future__ import annotations

from .model import JOB, NOTHING, Fault, Staged
from .registry import FAULTS

__all__ = ["FAULTS", "JOB", "NOTHING", "Fault", "Staged"]
