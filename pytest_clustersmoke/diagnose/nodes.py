"""What the nodes' own watch said: stalled, past a limit, nodes that never saw each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..findings import Evidence, Finding, last_line
from ..rundir import PhaseDir, read_json

if TYPE_CHECKING:
    from ..result import PhaseResult

# What a node gives as its reason -> finding, and what to do.
NODE_REASONS = {
    "stalled": ("hang", "read the stacks in dumps/ of the run directory"),
    "timeout": ("time-limit", "raise the phase's timeout_s, or find out what was slow"),
    "rank_ended_early": ("rank-left-early", "find out why the program left its Rank early"),
    "torchrun": ("torchrun-failed", "read the node's torchrun.log and its ranks' stderr"),
    "node": ("node-failed", "look at that node"),
    "launcher": ("launcher-failed", "read the node's log in the run directory"),
}


def nodes(result: PhaseResult) -> list[Finding]:
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


def flag(result: PhaseResult) -> list[Finding]:
    """The flag that was raised for a node which left no words of its own."""
    flag = read_json(result.directory.abort) or {}
    reason, node = str(flag.get("reason")), str(flag.get("node"))
    if reason not in NODE_REASONS:
        return []
    identity, fix = NODE_REASONS[reason]
    evidence = Evidence(str(result.directory.abort), 1, reason)
    return [Finding(identity, f"{node}: {flag.get('why')}", fix, True, (evidence,), (node,))]


def _rank_stderr(directory: PhaseDir, node_rank: int) -> tuple[Evidence, ...]:
    for path in sorted(directory.rank_logs(node_rank).glob("**/stderr.log")):
        found = last_line(path)
        if found:
            return found
    return ()
