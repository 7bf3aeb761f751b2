"""Finds and ends a lab's processes, identified by pid and start time since pids are reused."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
# Every daemon of a lab has the lab's token in this variable. So a daemon is found even if the
# command that started it was killed before it could journal the start.
TOKEN_VARIABLE = "CLUSTERSMOKE_LAB_TOKEN"
POLL_S = 0.02


@dataclass(frozen=True)
class Process:
    """A process of a lab; `started` is in clock ticks since boot."""

    role: str
    pid: int
    started: int

    @property
    def alive(self) -> bool:
        return start_time(self.pid) == self.started


def boot_id() -> str:
    """The id of this boot: start times and pids are meaningless after another one."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def start_time(pid: int) -> int | None:
    """When the process started; None if it has ended, even if it is not reaped yet."""
    fields = _stat(pid)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def read_parents() -> dict[int, int]:
    """The parent of each process, by pid."""
    parent_of = {}
    for pid in _pids():
        fields = _stat(pid)
        if fields is not None:
            parent_of[pid] = int(fields[1])
    return parent_of


def find_processes(token: str, confs: Iterable[Path]) -> list[Process]:
    """Every process whose environment shows that it belongs to the lab, with all descendants.

    The daemons have the token. A process in a job of the lab has its SLURM_CONF and a
    SLURMD_NODENAME; a user's shell has only the first and is left alone.
    """
    mark = f"{TOKEN_VARIABLE}={token}".encode()
    jobs = {f"SLURM_CONF={conf}".encode() for conf in confs}
    roots = set()
    for pid in _pids():
        try:
            variables = (PROC / str(pid) / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        in_job = not jobs.isdisjoint(variables) and any(
            v.startswith(b"SLURMD_NODENAME=") for v in variables
        )
        if mark in variables or in_job:
            roots.add(pid)
    pids = roots | _descendants(roots)
    candidates = [(pid, start_time(pid)) for pid in sorted(pids - {os.getpid()})]
    return [Process("job", pid, started) for pid, started in candidates if started is not None]


def send(processes: Iterable[Process], number: signal.Signals) -> None:
    for process in processes:
        if process.alive:
            try:
                os.kill(process.pid, number)
            except ProcessLookupError:
                continue


def wait_until_gone(processes: Iterable[Process], timeout_s: float) -> list[Process]:
    """Wait until all have ended; return those that have not when time runs out."""
    deadline = time.monotonic() + timeout_s
    left = [process for process in processes if process.alive]
    while left and time.monotonic() < deadline:
        time.sleep(POLL_S)
        left = [process for process in left if process.alive]
    return left


def end(processes: Iterable[Process], timeout_s: float) -> list[Process]:
    """Send SIGTERM, then SIGKILL; return the processes that still run (normally none)."""
    processes = list(processes)
    send(processes, signal.SIGTERM)
    stubborn = wait_until_gone(processes, timeout_s)
    send(stubborn, signal.SIGKILL)
    return wait_until_gone(stubborn, 5.0)


def _pids() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on; the command name before it is hostile."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return fields if len(fields) > 19 else None


def _descendants(roots: set[int]) -> set[int]:
    tree = read_parents()
    descendants: set[int] = set()
    more = True
    while more:
        new = (
            {pid for pid, parent in tree.items() if parent in roots | descendants}
            - descendants
            - roots
        )
        descendants |= new
        more = bool(new)
    return descendants
