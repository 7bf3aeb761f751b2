"""Process trees, looked at and ended by pid and start time: a pid alone may be somebody else's."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterable

import psutil

# create_time() is computed from the boot time; two readings of one process differ by less.
SAME_START_S = 2.0
PR_SET_PDEATHSIG = 1  # linux/prctl.h
PRCTL = ctypes.CDLL(None).prctl  # looked up here: after a fork nothing may be loaded


def alive(pid: int, started: float | None = None) -> bool:
    """Whether that very process runs; a zombie has ended."""
    return find(pid, started) is not None


def find(pid: int, started: float | None = None) -> psutil.Process | None:
    try:
        process = psutil.Process(pid)
        if started is not None and abs(process.create_time() - started) > SAME_START_S:
            return None
        return None if process.status() == psutil.STATUS_ZOMBIE else process
    except psutil.Error:
        return None


def tree(pid: int) -> list[psutil.Process]:
    """The process and all its descendants, as they are at this moment."""
    try:
        top = psutil.Process(pid)
        return [top, *top.children(recursive=True)]
    except psutil.Error:
        return []


def end(processes: Iterable[psutil.Process], grace_s: float) -> list[psutil.Process]:
    """TERM, then after `grace_s` KILL. Returns what is still there (in uninterruptible sleep)."""
    processes = list(processes)
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, left = psutil.wait_procs(processes, timeout=grace_s)
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    return psutil.wait_procs(left, timeout=1.0)[1]


def end_with_parent() -> None:
    """Called in a child before its exec: it gets TERM when its parent ends, by KILL too, so that a
    launcher that was killed leaves no torchrun behind (which then ends its ranks)."""
    PRCTL(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)


def send(pid: int, started: float | None, signum: signal.Signals) -> None:
    """Send a signal to that very process; nothing happens where it has ended."""
    process = find(pid, started)
    if process is not None:
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            os.kill(process.pid, signum)


def started_at(pid: int) -> float:
    """When the process started, in Unix seconds; 0.0 where it has ended already."""
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return 0.0
