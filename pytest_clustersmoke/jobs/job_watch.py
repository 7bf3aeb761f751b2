"""Decides when to poll the scheduler, and when a job is over.

A job's own result files come first, since reading them costs the scheduler nothing. While all jobs
are pending the polls become rarer; once a job's claim file shows that it started, they become
frequent again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import islice

from ..evidence.finding import MAX_TEXT, list_job_logs, read_head
from ..evidence.job_results import NodeResult, read_node_result
from ..evidence.phase_result import PhaseResult, add_scheduler_record
from ..evidence.run_directory import RESTART, PhaseDir
from ..evidence.scheduler_record import NODE_FAILED, JobState, SchedulerRecord, SlurmMessage
from ..node.abort_flag import visible
from .backend import Backend, Submission
from .slurm_jobs import parse_message

FIRST_POLL_S = 0.5
PENDING_POLL_S = 15.0
# A shared file system may show a result some seconds after the scheduler reports the job's end.
RESULT_GRACE_S = 1.5
# NFS caches attributes for up to a minute.
COMPLETED_GRACE_S = 60.0
LOST_GRACE_S = 8.0
# After one node failed the others end within seconds; after this long the job is cancelled.
STRAGGLER_S = 30.0
# Once all nodes have reported a failure, wait this long for the scheduler to say whether it was the
# cause (a lost node, a cancellation): from inside that looks like ranks that lost their peers.
VERDICT_GRACE_S = 6.0
# A job ends as soon as one of its nodes fails. srun logs which node it was a little later, and by
# then sinfo may show that node in service again.
NODE_NAMED_S = 4.0
NODE_NAME = re.compile(r"[\w.-]{1,255}")
# Why a task of an array is pending while as many of them run as may run at a time.
TURN = "JobArrayTaskLimit"
MAX_LINES = 100_000  # of each of the job's own logs; ranks do not write there
MAX_MESSAGES = 256


def read_messages(directory: PhaseDir) -> tuple[SlurmMessage, ...]:
    """Slurm's messages in the logs of the job's shell and launchers, in order: once a node is back
    in service, nothing else says that it failed. About a step of the ranks, srun reports to node
    0's launcher log."""
    messages = (
        SlurmMessage(*message, str(path), number, line[:MAX_TEXT])
        for path in (*list_job_logs(directory), directory.launcher_log(0))
        for number, line in read_head(path, MAX_LINES)
        if (message := parse_message(line))
    )
    return tuple(islice(messages, MAX_MESSAGES))


@dataclass
class WatchedJob:
    """One submitted job and what is known about it. Times are monotonic seconds of this process.
    `results` are the nodes' results by node rank, each read once, when it is there."""

    phase: str
    job_id: str
    directory: PhaseDir
    nodes: int
    submitted_at: float
    after: str = ""  # the phase that it waits for in the queue
    resumes: bool = False  # its ranks may stop, and go on in another attempt
    restarts: int = 0
    was_requeued: bool = False  # since somebody last asked
    state: JobState | None = None
    running: bool = False
    ended_at: float | None = None
    unknown_since: float | None = None
    failing_since: float | None = None
    complete_since: float | None = None
    requeued_since: float | None = None
    results: dict[int, NodeResult] = field(default_factory=dict)
    failed_first: bool | None = None  # whether it had failed when this run ended it
    state_before_end: JobState | None = None

    def expect_end(self) -> None:
        """Note how the job is just before this run ends it: nodes that are ended raise the abort
        flag, too, and the scheduler then reports a cancellation."""
        if self.failed_first is None:
            self.failed_first = visible(self.directory.abort)
            self.state_before_end = self.state

    def check_files(self) -> bool:
        """Read the files of the job's last attempt; return whether all nodes have written their
        results, and no other attempt goes on."""
        self.running = self.running or self._has_begun()
        if self.running:
            self._read_results()
        if self.results and self.failing_since is None and visible(self.directory.abort):
            self.failing_since = time.monotonic()
        if not self._has_stopped():
            return len(self.results) == self.nodes
        if (newest := self.directory.newest) != self.directory:
            self.directory = newest
            self.results = {}
        return False

    def _has_stopped(self) -> bool:
        """Whether ranks of this attempt stopped to go on in another."""
        return any(result.stopped for result in self.results.values())

    def _asked_for_requeue(self) -> bool:
        """Whether all ranks saved and stopped, and the job requeued itself. A requeue that it did
        not ask for may hide a node that failed, so nothing is resumed after it."""
        self.check_files()
        asked = [result.requeues for result in self.results.values()]
        return len(asked) == self.nodes and all(asked)

    def _read_results(self) -> None:
        for node in set(range(self.nodes)) - self.results.keys():
            if not visible(self.directory.node_result(node)):
                continue
            if (result := read_node_result(self.directory, node)).result:
                self.results[node] = result

    def _has_begun(self) -> bool:
        """Whether the job has written a claim or, if it ended before that, its logs."""
        if visible(self.directory.claim):
            return True
        return not self.restarts and any(self.directory.submitit.glob("*_log.*"))

    def record_state(self, state: JobState) -> None:
        """Record the state that the scheduler reported."""
        now = time.monotonic()
        if state.kind == "unknown":
            self.unknown_since = self.unknown_since or now
            return
        was_running = self.state is not None and self.state.kind == "running"
        # A running job that is pending again was requeued; Slurm restarts it minutes later.
        requeued = was_running and state.kind == "pending" and state.raw != "CONFIGURING"
        asked = requeued and self._asked_for_requeue()
        if requeued and self.resumes and not asked:
            # The results of its nodes may be seen a little later than its state.
            self.requeued_since = self.requeued_since or now
            if now - self.requeued_since < RESULT_GRACE_S:
                return
        self.state, self.unknown_since = state, None
        if self.waits_for_turn:
            self.submitted_at = now  # the queue's limit counts from its turn
        if asked:
            self._await_restart()
            return
        self.running = self.running or state.kind == "running"
        if requeued or state.kind in ("ended", "held"):
            self.ended_at = self.ended_at or now

    def _await_restart(self) -> None:
        """Expect the job's next start; its wait in the queue counts from now."""
        self.restarts, self.was_requeued = self.restarts + 1, True
        self.directory = self.directory.restarted(self.restarts)
        self.results, self.running, self.submitted_at = {}, False, time.monotonic()
        self.failing_since = self.complete_since = self.requeued_since = None

    @property
    def waits_for_turn(self) -> bool:
        """Whether it is a task of an array of which as many run as may run at a time."""
        return self.state is not None and self.state.reason == TURN

    def is_over(self) -> bool:
        """Whether no more results can be expected from the job."""
        now = time.monotonic()
        if self._waits_for_node_name(now):
            return False
        if self.check_files():
            self.complete_since = self.complete_since or now
            answered = self.ended_at is not None or self.unknown_since is not None
            return self.has_succeeded() or answered or now - self.complete_since > VERDICT_GRACE_S
        # COMPLETED means that every node's task wrote its result before it exited with 0.
        missing = len(self.results) < self.nodes or (self._has_stopped() and self.resumes)
        completed = missing and self.state is not None and self.state.raw == "COMPLETED"
        grace_s = COMPLETED_GRACE_S if completed else RESULT_GRACE_S
        ended = self.ended_at is not None and now - self.ended_at > grace_s
        lost = self.unknown_since is not None and now - self.unknown_since > LOST_GRACE_S
        return ended or lost

    def _waits_for_node_name(self, now: float) -> bool:
        failed = self.state is not None and self.state.raw == "NODE_FAIL"
        if not failed or self.ended_at is None or now - self.ended_at > NODE_NAMED_S:
            return False
        return all(message.event != NODE_FAILED for message in read_messages(self.directory))

    def has_succeeded(self) -> bool:
        """Whether every node has reported success, as far as `check_files` has seen."""
        succeeded = all(result.ok for result in self.results.values())
        return len(self.results) == self.nodes and succeeded and not self._has_stopped()

    def save_details(self, backend: Backend | None, result: PhaseResult) -> PhaseResult:
        """Save the scheduler's details about a job that did not succeed and about its nodes, with
        its messages in the job's log; without a backend, its messages only. Returns the result with
        them."""
        if all(node.ok for node in result.nodes):
            return result
        details = None
        if backend is not None and self.state is not None:
            # The scheduler lists no nodes for a requeued job, and for a completing one only those
            # that are not done. Names that the job itself wrote are untrusted.
            names = [node.name for node in result.nodes if NODE_NAME.fullmatch(node.name)]
            nodes = ",".join(filter(None, (self.state.nodes, *names)))
            details = backend.details(self.job_id, self.state, nodes)
        record = replace(details or SchedulerRecord(), messages=read_messages(self.directory))
        if record == SchedulerRecord():
            return result
        record.write(self.directory.scheduler)
        return add_scheduler_record(result)

    def is_straggling(self) -> bool:
        return (
            self.failing_since is not None and time.monotonic() - self.failing_since > STRAGGLER_S
        )

    def last_state(self) -> JobState | None:
        """The last state that the scheduler reported, other than a cancellation by this run; None
        if it no longer knows the job."""
        if self.failed_first and self.state is not None and self.state.raw == "CANCELLED":
            return self.state_before_end
        return None if self.unknown_since is not None else self.state


def watch_job(job: Submission, job_id: str, after: str, waited_s: float = 0.0) -> WatchedJob:
    """The watch over a job that was submitted so many seconds ago; `after`: the phase that it waits
    for in the queue."""
    newest = job.directory.newest
    return WatchedJob(
        job.phase.name,
        job_id,
        newest,
        int(job.phase.nodes.value),
        time.monotonic() - max(0.0, waited_s),
        after,
        resumes=bool(job.phase.resume.value),
        restarts=newest.attempt // RESTART,
    )


class Poller:
    """Asks the scheduler for the states of all jobs at once, as rarely as possible: at most once
    every `running_s`."""

    def __init__(self, backend: Backend, running_s: float) -> None:
        self._backend = backend
        self._running_s = running_s
        self._interval_s = FIRST_POLL_S
        self._next = self._earliest = 0.0

    def poll_soon(self) -> None:
        self._interval_s = FIRST_POLL_S
        self._next = min(self._next, time.monotonic() + FIRST_POLL_S)

    def poll(self, jobs: Iterable[WatchedJob]) -> None:
        jobs = list(jobs)
        now = time.monotonic()
        if any(job.complete_since and not job.ended_at for job in jobs):
            self.poll_soon()
        elif any(job.running for job in jobs):  # perhaps known only from its claim
            self._next = min(self._next, now + self._running_s)
        if not jobs or now < max(self._next, self._earliest):
            return
        self._earliest = now + self._running_s
        states = self._backend.states([job.job_id for job in jobs])
        for job in jobs:
            if job.job_id in states:
                job.record_state(states[job.job_id])
        if any(job.running for job in jobs):
            self._interval_s = self._running_s
        else:
            self._interval_s = min(self._interval_s * 1.5, PENDING_POLL_S)
        self._next = time.monotonic() + self._interval_s
