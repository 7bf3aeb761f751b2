"""How long this process was stopped, and all of its job with it: by the scheduler, which suspends
jobs, or because the machine was paused.

A thread that does nothing but wait sees it. Waiting for a slow file system does not hold it up.
"""

from __future__ import annotations

import threading
import time

BEAT_S = 0.5
# A beat that comes so much too late. Nothing less is of weight; no busy machine is as late.
PAUSED_S = 5.0


class Pauses:
    """Counts from its making to `close`."""

    def __init__(self) -> None:
        self._lock, self._over = threading.Lock(), threading.Event()
        self._counted_s, self._beaten = 0.0, time.monotonic()
        self._thread = threading.Thread(target=self._beat, name="pauses", daemon=True)
        self._thread.start()

    def seconds(self) -> float:
        """How long it was stopped until now, though the thread may not have run since."""
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
