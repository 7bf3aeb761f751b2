"""When to ask the scheduler, and what all witnesses together say of a job.

A finished job's own result files are the first witness and cost the scheduler nothing. While all
jobs are pending the questions become rarer; the claim file of a job that starts ends that at once.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..evidence.phase_result import PhaseResult
from ..evidence.run_directory import PhaseDir, read_json
from ..evidence.scheduler_record import JobState
from ..node.abort_flag import visible
from .backend import Backend
from .outcome import NODE_FAILED, in_job_logs

FIRST_POLL_S = 0.5
PENDING_POLL_S = 15.0
# A shared file system may show a result some seconds after the scheduler knows of the job's end.
RESULT_GRACE_S = 1.5
# NFS caches attributes for up to a minute.
COMPLETED_GRACE_S = 60.0
LOST_GRACE_S = 8.0
# After one node failed the others end within seconds; this long after, the job is ended for them.
STRAGGLER_S = 30.0
# All nodes have told of a failure: this long the scheduler may take to say whether it was its own
# doing (a lost node, a cancellation), which looks from inside like ranks that lost their peers.
VERDICT_GRACE_S = 6.0
# A job ends as soon as a node of it fails; which one it was srun writes a little later, and sinfo
# may show it in service again by then.
NODE_NAMED_S = 4.0
NODE_NAME = re.compile(r"[\w.-]{1,255}")


@dataclass
class Watched:
    """One submitted job, and what is known of it. Times are the controller's monotonic seconds."""

    phase: str
    job_id: str
    directory: PhaseDir
    nodes: int
    submitted_at: float
    state: JobState | None = None
    running: bool = False
    ended_at: float | None = None
    forgotten_at: float | None = None
    failing_at: float | None = None
    told_at: float | None = None
    results: set[int] = field(default_factory=set)

    def look(self) -> bool:
        """Look at the job's own files. True where all nodes have written their results."""
        self.running = self.running or self._has_begun()
        missing = set(range(self.nodes)) - self.results
        if self.running:
            self.results |= {n for n in missing if visible(self.directory.node_result(n))}
        if self.results and self.failing_at is None and visible(self.directory.abort):
            self.failing_at = time.monotonic()
        return len(self.results) == self.nodes

    def _has_begun(self) -> bool:
        """Whether the job left a trace: a claim, or, where it ended before that, its logs."""
        if any(visible(self.directory.claim(node)) for node in range(self.nodes)):
            return True
        return any(self.directory.submitit.glob("*_log.*"))

    def hear(self, state: JobState) -> None:
        """Take the scheduler's word."""
        now = time.monotonic()
        if state.kind == "unknown":
            self.forgotten_at = self.forgotten_at or now
            return
        ran = self.state is not None and self.state.kind == "running"
        # From running to waiting: it was requeued, and Slurm starts it again minutes later.
        put_back = ran and state.kind == "pending" and state.raw != "CONFIGURING"
        self.state, self.forgotten_at = state, None
        self.running = self.running or state.kind == "running"
        if put_back or state.kind in ("ended", "held"):
            self.ended_at = self.ended_at or now

    def over(self) -> bool:
        """Whether nothing more is to be expected of the job."""
        now = time.monotonic()
        if self._node_not_named(now):
            return False
        if self.look():
            self.told_at = self.told_at or now
            answered = self.ended_at is not None or self.forgotten_at is not None
            return self.succeeded() or answered or now - self.told_at > VERDICT_GRACE_S
        # Completed says that every node's task wrote its result before it ended with 0.
        well = self.state is not None and self.state.raw == "COMPLETED"
        grace_s = COMPLETED_GRACE_S if well else RESULT_GRACE_S
        ended = self.ended_at is not None and now - self.ended_at > grace_s
        lost = self.forgotten_at is not None and now - self.forgotten_at > LOST_GRACE_S
        return ended or lost

    def _node_not_named(self, now: float) -> bool:
        failed = self.state is not None and self.state.raw == "NODE_FAIL"
        if not failed or self.ended_at is None or now - self.ended_at > NODE_NAMED_S:
            return False
        return not in_job_logs(self.directory, NODE_FAILED)

    def succeeded(self) -> bool:
        """Whether every node has told that it ended well."""
        found = (read_json(self.directory.node_result(node)) for node in range(self.nodes))
        return all(result is not None and result.get("ok") is True for result in found)

    def ask_details(self, backend: Backend, result: PhaseResult) -> None:
        """Keep what more the scheduler says of a job that did not end well, and of its nodes."""
        if self.state is None or self.succeeded():
            return
        # A requeued job has no nodes any more, and one that completes only those that are not done;
        # the names that it wrote down itself are hostile.
        had = [node.name for node in result.nodes if NODE_NAME.fullmatch(node.name)]
        nodes = ",".join(filter(None, (self.state.nodes, *had)))
        details = backend.details(self.job_id, self.state, nodes)
        if details is not None:
            details.write(self.directory.scheduler)

    def straggling(self) -> bool:
        return self.failing_at is not None and time.monotonic() - self.failing_at > STRAGGLER_S

    def witness(self) -> JobState | None:
        """The scheduler's last word; None where it has forgotten the job."""
        return None if self.forgotten_at is not None else self.state


class Poller:
    """Asks the scheduler once for all jobs, no more often than it must."""

    def __init__(self, backend: Backend, running_s: float) -> None:
        self._backend = backend
        self._running_s = running_s
        self._interval_s = FIRST_POLL_S
        self._next = 0.0

    def soon(self) -> None:
        self._interval_s = FIRST_POLL_S
        self._next = min(self._next, time.monotonic() + FIRST_POLL_S)

    def poll(self, jobs: Iterable[Watched]) -> None:
        jobs = list(jobs)
        now = time.monotonic()
        if any(job.told_at and not job.ended_at for job in jobs):
            self.soon()
        elif any(job.running for job in jobs):  # a claim may have told so first
            self._next = min(self._next, now + self._running_s)
        if not jobs or now < self._next:
            return
        states = self._backend.states([job.job_id for job in jobs])
        for job in jobs:
            if job.job_id in states:
                job.hear(states[job.job_id])
        if any(job.running for job in jobs):
            self._interval_s = self._running_s
        else:
            self._interval_s = min(self._interval_s * 1.5, PENDING_POLL_S)
        self._next = time.monotonic() + self._interval_s
