"""How a job ended, from all witnesses: its own result files first, then the scheduler's word."""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass

from ..evidence.finding import list_job_logs, read_head
from ..evidence.phase_result import PhaseResult
from ..evidence.run_directory import PhaseDir
from ..evidence.scheduler_record import JobState, read_scheduler_record
from ..evidence.staged_marks import find_unrequested_fault
from ..evidence.telemetry import parse_number

# The cluster's own fault, in Slurm's words (man squeue, JOB STATE CODES).
CLUSTER_STATES = {"NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL"}
# What befell a job where the state's word alone does not tell it.
PROLOG, REQUEUED, SUSPENDED = "PROLOG", "REQUEUED", "SUSPENDED"
# Slurm's own words in the job's log (slurmd/req.c and slurmstepd/req.c of 22.05 to 24.11).
PROLOG_WORDS = re.compile(r"Job prolog failed|Error running slurm prolog|Prolog failure on node")
NODE_FAILED = re.compile(r"srun: error: Node failure on ([\w.\[\],-]{1,255})")
PREEMPTED_WORDS = re.compile(r"\*\*\* JOB \S{1,60} ON .{1,300} DUE TO PREEMPTION \*\*\*")
# Ranks that fail after so long a standstill may have failed by it: limits of theirs went on.
EXCUSES_S = 30.0


@dataclass(frozen=True)
class Judgement:
    """One of `phase_result.OUTCOMES`, the reason in one sentence, and, where something befell
    the job from outside, the scheduler's word for it (or PROLOG, REQUEUED, SUSPENDED)."""

    outcome: str
    reason: str
    ended_by: str = ""


def judge(result: PhaseResult, state: JobState | None, ours: str = "") -> Judgement:
    """Judge a job that is over. `ours` is why we cancelled it, where we did.

    Success is every node's ok and every rank's done; the scheduler's COMPLETED alone is nothing,
    and its later word against a job that proved its success changes nothing either.
    """
    if result.nodes and all(node.ok for node in result.nodes):
        if found := find_unrequested_fault(result):
            return Judgement("failed", f"{found[0]} staged a fault that was not asked for")
        if result.ranks_done == result.world_size:
            if words := _suspended(result):
                return Judgement("preempted", f"{words}, and went on", SUSPENDED)
            return Judgement("passed", "every node ended well and every rank was done")
        return Judgement("failed", f"{result.ranks_done} of {result.world_size} ranks were done")
    started = any(
        result.directory.claim(node.node_rank).exists() or node.result for node in result.nodes
    )
    if ours.startswith("queue"):
        return Judgement("never_ran", ours)
    if ours:
        return Judgement("cancelled", ours)
    said = _own_words(result)
    by_scheduler = _put_back(result, state, started, said) or (
        _scheduler_ended(result, state, started) if state else None
    )
    if by_scheduler:
        return by_scheduler
    if said:
        if words := _suspended(result, EXCUSES_S):
            return Judgement("preempted", f"{words}, and then failed: {said}", SUSPENDED)
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


def _suspended(result: PhaseResult, at_least_s: float = 0.0) -> str:
    """That the job was stopped for a while, which says nothing of the cluster, but makes its times
    worthless; empty where it was not."""
    longest = max(result.nodes, key=lambda node: node.paused_s)
    if longest.paused_s <= at_least_s:
        return ""
    return f"the job stood still for {longest.paused_s:.0f} s on {longest.name}"


def _put_back(
    result: PhaseResult, state: JobState | None, started: bool, said: str
) -> Judgement | None:
    """A job that was put back into the queue, or started a second time from there."""
    again = result.directory.started_again.exists()
    if not again and (state is None or state.kind not in ("pending", "held")):
        return None
    if (state and state.kind == "held") or (not started and _prolog_failed(result)):
        return Judgement("cluster_failed", "the job could not be launched on its nodes", PROLOG)
    if not started or said:
        return None
    entries = read_scheduler_record(result.directory.scheduler).accounting
    preempted = any(one.state == "PREEMPTED" for one in entries)
    if preempted or in_job_logs(result.directory, PREEMPTED_WORDS):
        why = "the scheduler took its nodes for another job and put it back into the queue"
        return Judgement("preempted", why, "PREEMPTED")
    why = "the scheduler requeued the job after it had started; a phase runs at most once"
    return Judgement("preempted", why, REQUEUED)


def _scheduler_ended(result: PhaseResult, state: JobState, started: bool) -> Judgement | None:
    """What the scheduler itself did to the job; None where the job ended of its own accord.

    It comes before the nodes' own words: a job that is ended from outside looks from inside like
    ranks that died or lost their peers.
    """
    words, raw = _words(state), state.raw
    if raw in CLUSTER_STATES:
        return Judgement("cluster_failed", f"the scheduler says {words}", raw)
    if raw == "PREEMPTED":
        return Judgement("preempted", f"the scheduler says {words}", raw)
    if raw == "CANCELLED" and _prolog_failed(result):
        # A job that may not be requeued is cancelled when its prolog fails.
        return Judgement("cluster_failed", "the prolog of a node failed", PROLOG)
    if raw == "CANCELLED":
        how = "while it ran" if started else "before it started"
        return Judgement("cancelled", f"somebody cancelled the job {how} ({words})", raw)
    if raw == "TIMEOUT":
        return Judgement("failed", "the scheduler ended the job at its time limit", raw)
    if raw == "OUT_OF_MEMORY":
        return Judgement("failed", "the scheduler says that the job used too much memory", raw)
    if raw == "DEADLINE" and not started:
        return Judgement("never_ran", f"the scheduler says {words}")
    return None


def _prolog_failed(result: PhaseResult) -> bool:
    """Whether a node was drained for it while the job was there, or Slurm's own words say it."""
    record = read_scheduler_record(result.directory.scheduler)
    began = record.job.started
    drained = [node for node in record.nodes if node.drained and node.prolog_failed]
    # Local times of one form: they compare as texts.
    in_time = [node for node in drained if began and node.since >= began]
    return bool(in_time) or in_job_logs(result.directory, PROLOG_WORDS)


def in_job_logs(directory: PhaseDir, words: re.Pattern[str]) -> bool:
    """Whether what the job's own shell and launchers printed has these words."""
    paths = list_job_logs(directory)
    return any(words.search(line) for path in paths for _, line in read_head(path))


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


# How long a job waited and ran, from its nodes' results and the scheduler's word.


def job_times(
    result: PhaseResult, state: JobState | None, submitted: float | None
) -> dict[str, float | None]:
    """Queue wait and run time, kept apart, in seconds; times in Unix seconds; None where unknown.

    The scheduler's own clock gives the wait where it told the start: the nodes' may differ from
    ours. `overhead_s` is the wall from submission to the result known, less wait and torchrun's.
    """
    now = time.time()
    claimed, ends, torchrun = (
        _numbers(result, name) for name in ("started", "ended", "torchrun_s")
    )
    told = state.started if state else None
    begun = min(claimed) if claimed else told
    ended = max(ends, default=now)
    if state and told is not None and state.submitted is not None:
        queue_s: float | None = max(0.0, told - state.submitted)
    elif begun is not None and submitted is not None:
        queue_s = max(0.0, begun - submitted)
    else:
        queue_s = None
    overhead_s = None
    if submitted is not None and claimed:
        work_s = (queue_s or 0.0) + max(torchrun, default=0.0)
        overhead_s = max(0.0, now - submitted - work_s)
    return {
        "submitted": submitted,
        "started": begun,
        "ended": ended if begun is not None else None,
        "queue_s": queue_s,
        "run_s": max(0.0, ended - begun) if begun is not None else None,
        "torchrun_s": max(torchrun, default=None),
        "overhead_s": overhead_s,
    }


def _numbers(result: PhaseResult, name: str) -> list[float]:
    """The finite numbers that the nodes gave; they are hostile text like all that a job writes."""
    values = (parse_number(node.result.get(name)) for node in result.nodes)
    return [value for value in values if value is not None and math.isfinite(value)]
