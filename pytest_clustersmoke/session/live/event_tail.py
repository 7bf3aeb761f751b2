"""The progress of a running phase, from the events of its rank 0.

The files are untrusted text on a file system that may be slow: only regular files are read, one at
a time, and at most READ_BYTES per read.
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

from ...evidence.run_directory import RunDir, job_name, list_directory
from ...evidence.telemetry import SCHEMA, parse_event, parse_number
from ...text import sanitize_line
from .board import RUNNING, PhaseState

READ_BYTES = 64 * 2**10
READ_EVERY_S = 1.0
# Reading takes at most this share of the time, so a slow file system is read less often.
READ_SHARE = 0.05
MAX_STEPS = 10**12
MAX_STAGE = 40


@dataclass(frozen=True)
class Mark:
    """The progress of a rank: its stage, and its steps once it trains.

    `loss` may be nan or infinite, which users must see.
    """

    stage: str = ""
    step: int = 0
    steps: int = 0
    loss: float | None = None
    steps_per_s: float | None = None


class EventTails:
    """Follows the events of all running phases of one run."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._tails: dict[str, EventTail] = {}
        self._due: dict[str, float] = {}

    def read_next(self, states: Iterable[PhaseState]) -> dict[str, Mark]:
        """The progress of all running phases, after reading the one file that is due, if any."""
        running = [state.phase for state in states if state.state == RUNNING]
        for name in {*self._tails} - {*running}:  # the next job of a phase writes elsewhere
            del self._tails[name]
        for name in running:
            if name not in self._tails:
                self._tails[name] = self._open(name)
                self._due[name] = 0.0
        begun = time.monotonic()
        name = min(running, key=lambda phase: self._due[phase], default="")
        if name and self._due[name] <= begun:
            self._tails[name].read()
            if self._tails[name].has_stopped:
                newest = self._open(name)
                if newest.path != self._tails[name].path:
                    self._tails[name] = newest
            duration = time.monotonic() - begun
            # The share is for the files of all running phases together.
            self._due[name] = begun + max(READ_EVERY_S, duration * len(running) / READ_SHARE)
        return {name: self._tails[name].mark for name in running}

    def _open(self, name: str) -> EventTail:
        """Follow the attempt that started last."""
        job = job_name({"run_id": self._run.run_id, "phase": name})
        return EventTail(self._run.phase(name).newest.rank_events(0), job)


class EventTail:
    """Follows one rank's file of events. A file of another job is ignored."""

    def __init__(self, path: Path, job: str) -> None:
        self.mark = Mark()
        self.has_stopped = False  # to go on in another attempt
        self.path, self._job = path, job
        self._offset = 0
        self._foreign = False

    def read(self) -> None:
        """Read what was written since the last read, or the end of it if it is long."""
        for line in self._new_lines():
            record = parse_event(line)
            if record is not None and not self._foreign:
                self._take(record)

    def _new_lines(self) -> list[bytes]:
        """The complete lines since the last read."""
        if not self._offset:  # so that a network file system shows the new file
            list_directory(self.path.parent)
        try:
            with _opened(self.path) as descriptor:
                size = os.fstat(descriptor).st_size
                skipped = max(0, size - READ_BYTES - self._offset)
                block = os.pread(descriptor, READ_BYTES, self._offset + skipped)
        except OSError:
            return []
        whole = block[: block.rfind(b"\n") + 1]
        self._offset += skipped + len(whole)
        lines = whole.splitlines()
        return lines[1:] if skipped else lines  # the first one may be cut

    def _take(self, record: dict[str, Any]) -> None:
        event = record["event"]
        if event == "start":
            identity = (record.get("schema"), record.get("job"), record.get("rank"))
            self._foreign = identity != (SCHEMA, self._job, 0)
            self.mark = Mark(stage="init")
        elif event == "stop":
            self.has_stopped = True
        elif event == "stage" and record.get("state") == "begin":
            self.mark = Mark(stage=sanitize_line(str(record.get("name"))[:MAX_STAGE]))
        elif event == "step":
            step, steps = record.get("step"), record.get("steps")
            if type(step) is int and type(steps) is int and 0 < step <= steps <= MAX_STEPS:
                rate = parse_number(record.get("steps_per_s"))
                self.mark = replace(
                    self.mark,
                    step=step,
                    steps=steps,
                    loss=parse_number(record.get("loss")),
                    steps_per_s=rate if rate is not None and math.isfinite(rate) else None,
                )
        if self._foreign:
            self.mark = Mark()


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """A descriptor of a regular file; raises OSError at once for anything else."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is not a regular file")
        yield descriptor
    finally:
        os.close(descriptor)
