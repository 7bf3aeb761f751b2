"""Measures time that a job has lost, and that counts as no rank's stall.

`SuspensionClock`: the job was stopped by a scheduler that suspends jobs, or the machine was paused.
A thread that only sleeps measures it; a slow file system does not delay that thread.

`CpuQueue`: the ranks of a node, or what starts them, waited for a CPU. On a machine with more work
than cores an import of seconds takes minutes: such a rank is slow, not hung. A rank that sleeps in
a call waits for no CPU; one that spins, as calls of CUDA may, does where others use its core.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

BEAT_S = 0.5
# A beat this late means that the process was stopped; load alone does not cause such a delay.
PAUSED_S = 5.0
LOOK_S = 1.0  # between two looks at the processes


class SuspensionClock:
    """Counts from construction to `close`."""

    def __init__(self) -> None:
        self._lock, self._over = threading.Lock(), threading.Event()
        self._counted_s, self._beaten = 0.0, time.monotonic()
        self._thread = threading.Thread(target=self._beat, name="pauses", daemon=True)
        self._thread.start()

    def seconds(self) -> float:
        """Seconds stopped so far, including a stop after which the thread has not run yet."""
        with self._lock:
            now = time.monotonic()  # read once: the process may be stopped before the next line
            if (late_s := now - self._beaten - BEAT_S) > PAUSED_S:
                self._counted_s, self._beaten = self._counted_s + late_s, now
            return self._counted_s

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._over.wait(BEAT_S):
            begun = time.monotonic()
            self.seconds()
            with self._lock:
                self._beaten = max(self._beaten, begun)


class CpuQueue:
    """Counts from construction; `pids` lists the processes, which may come and go."""

    def __init__(
        self,
        pids: Callable[[], Collection[int]],
        read: Callable[[int], float] | None = None,
    ) -> None:
        self._pids, self._read = pids, read or read_waited_s
        self._waited: dict[int, float] = {}
        self._counted_s, self._looked = 0.0, time.monotonic()

    def seconds(self) -> float:
        """Seconds so far in which one of the processes waited: of those that wait at the same time,
        the one that waits longest."""
        now = time.monotonic()
        if (passed_s := now - self._looked) >= LOOK_S:
            waited = {pid: self._read(pid) for pid in self._pids()}
            more_s = (waited_s - self._waited.get(pid, 0.0) for pid, waited_s in waited.items())
            self._counted_s += min(max([0.0, *more_s]), passed_s)
            self._waited, self._looked = waited, now
        return self._counted_s


def read_waited_s(pid: int) -> float:
    """How long the main thread of a process has been ready to run without a CPU, since it began; 0
    if it has ended, and where the kernel does not count it."""
    try:
        return int(Path(f"/proc/{pid:d}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
