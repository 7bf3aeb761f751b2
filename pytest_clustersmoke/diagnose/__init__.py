"""Evidence of a failure -> findings: what happened, where, why, what to do next.

Structured evidence decides: what the nodes' watch, the ranks and the scheduler recorded. A rank
that died comes before a rank whose connection broke, its victim. The logs then add the cause.

failure_evidence.py    everything the phase left behind, each file parsed once, by rank_positions.py
                       (stacks and progress), flight_recorder.py, process_exits.py and timeline.py
scheduler_findings.py  what the scheduler did to the job or its nodes
node_findings.py       what kept the job from starting; what the nodes' checks and watch found
program_mistakes.py    arguments that a program refuses; programs that use no Rank, or lose theirs
rank_failures.py       ranks that died, left early or raised, or were killed for lack of memory
hangs.py               ranks that the others waited for, or that are out of step
call_order.py          who that is, from the flight recorders; alone, for dumps of torch itself
log_causes.py          the cause, as far as the logs show it
signature_findings.py  the findings of logs alone, from the matches of signature_search.py
signature_search.py    finds the signatures that signature_file.py reads, and unknown_errors.py, in
                       logs; log_lines.py says who wrote a line and when
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..evidence.finding import MAX_TEXT, Evidence, Finding
from ..evidence.phase_result import PhaseResult
from ..evidence.scheduler_record import CONTROLLER_SILENT, TASK_KILLED
from ..jobs.backend import Refused
from ..jobs.outcome import NOT_STARTED, OUT_OF_TIME, OVERDUE, Judgement, find_killed_launchers
from ..text import FAILURE, WARNING
from .failure_evidence import FailureEvidence
from .hangs import find_hang, find_library_timeout, find_mismatch
from .log_causes import explain_findings
from .node_findings import (
    find_abort_flag,
    find_failed_checks,
    find_failed_setup,
    find_foreign_directory,
    find_foreign_events,
    find_missing_program,
    find_node_reasons,
    find_overwritten_spec,
    find_stray_fault,
    find_unreadable_results,
    log_tail,
)
from .program_mistakes import find_refused_argument, find_unused_rank, find_wrong_world
from .rank_failures import find_memory_kill, find_rank_failures
from .scheduler_findings import find_scheduler_action

# The judge that explains most comes first.
JUDGES = (
    find_overwritten_spec,
    find_stray_fault,
    find_failed_setup,
    find_foreign_directory,
    find_missing_program,
    find_failed_checks,
    find_refused_argument,
    find_wrong_world,
    find_unused_rank,
    find_mismatch,
    find_library_timeout,
    find_rank_failures,
    find_hang,
    find_node_reasons,
    find_abort_flag,
    find_foreign_events,
)


# How a phase ended, after its name.
ENDED = {
    "failed": "failed",
    "cluster_failed": "failed with its cluster",
    "never_ran": "never ran",
    "preempted": "was preempted",
    "cancelled": "was cancelled",
    "lost": "was lost",
}


def explain_refusal(refusal: Refused, script: Path, avoid: Sequence[str] = ()) -> Finding:
    """The finding for a job that the scheduler refused; `avoid`: the nodes that it must not
    get, since one of them failed in an attempt before, or by --cluster-avoid."""
    fix = "read the scheduler's message; account, partition, QOS and limits are set in cluster.yaml"
    if refusal.no_controller:
        fix = (
            "run this on a login node of the cluster, or set SLURM_CONF to its slurm.conf; "
            "`sinfo` shows whether Slurm answers here"
        )
    without = ""
    if avoid:
        without = f", which must avoid {', '.join(avoid)} after earlier failures there"
        fix = "run again once enough other nodes are in service (`sinfo`)"
    return Finding(
        "submission-refused",
        f"sbatch refused the job{without}: {refusal}",
        fix,
        evidence=(Evidence(str(script), 1, str(refusal)[:MAX_TEXT]),),
    )


def explain_lost_answer(judgement: Judgement, script: Path) -> Finding:
    """The finding for a job of which nobody knows whether the scheduler accepted it."""
    return Finding(
        "submission-unanswered",
        judgement.reason,
        "see whether slurmctld answers (`sinfo`), and run again once it does; if the job starts "
        "after all, it ends by itself",
        evidence=(Evidence(str(script), 1, judgement.reason[:MAX_TEXT]),),
    )


def explain_full_directory(directory: Path, lost: str, is_cause: bool = True) -> Finding:
    """The finding for a shared directory without room: what of the phase was `lost` by it."""
    return Finding(
        "shared-directory-full",
        f"the shared directory {directory} is full, so {lost}",
        "make room there (`df -h`, `df -i`, quota), or state what phases write (`writes_gib`), and "
        "run again",
        primary=is_cause,
        severity=FAILURE if is_cause else WARNING,
    )


def explain_order(before: str, judgement: Judgement) -> Finding:
    """The finding for a phase that never ran because the one `before` it did not pass."""
    ended = ENDED.get(judgement.outcome, judgement.outcome)
    name = "never-ran"
    return Finding(
        f"job-{name}",
        f"{before} {ended}, and this phase runs only after it has passed",
        f"read the findings of {before}, or select this phase alone (`-k`): then it does not wait",
    )


def diagnose(result: PhaseResult, judgement: Judgement) -> list[Finding]:
    """The findings of a phase that did not pass, the first cause first."""
    evidence = FailureEvidence(result)
    by_scheduler = find_scheduler_action(evidence, judgement)
    if by_scheduler:
        return by_scheduler
    # If the scheduler or this run ended the job, its ranks are not at fault, whatever they logged.
    if judgement.outcome not in ("failed", "lost"):
        return [_outcome_finding(evidence, judgement)]
    killed = find_memory_kill(evidence, judgement)
    if killed:
        return killed
    findings = next((findings for judge in JUDGES if (findings := judge(evidence))), [])
    findings = [*findings, *_besides(findings, find_unreadable_results(evidence))]
    return explain_findings(findings or [_outcome_finding(evidence, judgement)], evidence)


def _besides(causes: list[Finding], more: list[Finding]) -> list[Finding]:
    """Further findings, which are not the cause if one was found."""
    return [replace(finding, primary=False) for finding in more] if causes else more


def _outcome_finding(evidence: FailureEvidence, judgement: Judgement) -> Finding:
    """What is known if no judge found more."""
    fixes = {
        "cluster_failed": "look at the nodes it ran on; the scheduler's log says more",
        "preempted": "run again, or in a partition or QOS that is not preempted",
        "cancelled": "run again",
        NOT_STARTED: "ask for a larger or longer allocation, and run again",
        OUT_OF_TIME: "ask for a longer allocation, and run again",
        OVERDUE: "see on its nodes whether file systems answer, and read the job's log for the "
        "line of `setup` that hangs",
        CONTROLLER_SILENT: "see whether slurmctld answers (`sinfo`), and run again once it does",
        "never_ran": "look at the queue (squeue), or raise limits.queue_wait_s",
        "lost": "look at the scheduler's log; the job's own files are in the run directory",
    }
    name = judgement.outcome.replace("_", "-")
    cause = judgement.ended_by if judgement.ended_by in fixes else judgement.outcome
    fix = fixes.get(cause, "read the job's logs in the run directory")
    logged = evidence.result.scheduler.logged(TASK_KILLED, CONTROLLER_SILENT)
    quoted = tuple(message.evidence for message in logged)
    return Finding(
        f"job-{name}",
        judgement.reason,
        fix,
        evidence=(*quoted, *log_tail(evidence)),
        hosts=tuple(find_killed_launchers(evidence.result)),
    )
