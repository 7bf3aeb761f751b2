"""One table of staged faults: the fault, the criteria that fail, the finding.

model.py      what a fault is
programs.py   rank programs that are broken on purpose
"""

from __future__ import annotations

from .model import CRITERIA, UNMEASURED, Fault
from .programs import PROGRAMS

__all__ = ["CRITERIA", "FAULTS", "PROGRAMS", "UNMEASURED", "Fault"]

FAULTS: tuple[Fault, ...] = (*PROGRAMS,)
