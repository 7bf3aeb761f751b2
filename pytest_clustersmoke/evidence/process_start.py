"""When a process started, by the clock since boot: with its pid this identifies a process.

The wall clock does not work: if it is set while a job runs, every process looks like a new one.
"""

from __future__ import annotations

import os
from pathlib import Path

FIELD = 22 - 3  # starttime of proc(5), counted from the field after the command's name
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def start_s(pid: int) -> float:
    """Seconds from the machine's boot to the process's start.

    Raises OSError or ValueError if the process does not exist.
    """
    fields = Path(f"/proc/{pid:d}/stat").read_text(errors="replace").rpartition(")")[2].split()
    if len(fields) <= FIELD:  # it ended just now
        raise ValueError(f"no process {pid}")
    return int(fields[FIELD]) / TICKS_PER_S
