"""Ranks that the kernel killed since the job used more host memory than Slurm gave it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..findings import MAX_TEXT, Evidence, Finding, job_logs, numbered_lines
from ..scheduler_record import read_scheduler_record
from .ranks import rank_deaths

if TYPE_CHECKING:
    from ..outcome import Judgement
    from ..result import PhaseResult

# slurmstepd and srun, 18.08 to 24.11; the node stands in slurmstepd's name where a machine has
# several, and with srun always.
KILLED = re.compile(
    r"(?:slurmstepd-(?P<step>[\w.-]{1,255}): error: )?"
    r"(?:Detected \d{1,6} oom[-_]kill events?(?:\(s\))? in (?:StepId=|step )\S"
    r"|Exceeded (?:step|job) memory limit)"
)
TASK_KILLED = re.compile(
    r"srun: error: (?P<srun>[\w.-]{1,255}): tasks? [\d,-]{1,99}: Out Of Memory"
)
MAX_LINES = 100_000


def out_of_memory(result: PhaseResult, judgement: Judgement) -> list[Finding]:
    """The killed ranks; the job, where Slurm says so but no rank is known to have been killed."""
    lines = _lines(result)
    if not lines and judgement.ended_by != "OUT_OF_MEMORY":
        return []
    record = read_scheduler_record(result.directory.scheduler)
    named = {match[name] for match, _ in lines for name in match.re.groupindex if match[name]}
    said = tuple(evidence for _, evidence in lines[:2])
    shown = record.evidence(record.job)
    dead = [one for one in rank_deaths(result) if not named or set(one.hosts) & named]
    memory = record.job.memory_per_node or record.job.memory_per_cpu
    per = "a node" if record.job.memory_per_node else "a CPU"
    limit = f" ({memory} {per})" if memory not in ("", "0") else ""
    fix = (
        "raise slurm.mem of the phase (0 is all of a node's), or use less host memory: fewer data "
        "loader workers, no second copy of the data set or of the model"
    )
    why = f"the kernel killed it: the job used more host memory than it was given{limit}"
    if not dead:
        hosts = tuple(sorted(named))
        where = f" on {', '.join(hosts)}" if hosts else ""
        cause = f"the job used more host memory than it was given{limit}{where}, and was killed"
        return [Finding("out-of-memory", cause, fix, evidence=(*said, *shown), hosts=hosts)]
    return [
        Finding(
            "out-of-memory",
            f"{one.cause.split(' ended in ')[0]} ended; {why}",
            fix,
            primary=not index,
            evidence=(*said, *one.evidence, *shown),
            hosts=one.hosts,
            ranks=one.ranks,
        )
        for index, one in enumerate(dead)
    ]


def _lines(result: PhaseResult) -> list[tuple[re.Match[str], Evidence]]:
    found = []
    for path in job_logs(result.directory):
        for number, line in numbered_lines(path, MAX_LINES):
            match = KILLED.search(line) or TASK_KILLED.search(line)
            if match:
                found.append((match, Evidence(str(path), number, line[:MAX_TEXT])))
    return found
