"""Follows the progress of each local rank, and detects ranks that died, failed or stalled."""

from __future__ import annotations

import contextlib
import json
import os
import select
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from ..config.marker import numbers_by_node
from ..evidence.event_origin import RankProcess
from ..evidence.process_start import identity, read_namespaces
from ..evidence.telemetry import MAX_LINE_BYTES, open_regular, read_part
from . import process_tree
from .agent import Agent
from .node_job import NodeJob

# For stages that a program names itself.
DEFAULT_LIMIT_S = 600.0
# From a rank's `done` to the end of its process; destructors of a device or communicator can hang.
EXIT_LIMIT_S = 60.0
# After a process has ended, its last events may still have to be read.
READ_AGAIN_S = 0.3
# From a rank's end to its exit status, where another process writes it down.
REPORT_S = 5.0
POLL_S = 0.02
# Between two looks at processes of which nothing shows the end: torchrun looks twice a second.
BLIND_S = 0.1


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
    process: RankProcess | None = None  # that its `start` names
    stage: str = "init"
    step: int = 0
    steps: int = 0
    writes_trace: bool = False  # or waits for the ranks that do, between two steps
    progressed_at: float = 0.0
    done: bool = False
    stop: dict[str, Any] | None = None  # it stopped to go on in another attempt
    error: dict[str, Any] | None = None
    exited_at: float = 0.0
    exit_code: int | None = None


class RankWatch:
    """Reads the ranks' events as they are written. Times are this node's monotonic seconds.

    `stopped` returns how many seconds the whole job has been stopped so far, and `queued` how many
    its processes here have waited for a CPU; neither count as a stall. The `agent` started the
    ranks, and says how they ended.
    """

    def __init__(
        self,
        job: NodeJob,
        stopped: Callable[[], float] = lambda: 0.0,
        agent: Agent | None = None,
        queued: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._job, self._stopped, self._agent = job, stopped, agent
        self._queued, self.queued_s = queued, 0.0
        self._numbered = agent is None or numbers_by_node(job.spec)
        self._limits: dict[str, float] = job.spec["stage_limits_s"]
        now = time.monotonic()
        self._timeout_at = now + job.left_s
        self._ranks = [_Rank(rank, progressed_at=now) for rank in job.ranks]
        self._exit_poll = _ExitPoll()
        self._namespaces = read_namespaces()
        self.paused_s = 0.0  # the part of `stopped()` by which the limits have been extended

    def read(self) -> None:
        self._extend_limits()
        if not self._numbered:
            self._number_ranks()
        for rank in self._ranks if self._numbered else ():
            self._read(rank)

    def _number_ranks(self) -> None:
        """Take over the numbers that the launcher gave to this node's ranks."""
        numbers = sorted(self._agent.ranks()) if self._agent else []
        if len(numbers) == len(self._ranks):
            self._numbered = True
            for rank, number in zip(self._ranks, numbers, strict=True):
                rank.rank = number

    def _read(self, rank: _Rank) -> None:
        try:
            with open_regular(self._job.dir.rank_events(rank.rank)) as stream:
                stream.seek(rank.offset)
                fresh = read_part(stream, MAX_LINE_BYTES)
        except OSError:
            return
        rank.offset += len(fresh)
        *lines, rank.tail = (rank.tail + fresh).split(b"\n")
        rank.tail = rank.tail[:MAX_LINE_BYTES]  # a longer line is not an event
        for line in lines:
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict) and record.get("event") == "start":
                self._note_process(rank, record)
            elif isinstance(record, dict):
                _apply_event(rank, record)
        if lines:
            rank.progressed_at = time.monotonic()

    def _note_process(self, rank: _Rank, start: dict[str, Any]) -> None:
        """Note which process a `start` names, and whether this node started it. A stranger is not
        watched, and never ended; nor is a process whose pid is of another namespace."""
        named = identity(start)
        if named is None or start.get("namespaces", self._namespaces) != self._namespaces:
            return
        is_own = process_tree.started_here(*named, self._job.nonce)
        rank.process = RankProcess(*named, is_own)
        if is_own is not False:
            rank.pid, rank.pid_started = named

    def trouble(self) -> Trouble | None:
        """The first problem found; problems that explain more are looked for first."""
        self._extend_limits()
        self._note_exits()
        for find in (self._error, self._death, self._stall) if self._numbered else ():
            for rank in self._ranks:
                trouble = find(rank)
                if trouble is not None:
                    return trouble
        if not self._numbered and (still_s := self._stall_s(self._ranks[0])):
            why = f"the nodes have not found each other in torchrun's store for {still_s:.0f} s"
            return Trouble("stalled", why, None, {"stage": "init", "step": 0})
        if time.monotonic() > self._timeout_at:
            limit = self._job.spec["timeout_s"]
            return Trouble("timeout", f"the phase exceeded its limit of {limit:g} s", None)
        return None

    def _extend_limits(self) -> None:
        """Extend all limits by the time the job was stopped since the last call, and those of the
        stages by the time it waited for a CPU."""
        stopped_s = max(0.0, self._stopped() - self.paused_s)
        queued_s = self._queued() - self.queued_s
        self.paused_s += stopped_s
        self.queued_s += queued_s
        self._timeout_at += stopped_s
        for rank in self._ranks:
            after_s = rank.progressed_at + stopped_s + queued_s
            rank.progressed_at = min(after_s, time.monotonic())

    def _note_exits(self) -> None:
        now = time.monotonic()  # one time for all: the order of exits within one pass is unknown
        for rank in self._ranks:
            if rank.done or not rank.pid:
                continue
            if not rank.exited_at and not process_tree.alive(rank.pid, rank.pid_started):
                rank.exited_at = now
        self._read_exit_codes()

    def _read_exit_codes(self) -> None:
        for rank in self._without_exit_code():
            # None if the launcher has reaped it already; torchrun's log then has the exit code.
            find = self._agent.exit_code if self._agent else _read_exit_code
            rank.exit_code = find(rank.rank, rank.pid, rank.pid_started)

    def _without_exit_code(self) -> list[_Rank]:
        return [rank for rank in self._ranks if rank.exited_at and rank.exit_code is None]

    def await_exit_codes(self) -> None:
        """Wait until it is known how the ranks ended that were seen dead: as long as a process
        lives that will write it down, but not for long."""
        agent, deadline = self._agent, time.monotonic() + REPORT_S
        while agent is not None and time.monotonic() < deadline:
            # Before the look: a process may write it down and end in between.
            awaited = any(agent.will_report(rank.rank) for rank in self._without_exit_code())
            self._read_exit_codes()
            if not awaited:
                return
            time.sleep(POLL_S)

    def _error(self, rank: _Rank) -> Trouble | None:
        if rank.error is None:
            return None
        error = f"{rank.error.get('type')}: {rank.error.get('message')}"
        return Trouble("rank_error", f"rank {rank.rank}: {error}"[:2000], rank.rank)

    def _death(self, rank: _Rank) -> Trouble | None:
        if rank.done or not rank.exited_at:
            return None
        if time.monotonic() - rank.exited_at < READ_AGAIN_S:
            return None
        where = f"in stage {rank.stage}" + (
            f" after step {rank.step} or later" if rank.step else ""
        )
        why = f"rank {rank.rank} (pid {rank.pid}) ended {where} without finishing"
        return Trouble("rank_died", why, rank.rank, {"stage": rank.stage, "step": rank.step})

    def _stall(self, rank: _Rank) -> Trouble | None:
        if rank.done:
            return self._exit_stall(rank)
        still_s = self._stall_s(rank)
        if not still_s:
            return None
        where = f"stage {rank.stage}" + (
            f", after step {rank.step} of {rank.steps}" if rank.steps else ""
        )
        why = (
            f"rank {rank.rank} has made no progress for {still_s:.0f} s in {where} "
            f"(limit {self._limit_s(rank):g} s)"
        )
        return Trouble("stalled", why, rank.rank, {"stage": rank.stage, "step": rank.step})

    def _stall_s(self, rank: _Rank) -> float:
        """Seconds without progress, if above the limit of the rank's stage; otherwise 0."""
        still_s = time.monotonic() - rank.progressed_at
        return still_s if still_s > self._limit_s(rank) else 0.0

    def _exit_stall(self, rank: _Rank) -> Trouble | None:
        still_s = time.monotonic() - rank.progressed_at
        if still_s <= EXIT_LIMIT_S or not process_tree.alive(rank.pid, rank.pid_started):
            return None
        why = (
            f"rank {rank.rank} (pid {rank.pid}) was done {still_s:.0f} s ago and still has not "
            f"exited (limit {EXIT_LIMIT_S:g} s)"
        )
        return Trouble("stalled", why, rank.rank, {"stage": "exit", "step": 0})

    def _limit_s(self, rank: _Rank) -> float:
        if rank.writes_trace:
            return DEFAULT_LIMIT_S
        steps = "train_step" if rank.step else "first_step"
        key = {"train": steps, "twin": steps}.get(rank.stage, rank.stage)
        return float(self._limits.get(key, DEFAULT_LIMIT_S))

    def wait(self, seconds: float) -> None:
        """Wait this long, or until a rank's process or the launcher ends."""
        pids = [rank.pid for rank in self._ranks if rank.pid and not rank.exited_at]
        if self._agent is not None and self._agent.pid is not None:
            pids.append(self._agent.pid)
        are_known = all(rank.pid for rank in self._ranks)
        self._exit_poll.wait(seconds if are_known else min(seconds, BLIND_S), pids)

    def close(self) -> None:
        self._exit_poll.close()

    @property
    def is_numbered(self) -> bool:
        """Whether the numbers of this node's ranks are known."""
        return self._numbered

    def live_pids(self) -> set[int]:
        return {pid for _, pid, _ in self.live()}

    def working_pids(self) -> set[int]:
        """Of the live ranks; while some have not reported yet, also of what starts them."""
        if all(rank.pid for rank in self._ranks) or self._agent is None:
            return self.live_pids()
        return self.live_pids() | self._agent.pids()

    def has_dead_rank(self) -> bool:
        """Whether the process of a rank without `done` has ended."""
        return any(rank.exited_at and not rank.done for rank in self._ranks)

    def live(self) -> list[tuple[int, int, float]]:
        """(rank, pid, start time) of every local rank whose process runs."""
        return [
            (rank.rank, rank.pid, rank.pid_started)
            for rank in self._ranks
            if rank.pid and process_tree.alive(rank.pid, rank.pid_started)
        ]

    def processes(self) -> list[dict[str, Any]]:
        """The process of each rank whose `start` was read, as plain data."""
        return [
            {
                "rank": rank.rank,
                "pid": rank.process.pid,
                "pid_started": rank.process.started_s,
                "is_own": rank.process.is_own,
            }
            for rank in self._ranks
            if rank.process is not None
        ]

    def states(self, ended_by_us: Iterable[int] = ()) -> list[dict[str, Any]]:
        """The current state of each rank, for the diagnosis of all nodes.

        Once a rank has ended, torchrun ends the others within half a second: those count as alive,
        as do the ranks in `ended_by_us`.
        """
        live = {rank for rank, _, _ in self.live()} | set(ended_by_us)
        ends = [rank.exited_at for rank in self._ranks if rank.exited_at and not rank.done]
        first = min(ends, default=0.0)
        if not self._numbered:
            return []
        return [
            {
                "rank": rank.rank,
                "alive": rank.rank in live
                or (bool(rank.pid) and not rank.done and rank.exited_at != first),
                "started": bool(rank.pid),
                "done": rank.done,
                "failed": rank.error is not None,
                "exit_code": rank.exit_code,
                "stage": rank.stage,
                "step": rank.step,
            }
            for rank in self._ranks
        ]

    def describe_stop(self) -> dict[str, bool]:
        """The fields of the node's result, if all ranks stopped to go on in another attempt."""
        if not all(rank.stop for rank in self._ranks):
            return {}
        asked = all(rank.stop.get("asked") is True for rank in self._ranks if rank.stop)
        return {"stopped": True, **({"requeue": True} if asked else {})}

    def unfinished(self) -> list[int]:
        return [rank.rank for rank in self._ranks if not rank.done]


def _read_exit_code(_rank: int, pid: int, started: float) -> int | None:
    return process_tree.exit_code(pid, started)


class _ExitPoll:
    """Waits for processes to exit. pidfds show an exit before torchrun, which polls twice a second,
    sees it and ends the other ranks. Kernels before 5.3 have none, so exits are seen later."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._known: dict[int, int] = {}  # pid -> its descriptor, or -1

    def wait(self, seconds: float, pids: list[int]) -> None:
        for pid in set(pids) - self._known.keys():
            self._known[pid] = -1
            with contextlib.suppress(OSError, AttributeError):
                self._known[pid] = os.pidfd_open(pid)
                self._poll.register(self._known[pid], select.POLLIN)
        if any(self._known[pid] < 0 for pid in pids):
            seconds = min(seconds, BLIND_S)
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


def _apply_event(rank: _Rank, record: dict[str, Any]) -> None:
    """Update the rank's state from an event; a malformed event changes nothing."""
    event = record.get("event")
    if event == "stage":
        rank.stage, rank.step, rank.steps = str(record.get("name")), 0, 0
    elif event in ("step", "twin_step"):
        step, steps = record.get("step"), record.get("steps")
        if type(step) is int and type(steps) is int and step > 0:  # not isinstance: bools are ints
            rank.step, rank.steps = step, steps
    elif event == "trace_write":
        rank.writes_trace = record.get("state") == "begin"
    elif event == "error":
        rank.error = record
    elif event == "stop":
        rank.stop = record
    elif event == "done":
        rank.done = True
