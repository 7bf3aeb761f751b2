"""How far a running phase is, from its rank 0's events.

The file is hostile text on a file system that may be slow: of each no more than READ_BYTES are read
at a time, only the regular file of that name, and by a caller that looks one file after the other.
"""

from __future__ import annotations

import math
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...evidence.run_directory import RunDir, job_of, listed
from ...evidence.telemetry import SCHEMA, number, read_record
from ...text import sanitize_line
from .board import RUNNING, PhaseState

READ_BYTES = 64 * 2**10
READ_EVERY_S = 1.0
# Reading takes at most this share of the time, so that a slow file system is asked less often.
READ_SHARE = 0.05
MAX_STEPS = 10**12
MAX_STAGE = 40


@dataclass(frozen=True)
class Mark:
    """How far a rank is: its stage, and the steps it has done where it has begun with them.

    `loss` may be no finite number: that is what its user has to see.
    """

    stage: str = ""
    step: int = 0
    steps: int = 0
    loss: float | None = None
    steps_per_s: float | None = None


class Tails:
    """The tails of the running phases of one run."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._tails: dict[str, Tail] = {}
        self._due: dict[str, float] = {}

    def look(self, states: Iterable[PhaseState]) -> dict[str, Mark]:
        """The marks of all phases that run, one of which was read now where it was its turn."""
        running = [one.phase for one in states if one.state == RUNNING]
        for name in running:
            if name not in self._tails:
                directory = self._run.phase(name)
                job = job_of({"run_id": self._run.root.name, "phase": name})
                self._tails[name] = Tail(directory.rank_events(0), job)
                self._due[name] = 0.0
        begun = time.monotonic()
        name = min(running, key=lambda one: self._due[one], default="")
        if name and self._due[name] <= begun:
            self._tails[name].read()
            took = time.monotonic() - begun
            # Others wait for it, too: together they take no more than that share of the time.
            self._due[name] = begun + max(READ_EVERY_S, took * len(running) / READ_SHARE)
        return {name: self._tails[name].mark for name in running}


class Tail:
    """One rank's file of events, followed. A file that is another job's tells nothing."""

    def __init__(self, path: Path, job: str) -> None:
        self.mark = Mark()
        self._path, self._job = path, job
        self._offset = 0
        self._foreign = False

    def read(self) -> None:
        """Take what was written since; of a lot of it the last."""
        for line in self._fresh():
            record = read_record(line)
            if record is not None and not self._foreign:
                self._take(record)

    def _fresh(self) -> list[bytes]:
        """The whole lines since the last look."""
        if not self._offset:  # else it was there already
            listed(self._path.parent)
        try:
            with _opened(self._path) as descriptor:
                size = os.fstat(descriptor).st_size
                skipped = max(0, size - READ_BYTES - self._offset)
                block = os.pread(descriptor, READ_BYTES, self._offset + skipped)
        except OSError:
            return []
        whole = block[: block.rfind(b"\n") + 1]
        self._offset += skipped + len(whole)
        lines = whole.splitlines()
        return lines[1:] if skipped else lines  # the first may have lost its begin

    def _take(self, record: dict[str, Any]) -> None:
        event = record["event"]
        if event == "start":
            who = (record.get("schema"), record.get("job"), record.get("rank"))
            self._foreign = who != (SCHEMA, self._job, 0)
            self.mark = Mark(stage="init")
        elif event == "stage" and record.get("state") == "begin":
            self.mark = Mark(stage=sanitize_line(str(record.get("name"))[:MAX_STAGE]))
        elif event == "step":
            step, steps = record.get("step"), record.get("steps")
            if type(step) is int and type(steps) is int and 0 < step <= steps <= MAX_STEPS:
                rate = number(record.get("steps_per_s"))
                self.mark = replace(
                    self.mark,
                    step=step,
                    steps=steps,
                    loss=number(record.get("loss")),
                    steps_per_s=rate if rate is not None and math.isfinite(rate) else None,
                )
        if self._foreign:
            self.mark = Mark()


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """A descriptor of a regular file; of anything else it raises OSError without waiting."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is not a regular file")
        yield descriptor
    finally:
        os.close(descriptor)
