"""One table of staged faults: the fault, the criteria that fail, the finding.

model.py      what a fault is
hangs.py      ranks that the others wait for, or that are out of step
lab.py        faults of nodes and the scheduler, on a real Slurm
programs.py   rank programs that are broken on purpose
replayed.py   hardware faults, from recorded text
settings.py   checkpoints, disks, memory and configuration that are wrong on purpose
"""

from __future__ import annotations

from tests.faults.table.hangs import HANGS
from tests.faults.table.lab import LAB, SCHEDULER
from tests.faults.table.model import BEHIND, CRITERIA, UNMEASURED, Fault
from tests.faults.table.programs import PROGRAMS
from tests.faults.table.replayed import REPLAYED
from tests.faults.table.settings import PORT_TAKEN, SETTINGS

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
