"""Measures how long this process, and its job with it, was stopped: by a scheduler that suspends
jobs, or because the machine was paused.

A thread that only sleeps measures it; a slow file system does not delay that thread.
"""

from __future__ import annotations

import threading
import time

BEAT_S = 0.5
# A beat this late means that the process was stopped; load alone does not cause such a delay.
PAUSED_S = 5.0


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
            late_s = time.monotonic() - self._beaten - BEAT_S
            if late_s > PAUSED_S:
                self._counted_s += late_s
                self._beaten = time.monotonic()
            return self._counted_s

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._over.wait(BEAT_S):
            self.seconds()
            with self._lock:
                self._beaten = time.monotonic()
