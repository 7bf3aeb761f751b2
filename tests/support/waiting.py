"""Waits for something that another process does."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from pytest_clustersmoke.evidence.telemetry import read_events
from pytest_clustersmoke.node import process_tree
from pytest_clustersmoke.node.lost_time import CpuQueue, read_waited_s

# Generous, for a loaded machine: tests measure times with the timestamps in the evidence.
PATIENCE_S = 240.0
MOST_PATIENCE = 3  # times as long, where work waits for a core all the time
POLL_S = 0.05
PRESSURE = Path("/proc/pressure/cpu")

Value = TypeVar("Value")


class Patience:
    """Whether a wait has taken too long: so many seconds, without those in which work waited for a
    core."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._began, self._waited_s = time.monotonic(), read_pressure_s()

    @property
    def is_over(self) -> bool:
        passed_s = time.monotonic() - self._began
        own_s = passed_s - (read_pressure_s() - self._waited_s)
        return max(own_s, passed_s / MOST_PATIENCE) > self._seconds


def read_pressure_s() -> float:
    """How long work has waited for a core since the machine was started, by the kernel's count,
    which is a mean over the cores; 0 where it does not count."""
    try:
        (some,) = [line for line in PRESSURE.read_text().splitlines() if line.startswith("some ")]
    except (OSError, ValueError):
        return 0.0
    return int(some.rpartition("=")[2]) / 1e6 * (os.cpu_count() or 1)


def wait_for(
    description: str,
    look: Callable[[], Value | None],
    patience_s: float = PATIENCE_S,
    poll_s: float = POLL_S,
) -> Value:
    """Return the first true value of `look()`; after `patience_s`, in which it looked once at
    least, fail with the description."""
    patience = Patience(patience_s)
    while True:
        value = look()
        if value:
            return value
        if patience.is_over:
            raise AssertionError(f"waited {patience_s:g} s for {description}")
        time.sleep(poll_s)


def wait_for_event(path: Path, event: str) -> dict[str, Any]:
    """Wait for the first event of this name in a file of events, and return it."""
    return wait_for(
        f"event `{event}` in {path}", lambda: next(read_events(path).named(event), None)
    )


def wait_for_end(process: subprocess.Popen[Any], patience_s: float) -> Any:
    """Return what the process wrote to its pipe, once it has ended. Time in which it waits for a
    CPU, or one that it started, does not count: a busy machine ends nothing.

    Raises subprocess.TimeoutExpired."""
    began = time.monotonic()
    queue = CpuQueue(lambda: [member.pid for member in process_tree.tree(process.pid)])
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=1.0)[0]
        if time.monotonic() - began - queue.seconds() > patience_s:
            raise subprocess.TimeoutExpired(process.args, patience_s)


def time_to_end(process: subprocess.Popen[Any], patience_s: float = PATIENCE_S) -> float:
    """How long a process still runs. Time in which its main thread waits for a CPU, or ours, which
    is to see the end, does not count. What it has written can still be read."""
    pids = (process.pid, os.getpid())
    began, waited_s = time.monotonic(), sum(map(read_waited_s, pids))
    with os.fdopen(os.pidfd_open(process.pid)) as descriptor:
        if not select.select([descriptor], [], [], patience_s)[0]:
            raise subprocess.TimeoutExpired(process.args, patience_s)
    return time.monotonic() - began - (sum(map(read_waited_s, pids)) - waited_s)
