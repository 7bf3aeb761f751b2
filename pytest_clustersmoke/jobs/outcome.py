"""Judges how a job ended: from its own result files first, then from the scheduler's state."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..evidence.finding import Finding
from ..evidence.job_results import STEP_DAEMON
from ..evidence.phase_attempts import NODE_FAILED, PhaseAttempt
from ..evidence.phase_result import PhaseResult
from ..evidence.scheduler_record import (
    CONTROLLER_SILENT,
    PREEMPTED,
    PROLOG_FAILED,
    TASK_KILLED,
    JobState,
    NodeStatus,
)
from ..evidence.scheduler_record import NODE_FAILED as NODE_MESSAGE
from ..evidence.staged_marks import find_unrequested_fault
from ..text import WARNING, outcome_words

# States that mean a fault of the cluster itself (man squeue, JOB STATE CODES).
LAUNCH_FAILED = "LAUNCH_FAILED"
CLUSTER_STATES = {"NODE_FAIL", "BOOT_FAIL", LAUNCH_FAILED, "RECONFIG_FAIL"}
# What happened to a job if its state alone does not show it.
PROLOG, REQUEUED, SUSPENDED = "PROLOG", "REQUEUED", "SUSPENDED"
# A step that was not started in its allocation, and one that ended with it, at a time limit that is
# not the phase's own. The state's reason says it in words.
NOT_STARTED, OUT_OF_TIME = "NOT_STARTED", "OUT_OF_TIME"
OVERDUE = "OVERDUE"  # the job ran on and on, and this run ended it
# Hosts without a scheduler that stopped answering: some of them, or all.
HOST_LOST, HOSTS_SILENT = "HOST_LOST", "HOSTS_SILENT"
# A node of the job lost its slurmstepd, by its own word.
STEP_DAEMON_DIED = "STEP_DAEMON_DIED"
# Findings of the preflight: the cluster's own nodes are out.
LACK_OF_NODES = ("nodes-unavailable", "host-unreachable")
# Ranks that fail after a suspension this long may have failed because of it: their own time limits
# kept running.
EXCUSING_SUSPENSION_S = 30.0


@dataclass(frozen=True)
class Judgement:
    """One of `phase_result.OUTCOMES` and the reason in one sentence. If the job was ended from
    outside, `ended_by` is the scheduler's state for it (or PROLOG, REQUEUED, SUSPENDED)."""

    outcome: str
    reason: str
    ended_by: str = ""


def judge_refusal(findings: Sequence[Finding]) -> Judgement:
    """Judge a phase that the preflight refused for these reasons, the first of which is shown."""
    lacks_nodes = all(finding.id in LACK_OF_NODES for finding in findings)
    return Judgement("cluster_failed" if lacks_nodes else "never_ran", findings[0].cause)


def judge_job(
    result: PhaseResult, state: JobState | None, cancelled: Judgement | None = None
) -> Judgement:
    """Judge a job that is over. `cancelled` is the judgement of this run where it cancelled the
    job; it holds unless the job had succeeded.

    Success means that every node reported ok and every rank reported done. The scheduler's
    COMPLETED alone proves nothing, and no later state disproves a success.
    """
    judgement = _judge_end(result, state, cancelled)
    if judgement.ended_by in (REQUEUED, "PREEMPTED") and (lost := describe_lost_steps(result)):
        return replace(judgement, reason=f"{judgement.reason}; {lost}")
    return judgement


def describe_lost_steps(result: PhaseResult) -> str:
    """Which steps of a phase with `resume` its next job does again, since this one was taken away
    without the time to save; empty if it has no `resume` or did no step."""
    done = max((rank.steps_done or 0 for rank in result.ranks), default=0)
    if not result.spec.get("resume") or not done:
        return ""
    planned = max(rank.steps_planned or 0 for rank in result.ranks)
    which = "step 1" if done == 1 else f"steps 1 to {done}"
    return f"it could not save its progress, so its next job does {which} of {planned} again"


def _judge_end(
    result: PhaseResult, state: JobState | None, cancelled: Judgement | None
) -> Judgement:
    if result.nodes and all(node.ok for node in result.nodes):
        return _judge_success(result, state, cancelled)
    if cancelled is not None:
        return cancelled
    if result.directory.declined(str(result.spec.get("token", ""))).exists():
        why = "the job was given up just as it started, and ended by itself"
        return Judgement("never_ran", why)
    started = (
        bool(result.earlier)
        or result.directory.claim.exists()
        or any(node.result for node in result.nodes)
    )
    failure = _nodes_failure(result)
    by_scheduler = _judge_requeue(result, state, started, failure) or (
        _judge_launch(result, state, started) or _judge_scheduler_end(result, state, started)
        if state
        else None
    )
    if by_scheduler:
        return by_scheduler
    if orphan := next((node for node in result.nodes if node.reason == STEP_DAEMON), None):
        return Judgement("cluster_failed", f"{orphan.name}: {orphan.why}", STEP_DAEMON_DIED)
    if _asked_to_end(result, failure):
        return Judgement(
            "preempted",
            "the scheduler asked the job to end, to give its nodes to another job",
            "PREEMPTED",
        )
    if failure:
        # Ranks that were suspended in an earlier attempt saved and ended well.
        if suspension := _suspension(result, longer_than_s=EXCUSING_SUSPENSION_S):
            reason = f"{suspension} and then failed: {failure}"
            return Judgement("preempted", reason, SUSPENDED)
        return Judgement("failed", failure)
    if result.directory.setup_failed.exists():
        return Judgement("failed", "a setup line failed")
    if not started and result.scheduler.logged(CONTROLLER_SILENT):
        why = "srun could not start the job on its nodes: slurmctld did not answer"
        return Judgement("never_ran", why, CONTROLLER_SILENT)
    if state is None or state.kind in ("unknown", "running"):
        return Judgement("lost", _describe_loss(result, state))
    ending = _describe(state)
    if not started:
        return Judgement("failed", f"the job ended as {ending} before our launcher started")
    silent = [node.name for node in result.nodes if not node.result]
    detail = f"{', '.join(silent)} left no result" if silent else "its nodes were terminated"
    if killed := find_killed_launchers(result):
        detail += f": the launcher on {', '.join(killed)} was killed (SIGKILL)"
    return Judgement("failed", f"the job ended as {ending}, and {detail}")


def _judge_success(
    result: PhaseResult, state: JobState | None, cancelled: Judgement | None
) -> Judgement:
    """Judge a job all of whose nodes reported ok."""
    if unrequested := find_unrequested_fault(result):
        return Judgement("failed", f"{unrequested[0]} staged a fault that this run did not request")
    if any(node.stopped for node in result.nodes):
        requeued = _judge_requeue(result, state, started=True, failure="")
        why = "its ranks stopped to go on in another attempt, and were not started again"
        return cancelled or requeued or Judgement("failed", why)
    if result.ranks_done == result.world_size:
        if suspension := _suspension(*result.earlier, result):
            return Judgement("preempted", f"{suspension} and then continued", SUSPENDED)
        return Judgement("passed", "every node succeeded and every rank finished")
    return Judgement("failed", f"only {result.ranks_done} of {result.world_size} ranks finished")


def find_killed_launchers(result: PhaseResult) -> list[str]:
    """The nodes without a result whose task, which starts the launcher, was killed."""
    killed = {message.node for message in result.scheduler.logged(TASK_KILLED)}
    return [node.name for node in result.nodes if not node.result and node.name in killed]


def find_refusing_nodes(result: PhaseResult) -> list[NodeStatus]:
    """The nodes that Slurm took out of service because they could not launch the job."""
    record = result.scheduler
    return [node for node in record.nodes if node.refused_launch(record.job.started)]


def _describe_loss(result: PhaseResult, state: JobState | None) -> str:
    """Why nobody knows how a job ended."""
    terminated = any(node.reason == "terminated" for node in result.nodes)
    seen = "was ended by SIGTERM from outside" if terminated else "left no result"
    if state is None or state.kind == "unknown":
        why = state.reason if state and state.reason else "the scheduler has no record of it"
    else:
        why = f"the scheduler last reported {_describe(state)}"
    return f"the job {seen}, and {why}"


def _suspension(*attempts: PhaseResult, longer_than_s: float = 0.0) -> str:
    """A sentence on how long the job was suspended in these attempts; empty if it was not. A
    suspension makes its times worthless, but is not a fault of the cluster."""
    nodes = [node for attempt in attempts for node in attempt.nodes]
    longest = max(nodes, key=lambda node: node.paused_s)
    if longest.paused_s <= longer_than_s:
        return ""
    return f"the job was suspended for {longest.paused_s:.0f} s on {longest.name}"


def _judge_requeue(
    result: PhaseResult, state: JobState | None, started: bool, failure: str
) -> Judgement | None:
    """Judge a job that was requeued or has started a second time; None for any other."""
    restarted = result.directory.started_again.exists()
    if not restarted and (state is None or state.kind not in ("pending", "held")):
        return None
    if (state and state.kind == "held") or (not started and _prolog_failed(result)):
        return Judgement("cluster_failed", "the job could not be launched on its nodes", PROLOG)
    if started and (result.scheduler.logged(NODE_MESSAGE) or _has_down_node(result)):
        why = "a node failed, and the scheduler requeued the job"
        return Judgement(NODE_FAILED, why, "NODE_FAIL")
    if not started or failure:
        return None
    preempted = any(entry.state == "PREEMPTED" for entry in result.scheduler.accounting)
    if preempted or result.scheduler.logged(PREEMPTED):
        why = "the scheduler gave the job's nodes to another job and requeued it"
        return Judgement("preempted", why, "PREEMPTED")
    why = "the scheduler requeued the job after it had started; a phase runs at most once"
    return Judgement("preempted", why, REQUEUED)


def _has_down_node(result: PhaseResult) -> bool:
    return any(node.down for node in result.scheduler.nodes)


def _judge_launch(result: PhaseResult, state: JobState, started: bool) -> Judgement | None:
    """Judge a job that a node could not launch; None for any other. Slurm calls its end a failure,
    or a cancellation by its own user."""
    if state.kind != "ended" or state.raw in CLUSTER_STATES or not find_refusing_nodes(result):
        return None
    if started and not _was_launched_again(result):
        return None
    why = f"the job ended as {_describe(state)}, since a node could not launch it"
    return Judgement("cluster_failed", why, LAUNCH_FAILED)


def _was_launched_again(result: PhaseResult) -> bool:
    """Whether Slurm started the job after the job's own start: slurmctld had come back without its
    last seconds, and launched a job again that ran."""
    own = [node.started for node in result.nodes if node.started is not None]
    by_slurm = result.scheduler.job.started
    return bool(own) and by_slurm is not None and min(own) < by_slurm


def _judge_scheduler_end(result: PhaseResult, state: JobState, started: bool) -> Judgement | None:
    """Judge a job that the scheduler ended; None if it ended by itself.

    This comes before the nodes' own reasons: a job that is ended from outside looks from inside
    like ranks that died or lost their peers.
    """
    ending, raw = _describe(state), state.raw
    if raw in CLUSTER_STATES:
        return Judgement("cluster_failed", f"the scheduler reports {ending}", raw)
    if raw == "PREEMPTED":
        return Judgement("preempted", f"the scheduler reports {ending}", raw)
    if raw == "CANCELLED" and _prolog_failed(result):
        # Slurm cancels a job that may not be requeued when its prolog fails.
        return Judgement("cluster_failed", "the prolog failed on a node", PROLOG)
    if raw == "CANCELLED":
        when = "while it ran" if started else "before it started"
        return Judgement("cancelled", f"somebody cancelled the job {when} ({ending})", raw)
    if raw == "TIMEOUT":
        return Judgement("failed", "the scheduler ended the job at its time limit", raw)
    if raw == "OUT_OF_MEMORY":
        return Judgement("failed", "the scheduler reports that the job used too much memory", raw)
    if raw == NOT_STARTED:
        return Judgement("never_ran", state.reason, raw)
    if raw == HOST_LOST:
        return Judgement("cluster_failed", state.reason, raw)
    if raw == HOSTS_SILENT:
        return Judgement("lost", state.reason, raw)
    if raw == OUT_OF_TIME:
        return Judgement("cancelled", state.reason, raw)
    if raw == "DEADLINE" and not started:
        return Judgement("never_ran", f"the scheduler reports {ending}")
    return None


def _asked_to_end(result: PhaseResult, failure: str) -> bool:
    """Whether the job ended in the grace time of a preemption, for which Slurm has no state of its
    own. A node that failed before the notice failed by itself, and a notice of an earlier start
    excuses nothing."""
    notice, started = result.scheduler.job.preempted, result.scheduler.job.started
    if notice is None or (started is not None and notice < started):
        return False
    ends = [node.ended for node in result.nodes if not node.ok and node.ended is not None]
    return not failure or (bool(ends) and min(ends) >= notice)


def _prolog_failed(result: PhaseResult) -> bool:
    """Whether a node was drained for a failed prolog during the job, or the job's log says so."""
    record = result.scheduler
    started = record.job.started
    drained = [node for node in record.nodes if node.drained and node.prolog_failed]
    during_job = started is not None and any(
        node.since is not None and node.since >= started for node in drained
    )
    return during_job or bool(record.logged(PROLOG_FAILED))


def _describe(state: JobState) -> str:
    return state.raw + (f" ({state.reason})" if state.reason else "")


def _nodes_failure(result: PhaseResult) -> str:
    """The reason of the first node that failed by itself, not because another one did; empty if
    the nodes only report that they were terminated."""
    failed = [node for node in result.nodes if node.result and not node.ok]
    with_reason = [node for node in failed if node.reason != "terminated"]
    first = [node for node in with_reason if node.reason != "aborted"]
    for node in first or with_reason:  # the abort flag's reason names its node
        return f"{node.name}: {node.why}" if first else node.why
    return ""


def judge_attempts(
    before: Sequence[PhaseAttempt],
    last: Judgement,
    findings: Sequence[Finding],
    passes: bool = False,
) -> tuple[Judgement, list[Finding]]:
    """Judge a phase by its last job and by those `before`, with the findings of all. A node that
    failed counts whatever came after it, unless the last job passed and the profile lets the phase
    pass; so does a job of which nobody knows how it ended. A preemption is nobody's fault."""
    faults = [attempt for attempt in before if attempt.outcome != "preempted"]
    found = [finding for attempt in faults for finding in attempt.findings]
    if not faults or last.outcome in ("failed", NODE_FAILED):
        return last, [*findings, *found]
    failed = [attempt for attempt in faults if attempt.outcome == NODE_FAILED]
    first = failed[0] if failed else faults[0]
    number = before[-1].number + 1
    if passes and last.outcome == "passed" and failed == faults:
        reason = f"attempt {number} passed; attempt {first.number}: {first.reason}"
        warned = (replace(each, severity=WARNING, primary=False) for each in found)
        return replace(last, reason=reason), [*findings, *warned]
    then = "passed" if last.outcome == "passed" else f"{outcome_words(last.outcome)}: {last.reason}"
    reason = f"attempt {first.number}: {first.reason}; attempt {number} {then}"
    return Judgement(first.outcome, reason), [*found, *findings]


# How long a job waited and ran, from its nodes' results and the scheduler's state.


def job_times(
    result: PhaseResult, state: JobState | None, submitted: float | None, outcome: str
) -> dict[str, float | None]:
    """Queue wait and run time, kept apart, in seconds; times in Unix seconds; None if unknown, and
    of a job that never ran, as one without nodes: Slurm says that one which was cancelled while it
    waited began then.

    The wait comes from the scheduler's clock if it reported the start, since the nodes' clocks may
    differ from ours. `overhead_s` is the time from submission to now, less the wait and the
    launcher's run time.
    """
    now = time.time()
    attempts = [attempt.nodes for attempt in (*result.earlier, result)]
    claimed = [node.started for node in attempts[0] if node.started is not None]
    ends = [node.ended for node in result.nodes if node.ended is not None]
    longest = [max((node.launcher_s or 0.0 for node in nodes), default=0.0) for nodes in attempts]
    launcher_s = sum(longest) or None
    scheduler_start = state.started if state else None
    ran = outcome != "never_ran" and state is not None and bool(state.nodes)
    begun = min(claimed) if claimed else scheduler_start if ran else None
    ended = max(ends, default=now)
    if state and scheduler_start is not None and state.submitted is not None:
        queue_s: float | None = max(0.0, scheduler_start - state.submitted)
    elif begun is not None and submitted is not None:
        queue_s = max(0.0, begun - submitted)
    else:
        queue_s = None
    overhead_s = None
    if submitted is not None and claimed:
        work_s = (queue_s or 0.0) + (launcher_s or 0.0)
        overhead_s = max(0.0, now - submitted - work_s)
    return {
        "submitted": submitted,
        "started": begun,
        "ended": ended if begun is not None else None,
        "queue_s": queue_s,
        "run_s": max(0.0, ended - begun) if begun is not None else None,
        "torchrun_s": launcher_s,  # its name in report.json
        "overhead_s": overhead_s,
    }
