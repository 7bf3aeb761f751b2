"""Evidence of a failure -> findings: what happened, where, why, what to do next.

By structured evidence: what the nodes' watch, the ranks and the scheduler recorded. A rank that
died comes before a rank whose connection broke, for that one is its victim. What the texts around
it say of the cause is added then.

start.py     what kept the job from starting
ranks.py     ranks that died, left early or raised
hang.py      ranks that the others waited for; suspects.py: which these are
nodes.py     what the nodes' own watch said
explain.py   what the logs' own words add
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..findings import MAX_TEXT, Evidence, Finding
from .explain import explained
from .hang import hang
from .nodes import flag, nodes
from .ranks import early_leavers, rank_deaths, rank_errors
from .start import launcher, log_tail, setup

if TYPE_CHECKING:
    from ..outcome import Judgement
    from ..result import PhaseResult

# In the order of how much each explains.
LOOKS = (setup, launcher, rank_deaths, early_leavers, rank_errors, hang, nodes, flag)


def refused(words: str, script: Path) -> Finding:
    return Finding(
        "submission-refused",
        f"sbatch refused the job: {words}",
        "read the scheduler's words; account, partition, QOS and limits are set in cluster.yaml",
        evidence=(Evidence(str(script), 1, words[:MAX_TEXT]),),
    )


def diagnose(result: PhaseResult, judgement: Judgement) -> list[Finding]:
    """The findings of a phase that did not pass, the first cause first."""
    # What the scheduler or we did to a job is no fault of its ranks, whatever they say of it.
    looks = LOOKS if judgement.outcome in ("failed", "lost") else ()
    for look in looks:
        findings = look(result)
        if findings:
            return explained(findings, result)
    fixes = {
        "cluster_failed": "look at the nodes it ran on; the scheduler's log says more",
        "preempted": "run again, or in a partition or QOS that is not preempted",
        "cancelled": "run again",
        "never_ran": "look at the queue (squeue), or raise limits.queue_wait_s",
        "lost": "look at the scheduler's log; the job's own files are in the run directory",
    }
    name = judgement.outcome.replace("_", "-")
    fix = fixes.get(judgement.outcome, "read the job's logs in the run directory")
    found = Finding(f"job-{name}", judgement.reason, fix, evidence=log_tail(result.directory))
    return explained([found], result) if looks else [found]
