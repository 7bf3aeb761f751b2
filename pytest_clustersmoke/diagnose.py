"""Evidence of a failure -> findings: what happened, where, why, what to do next.

By structured evidence: what the nodes' watch, the ranks and the scheduler recorded. A rank that
died comes before a rank whose connection broke, for that one is its victim. What the texts around
it say of the cause is added then (explain.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import suspects
from .explain import explained
from .findings import MAX_TEXT, Evidence, Finding, job_logs, last_line, numbered_lines
from .rundir import PhaseDir, read_json

if TYPE_CHECKING:
    from .evidence import RankResult
    from .outcome import Judgement
    from .result import PhaseResult

# What a rank says when another rank went away: an echo, not a cause.
ECHO = re.compile(
    r"connection (reset|closed|refused)|broken pipe|socket timeout|timed out waiting|"
    r"remote process exited|DistBackendError|ncclRemoteError|NCCL communicator was aborted",
    re.I,
)
NO_PACKAGE = re.compile(r"No module named '?(pytest_clustersmoke|submitit|psutil)[\w.]*'?")
# What a node gives as its reason -> finding, and what to do.
NODE_REASONS = {
    "stalled": ("hang", "read the stacks in dumps/ of the run directory"),
    "timeout": ("time-limit", "raise the phase's timeout_s, or find out what was slow"),
    "rank_ended_early": ("rank-left-early", "find out why the program left its Rank early"),
    "torchrun": ("torchrun-failed", "read the node's torchrun.log and its ranks' stderr"),
    "node": ("node-failed", "look at that node"),
    "launcher": ("launcher-failed", "read the node's log in the run directory"),
}
NO_PYTHON = re.compile(r"(python[\w.]*|[^\s:]+/bin/python[\w.]*): (command not found|No such file)")


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
    found = Finding(f"job-{name}", judgement.reason, fix, evidence=_log_tail(result.directory))
    return explained([found], result) if looks else [found]


def _setup(result: PhaseResult) -> list[Finding]:
    path = result.directory.setup_failed
    if not path.exists():
        return []
    status, _, line = path.read_text(errors="replace").strip().partition("\t")
    return [
        Finding(
            "setup-line-failed",
            f"the setup line `{line}` failed with status {status}",
            "run the line in a fresh shell on the node; `setup` is set in cluster.yaml",
            evidence=(Evidence(str(path), 1, line), *_log_tail(result.directory)),
        )
    ]


def _launcher(result: PhaseResult) -> list[Finding]:
    """The interpreter on the node did not get as far as our launcher."""
    if any(result.directory.claim(node.node_rank).exists() for node in result.nodes):
        return []
    for path in job_logs(result.directory):
        for number, line in numbered_lines(path):
            package, python = NO_PACKAGE.search(line), NO_PYTHON.search(line)
            if not package and not python:
                continue
            cause = (
                f"the interpreter on the node has no package {package.group(1)}"
                if package
                else f"there is no interpreter on the node: {line.strip()}"
            )
            return [
                Finding(
                    "package-missing-on-node" if package else "python-missing-on-node",
                    cause,
                    "install pytest-clustersmoke into the environment that `setup` activates, or "
                    "name its interpreter as `python` in cluster.yaml",
                    evidence=(Evidence(str(path), number, line[:MAX_TEXT]),),
                )
            ]
    return []


def _rank_deaths(result: PhaseResult) -> list[Finding]:
    """Ranks that ended without an exception and without being done: killed, or left early."""
    findings = []
    for rank in result.ranks:
        if not rank.start or rank.done or rank.events.last("error") is not None:
            continue
        node = _node_events(result, rank)
        if not any(
            state.get("rank") == rank.rank and state.get("alive") is False
            for record in node
            if record["event"] == "ranks"
            for state in _dicts(record.get("states"))
        ):
            continue
        stage, step = _position(rank)
        path = rank.events.path
        findings.append(
            Finding(
                "rank-died",
                f"{rank} ended in stage {stage}{f' at step {step}' if step else ''} without "
                "an exception and without being done: killed by a signal, or it left early",
                "look at the rank's stderr and, on the node, at the kernel's log (out of memory?)",
                evidence=(Evidence(str(path), rank.events.lines[-1], "its last event"),),
                hosts=(rank.node,),
                ranks=(rank.rank,),
            )
        )
    return findings


def _early_leavers(result: PhaseResult) -> list[Finding]:
    """Ranks that were done too early, where all that the others say is that they lost a peer."""
    errors = _errors(result)
    victims = [rank for rank, _ in errors]
    if not victims or not all(_is_echo(error) for _, error in errors):
        return []
    return [
        Finding(
            "rank-left-early",
            f"{rank} was done while {victims[0]} was still in stage {_position(victims[0])[0]}",
            "find out why the program left its Rank early on that rank",
            evidence=(Evidence(str(rank.events.path), rank.events.lines[-1], "its last event"),),
            hosts=(rank.node,),
            ranks=(rank.rank,),
        )
        for rank in suspects.left_before(result, victims)
    ]


def _rank_errors(result: PhaseResult) -> list[Finding]:
    known = sorted(_errors(result), key=lambda pair: (_is_echo(pair[1]), pair[1]["time"]))
    return [
        Finding(
            "rank-error",
            f"{rank} failed: {error.get('type')}: {error.get('message')}"[:MAX_TEXT],
            "read the traceback in the rank's events and its stderr",
            primary=not index,
            evidence=(
                Evidence(
                    str(rank.events.path),
                    rank.events.line_of(error),
                    str(error.get("traceback", ""))[-MAX_TEXT:],
                ),
            ),
            hosts=(rank.node,),
            ranks=(rank.rank,),
        )
        for index, (rank, error) in enumerate(known)
    ]


def _errors(result: PhaseResult) -> list[tuple[RankResult, dict[str, Any]]]:
    """Each rank's exception. Where a node's watch ended the phase for a reason of its own (a hang),
    what ranks then say of lost peers is only that end."""
    ended = (read_json(result.directory.abort) or {}).get("reason") in NODE_REASONS
    said = [(rank, rank.events.last("error")) for rank in result.ranks]
    return [(rank, error) for rank, error in said if error and not (ended and _is_echo(error))]


def _is_echo(error: Mapping[str, Any]) -> bool:
    return bool(ECHO.search(str(error.get("message"))))


def _hang(result: PhaseResult) -> list[Finding]:
    """Ranks that the others waited for, where a rank stood still past its stage's limit."""
    why = [str(n.result.get("why")) for n in result.nodes if n.result.get("reason") == "stalled"]
    absent = suspects.absent_from_collective(result) if why else []
    findings = []
    for index, rank in enumerate(absent):
        stack = suspects.stack_line(result.directory, rank.rank)
        path = str(result.directory.rank_stack(rank.rank))
        findings.append(
            Finding(
                "hang",
                f"{rank} never came to a collective that the other ranks wait in; {why[0]}",
                "read the stacks in dumps/ of the run directory, that of this rank first",
                primary=not index,
                evidence=(Evidence(path, *stack),) if stack else (),
                hosts=(rank.node,),
                ranks=(rank.rank,),
            )
        )
    return findings


def _nodes(result: PhaseResult) -> list[Finding]:
    """What the nodes' own watch said: stalled, past a limit, nodes that never saw each other."""
    findings: list[Finding] = []
    for node in result.nodes:
        reason = str(node.result.get("reason", ""))
        if node.ok or reason not in NODE_REASONS:
            continue
        identity, fix = NODE_REASONS[reason]
        rank = node.result.get("rank")
        said = _rank_stderr(result.directory, node.node_rank)
        tail = said or last_line(result.directory.torchrun_log(node.node_rank))
        why = str(node.result.get("why"))
        if reason == "torchrun" and said:  # a rank ended before it could write an event
            why += f"; a rank's last words: {said[0].text}"
        findings.append(
            Finding(
                identity,
                f"{node.name}: {why}",
                fix,
                primary=not findings,
                evidence=(
                    Evidence(str(result.directory.node_result(node.node_rank)), 1, reason),
                    *tail,
                ),
                hosts=(node.name,),
                ranks=(rank,) if isinstance(rank, int) else (),
            )
        )
    return findings


def _flag(result: PhaseResult) -> list[Finding]:
    """The flag that was raised for a node which left no words of its own."""
    flag = read_json(result.directory.abort) or {}
    reason, node = str(flag.get("reason")), str(flag.get("node"))
    if reason not in NODE_REASONS:
        return []
    identity, fix = NODE_REASONS[reason]
    evidence = Evidence(str(result.directory.abort), 1, reason)
    return [Finding(identity, f"{node}: {flag.get('why')}", fix, True, (evidence,), (node,))]


# In the order of how much each explains.
LOOKS = (
    _setup,
    _launcher,
    _rank_deaths,
    _early_leavers,
    _rank_errors,
    _hang,
    _nodes,
    _flag,
)


def _node_events(result: PhaseResult, rank: RankResult) -> list[dict[str, Any]]:
    from .telemetry import read_events

    node_rank = rank.start.get("node_rank")
    if not isinstance(node_rank, int):
        return []
    return read_events(result.directory.node_events(node_rank)).records


def _position(rank: RankResult) -> tuple[str, int]:
    stage, step = rank.events.last("stage") or {}, rank.events.last("step") or {}
    inside = stage.get("name") == "train" and stage.get("state") == "begin"
    done = step.get("step")
    return str(stage.get("name", "init")), done if inside and isinstance(done, int) else 0


def _dicts(value: object) -> list[dict[str, Any]]:
    """The objects of a list that a job wrote; whatever else it wrote there counts as missing."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _log_tail(directory: PhaseDir) -> tuple[Evidence, ...]:
    for path in job_logs(directory):
        found = last_line(path)
        if found and path.suffix == ".err":
            return found
    return ()


def _rank_stderr(directory: PhaseDir, node_rank: int) -> tuple[Evidence, ...]:
    for path in sorted(directory.rank_logs(node_rank).glob("**/stderr.log")):
        found = last_line(path)
        if found:
            return found
    return ()
