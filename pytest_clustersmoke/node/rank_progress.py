"""What each local rank has said so far, and whether one died, failed or stands still."""

from __future__ import annotations

import contextlib
import json
import os
import select
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from . import process_tree
from .node_job import NodeJob

# Stages that a program names itself get the most patient limit.
DEFAULT_LIMIT_S = 600.0
# From a rank's last word to its process's end; destructors of a device or a communicator can hang.
EXIT_LIMIT_S = 60.0
# A process that has ended may have said more in its last instant than was read before.
READ_AGAIN_S = 0.3


@dataclass(frozen=True)
class Trouble:
    """Why this node's part of the phase must end now."""

    reason: str
    why: str
    rank: int | None
    detail: dict[str, Any] = field(default_factory=dict)

    def as_fields(self) -> dict[str, Any]:
        return {"reason": self.reason, "why": self.why, "rank": self.rank, **self.detail}


@dataclass
class _Rank:
    rank: int
    offset: int = 0
    tail: bytes = b""
    pid: int = 0
    pid_started: float = 0.0
    stage: str = "init"
    step: int = 0
    steps: int = 0
    moved: float = 0.0
    done: bool = False
    error: dict[str, Any] | None = None
    gone_since: float = 0.0
    exit_code: int | None = None


class RankWatch:
    """Reads the ranks' events as they come. Times are this node's monotonic seconds.

    `stopped` tells for how many seconds the whole job was stopped so far: nobody stood still then.
    """

    def __init__(self, job: NodeJob, stopped: Callable[[], float] = lambda: 0.0) -> None:
        self._job, self._stopped = job, stopped
        self._limits: dict[str, float] = job.spec["stage_limits_s"]
        now = time.monotonic()
        self._timeout_at = now + float(job.spec["timeout_s"])
        self._ranks = [_Rank(rank, moved=now) for rank in job.ranks]
        self._ends = _Ends()
        self.paused_s = 0.0  # of what `stopped` tells, what the limits have been moved by

    def read(self) -> None:
        self._excuse()
        for rank in self._ranks:
            self._read(rank)

    def _read(self, rank: _Rank) -> None:
        try:
            with self._job.dir.rank_events(rank.rank).open("rb") as stream:
                stream.seek(rank.offset)
                fresh = stream.read()
        except OSError:
            return
        rank.offset += len(fresh)
        *lines, rank.tail = (rank.tail + fresh).split(b"\n")
        for line in lines:
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict):
                _take(rank, record)
        if lines:
            rank.moved = time.monotonic()

    def trouble(self) -> Trouble | None:
        """The first thing that is wrong, in the order of how much it explains."""
        self._excuse()
        self._note_ends()
        for look in (self._error, self._death, self._stall):
            for rank in self._ranks:
                found = look(rank)
                if found is not None:
                    return found
        if time.monotonic() > self._timeout_at:
            limit = self._job.spec["timeout_s"]
            return Trouble("timeout", f"the phase exceeded its limit of {limit:g} s", None)
        return None

    def _excuse(self) -> None:
        """Move all limits by what the job was stopped since this was last asked."""
        more_s = self._stopped() - self.paused_s
        if more_s <= 0:
            return
        self.paused_s += more_s
        self._timeout_at += more_s
        for rank in self._ranks:
            rank.moved = min(rank.moved + more_s, time.monotonic())

    def _note_ends(self) -> None:
        now = time.monotonic()  # one for all: within one look nobody can say who was first
        for rank in self._ranks:
            if rank.done or not rank.pid or rank.gone_since:
                continue
            if not process_tree.alive(rank.pid, rank.pid_started):
                rank.gone_since = now
                # torchrun has not reaped it yet, or a moment ago: then its log tells.
                rank.exit_code = process_tree.exit_code(rank.pid, rank.pid_started)

    def _error(self, rank: _Rank) -> Trouble | None:
        if rank.error is None:
            return None
        what = f"{rank.error.get('type')}: {rank.error.get('message')}"
        return Trouble("rank_error", f"rank {rank.rank}: {what}"[:2000], rank.rank)

    def _death(self, rank: _Rank) -> Trouble | None:
        if rank.done or not rank.gone_since:
            return None
        if time.monotonic() - rank.gone_since < READ_AGAIN_S:
            return None
        where = f"in stage {rank.stage}" + (f" at step {rank.step}" if rank.step else "")
        why = f"rank {rank.rank} (pid {rank.pid}) ended {where} without finishing"
        return Trouble("rank_died", why, rank.rank, {"stage": rank.stage, "step": rank.step})

    def _stall(self, rank: _Rank) -> Trouble | None:
        if rank.done:
            return self._exit_stall(rank)
        still_s, limit_s = time.monotonic() - rank.moved, self._limit_s(rank)
        if still_s <= limit_s:
            return None
        where = f"stage {rank.stage}" + (
            f", step {rank.step} of {rank.steps}" if rank.steps else ""
        )
        why = (
            f"rank {rank.rank} has made no progress for {still_s:.0f} s in {where} "
            f"(limit {limit_s:g} s)"
        )
        return Trouble("stalled", why, rank.rank, {"stage": rank.stage, "step": rank.step})

    def _exit_stall(self, rank: _Rank) -> Trouble | None:
        still_s = time.monotonic() - rank.moved
        if still_s <= EXIT_LIMIT_S or not process_tree.alive(rank.pid, rank.pid_started):
            return None
        why = (
            f"rank {rank.rank} (pid {rank.pid}) was done {still_s:.0f} s ago and still has not "
            f"exited (limit {EXIT_LIMIT_S:g} s)"
        )
        return Trouble("stalled", why, rank.rank, {"stage": "exit", "step": 0})

    def _limit_s(self, rank: _Rank) -> float:
        key = ("train_step" if rank.step else "first_step") if rank.stage == "train" else rank.stage
        return float(self._limits.get(key, DEFAULT_LIMIT_S))

    def wait(self, seconds: float) -> None:
        """Wait so long, or until a rank's process ends."""
        self._ends.wait(
            seconds, [rank.pid for rank in self._ranks if rank.pid and not rank.gone_since]
        )

    def close(self) -> None:
        self._ends.close()

    def someone_is_gone(self) -> bool:
        """Whether a rank's process has ended that has not said it was done."""
        return any(rank.gone_since and not rank.done for rank in self._ranks)

    def live(self) -> list[tuple[int, int, float]]:
        """(rank, pid, start time) of every local rank whose process runs."""
        return [
            (rank.rank, rank.pid, rank.pid_started)
            for rank in self._ranks
            if rank.pid and process_tree.alive(rank.pid, rank.pid_started)
        ]

    def states(self, ended_by_us: Iterable[int] = ()) -> list[dict[str, Any]]:
        """Each rank as it is now: for the diagnosis, which looks at all nodes at once.

        Where a rank has ended, torchrun ends the others within half a second: they count as alive,
        as do those that were `ended_by_us`.
        """
        live = {rank for rank, _, _ in self.live()} | set(ended_by_us)
        ends = [rank.gone_since for rank in self._ranks if rank.gone_since and not rank.done]
        first = min(ends, default=0.0)
        return [
            {
                "rank": rank.rank,
                "alive": rank.rank in live
                or (bool(rank.pid) and not rank.done and rank.gone_since != first),
                "started": bool(rank.pid),
                "done": rank.done,
                "failed": rank.error is not None,
                "exit_code": rank.exit_code,
                "stage": rank.stage,
                "step": rank.step,
            }
            for rank in self._ranks
        ]

    def unfinished(self) -> list[int]:
        return [rank.rank for rank in self._ranks if not rank.done]


class _Ends:
    """The ends of processes, told by the kernel at once: torchrun, which then ends the other ranks,
    looks twice a second. Where the kernel has no such thing (before 5.3) they are seen late."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._known: dict[int, int] = {}  # pid -> its descriptor; below 0 where there is none

    def wait(self, seconds: float, pids: list[int]) -> None:
        for pid in set(pids) - self._known.keys():
            self._known[pid] = -1
            with contextlib.suppress(OSError, AttributeError):
                self._known[pid] = os.pidfd_open(pid)
                self._poll.register(self._known[pid], select.POLLIN)
        ended = {descriptor for descriptor, _ in self._poll.poll(seconds * 1000)}
        for pid, descriptor in list(self._known.items()):
            if descriptor in ended:
                self._poll.unregister(descriptor)
                os.close(descriptor)
                self._known[pid] = -1

    def close(self) -> None:
        for descriptor in self._known.values():
            if descriptor >= 0:
                os.close(descriptor)
        self._known.clear()


def _take(rank: _Rank, record: dict[str, Any]) -> None:
    """Note what an event says; one that is not as it should be says nothing."""
    event = record.get("event")
    if event == "start":
        rank.pid, rank.pid_started = process_tree.identity(record) or (rank.pid, rank.pid_started)
    elif event == "stage":
        rank.stage, rank.step, rank.steps = str(record.get("name")), 0, 0
    elif event == "step":
        step, steps = record.get("step"), record.get("steps")
        if type(step) is int and type(steps) is int and step > 0:  # a bool is an int elsewhere
            rank.step, rank.steps = step, steps
    elif event == "error":
        rank.error = record
    elif event == "done":
        rank.done = True
