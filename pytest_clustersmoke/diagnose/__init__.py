"""Evidence of a failure -> findings: what happened, where, why, what to do next.

By structured evidence: what the nodes' watch, the ranks and the scheduler recorded. A rank that
died comes before a rank whose connection broke, for that one is its victim. What the texts around
it say of the cause is added then.

scheduler.py what the scheduler did to the job, or its nodes
memory.py    ranks killed for want of host memory
staged.py    a fault that was staged in a run that did not ask for it
start.py     what kept the job from starting
node_checks.py  what the nodes' checks before torchrun say of each host
ranks.py     ranks that died, left early or raised; exits.py: how their processes ended
timeline.py  what happened over all nodes and ranks, in one order of time; logged.py: what logs said
             beside it
hang.py      ranks that the others waited for; mismatch.py: ranks out of step with the others;
             out_of_step.py: which these are by flight_recorder.py; suspects.py: by stacks.py and
             marks; case.py: what is known of them
nodes.py     what the nodes' own watch said
explain.py   what the logs' own words add
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from ..findings import MAX_TEXT, Evidence, Finding
from .explain import explained
from .hang import hang, waited_in_vain
from .memory import out_of_memory
from .mismatch import mismatch
from .node_checks import node_checks
from .nodes import flag, nodes
from .ranks import rank_failures
from .scheduler import by_scheduler
from .staged import stray_fault
from .start import foreign, launcher, log_tail, setup

if TYPE_CHECKING:
    from ..outcome import Judgement
    from ..result import PhaseResult

# sbatch finds no controller to ask (slurm-client 22.05 where no slurm.conf is; slurm_errno.c).
NO_CONTROLLER = re.compile(
    "could not establish a configuration source|unable to contact slurm controller", re.I
)
# In the order of how much each explains.
LOOKS = (
    stray_fault,
    setup,
    launcher,
    node_checks,
    mismatch,
    waited_in_vain,
    rank_failures,
    hang,
    nodes,
    flag,
    foreign,
)


def refused(words: str, script: Path) -> Finding:
    fix = "read the scheduler's words; account, partition, QOS and limits are set in cluster.yaml"
    if NO_CONTROLLER.search(words):
        fix = (
            "run this on a login node of the cluster, or set SLURM_CONF to its slurm.conf; "
            "`sinfo` shows whether Slurm answers here"
        )
    return Finding(
        "submission-refused",
        f"sbatch refused the job: {words}",
        fix,
        evidence=(Evidence(str(script), 1, words[:MAX_TEXT]),),
    )


def diagnose(result: PhaseResult, judgement: Judgement) -> list[Finding]:
    """The findings of a phase that did not pass, the first cause first."""
    by_slurm = by_scheduler(result, judgement)
    if by_slurm:
        return by_slurm
    # What the scheduler or we did to a job is no fault of its ranks, whatever they say of it.
    looks = LOOKS if judgement.outcome in ("failed", "lost") else ()
    killed = out_of_memory(result, judgement) if looks else []
    if killed:
        return killed
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
