"""What the scheduler did to a job: which node, who, when, and the reason it gives.

The scheduler's fields come first; its messages in the job's log supplement them, because some facts
(which node failed, a kill for lack of memory) are recorded nowhere else once a node is back.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Sequence

from ..evidence.finding import MAX_TEXT, Evidence, Finding
from ..evidence.job_results import STEP_DAEMON
from ..evidence.scheduler_record import (
    CANCELLED,
    CONTROLLER_SILENT,
    NODE_FAILED,
    PREEMPTED,
    PROLOG_FAILED,
    NodeStatus,
    SchedulerRecord,
    SlurmMessage,
    show_time,
)
from ..evidence.telemetry import read_events
from ..jobs.outcome import (
    CLUSTER_STATES,
    HOST_LOST,
    HOSTS_SILENT,
    LAUNCH_FAILED,
    PROLOG,
    REQUEUED,
    STEP_DAEMON_DIED,
    SUSPENDED,
    Judgement,
    describe_lost_steps,
    find_refusing_nodes,
)
from .failure_evidence import FailureEvidence
from .node_findings import NODE_REASONS
from .rank_positions import describe_positions

MOST_SHOWN = 4  # nodes
ENDINGS = (CANCELLED, PREEMPTED)


def find_scheduler_action(evidence: FailureEvidence, judgement: Judgement) -> list[Finding]:
    """The finding for a job that the scheduler ended or never started; empty for any other job."""
    if judgement.outcome == "never_ran" and judgement.ended_by != CONTROLLER_SILENT:
        return _unavailable(evidence.result.scheduler, judgement)
    looks: dict[str, Callable[[FailureEvidence, Judgement], Finding]] = {
        **dict.fromkeys(CLUSTER_STATES, _node_down),
        LAUNCH_FAILED: _launch_failed,
        HOST_LOST: _host_lost,
        HOSTS_SILENT: _hosts_silent,
        STEP_DAEMON_DIED: _step_daemon_died,
        PROLOG: _prolog,
        REQUEUED: _requeued,
        "PREEMPTED": _preempted,
        SUSPENDED: _suspended,
        "CANCELLED": _cancelled,
        "TIMEOUT": _time_limit,
    }
    look = looks.get(judgement.ended_by)
    return [look(evidence, judgement)] if look else []


def _launch_failed(evidence: FailureEvidence, judgement: Judgement) -> Finding:
    refusing = find_refusing_nodes(evidence.result)
    unable = [node for node in refusing if not node.ran_it_already]
    if unable:
        return _node_down(evidence, judgement, unable)
    record, names = evidence.result.scheduler, ",".join(node.name for node in refusing)
    return Finding(
        "node-drained",
        "slurmctld came back without its last seconds, and launched the job where it, or another "
        f"of its id, still ran: {'; '.join(node.why for node in refusing)} ({judgement.reason})",
        "run again; no node is at fault: once no process of the job is left there, `scontrol "
        f"update nodename={names} state=resume`. slurmctld's log says why it stopped",
        evidence=record.evidence(*refusing[:MOST_SHOWN], record.job),
        hosts=tuple(node.name for node in refusing),
    )


def _node_down(
    evidence: FailureEvidence, judgement: Judgement, refusing: Sequence[NodeStatus] = ()
) -> Finding:
    """`refusing`: the nodes that could not launch the job."""
    record = evidence.result.scheduler
    down = refusing or [node for node in record.nodes if node.down]
    logged = record.logged(NODE_FAILED)
    hosts = tuple(node.name for node in down) or _nodes_named(logged, record)
    if not hosts and len(evidence.result.nodes) == len(record.nodes) == 1:
        hosts = (record.nodes[0].name,)  # it has no other
    why = "; ".join(node.why for node in down)
    if not why and hosts:
        why = f"{', '.join(hosts)} failed, and is back in service by now"
    when = show_time(record.job.ended)
    what = "could not launch the job" if refusing else "went down while the job ran"
    cause = f"a node {what}: {why or 'Slurm does not say which'}"
    return Finding(
        "node-down",
        f"{cause} ({judgement.reason}{f' at {when}' if when else ''})",
        "run again without that node (slurm.exclude in cluster.yaml), and report it; "
        "`scontrol show node` and slurmctld's log say more",
        evidence=(*record.evidence(*down[:MOST_SHOWN], record.job), *_quote(logged)),
        hosts=hosts,
    )


def _host_lost(evidence: FailureEvidence, judgement: Judgement) -> Finding:
    record = evidence.result.scheduler
    return Finding(
        "host-lost",
        judgement.reason,
        "look at the host's console and log; run again once it answers, or without it (`hosts` in "
        "cluster.yaml)",
        evidence=record.evidence(*record.nodes[:MOST_SHOWN]),
        hosts=tuple(node.name for node in record.nodes),
    )


def _hosts_silent(evidence: FailureEvidence, judgement: Judgement) -> Finding:
    record = evidence.result.scheduler
    return Finding(
        "hosts-silent",
        judgement.reason,
        "look at this machine's network; the phase goes on where it can, and its evidence is in "
        "the run directory",
        evidence=record.evidence(*record.nodes[:MOST_SHOWN]),
    )


def _step_daemon_died(evidence: FailureEvidence, judgement: Judgement) -> Finding:
    orphans = [each for each in evidence.result.nodes if each.reason == STEP_DAEMON]
    results = [evidence.directory.node_result(each.node_rank) for each in orphans]
    return Finding(
        "slurmstepd-died",
        judgement.reason,
        NODE_REASONS[STEP_DAEMON][1],
        evidence=tuple(Evidence(str(path), 1, STEP_DAEMON) for path in results[:MOST_SHOWN]),
        hosts=tuple(each.name for each in orphans),
    )


def _prolog(evidence: FailureEvidence, judgement: Judgement) -> Finding:
    record = evidence.result.scheduler
    drained = [node for node in record.nodes if node.prolog_failed]
    logged = record.logged(PROLOG_FAILED)
    hosts = tuple(node.name for node in drained) or _nodes_named(logged, record)
    why = "; ".join(node.why for node in drained) or judgement.reason
    return Finding(
        "prolog-failed",
        f"Slurm's prolog failed on {', '.join(hosts) or 'a node'}, so the job could not be "
        f"launched: {why}",
        "run without that node (slurm.exclude in cluster.yaml); ask an administrator to read the "
        "prolog's output in slurmd's log there, and to resume the node",
        evidence=(*record.evidence(*drained[:MOST_SHOWN], record.job), *_quote(logged)),
        hosts=hosts,
    )


def _preempted(evidence: FailureEvidence, judgement: Judgement) -> Finding:
    record = evidence.result.scheduler
    at = record.job.preempted or record.job.ended
    when = show_time(at)
    # Jobs that started on its nodes after the preemption.
    takers = [job for job in record.others if at and job.started and job.started >= at]
    by = ", ".join(
        f"job {job.job} of {job.user} (partition {job.partition}"
        f"{f', QOS {job.qos}' if job.qos else ''})"
        for job in takers
    )
    lost = "its nodes now run " + by if by else "Slurm does not say to which job"
    qos = f", QOS {record.job.qos}" if record.job.qos else ""
    where = f"{record.job.partition}{qos}"
    again = describe_lost_steps(evidence.result)
    return Finding(
        "preempted",
        f"the scheduler gave the job's nodes to another job{f' at {when}' if when else ''}: "
        f"{lost}; this job ran in partition {where or 'unknown'}"
        f"{f'; {again}' if again else ''}",
        "run again, or in a partition or QOS that is not preempted (slurm.partition, slurm.qos)",
        evidence=(
            *record.evidence(*takers[:2], record.job),
            *_quote(record.logged(*ENDINGS))[:1],
        ),
    )


def _suspended(evidence: FailureEvidence, judgement: Judgement) -> Finding:
    result = evidence.result
    paused = [
        (node, attempt.directory.node_events(node.node_rank))
        for attempt in (*result.earlier, result)
        for node in attempt.nodes
        if node.paused_s
    ]
    return Finding(
        "job-suspended",
        f"{judgement.reason}, so its times mean nothing: the scheduler suspended it (gang "
        "scheduling, or `scontrol suspend`), or the machine itself was paused",
        "run again, or in a partition or QOS that is not suspended (slurm.partition, slurm.qos)",
        evidence=tuple(
            Evidence(
                str(events.path),
                events.line_of(pause),
                f"paused for {pause.get('seconds')} s"[:MAX_TEXT],
            )
            for _, path in paused[:MOST_SHOWN]
            for events in [read_events(path)]
            for pause in [*events.named("paused")][:1]
        ),
        hosts=tuple(dict.fromkeys(node.name for node, _ in paused)),
    )


def _requeued(evidence: FailureEvidence, judgement: Judgement) -> Finding:
    record = evidence.result.scheduler
    return Finding(
        "requeued",
        f"{judgement.reason}; somebody ran `scontrol requeue`, or a node failed or rebooted",
        "run again; ask the administrators who requeued it (slurmctld's log shows it)",
        evidence=(
            *record.evidence(*record.accounting[-2:], record.job),
            *_quote(record.logged(*ENDINGS))[:1],
        ),
    )


def _cancelled(evidence: FailureEvidence, judgement: Judgement) -> Finding:
    record = evidence.result.scheduler
    uid = record.cancelled_by
    by = (
        "Slurm does not say by whom (there is no accounting, or it has no record yet)"
        if uid is None
        else _describe_user(uid)
    )
    when = show_time(record.job.ended)
    return Finding(
        "cancelled-by-other",
        f"{judgement.reason}: {by}{f', at {when}' if when else ''}; this run did not cancel it",
        "ask whoever cancelled it (scancel), then run again",
        evidence=(
            *record.evidence(*record.accounting[-2:], record.job),
            *_quote(record.logged(*ENDINGS))[:1],
        ),
        detail={} if uid is None else {"uid": uid},
    )


def _time_limit(evidence: FailureEvidence, judgement: Judgement) -> Finding:
    record = evidence.result.scheduler
    limit, began, ended = record.job.time_limit, record.job.started, record.job.ended
    spent = f" of {limit} (from {show_time(began)} to {show_time(ended)})" if limit else ""
    return Finding(
        "time-limit",
        f"Slurm ended the job at its time limit{spent}; {describe_positions(evidence.result)}",
        "raise slurm.time of the phase, or find out what was slow: ranks/ of the run directory has "
        "what each rank wrote",
        evidence=(*record.evidence(record.job), *_quote(record.logged(*ENDINGS))),
    )


def _unavailable(record: SchedulerRecord, judgement: Judgement) -> list[Finding]:
    """The nodes that a job may have waited for."""
    out = [node for node in record.nodes if node.unusable]
    if not out:
        return []
    down = [node for node in out if node.down]
    if down:
        finding_id = "node-down"
    else:
        drained = any(node.drained for node in out)
        finding_id = "node-drained" if drained else "nodes-unavailable"
    names = ", ".join(node.name for node in out)
    return [
        Finding(
            finding_id,
            f"{judgement.reason}; {names} of its partition cannot be used: "
            + "; ".join(node.why for node in out[:8]),
            "ask for fewer nodes, or wait until an administrator resumes them",
            evidence=record.evidence(*out[:MOST_SHOWN], record.job),
            hosts=tuple(node.name for node in down or out),  # others may be kept back on purpose
        )
    ]


def _nodes_named(messages: list[SlurmMessage], record: SchedulerRecord) -> tuple[str, ...]:
    """The job's nodes that these messages name."""
    known = {node.name for node in record.nodes}
    names = [message.node for message in messages if message.node]
    return tuple(dict.fromkeys(name for name in names if not known or name in known))


def _quote(messages: list[SlurmMessage]) -> list[Evidence]:
    """The first of these messages, as evidence."""
    return [message.evidence for message in messages[:2]]


def _describe_user(uid: int) -> str:
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = "a user unknown on this machine"
    return f"by {name} (uid {uid}{', the user of this run' if uid == os.getuid() else ''})"
