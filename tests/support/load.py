"""How much slower this machine is, here and now, than an idle one on which limits were set."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time

from tests.support.waiting import MOST_PATIENCE, PATIENCE_S, read_pressure_s

# A Python that starts and loads some modules: its seconds, and those of its CPU, on such a machine
# (two cores of an AMD EPYC).
START = [sys.executable, "-S", "-c", "import argparse, json, socket, subprocess, tempfile"]
START_S = START_CPU_S = 0.035
STARTS = 5
SAMPLE_S = 0.1


def cpu_factor() -> float:
    """By how much more CPU time a Python takes to start: the least of some starts, since other work
    can only add to it."""
    return max(1.0, min(_start()[1] for _ in range(STARTS)) / START_CPU_S)


def load_factor() -> float:
    """By how much longer a Python takes to start, or by the work that waits for a core."""
    return max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)), _start()[0] / START_S)


def _start() -> tuple[float, float]:
    """The seconds of one start, and those of its CPU."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(START, check=True, timeout=PATIENCE_S)
    after, seconds = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - began
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


class Pressure:
    """For how long work of this machine waited for a core, at each moment of a block."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, float]] = []  # Unix seconds, seconds waited by then
        self._over = threading.Event()

    def __enter__(self) -> Pressure:
        self._thread = threading.Thread(target=self._sample, name="pressure", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def own_s(self, began: float, ended: float) -> float:
        """The seconds between two moments (Unix seconds) of the block in which nothing waited; of
        a machine on which something always waits, a share of all, so that a bound still holds."""
        samples = [*self._samples]
        before = [waited_s for when, waited_s in samples if when <= began]
        after = [waited_s for when, waited_s in samples if when >= ended]
        if not samples:
            return ended - began
        first_s = before[-1] if before else samples[0][1]
        last_s = after[0] if after else samples[-1][1]
        passed_s = ended - began
        return max(passed_s - (last_s - first_s), passed_s / MOST_PATIENCE)

    def _sample(self) -> None:
        while not self._over.is_set():
            self._samples.append((time.time(), read_pressure_s()))
            self._over.wait(SAMPLE_S)
