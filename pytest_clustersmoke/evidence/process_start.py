"""When a process started, by the clock since boot: with its pid this identifies a process.

The wall clock does not work: if it is set while a job runs, every process looks like a new one.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FIELD = 22 - 3  # starttime of proc(5), counted from the field after the command's name
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Pids count in a namespace of pids, start times in one of clocks (kernel 5.6; none before).
NAMESPACES = ("pid", "time")


def start_s(pid: int) -> float:
    """Seconds from the machine's boot to the process's start.

    Raises OSError or ValueError if the process does not exist.
    """
    fields = Path(f"/proc/{pid:d}/stat").read_text(errors="replace").rpartition(")")[2].split()
    if len(fields) <= FIELD:  # it ended just now
        raise ValueError(f"no process {pid}")
    return int(fields[FIELD]) / TICKS_PER_S


def boot_clock_s() -> float:
    """Seconds from the machine's boot to now, by the clock of `start_s`."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def identity(start: Mapping[str, Any]) -> tuple[int, float] | None:
    """The pid and start time in a rank's event `start`; None if they cannot be a process's."""
    pid, started = start.get("pid"), start.get("pid_started")
    if type(pid) is not int or pid <= 0:  # not isinstance: True is an int
        return None
    if not isinstance(started, float) or not math.isfinite(started):
        return None
    return pid, started


def parent_of_task() -> int:
    """The pid of the slurmstepd that started this process; 0 if none did. Where /proc hides other
    users' processes, Slurm's own word for the task's pid shows that it is its child."""
    parent = os.getppid()
    if os.environ.get("SLURM_TASK_PID") == str(os.getpid()) and parent > 1:
        return parent
    with contextlib.suppress(OSError):
        if Path(f"/proc/{parent}/comm").read_text().startswith("slurmstepd"):
            return parent
    return 0


def read_namespaces() -> str:
    """The namespaces that this process's pid and start time belong to. In a container they may be
    others than on the node, where the same numbers then mean nothing."""
    return " ".join(_read_link(Path(f"/proc/self/ns/{name}")) for name in NAMESPACES)


def _read_link(path: Path) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115 - it names no file
    except OSError:
        return "-"
