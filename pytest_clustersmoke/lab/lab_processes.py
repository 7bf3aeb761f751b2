"""Processes known by pid and start time, so that a number used again is never taken for ours."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
# Every daemon of a lab carries the lab's token in this variable: it finds one whose start was
# not written down because the command that started it was killed at that moment.
TOKEN_VARIABLE = "CLUSTERSMOKE_LAB_TOKEN"
POLL_S = 0.02


@dataclass(frozen=True)
class Process:
    """A process of a lab; `started` is in clock ticks since the machine's boot."""

    role: str
    pid: int
    started: int

    @property
    def alive(self) -> bool:
        return start_time(self.pid) == self.started


def boot_id() -> str:
    """What tells this boot from the last: start times and pids mean nothing across one."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def start_time(pid: int) -> int | None:
    """When the process started; None where it is gone, or dead and only not yet reaped."""
    fields = _stat(pid)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def parents() -> dict[int, int]:
    """Each process and its parent."""
    found = {}
    for pid in _pids():
        fields = _stat(pid)
        if fields is not None:
            found[pid] = int(fields[1])
    return found


def of_lab(token: str, confs: Iterable[Path]) -> list[Process]:
    """Every process of the lab that can be told from its environment, with all descendants.

    The daemons carry the token; what runs in a job of the lab has its SLURM_CONF and a
    SLURMD_NODENAME (a user's shell has the first only, and is left alone).
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
    found = [(pid, start_time(pid)) for pid in sorted(pids - {os.getpid()})]
    return [Process("job", pid, started) for pid, started in found if started is not None]


def send(processes: Iterable[Process], number: signal.Signals) -> None:
    for process in processes:
        if process.alive:
            try:
                os.kill(process.pid, number)
            except ProcessLookupError:
                continue


def wait_gone(processes: Iterable[Process], patience_s: float) -> list[Process]:
    """Wait until all are gone; those that are not when patience ends."""
    deadline = time.monotonic() + patience_s
    left = [process for process in processes if process.alive]
    while left and time.monotonic() < deadline:
        time.sleep(POLL_S)
        left = [process for process in left if process.alive]
    return left


def end(processes: Iterable[Process], patience_s: float) -> list[Process]:
    """Ask the processes to end, then make them; those that are still there (none, normally)."""
    wanted = list(processes)
    send(wanted, signal.SIGTERM)
    stubborn = wait_gone(wanted, patience_s)
    send(stubborn, signal.SIGKILL)
    return wait_gone(stubborn, 5.0)


def _pids() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on (a command's name may hold anything)."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return fields if len(fields) > 19 else None


def _descendants(roots: set[int]) -> set[int]:
    tree = parents()
    found: set[int] = set()
    more = True
    while more:
        new = {pid for pid, parent in tree.items() if parent in roots | found} - found - roots
        found |= new
        more = bool(new)
    return found
