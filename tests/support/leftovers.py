"""A test fails if a process that it started outlives it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.waiting import Patience

# So long, and so many looks at all processes, until those of the test must have ended.
LEFT_S, LOOKS, LOOK_S = 5.0, 100, 0.05


@contextmanager
def none_left() -> Iterator[tuple[str, Callable[[], list[str]]]]:
    """Yield the name of a variable, to be set for every process that the test starts, and a
    function that lists the running processes that have it. Fails if one is left at the end."""
    marker = f"CLUSTERSMOKE_TEST_{uuid.uuid4().hex}"

    def running() -> list[str]:
        processes = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if marker.encode() in (entry / "environ").read_bytes():
                    line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    processes.append(f"{entry.name} {line}")
            except OSError:
                continue
        return processes

    yield marker, running
    # A job's result is known a moment before its last process has ended.
    patience, looks = Patience(LEFT_S), 1
    while (left := running()) and (looks < LOOKS or not patience.is_over):
        looks += 1
        time.sleep(LOOK_S)
    assert left == [], "the test left processes running"
