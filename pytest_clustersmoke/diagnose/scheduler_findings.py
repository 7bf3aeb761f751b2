"""What the scheduler did to a job: which node, who, when, and its own reason.

What it says in its fields comes first; its words in the job's log are the second witness, since
some of it (which node failed, a kill for want of memory) is told nowhere else once a node is back.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable

from ..findings import MAX_TEXT, Evidence, Finding
from ..outcome import CLUSTER_STATES, NODE_FAILED, PROLOG, REQUEUED, SUSPENDED, Judgement
from ..told import NodeTold, Told
from .failure_evidence import FailureEvidence

# Slurm's words: src/slurmd/slurmstepd/req.c and src/srun/libsrun, 22.05 to 24.11.
PROLOG_NODE = re.compile(
    r"failed on node ([\w.-]{1,255}): Job prolog failed|Prolog failure on node ([\w.-]{1,255})"
    r"|(?:Error running slurm prolog)"
)
ENDED = re.compile(r"\*\*\* (?:JOB|STEP) \S{1,60} ON .{1,300} CANCELLED AT ")
MOST_SHOWN = 4  # nodes


def find_scheduler_action(case: FailureEvidence, judgement: Judgement) -> list[Finding]:
    """The finding of a job that the scheduler ended or never started; none where it did not."""
    if judgement.outcome == "never_ran":
        return _unavailable(case.scheduler, judgement)
    looks: dict[str, Callable[[FailureEvidence, Judgement], Finding]] = {
        **dict.fromkeys(CLUSTER_STATES, _node_down),
        PROLOG: _prolog,
        REQUEUED: _requeued,
        "PREEMPTED": _preempted,
        SUSPENDED: _suspended,
        "CANCELLED": _cancelled,
        "TIMEOUT": _time_limit,
    }
    look = looks.get(judgement.ended_by)
    return [look(case, judgement)] if look else []


def _node_down(case: FailureEvidence, judgement: Judgement) -> Finding:
    told = case.scheduler
    down = [node for node in told.nodes if node.down]
    said = _said(case, NODE_FAILED)
    hosts = tuple(node.name for node in down) or _names(said, NODE_FAILED, told)
    why = "; ".join(node.why for node in down)
    if not why and hosts:
        why = f"{', '.join(hosts)} failed, and is back in service by now"
    when = told.of_job("EndTime")
    cause = f"a node went down while the job ran: {why or 'Slurm does not say which'}"
    return Finding(
        "node-down",
        f"{cause} ({judgement.reason}{f' at {when}' if when else ''})",
        "run again without that node (slurm.exclude in cluster.yaml), and report it; "
        "`scontrol show node` and slurmctld's log say more",
        evidence=(*_of_nodes(told, down), *_of_job(told), *said[:2]),
        hosts=hosts,
    )


def _prolog(case: FailureEvidence, judgement: Judgement) -> Finding:
    told = case.scheduler
    drained = [node for node in told.nodes if node.reason.startswith("Prolog error")]
    said = _said(case, PROLOG_NODE)
    hosts = tuple(node.name for node in drained) or _names(said, PROLOG_NODE, told)
    why = "; ".join(node.why for node in drained) or judgement.reason
    return Finding(
        "prolog-failed",
        f"Slurm's prolog failed on {', '.join(hosts) or 'a node'}, so that the job could not be "
        f"launched: {why}",
        "run without that node (slurm.exclude in cluster.yaml); an administrator finds the "
        "prolog's own words in slurmd's log there, and resumes the node",
        evidence=(*_of_nodes(told, drained), *_of_job(told), *said[:2]),
        hosts=hosts,
    )


def _preempted(case: FailureEvidence, judgement: Judgement) -> Finding:
    told = case.scheduler
    when = told.of_job("PreemptTime") or told.of_job("EndTime")
    # What started on its nodes when they were taken from it; times are local, of one form.
    takers = [one for one in told.others if when and one.started >= when]
    by = ", ".join(
        f"job {one.job} of {one.user} (partition {one.partition}"
        f"{f', QOS {one.qos}' if one.qos not in ('', '(null)') else ''})"
        for one in takers
    )
    lost = "job that has its nodes now: " + by if by else "Slurm does not say for which job"
    where = f"{told.of_job('Partition')}{_qos(told)}"
    return Finding(
        "preempted",
        f"the scheduler took the job's nodes for another one{f' at {when}' if when else ''}: "
        f"{lost}; this one ran in partition {where or 'unknown'}",
        "run again, or in a partition or QOS that is not preempted (slurm.partition, slurm.qos)",
        evidence=(
            *(Evidence(str(told.path), one.line, one.text[:MAX_TEXT]) for one in takers[:2]),
            *_of_job(told),
            *_said(case, ENDED)[:1],
        ),
    )


def _suspended(case: FailureEvidence, judgement: Judgement) -> Finding:
    paused = [node for node in case.result.nodes if node.paused_s]
    return Finding(
        "job-suspended",
        f"{judgement.reason}. Its times tell nothing. The scheduler suspended it (gang scheduling, "
        "or `scontrol suspend`), or the machine itself was paused",
        "run again, or in a partition or QOS that is not suspended (slurm.partition, slurm.qos)",
        evidence=tuple(
            Evidence(
                str(events.path),
                events.line_of(one),
                f"paused for {one.get('seconds')} s"[:MAX_TEXT],
            )
            for node in paused[:MOST_SHOWN]
            for events in [case.node_events[node.node_rank]]
            for one in [*events.named("paused")][:1]
        ),
        hosts=tuple(node.name for node in paused),
    )


def _requeued(case: FailureEvidence, judgement: Judgement) -> Finding:
    told = case.scheduler
    return Finding(
        "requeued",
        f"{judgement.reason}; somebody said `scontrol requeue`, or a node failed or rebooted",
        "run again; ask the administrators who requeued it (slurmctld's log says)",
        evidence=(*_of_records(told), *_of_job(told), *_said(case, ENDED)[:1]),
    )


def _cancelled(case: FailureEvidence, judgement: Judgement) -> Finding:
    told = case.scheduler
    uid = told.cancelled_by
    by = "Slurm does not say by whom (no accounting, or not yet)" if uid is None else _user(uid)
    when = told.of_job("EndTime")
    return Finding(
        "cancelled-by-other",
        f"{judgement.reason}: {by}{f', at {when}' if when else ''}; this run did not",
        "ask whoever cancelled it (scancel), then run again",
        evidence=(*_of_records(told), *_of_job(told), *_said(case, ENDED)[:1]),
        detail={} if uid is None else {"uid": uid},
    )


def _time_limit(case: FailureEvidence, judgement: Judgement) -> Finding:
    told = case.scheduler
    limit, began, ended = (told.of_job(n) for n in ("TimeLimit", "StartTime", "EndTime"))
    spent = f" of {limit} (from {began} to {ended})" if limit else ""
    return Finding(
        "time-limit",
        f"Slurm ended the job at its time limit{spent}",
        "raise slurm.time of the phase, or find out what was slow: each rank's last step stands "
        "in ranks/ of the run directory",
        evidence=(*_of_job(told), *_said(case, ENDED)[:2]),
    )


def _unavailable(told: Told, judgement: Judgement) -> list[Finding]:
    """Nodes that a job may have waited for."""
    out = [node for node in told.nodes if node.down or node.drained]
    if not out:
        return []
    down = [node for node in out if node.down]
    names = ", ".join(node.name for node in out)
    return [
        Finding(
            "node-down" if down else "node-drained",
            f"{judgement.reason}; of its partition {names} cannot be used: "
            + "; ".join(node.why for node in out[:8]),
            "ask for fewer nodes, or wait until an administrator resumes them",
            evidence=(*_of_nodes(told, out), *_of_job(told)),
            hosts=tuple(node.name for node in out),
        )
    ]


def _said(case: FailureEvidence, words: re.Pattern[str]) -> list[Evidence]:
    """The lines of the job's own log with these words."""
    return [evidence for _, evidence in case.search_job_logs(words)]


def _names(lines: list[Evidence], words: re.Pattern[str], told: Told) -> tuple[str, ...]:
    """The nodes that these lines name, as far as the job had them."""
    had = {node.name for node in told.nodes}
    found = [match for line in lines if (match := words.search(line.text))]
    names = [name for match in found for name in match.groups() if name]
    return tuple(dict.fromkeys(name for name in names if not had or name in had))


def _of_nodes(told: Told, nodes: list[NodeTold]) -> tuple[Evidence, ...]:
    return tuple(Evidence(str(told.path), one.line, one.text[:MAX_TEXT]) for one in nodes[:4])


def _of_records(told: Told) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(str(told.path), one.line, one.text[:MAX_TEXT]) for one in told.records[-2:]
    )


def _of_job(told: Told) -> tuple[Evidence, ...]:
    if not told.job:
        return ()
    state = ("JobState", "Reason", "ExitCode", "StartTime", "EndTime", "NodeList")
    words = " ".join(f"{name}={told.of_job(name)}" for name in state if told.of_job(name))
    return (Evidence(str(told.path), told.job_line, words[:MAX_TEXT]),)


def _qos(told: Told) -> str:
    return f", QOS {told.of_job('QOS')}" if told.of_job("QOS") else ""


def _user(uid: int) -> str:
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = "a user without a name here"
    return f"by {name} (uid {uid}{', as this run' if uid == os.getuid() else ''})"
