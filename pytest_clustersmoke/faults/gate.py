"""What came of a fault, against what must: the gate is proven, or it is said what it lacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..evidence.job_results import NOT_MEASURED
from ..evidence.phase_result import PhaseResult
from ..evidence.run_directory import RunDir
from ..evidence.staged_marks import find_staged_events
from ..evidence.telemetry import read_events
from . import JOB, Fault
from .fault import AMONG

PROVEN = "proven"
GREEN = "stayed green"
OTHER = "not as it must be"  # red, but elsewhere or for another reason
NOT_STAGED = "not staged"
# Outcomes that are the scheduler's or the cluster's, and say nothing of a gate.
SCHEDULER = {*NOT_MEASURED, "cluster_failed"}


@dataclass(frozen=True)
class Seen:
    """A criterion's result (passed, failed, skipped) and the words of its failure."""

    result: str
    words: str = ""


@dataclass(frozen=True)
class Alone:
    """The phase with nothing staged: what became of its job, and its criteria."""

    outcome: str
    reason: str
    seen: Mapping[str, Seen]


@dataclass(frozen=True)
class Gate:
    """One gate, judged. `seconds` are from the fault to the finding, where a rank marked it."""

    fault: str
    what: str
    phase: str
    status: str
    reasons: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)
    red: list[str] = field(default_factory=list)
    finding: str = ""
    words: str = ""
    ranks: list[int] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    seconds: float | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def judge(
    fault: Fault,
    base: str,
    result: PhaseResult,
    seen: Mapping[str, Seen],
    alone: Alone | None,
    run: RunDir,
) -> Gate:
    """`seen` are the criteria of the staged phase, `alone` is the same with nothing staged; there
    are none where the job itself must fail."""
    red = sorted(name for name, one in seen.items() if one.result == "failed")
    if result.outcome != "passed":
        red = [JOB]
    said: dict[str, Any] = {"red": red, **_finding(result), "seconds": _seconds(result, run)}
    if fault.of_criteria and red != [JOB]:
        said["words"] = "\n".join(seen[name].words for name in red if name in fault.red)
    status, reasons = _status(fault, result, seen, alone, red)
    expected = sorted(fault.red)
    return Gate(fault.name, fault.what, base, status, reasons, expected, **said)


def _status(
    fault: Fault,
    result: PhaseResult,
    seen: Mapping[str, Seen],
    alone: Alone | None,
    red: list[str],
) -> tuple[str, list[str]]:
    if result.outcome in SCHEDULER and (fault.of_criteria or result.outcome != fault.outcome):
        return NOT_STAGED, [f"{result.outcome}: {result.job.get('reason', '')}"]
    if alone is not None and alone.outcome != "passed":
        why = f"with nothing staged the phase is {alone.outcome}: {alone.reason}"
        return NOT_STAGED if alone.outcome in SCHEDULER else OTHER, [why]
    reasons = _not_staged(fault, result)
    if not fault.of_criteria:
        reasons += _job(fault, result)
    elif red == [JOB]:
        reasons.append(f"the job failed, where a criterion had to: {result.job.get('reason')}")
    else:
        reasons += _criteria(fault, result, seen, alone.seen if alone else {})
    if not fault.red & set(red):
        return GREEN, [f"{', '.join(sorted(fault.red))} stayed green", *reasons]
    return (OTHER, reasons) if reasons else (PROVEN, [])


def _not_staged(fault: Fault, result: PhaseResult) -> list[str]:
    """Where a rank has to stage it, that rank must have said so; another one must not."""
    if fault.by == "job":
        return []
    ranks = sorted(find_staged_events(result))
    if fault.by == "ranks":
        return [] if ranks else ["no rank wrote that it staged the fault"]
    chosen = _chosen(result)
    if ranks == [chosen]:
        return []
    return [f"the fault was to be staged on rank {chosen}, and was on {ranks or 'none'}"]


def _job(fault: Fault, result: PhaseResult) -> list[str]:
    """The job's outcome and its primary finding: which, where, and the cause behind it."""
    if result.outcome == "passed":
        return []
    reasons = []
    if result.outcome != fault.outcome:
        reasons.append(f"the job's outcome is {result.outcome}, expected {fault.outcome}")
    found = _finding(result)
    if found["finding"] not in fault.findings:
        expected = " or ".join(fault.findings)
        reasons.append(f"the finding is {found['finding'] or 'none'}, expected {expected}")
    signature = _primary(result).get("detail", {}).get("signature")
    if fault.signatures and signature not in fault.signatures:
        expected = " or ".join(fault.signatures)
        reasons.append(f"the cause behind it is {signature or 'unknown'}, expected {expected}")
    if fault.blames:
        chosen = result.ranks[_chosen(result)]
        alone = (found["ranks"], found["hosts"]) == ([chosen.rank], [chosen.node])
        among = chosen.rank in found["ranks"] and chosen.node in found["hosts"]
        if not (among if fault.blames == AMONG else alone):
            reasons.append(
                f"the finding names ranks {found['ranks']} and hosts {found['hosts']}, "
                f"expected {chosen}"
            )
    return reasons


def _criteria(
    fault: Fault, result: PhaseResult, seen: Mapping[str, Seen], alone: Mapping[str, Seen]
) -> list[str]:
    """The fault's criteria are red and were not before; no other one says anything else."""
    reasons = []
    for name in sorted({*seen, *alone, *fault.red}):
        before, now = alone.get(name, Seen("missing")), seen.get(name, Seen("missing"))
        if name in fault.red:
            if before.result not in ("passed", "skipped"):
                reasons.append(f"{name} was {before.result} with nothing staged: {before.words}")
            if now.result != "failed":
                reasons.append(f"{name} {now.result}")
            elif fault.blames:
                reasons += _blame(name, now.words, result)
        elif now.result != before.result and not (name in fault.follows and now.result == "failed"):
            words = f": {now.words}" if now.words else ""
            reasons.append(f"{name} {now.result}, but {before.result} with nothing staged{words}")
    return reasons


def _blame(name: str, words: str, result: PhaseResult) -> list[str]:
    """The criterion's words name the rank that staged the fault, with its host, and no other."""
    chosen = _chosen(result)
    named = [rank.rank for rank in result.ranks if str(rank) in words]
    if named == [chosen]:
        return []
    return [f"{name} names ranks {named}, expected {result.ranks[chosen]}: {words}"]


def _chosen(result: PhaseResult) -> int:
    fault = result.spec.get("fault")
    return int(fault["rank"]) if isinstance(fault, dict) else 0


def _primary(result: PhaseResult) -> Mapping[str, Any]:
    findings = result.job.get("findings")
    first = findings[0] if isinstance(findings, list) and findings else {}
    return first if isinstance(first, dict) and first.get("primary") else {}


def _finding(result: PhaseResult) -> dict[str, Any]:
    if result.outcome == "passed":
        return {}
    found = _primary(result)
    return {
        "finding": str(found.get("id", "")),
        "words": str(found.get("cause", "")),
        "ranks": list(found.get("ranks", ())),
        "hosts": list(found.get("hosts", ())),
    }


def _seconds(result: PhaseResult, run: RunDir) -> float | None:
    """From the first rank's `staged` to the phase's end in the journal, where the job failed."""
    begun = [float(one["time"]) for one in find_staged_events(result).values()]
    ended = [
        float(one["time"])
        for one in read_events(run.journal).named("ended")
        if one.get("phase") == result.name
    ]
    if result.outcome == "passed" or not begun or not ended:
        return None
    return round(ended[0] - min(begun), 2)
