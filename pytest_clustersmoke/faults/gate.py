"""Judges whether a staged fault was detected as it must be, and lists what differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..criteria.stragglers import describe_sharing
from ..evidence.finding import Finding
from ..evidence.job_results import NOT_MEASURED
from ..evidence.phase_result import PhaseResult
from ..evidence.run_counts import (
    GREEN_GATE,
    PROVEN_GATE,
    UNPROVABLE_GATE,
    UNSTAGED_GATE,
    WRONG_GATE,
    GateRecord,
)
from ..evidence.run_directory import RunDir
from ..evidence.staged_marks import find_refusal, find_staged_events
from ..evidence.telemetry import read_events
from ..text import name_ranks
from . import JOB, Fault
from .fault import AMONG

# How a criterion in `follows` may end: it fails too, or can no longer be judged.
FOLLOWS = {"failed", "skipped"}
# Outcomes caused by the scheduler or the cluster, which prove nothing about a gate.
SCHEDULER = {*NOT_MEASURED, "cluster_failed"}


@dataclass(frozen=True)
class Observed:
    """A criterion's result (passed, failed, skipped) and its failure message."""

    result: str
    message: str = ""


@dataclass(frozen=True)
class Baseline:
    """The small phase without a fault: the outcome of its job, and its criteria."""

    outcome: str
    reason: str
    criteria: Mapping[str, Observed]


def judge_gate(
    fault: Fault,
    base: str,
    result: PhaseResult,
    criteria: Mapping[str, Observed],
    baseline: Baseline | None,
    run: RunDir,
) -> GateRecord:
    """Judge a fault by the `criteria` of its phase and by the `baseline` without the fault. Where
    the job itself must fail there are no criteria and no baseline."""
    red = sorted(name for name, criterion in criteria.items() if criterion.result == "failed")
    if result.outcome != "passed":
        red = [JOB]
    record = {"red": red, **_finding(result), "seconds": _seconds(result, run)}
    if fault.fails_criteria and red != [JOB]:
        record["words"] = "\n".join(criteria[name].message for name in red if name in fault.red)
    status, reasons = _status(fault, result, criteria, baseline, red)
    return GateRecord(
        fault=fault.name,
        what=fault.description,
        phase=base,
        status=status,
        reasons=reasons,
        expected=sorted(fault.red),
        **record,
    )


def _status(
    fault: Fault,
    result: PhaseResult,
    criteria: Mapping[str, Observed],
    baseline: Baseline | None,
    red: list[str],
) -> tuple[str, list[str]]:
    if result.outcome in SCHEDULER and (fault.fails_criteria or result.outcome != fault.outcome):
        return UNSTAGED_GATE, [f"{result.outcome}: {result.reason}"]
    refusal = find_refusal(result)
    if refusal and not find_staged_events(result):
        return UNSTAGED_GATE, [refusal]
    if baseline is not None and baseline.outcome != "passed":
        why = f"without the fault the phase is {baseline.outcome}: {baseline.reason}"
        return UNSTAGED_GATE if baseline.outcome in SCHEDULER else WRONG_GATE, [why]
    reasons = _check_staging(fault, result)
    shared = describe_sharing(result.ranks) if fault.compares_times else ""
    if shared and not reasons and not red:
        return UNPROVABLE_GATE, [shared]
    if not fault.fails_criteria:
        reasons += _check_job(fault, result)
    elif red == [JOB]:
        reasons.append(f"the job failed, but a criterion was expected to fail: {result.reason}")
    else:
        reasons += _check_criteria(fault, result, criteria, baseline.criteria if baseline else {})
    if not fault.red & set(red):
        return GREEN_GATE, [f"{', '.join(sorted(fault.red))} stayed green", *reasons]
    return (WRONG_GATE, reasons) if reasons else (PROVEN_GATE, [])


def _check_staging(fault: Fault, result: PhaseResult) -> list[str]:
    """The ranks that must stage the fault recorded that they did, and no other rank."""
    if fault.by == "job":
        return []
    ranks = sorted(find_staged_events(result))
    if fault.by == "ranks":
        return [] if ranks else ["no rank recorded that it staged the fault"]
    chosen = _chosen(result)
    if ranks == [chosen]:
        return []
    staged_on = name_ranks(ranks) if ranks else "no rank"
    return [f"the fault was staged on {staged_on}, expected only rank {chosen}"]


def _check_job(fault: Fault, result: PhaseResult) -> list[str]:
    """The job has the expected outcome and primary finding, with its cause, rank and host."""
    if result.outcome == "passed":
        return []
    reasons = []
    if result.outcome != fault.outcome:
        reasons.append(f"the job's outcome is {result.outcome}, expected {fault.outcome}")
    finding = _finding(result)
    if finding["finding"] not in fault.findings:
        expected = " or ".join(fault.findings)
        reasons.append(f"the finding is {finding['finding'] or 'none'}, expected {expected}")
    primary = _primary(result)
    signature = primary.detail.get("signature") if primary else None
    if fault.signatures and signature not in fault.signatures:
        expected = " or ".join(fault.signatures)
        reasons.append(f"the finding's cause is {signature or 'unknown'}, expected {expected}")
    if fault.blames:
        chosen, node = _chosen(result), _find_node(result)
        is_alone = (finding["ranks"], finding["hosts"]) == ([chosen], [node])
        is_among = chosen in finding["ranks"] and node in finding["hosts"]
        if not (is_among if fault.blames == AMONG else is_alone):
            reasons.append(
                f"the finding names ranks {finding['ranks']} and hosts {finding['hosts']}, "
                f"expected rank {chosen} ({node})"
            )
    return reasons


def _find_node(result: PhaseResult) -> str:
    """The node of the rank that staged the fault; by its number, if none of its events counts."""
    rank = result.ranks[_chosen(result)]
    if not rank.events.foreign:
        return rank.node
    number = rank.rank // int(result.spec["ranks_per_node"])
    return next(node.name for node in result.nodes if node.node_rank == number)


def _check_criteria(
    fault: Fault,
    result: PhaseResult,
    criteria: Mapping[str, Observed],
    baseline: Mapping[str, Observed],
) -> list[str]:
    """The criteria that must fail do, and did not before; every other one is unchanged."""
    reasons = []
    for name in sorted({*criteria, *baseline, *fault.red}):
        before = baseline.get(name, Observed("missing"))
        now = criteria.get(name, Observed("missing"))
        if name in fault.red:
            if before.result not in ("passed", "skipped"):
                reasons.append(f"{name} was {before.result} without the fault: {before.message}")
            if now.result != "failed":
                reasons.append(f"{name} {now.result}")
            elif fault.blames:
                reasons += _check_blame(name, now.message, result)
        elif now.result != before.result and not (name in fault.follows and now.result in FOLLOWS):
            message = f": {now.message}" if now.message else ""
            reasons.append(f"{name} {now.result}, but {before.result} without the fault{message}")
    return reasons


def _check_blame(name: str, message: str, result: PhaseResult) -> list[str]:
    """The criterion's message names the rank that staged the fault, with its host, and no other."""
    chosen = _chosen(result)
    named = [rank.rank for rank in result.ranks if str(rank) in message]
    if named == [chosen]:
        return []
    return [f"{name} names ranks {named}, expected {result.ranks[chosen]}: {message}"]


def _chosen(result: PhaseResult) -> int:
    fault = result.spec.get("fault")
    return int(fault["rank"]) if isinstance(fault, dict) else 0


def _primary(result: PhaseResult) -> Finding | None:
    return next((finding for finding in result.findings[:1] if finding.primary), None)


def _finding(result: PhaseResult) -> dict[str, Any]:
    finding = _primary(result) if result.outcome != "passed" else None
    return {
        "finding": finding.id if finding else "",
        "words": finding.cause if finding else "",
        "ranks": list(finding.ranks) if finding else [],
        "hosts": list(finding.hosts) if finding else [],
    }


def _seconds(result: PhaseResult, run: RunDir) -> float | None:
    """Seconds from the first `staged` event to the phase's end, where the job failed."""
    begun = [float(event["time"]) for event in find_staged_events(result).values()]
    ended = [
        float(event["time"])
        for event in read_events(run.journal).named("ended")
        if event.get("phase") == result.name
    ]
    if result.outcome == "passed" or not begun or not ended:
        return None
    return round(ended[0] - min(begun), 2)
