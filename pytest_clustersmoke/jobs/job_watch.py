"""Decides when a job is over. Its own result files come first, since reading them costs the
scheduler nothing; what the scheduler shows of another start of the job says nothing about this one.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from ..config.hostlist import expand_hostlist
from ..evidence.finding import MAX_TEXT, list_job_logs, read_head
from ..evidence.job_results import NodeResult, read_node_result
from ..evidence.phase_result import PhaseResult, add_scheduler_record
from ..evidence.run_directory import PhaseDir
from ..evidence.scheduler_record import (
    NODE_FAILED,
    JobState,
    SchedulerRecord,
    SlurmMessage,
)
from ..evidence.telemetry import Events, parse_text, read_events
from ..evidence.whole_files import is_full
from ..node.abort_flag import visible
from ..text import format_here
from .backend import ANY_JOB, STRANGER, Backend, Words, names_job
from .slurm_jobs import parse_message

# A shared file system may show a result some seconds after the scheduler reports the job's end.
RESULT_GRACE_S = 1.5
# A job whose only node failed, or the only one without a result and with srun, has lost what is
# missing: only a result just written would say more.
NODE_FAILED_GRACE_S = 0.5
# NFS caches attributes for up to a minute.
COMPLETED_GRACE_S = 60.0
# How often the files of a job are looked at that the scheduler has forgotten: its ranks may train.
FORGOTTEN_LOOK_S = 8.0
# After one node failed the others end within seconds; after this long the job is cancelled.
STRAGGLER_S = 30.0
# Once all nodes have reported a failure, wait this long for the scheduler to say whether it was the
# cause (a lost node, a cancellation): from inside that looks like ranks that lost their peers.
VERDICT_GRACE_S = 6.0
# A job ends as soon as one of its nodes fails. srun logs which of several it was a little later,
# and by then sinfo may show that node in service again; the others end their ranks, and then write
# what they saw.
NODE_NAMED_S = 4.0
NODE_NAME = re.compile(r"[\w.-]{1,255}")
SILENT = "the scheduler does not answer"
OUTDATED = "the scheduler shows it as it was before it started (was slurmctld restarted?)"
# In which a scheduler has considered every job that waits (Slurm's sched_interval).
CYCLE_S = 60.0
# Why a job is pending that waits for others: too many tasks of its array run, or its lane is busy.
TURNS = ("JobArrayTaskLimit", "Dependency")
MAX_LINES = 100_000  # of each of the job's own logs; ranks do not write there
MAX_MESSAGES = 256


def read_messages(directory: PhaseDir, job_id: str = "") -> tuple[SlurmMessage, ...]:
    """Slurm's messages in the logs of the job's shell and launchers, in order: once a node is back
    in service, nothing else says that it failed. About a step of the ranks, srun reports to node
    0's launcher log. Without an id, of any job that wrote there."""
    messages = (
        SlurmMessage(*message, str(path), number, line[:MAX_TEXT])
        for path in (*list_job_logs(directory, job_id), directory.launcher_log(0))
        for number, line in read_head(path, MAX_LINES)
        if (message := parse_message(line))
    )
    return tuple(islice(messages, MAX_MESSAGES))


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


@dataclass
class WaitEnd:
    """The end of a job's wait in the queue: why, since when (monotonic seconds), and when the
    scheduler was last asked to cancel the job if it had not started."""

    reason: str
    since: float
    asked_at: float = -math.inf


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
    words: Words = ANY_JOB
    token: str = ""
    allocated: str = ""  # the nodes that the scheduler showed for it
    timeout_s: float = 0.0
    stage_limits_s: Mapping[str, float] = field(default_factory=dict)
    resumes: bool = False  # its ranks may stop, and go on in another attempt
    restarts: int = 0
    at_once: int | None = None  # how many tasks of its array may run at a time
    was_requeued: bool = False  # since somebody last asked
    state: JobState | None = None
    state_at: float = 0.0  # when the scheduler reported it
    running: bool = False
    submitted: float | None = None  # when this start was, by the scheduler's clock (Unix seconds)
    was_set_back: bool = False  # the scheduler showed it as it was before it started
    is_queued: bool = False  # which it still shows, or its second start
    running_since: float | None = None  # the scheduler shows it running, and not suspended
    ended_at: float | None = None
    unknown_since: float | None = None
    looked_at: float = 0.0  # and seen to write, since the scheduler has forgotten it
    wrote_at: float = 0.0
    event_bytes: int = -1
    is_ours: bool = True  # not so while the scheduler shows another job under this id
    is_sure: bool = True  # of a job of an earlier controller, once the scheduler has shown it
    failing_since: float | None = None
    complete_since: float | None = None
    requeued_since: float | None = None
    results: dict[int, NodeResult] = field(default_factory=dict)
    wait_end: WaitEnd | None = None
    failed_nodes: frozenset[str] | None = None  # those known of, while the others may still write
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
            self.directory, self.results = newest, {}
            # A controller before this one may have seen it requeued, or nobody has.
            self.restarts = newest.restarts
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
        logs = list_job_logs(self.directory, self.job_id)
        return not self.restarts and any("_log." in log.name for log in logs)

    def record_state(self, state: JobState) -> None:
        """Record the state that the scheduler reported."""
        now = time.monotonic()
        self.is_ours = names_job(self.words, state.name, state.comment)
        if state.kind == "unknown" or not self.is_ours or self._is_set_back(state):
            self.unknown_since = self.unknown_since or now
            self.is_queued = self.is_ours and state.kind in ("pending", "running")
            return
        self.is_sure, self.is_queued = True, False
        if self.state is None:  # an earlier controller watched it, and perhaps saw the requeue
            was_running = self.running and self._asked_for_requeue()
        else:
            was_running = self.state.kind == "running"
        # A running job that is pending again was requeued; Slurm restarts it minutes later.
        requeued = was_running and state.kind == "pending" and state.raw != "CONFIGURING"
        asked = requeued and self._asked_for_requeue()
        if requeued and self.resumes and not asked:
            # The results of its nodes may be seen a little later than its state.
            self.requeued_since = self.requeued_since or now
            if now - self.requeued_since < RESULT_GRACE_S:
                return
        self.state, self.state_at, self.unknown_since = state, now, None
        self.running_since = (self.running_since or now) if state.raw == "RUNNING" else None
        if state.submitted != self.submitted and (requeued or self._is_own_submission(state)):
            self.submitted = state.submitted
        # Of a job that is completing the scheduler lists the nodes that are not done yet.
        self.allocated = max(self.allocated, state.nodes, key=lambda n: len(expand_hostlist(n)))
        if self.waits_for_turn:
            self.submitted_at = now  # the queue's limit counts from its turn
        if asked:
            self._await_restart()
            return
        self.running = self.running or state.kind == "running"
        if requeued or state.kind in ("ended", "held"):
            self.ended_at = self.ended_at or now

    def _is_own_submission(self, state: JobState) -> bool:
        """Whether it is the submission of this start: a job that waits, but has started, may have
        been requeued before anybody looked."""
        return state.kind == "running" or not visible(self.directory.claim)

    def _is_set_back(self, state: JobState) -> bool:
        """Whether a state is not of this start of the job: a slurmctld that was killed came back
        with an older state, in which the job waits, and then starts it a second time, which ends at
        the claim. A requeue is a new submission for Slurm."""
        if state.submitted is None or state.submitted != self.submitted:
            return False
        if state.kind != "pending":
            return self.was_set_back and visible(self.directory.started_again)
        is_back = self.running and state.raw != "CONFIGURING" and not self._asked_for_requeue()
        self.was_set_back = self.was_set_back or is_back
        return is_back

    def check_wait(self, limit_s: float | None, estimate: float | None) -> WaitEnd | None:
        """The end of the job's wait in the queue, which may last so long; without a limit, or once
        the job has started, None. A limit of 0 is one cycle of the scheduler, or no wait at all
        where it expects a later start; `estimate`: what it expected before the job was submitted,
        in Unix seconds."""
        if self.running or limit_s is None:
            self.wait_end = None
        elif self.wait_end is None and (reason := self._end_wait(limit_s, estimate)):
            self.wait_end = WaitEnd(f"queue: {reason}", time.monotonic())
        return self.wait_end

    def _end_wait(self, limit_s: float, estimate: float | None) -> str:
        """Why the job should wait no longer; empty if it may."""
        waited_s, state = time.monotonic() - self.submitted_at, self.state
        is_pending = state is not None and state.kind == "pending" and not self.waits_for_turn
        start = (state.expected_start if state else None) or estimate
        why = f" ({state.reason})" if state and state.reason else ""
        expects = f"; the scheduler expects it to start at {format_here(start)}" if start else ""
        if waited_s > (limit_s or CYCLE_S):
            start_again = "start again" if self.restarts else "start"
            return f"the job did not {start_again} within {limit_s or CYCLE_S:g} s{why}{expects}"
        left_s = CYCLE_S - waited_s
        if not limit_s and is_pending and start is not None and start - time.time() > left_s:
            return f"the job cannot start within {CYCLE_S:g} s{why}{expects}"
        return ""

    def _await_restart(self) -> None:
        """Expect the job's next start; its wait in the queue counts from now."""
        self.restarts, self.was_requeued = self.restarts + 1, True
        self.directory = self.directory.restarted(self.restarts)
        self.results, self.running, self.submitted_at = {}, False, time.monotonic()
        self.failing_since = self.complete_since = self.requeued_since = None

    @property
    def may_end(self) -> bool:
        """Whether this run may end the job of this id, which is not, or may not be, another's."""
        return self.is_ours and self.is_sure

    @property
    def waits_for_turn(self) -> bool:
        """Whether it waits for other jobs of the run: as a task of an array of which as many run as
        may run at a time, or behind another job in its lane."""
        return self.state is not None and self.state.reason in TURNS

    @property
    def has_left_queue(self) -> bool:
        """Whether the scheduler has seen its end, or has forgotten it: no other job can wait for it
        there."""
        return self.ended_at is not None or self.is_gone

    @property
    def is_gone(self) -> bool:
        """Whether the scheduler shows it as ended, or not at all: it was not requeued since."""
        if self.unknown_since is not None:
            return not self.is_queued
        return self.state is not None and self.state.kind == "ended"

    def is_over(self) -> bool:
        """Whether no more results can be expected from the job."""
        now = time.monotonic()
        is_whole = self.check_files()
        if self._waits_for_other_nodes(now):
            return False
        if is_whole:
            self.complete_since = self.complete_since or now
            waited = now - self.complete_since > VERDICT_GRACE_S
            return self.has_succeeded() or self.has_left_queue or waited
        ended = self.ended_at is not None and now - self.ended_at > self._grace_s()
        return ended or self._is_lost(now)

    def _grace_s(self) -> float:
        """How long results may be missing after the scheduler's word of the job's end."""
        if self.awaits_results:
            return COMPLETED_GRACE_S
        has_failed = self.state is not None and self.state.raw == "NODE_FAIL"
        return NODE_FAILED_GRACE_S if has_failed and self._has_lost_srun() else RESULT_GRACE_S

    @property
    def awaits_results(self) -> bool:
        """Whether results exist that are not visible yet: COMPLETED means that every node's task
        wrote its result before it exited with 0."""
        missing = len(self.results) < self.nodes or (self._has_stopped() and self.resumes)
        return missing and self.state is not None and self.state.raw == "COMPLETED"

    def _is_lost(self, now: float) -> bool:
        """Whether a job that the scheduler has forgotten has ended, too: its nodes and ranks have
        written nothing for longer than a stage may take. A node would have ended its ranks by then,
        or have written that they wait for a CPU."""
        if self.unknown_since is None or now - self.looked_at < FORGOTTEN_LOOK_S:
            return False
        self.looked_at = now
        if now - self.unknown_since > self.timeout_s + COMPLETED_GRACE_S:
            return True
        if (written := self._event_bytes()) != self.event_bytes:
            self.event_bytes, self.wrote_at = written, now
        limit_s = self._stage_limit_s() if visible(self.directory.claim) else 0.0
        silent_s = now - max(self.wrote_at, self.unknown_since)
        return silent_s > limit_s + COMPLETED_GRACE_S  # in which it ends them, and NFS shows that

    def _rank_files(self) -> list[Path]:
        return list(self.directory.rank_events(0).parent.glob("*.jsonl"))

    def _event_bytes(self) -> int:
        """How much the job's nodes and ranks have written."""
        nodes = [self.directory.node_events(node) for node in range(self.nodes)]
        size = 0
        for path in (*nodes, *self._rank_files()):
            with contextlib.suppress(OSError):
                size += path.stat().st_size
        return size

    def _stage_limit_s(self) -> float:
        """How long the stage may take that the rank is in which wrote last."""
        newest = max(self._rank_files(), key=_changed_at, default=None)
        events = Events(Path()) if newest is None else read_events(newest, all_marks=False)
        if (events.last("trace_write") or {}).get("state") == "begin":
            return self.timeout_s
        stage = parse_text((events.last("stage") or {}).get("name")) or "init"
        if stage in ("train", "twin"):
            stage = "train_step" if events.last("step") else "first_step"
        return self.stage_limits_s.get(stage, self.timeout_s)

    def _waits_for_other_nodes(self, now: float) -> bool:
        """Whether a node of several has failed, and srun has not named it yet, or others have not
        written their results."""
        failed = self.state is not None and self.state.raw == "NODE_FAIL" and self.nodes > 1
        if not failed or self.ended_at is None or now - self.ended_at > NODE_NAMED_S:
            return False
        messages = [each for each in self._read_messages() if each.event == NODE_FAILED]
        gone = {name for message in messages for name in expand_hostlist(message.node)}
        self.failed_nodes = frozenset(gone)
        if self._has_lost_srun():
            return False
        return not gone or len(self.results) < self.nodes - len(gone)

    def _has_lost_srun(self) -> bool:
        """Whether only the first node is silent, where srun ran, and none was named."""
        return not self.failed_nodes and self.results.keys() == set(range(1, self.nodes))

    def _read_messages(self) -> tuple[SlurmMessage, ...]:
        return read_messages(self.directory, self.job_id)

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
        if backend is not None and self.state is not None and self.is_ours:
            # The scheduler lists no nodes for a requeued job, and for a completing one only those
            # that are not done. Names that the job itself wrote are untrusted.
            names = [node.name for node in result.nodes if NODE_NAME.fullmatch(node.name)]
            nodes = ",".join(filter(None, (self.state.nodes, *names)))
            details = backend.details(self.job_id, self.state, nodes)
        record = replace(details or SchedulerRecord(), messages=self._read_messages())
        if record == SchedulerRecord():
            return result
        try:
            record.write(self.directory.scheduler)
        except OSError as error:
            if not is_full(error):
                raise
            return replace(result, scheduler=record)
        return add_scheduler_record(result)

    @property
    def may_run(self) -> bool:
        """Whether the scheduler may still run it, although its end is not waited for: it was
        requeued, or forgotten without results."""
        waits = self.state is not None and self.state.kind in ("pending", "held")
        return waits or (self.unknown_since is not None and len(self.results) < self.nodes)

    @property
    def holds_nodes(self) -> bool:
        """Whether the scheduler still runs a job whose nodes have all failed: srun waits for the
        task of a slurmstepd that was killed."""
        is_running = self.state is not None and self.state.kind == "running"
        return is_running and len(self.results) == self.nodes and not self.has_succeeded()

    def is_straggling(self) -> bool:
        return (
            self.failing_since is not None and time.monotonic() - self.failing_since > STRAGGLER_S
        )

    def last_state(self) -> JobState | None:
        """The last state that the scheduler reported, other than a cancellation by this run; None
        or `unknown` if it no longer knows the job or its start, or its last answer is older than
        the job's end."""
        if self.failed_first and self.state is not None and self.state.raw == "CANCELLED":
            return self.state_before_end
        if not self.is_ours:
            return JobState("unknown", "", STRANGER)
        if self.unknown_since is not None:
            return JobState("unknown", "", OUTDATED) if self.was_set_back else None
        return JobState("unknown", "", SILENT) if self._is_outdated() else self.state

    def _is_outdated(self) -> bool:
        """Whether the scheduler has reported nothing since the nodes' last words, and no end before
        them: then its last state does not say how the job ended."""
        words_at = max(self.complete_since or 0.0, self.failing_since or 0.0)
        return self.state is None or (self.ended_at is None and self.state_at <= words_at)
