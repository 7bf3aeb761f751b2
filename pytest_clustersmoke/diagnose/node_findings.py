"""Findings from what the nodes recorded: what kept the job from starting, what the checks before
the launcher found, what the watch saw.

The checks are judged again here, from the facts that the nodes wrote and with the nodes' own code
(node/checks). So a node's verdict on itself does not count, and a node that could not finish its
checks is judged too.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from ..evidence.finding import (
    MAX_TEXT,
    Evidence,
    Finding,
    find_last_line,
)
from ..evidence.job_results import NodeResult
from ..evidence.phase_result import PhaseResult
from ..evidence.run_directory import PhaseDir, read_json
from ..evidence.staged_marks import find_unrequested_fault
from ..evidence.telemetry import parse_int, parse_ints, read_start
from ..evidence.variable_names import hide_assignments
from ..evidence.whole_files import MAX_JSON_BYTES, MAX_NODE_BYTES, explain_unreadable
from ..node import checks
from ..node.job_entry import MISSING, REFUSAL
from ..text import FAILURE, WARNING
from .failure_evidence import FailureEvidence
from .rank_positions import describe_positions

NO_PACKAGE = re.compile(r"No module named '?(pytest_clustersmoke|submitit|psutil)[\w.]*'?")
REFUSED = re.compile(f"{re.escape(REFUSAL)}(.*)")
NO_PYTHON = re.compile(r"(python[\w.]*|[^\s:]+/bin/python[\w.]*): (command not found|No such file)")
# The reason that a node gives -> the finding's id, and what to do.
NODE_REASONS = {
    "stalled": ("hang", "read the stacks in dumps/ of the run directory"),
    "timeout": ("time-limit", "raise the phase's timeout_s, or find out what was slow"),
    "rank_ended_early": ("rank-left-early", "find out why the program left its Rank early"),
    "torchrun": (
        "torchrun-failed",
        "read the launcher's output (launcher.log of the node) and its ranks' stderr",
    ),
    "node": ("node-failed", "look at that node"),
    "slurmstepd": (
        "slurmstepd-died",
        "look on that node for the kernel's out-of-memory kills (`dmesg -T`) and in slurmd's log; "
        "run again without it (slurm.exclude in cluster.yaml)",
    ),
    "launcher": ("launcher-failed", "read the node's log in the run directory"),
}
# A file written this long after another node gave up waiting was too late; any other file existed,
# and the other node never saw it. Clocks of healthy nodes differ by less.
LATE_S = 2.0
# Reported first, because they explain others: a node without its driver has no GPUs.
FIRST = ("gpu-driver-failed", "gpus-missing")


def find_stray_fault(evidence: FailureEvidence) -> list[Finding]:
    """A staged fault that this run did not ask for: its failures say nothing about the cluster."""
    staged = find_unrequested_fault(evidence.result)
    if staged is None:
        return []
    rank, record = staged
    line = rank.events.line_of(record)
    return [
        Finding(
            "fault-staged-unasked",
            f"{rank} staged the fault {str(record.get('name'))!r}, which this run did not ask for",
            "find out what set CLUSTERSMOKE_FAULT on the node, or wrote the event; only "
            "--cluster-prove stages faults",
            evidence=(Evidence(str(rank.events.path), line, "the event `staged`"),),
            hosts=(rank.node,),
            ranks=(rank.rank,),
        )
    ]


def find_failed_setup(evidence: FailureEvidence) -> list[Finding]:
    path = evidence.directory.setup_failed
    try:
        written = read_start(path, MAX_TEXT).decode(errors="replace")
    except OSError:
        return []
    status, _, line = hide_assignments(written).strip().partition("\t")
    return [
        Finding(
            "setup-line-failed",
            f"the setup line `{line}` failed with status {status}",
            "run the line in a fresh shell on the node; `setup` is set in cluster.yaml",
            evidence=(Evidence(str(path), 1, line), *log_tail(evidence)),
        )
    ]


def find_foreign_directory(evidence: FailureEvidence) -> list[Finding]:
    """The run's directory on the node is not the one that the run created, or is not there."""
    step = evidence.directory.launcher_log(0)  # of srun, which starts the ranks of all nodes
    for match, line in evidence.search_job_logs(REFUSED, also=[step]):
        cause = f"the job loaded nothing, because {match[1]}"
        if match[1].endswith(MISSING):
            fix = "mount `shared_dir` there, or bind it into the container, under the same path"
            return [Finding("run-directory-missing", cause, fix, evidence=(line,))]
        fix = (
            "find out who replaced the run's directory: directories above it that others may "
            "write should be sticky"
        )
        return [Finding("run-directory-not-ours", cause, fix, evidence=(line,))]
    return []


def find_missing_program(evidence: FailureEvidence) -> list[Finding]:
    """The interpreter on the node never started our launcher."""
    if evidence.directory.claim.exists() or any(map(evidence.has_begun, evidence.result.nodes)):
        return []
    for match, line in evidence.search_job_logs(NO_PACKAGE, NO_PYTHON):
        package = match.re is NO_PACKAGE
        cause = (
            f"the interpreter on the node has no package {match[1]}"
            if package
            else f"there is no interpreter on the node: {match.string.strip()}"
        )
        return [
            Finding(
                "package-missing-on-node" if package else "python-missing-on-node",
                cause,
                "install pytest-clustersmoke into the environment that `setup` activates, or "
                "set `python` in cluster.yaml to its interpreter",
                evidence=(line,),
            )
        ]
    return []


def find_overwritten_spec(evidence: FailureEvidence) -> list[Finding]:
    """A job whose spec names no node: nothing of the job can be judged."""
    if evidence.result.nodes:
        return []
    path = evidence.directory.spec
    why = explain_unreadable(path, MAX_JSON_BYTES) or (
        "is not the one that this run wrote" if path.exists() else "is gone"
    )
    return [
        Finding(
            "spec-overwritten",
            f"the job's {path.name} {why}, so which nodes and ranks it had is unknown",
            "find out what changed this file, which only the job and this user can write: most "
            "likely the program, whose own files belong into `rank.output_dir`",
            evidence=(Evidence(str(path), 1, why),),
        )
    ]


def find_unreadable_results(evidence: FailureEvidence) -> list[Finding]:
    """Results of nodes that are there and cannot be read: the nodes count as if they had left
    none."""
    findings = []
    for node in evidence.result.nodes:
        path = evidence.directory.node_result(node.node_rank)
        why = "" if node.result else explain_unreadable(path, MAX_NODE_BYTES)
        if why:
            findings.append(
                Finding(
                    "node-result-unreadable",
                    f"{node.name}: its result {why}, so how its part of the job ended is unknown",
                    "find out what wrote this file: a program of the job, or a file system that "
                    "is full or broken",
                    evidence=(Evidence(str(path), 1, why),),
                    hosts=(node.name,),
                )
            )
    return findings


def find_foreign_events(evidence: FailureEvidence) -> list[Finding]:
    """Event files that are not from this job's ranks: nothing in them counted."""
    return [
        Finding(
            "foreign-events",
            f"the events of rank {rank.rank} are not from this job: {rank.events.foreign}",
            "find out what else wrote this file: a program of the job, a copy of an earlier run's "
            "events, or another version of pytest-clustersmoke on a node",
            evidence=(Evidence(str(rank.events.path), 1, "a foreign `start`"),),
            hosts=evidence.hosts([rank.rank]),
            ranks=(rank.rank,),
        )
        for rank in evidence.result.ranks
        if rank.events.foreign
    ]


def log_tail(evidence: FailureEvidence) -> tuple[Evidence, ...]:
    for path in evidence.job_logs:
        last_line = find_last_line(path)
        if last_line and path.suffix == ".err":
            return last_line
    return ()


def find_failed_checks(evidence: FailureEvidence) -> list[Finding]:
    """The failed checks of the nodes, by host; if there are none, nodes that others never saw."""
    failures = [finding for finding in _judge_nodes(evidence.result) if finding.severity == FAILURE]
    failures.sort(key=lambda found: FIRST.index(found.id) if found.id in FIRST else len(FIRST))
    return failures or _find_unseen_nodes(evidence)


def check_warnings(result: PhaseResult) -> list[Finding]:
    """The warnings of the nodes' checks; they never change the outcome."""
    return [finding for finding in _judge_nodes(result) if finding.severity == WARNING]


def _judge_nodes(result: PhaseResult) -> list[Finding]:
    directory = result.directory
    facts = [node.facts for node in result.nodes]
    names = [{"node": node.name} for node in result.nodes]
    meetings = [read_json(directory.node_meeting(node.node_rank)) for node in result.nodes]
    failed = checks.find_failures(facts, result.spec, directory.node_facts)
    failed += checks.peers.check_peers(names, meetings, directory.node_meeting)
    return checks.merge_findings(failed)


def _find_unseen_nodes(evidence: FailureEvidence) -> list[Finding]:
    """Nodes that waited for files of others and never saw them, split by whether these files were
    ever written, as far as that is visible here."""
    result = evidence.result
    waiting: dict[tuple[int, ...], list[NodeResult]] = defaultdict(list)
    for node in result.nodes:
        if node.reason == "unseen":
            waiting[_ranks(node.result.get("nodes"), len(result.nodes))].append(node)
    findings = []
    for missing, nodes in waiting.items():
        by_cause: dict[str, list[int]] = defaultdict(list)
        for rank in missing:
            by_cause[_cause(rank, nodes, evidence)].append(rank)
        findings += [_unseen_finding(c, ranks, nodes, result) for c, ranks in by_cause.items()]
    return findings


def _ranks(value: Any, count: int) -> tuple[int, ...]:
    return tuple(sorted({rank for rank in parse_ints(value) if 0 <= rank < count}))


# What is visible here of a node that others did not see -> what happened, what to do.
CAUSES = {
    "never": (
        "never wrote a file that is visible here: it did not start, or it uses a different shared "
        "directory",
        "check that the node runs (sinfo, its slurmd's log) and has the shared directory mounted "
        "(findmnt -T, on the node)",
    ),
    "stopped": (
        "started but never wrote its facts: something hangs there (a driver, a file system), or it "
        "ended",
        "read the node's log in the run directory, and look at the node",
    ),
    "late": (
        "wrote its facts only after the others had given up waiting",
        "find out what is slow there (driver start-up, a file system), or raise "
        "stage_limits_s.init",
    ),
    "not-seen": (
        "wrote its files, which are visible here, but the others never saw them: the directory is "
        "not the same file system on all nodes, or it shows other nodes' files late",
        "compare `findmnt -T` of the shared directory on these nodes; it must be one file system, "
        "and show other nodes' files within seconds",
    ),
}


def _cause(rank: int, nodes: Sequence[NodeResult], evidence: FailureEvidence) -> str:
    node = evidence.result.nodes[rank]
    if node.facts:
        wrote = node.facts_time
        ended = [waiting.ended for waiting in nodes if waiting.ended is not None]
        late = wrote is not None and ended and wrote > max(ended) + LATE_S
        return "late" if late else "not-seen"
    return "stopped" if evidence.has_begun(node) else "never"


def _unseen_finding(
    cause: str, missing: list[int], nodes: Sequence[NodeResult], result: PhaseResult
) -> Finding:
    problem, fix = CAUSES[cause]
    names = [result.nodes[rank].name for rank in missing]
    waited = [node.name for node in nodes]
    path = result.directory.node_result(nodes[0].node_rank)
    return Finding(
        "shared-directory-not-seen",
        f"{checks.shorten_names(waited)} waited in vain for {checks.shorten_names(names)}, "
        f"which {problem}",
        fix,
        evidence=(Evidence(str(path), 1, nodes[0].why),),
        hosts=(*names, *(waited if cause == "not-seen" else ())),
        detail={"cause": cause, "missing": names, "waited": waited},
    )


def find_node_reasons(evidence: FailureEvidence) -> list[Finding]:
    """What the nodes' own watch reported: a stalled rank, a limit exceeded, the launcher's end."""
    findings: list[Finding] = []
    for node in evidence.result.nodes:
        reason = node.reason
        if node.ok or reason not in NODE_REASONS:
            continue
        identity, fix = NODE_REASONS[reason]
        rank = parse_int(node.result.get("rank"))
        stderr = _rank_stderr(evidence.directory, node.node_rank)
        why, tail = node.why, stderr
        if reason == "timeout":  # the launcher's last line says only that it was ended then
            why += f"; {describe_positions(evidence.result)}"
        elif not stderr:
            tail = find_last_line(evidence.directory.launcher_log(node.node_rank))
        if reason == "torchrun" and stderr:  # a rank ended before it could write an event
            why += f"; the last line of a rank's stderr: {stderr[0].text}"
        findings.append(
            Finding(
                identity,
                f"{node.name}: {why}",
                fix,
                primary=not findings,
                evidence=(
                    Evidence(str(evidence.directory.node_result(node.node_rank)), 1, reason),
                    *tail,
                ),
                hosts=(node.name,),
                ranks=() if rank is None else (rank,),
            )
        )
    return findings


def find_abort_flag(evidence: FailureEvidence) -> list[Finding]:
    """The abort flag that was raised for a node that left no result of its own."""
    flag = evidence.abort_flag
    if flag.reason not in NODE_REASONS:
        return []
    identity, fix = NODE_REASONS[flag.reason]
    shown = Evidence(str(evidence.directory.abort), 1, flag.reason)
    return [Finding(identity, f"{flag.node}: {flag.why}", fix, True, (shown,), (flag.node,))]


def _rank_stderr(directory: PhaseDir, node_rank: int) -> tuple[Evidence, ...]:
    for path in directory.find_rank_logs(node_rank):
        last_line = find_last_line(path)
        if last_line:
            return last_line
    return ()
