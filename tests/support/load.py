"""How much slower this machine is, here and now, than an idle one on which limits were set."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time

from tests.support.waiting import PATIENCE_S

# A Python that starts and loads some modules: its seconds, and those of its CPU, on such a machine
# (two cores of an AMD EPYC).
START = [sys.executable, "-S", "-c", "import argparse, json, socket, subprocess, tempfile"]
START_S = START_CPU_S = 0.035
STARTS = 5


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
