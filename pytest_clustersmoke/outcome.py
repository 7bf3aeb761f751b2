"""How a job ended, from all witnesses: its own result files first, then the scheduler's word."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .result import PhaseResult
    from .submit import JobState

# The cluster's own fault, in Slurm's words (man squeue, JOB STATE CODES).
CLUSTER_STATES = {"NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL"}


@dataclass(frozen=True)
class Judgement:
    """An outcome of `result.OUTCOMES` and the reason in one sentence."""

    outcome: str
    reason: str


def judge(result: PhaseResult, state: JobState | None, ours: str = "") -> Judgement:
    """Judge a job that is over. `ours` is why we cancelled it, where we did.

    Success is every node's ok and every rank's done; the scheduler's COMPLETED alone is nothing,
    and its later word against a job that proved its success changes nothing either.
    """
    if result.nodes and all(node.ok for node in result.nodes):
        if result.ranks_done == result.world_size:
            return Judgement("passed", "every node ended well and every rank was done")
        return Judgement("failed", f"{result.ranks_done} of {result.world_size} ranks were done")
    started = any(
        result.directory.claim(node.node_rank).exists() or node.result for node in result.nodes
    )
    if ours.startswith("queue"):
        return Judgement("never_ran", ours)
    if ours:
        return Judgement("cancelled", ours)
    requeued = result.directory.started_again.exists() or (state and state.kind == "pending")
    said = _own_words(result)
    if started and requeued and not said:
        why = "the scheduler requeued the job after it had started; a phase runs at most once"
        return Judgement("preempted", why)
    by_scheduler = _scheduler_ended(state, started) if state else None
    if by_scheduler:
        return by_scheduler
    if said:
        return Judgement("failed", said)
    if result.directory.setup_failed.exists():
        return Judgement("failed", "a setup line failed")
    if state is None or state.kind == "unknown":
        return Judgement("lost", "the scheduler has forgotten the job and it left no result")
    words = _words(state)
    if not started:
        return Judgement("failed", f"the job ended as {words} before our launcher began")
    silent = [node.name for node in result.nodes if not node.result]
    what = f"{', '.join(silent)} left no result" if silent else "its nodes were terminated"
    return Judgement("failed", f"the job ended as {words}, and {what}")


def _scheduler_ended(state: JobState, started: bool) -> Judgement | None:
    """What the scheduler itself did to the job; None where the job ended of its own accord.

    It comes before the nodes' own words: a job that is ended from outside looks from inside like
    ranks that died or lost their peers.
    """
    words = _words(state)
    if state.raw in CLUSTER_STATES:
        return Judgement("cluster_failed", f"the scheduler says {words}")
    if state.raw == "PREEMPTED":
        return Judgement("preempted", f"the scheduler says {words}")
    if state.raw == "CANCELLED":
        how = "while it ran" if started else "before it started"
        return Judgement("cancelled", f"somebody cancelled the job {how} ({words})")
    if state.raw == "TIMEOUT":
        return Judgement("failed", "the scheduler ended the job at its time limit")
    if state.raw == "DEADLINE" and not started:
        return Judgement("never_ran", f"the scheduler says {words}")
    return None


def _words(state: JobState) -> str:
    return state.raw + (f" ({state.reason})" if state.reason else "")


def _own_words(result: PhaseResult) -> str:
    """The first failing node's own reason, the one that is no echo of another's; empty where the
    nodes only say that they were terminated."""
    failed = [node for node in result.nodes if node.result and not node.ok]
    told = [node for node in failed if node.result.get("reason") != "terminated"]
    first = [node for node in told if node.result.get("reason") != "aborted"]
    for node in first or told:
        why = str(node.result.get("why", ""))
        return f"{node.name}: {why}" if first else why  # the flag names its node itself
    return ""
