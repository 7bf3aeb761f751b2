"""A fixed piece of work for one core, and the CPU time that it takes.

The screen compares nodes by it: a core that is throttled, or shared with work that its caches feel,
takes longer than those of the other nodes. CPU time, since a node may run something else, too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REPEATS = 5
ROUNDS = 20_000  # about 1.5 ms
CPU_INFO = Path("/proc/cpuinfo")
HEAD_BYTES = 2048  # of a file that has a block for each core


def measure_core(facts: Mapping[str, Any]) -> tuple[str, float | None]:
    """The model of the CPU, and the CPU seconds of the work: None where the job does not have all
    cores of the node, whose others it cannot know."""
    return name_cpu(), measure_work() if owns_all_cores(facts) else None


def owns_all_cores(facts: Mapping[str, Any]) -> bool:
    """Whether the job has the whole node, so that a time measured here is the node's own."""
    allowed, online = facts.get("cpus_allowed"), facts.get("cpus_online")
    return isinstance(allowed, int) and isinstance(online, int) and allowed >= online


def measure_work() -> float:
    """The CPU seconds of the work: the fewest of some repeats, since other work on the core can
    only add to them."""
    return min(_time_work() for _ in range(REPEATS))


def _time_work() -> float:
    began = time.process_time()
    do_work()
    return time.process_time() - began


def do_work() -> int:
    """Integer arithmetic in the interpreter, the same on every node."""
    value = 1
    for number in range(ROUNDS):
        value = (value * 1_103_515_245 + number) & 0x7FFFFFFF
    return value


def name_cpu(path: Path = CPU_INFO) -> str:
    """The model of the CPU, as the kernel names it; empty if it does not."""
    try:
        with path.open(errors="replace") as stream:
            lines = stream.read(HEAD_BYTES).splitlines()
    except OSError:
        return ""
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "")
