"""One table of staged faults: the fault, the criteria that fail, the finding.

model.py      what a fault is
hangs.py      ranks that the others wait for, or that are out of step
lab.py        nodes and the scheduler, on a real Slurm
programs.py   rank programs that are broken on purpose
replayed.py   hardware faults, from recorded text
settings.py   checkpoints, disks, memory and configuration that are wrong on purpose
"""

from __future__ import annotations

from .hangs import HANGS
from .lab import LAB, SCHEDULER
from .model import BEHIND, CRITERIA, UNMEASURED, Fault
from .programs import PROGRAMS
from .replayed import REPLAYED
from .settings import PORT_TAKEN, SETTINGS

__all__ = [
    "BEHIND",
    "CRITERIA",
    "FAULTS",
    "LOCAL",
    "PORT_TAKEN",
    "REPLAYED",
    "SCHEDULER",
    "UNMEASURED",
    "Fault",
]

# Staged on virtual nodes of this machine, by test_broken_programs.py.
LOCAL: tuple[Fault, ...] = (*PROGRAMS, *HANGS, *SETTINGS)
FAULTS: tuple[Fault, ...] = (*LOCAL, PORT_TAKEN, *LAB, *REPLAYED)
