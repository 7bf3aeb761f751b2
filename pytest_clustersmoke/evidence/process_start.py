"""When a process started, by a clock that nobody sets: with its pid it names one process alone.

The wall clock will not do: where it is set while a job runs, every process would seem another.
"""

from __future__ import annotations

import os
from pathlib import Path

FIELD = 22 - 3  # starttime of proc(5), counted from the state, which follows the command's name
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def start_s(pid: int) -> float:
    """Seconds from the machine's boot to the process's start.

    Raises OSError or ValueError where there is no such process.
    """
    fields = Path(f"/proc/{pid:d}/stat").read_text(errors="replace").rpartition(")")[2].split()
    if len(fields) <= FIELD:  # it ended just now
        raise ValueError(f"no process {pid}")
    return int(fields[FIELD]) / TICKS_PER_S
