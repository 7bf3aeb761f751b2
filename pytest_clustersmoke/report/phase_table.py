"""One verdict per phase, the same in every view, and the table of terminal and summary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from ..config.metrics import show
from ..evidence.finding import ISOLATION_FINDING, add_place
from ..evidence.job_results import NOT_MEASURED
from ..evidence.progress_record import ProvenStepsRecord, TraceRecord
from ..evidence.run_counts import AttemptRecord, MissingRecord
from ..evidence.run_record import (
    MetricRecord,
    PhaseRecord,
    RunRecord,
)
from ..text import format_seconds, outcome_words, plural, ranges, shorten

COLUMNS = (
    *("phase", "verdict", "nodes", "queue s", "run s", "steps/s", "rate", "against usual", "GiB"),
    *("transport", "reference"),
)
MOST_NODES = 4  # named in a line
NUMBERS = {"queue s", "run s", "steps/s", "rate", "against usual", "GiB"}
# The rate of a phase is the last of these that it measured.
RATES = {
    "samples_per_s": "samples/s",
    "tokens_per_s_per_rank": "tokens/s",
    "busbw_gb_per_s": "GB/s bus",
}


@dataclass(frozen=True)
class PhaseVerdict:
    """The verdict on one phase: `passed`, `2 failed`, `not measured (never ran)`."""

    words: str
    tone: Literal["good", "bad", "warn"]


def judge_phase(phase: PhaseRecord, missing: Iterable[MissingRecord]) -> PhaseVerdict:
    """The worst of the phase's job, its criteria and what is missing of it."""
    results = [criterion.result for criterion in phase.criteria.values()]
    failed, known = results.count("failed"), results.count("known")
    tried = phase.attempts[-1].attempt if phase.attempts else 1
    counted = judge_counts(phase.outcome, phase.known is not None, failed, known, tried)
    if phase.outcome != "passed" or failed or known:
        return counted
    lacks = [entry.kind for entry in missing if entry.phase == phase.phase]
    if lacks:
        kinds = ", ".join(filter(None, lacks))
        return PhaseVerdict(f"not measured ({kinds})" if kinds else "not measured", "warn")
    return counted


def judge_counts(
    outcome: str, is_known: bool, failed: int, known: int, attempts: int = 1
) -> PhaseVerdict:
    """The worst of a phase's job, which may be a known failure, and of its criteria. A phase that
    passed only when it was tried again is not like the others."""
    words = outcome_words(outcome)
    if is_known:
        return PhaseVerdict(f"{words}, known", "warn")
    if outcome in NOT_MEASURED:
        return PhaseVerdict(f"not measured ({words})", "warn")
    if outcome != "passed":
        return PhaseVerdict(words, "bad")
    if failed:
        return PhaseVerdict(f"{failed} failed", "bad")
    if known:
        return PhaseVerdict(f"passed, {known} known", "warn")
    if attempts > 1:
        return PhaseVerdict(f"passed on attempt {attempts}", "warn")
    return PhaseVerdict(words, "good")


def judge_stored(
    outcome: str, failed: int, known: int, attempts: int = 1, unmeasured: str = ""
) -> PhaseVerdict:
    """The same for a phase of the history, which does not keep whether a job's failure is known,
    but counts its `job` among the criteria. `unmeasured`: what it lacks of what is required."""
    is_known = outcome != "passed" and known > 0 and not failed
    if unmeasured and outcome == "passed" and not (failed or known):
        return PhaseVerdict(f"not measured ({unmeasured})", "warn")
    return judge_counts(outcome, is_known, failed, known, attempts)


def explain_failures(record: RunRecord) -> Iterator[str]:
    """A line for each phase that did not pass and is not known: its first cause."""
    for phase in record.phases:
        verdict = judge_phase(phase, record.missing)
        if phase.known or (phase.outcome == "passed" and verdict.tone != "bad"):
            continue
        cause = _job_cause(phase) if phase.outcome != "passed" else _list_failures(phase)[0]
        yield f"{phase.phase}: {verdict.words}: {cause}"


def explain_others(record: RunRecord) -> Iterator[str]:
    """A line for each further failed criterion of a phase whose job passed."""
    for phase in record.phases:
        if phase.outcome == "passed":
            for cause in _list_failures(phase)[1:]:
                yield f"{phase.phase}: also {cause}"


def describe_attempt(attempt: AttemptRecord) -> str:
    """A job of a phase that was tried again, in words."""
    nodes = f" on {shorten(attempt.nodes, MOST_NODES)}" if attempt.nodes else ""
    job = f" (job {attempt.job_id}{nodes})" if attempt.job_id else ""
    return f"attempt {attempt.attempt}{job}: {outcome_words(attempt.outcome)}: {attempt.reason}"


def describe_trace(trace: TraceRecord) -> str:
    """Where the time of a trace went, or why there is none, in words."""
    if trace.reason:
        return f"no trace of rank {trace.rank}: {trace.reason}"
    parts = [
        f"compute {percent(trace.compute_s, trace.span_s)}",
        f"communication {percent(trace.communication_s, trace.span_s)}",
        f"copies {percent(trace.copy_s, trace.span_s)}",
        f"idle {percent(trace.idle_s, trace.span_s)}",
    ]
    if trace.communication_s:
        parts[1] += f" ({percent(trace.overlapped_s, trace.communication_s)} of it overlapped)"
    return f"trace of rank {trace.rank}, {traced_steps(trace)}: {', '.join(parts)}"


def describe_proofs(proofs: ProvenStepsRecord) -> str:
    """How many steps were proven, which were to be, and what that took, in words."""
    drawn = proofs.drawn
    lacking = "" if proofs.proven == len(drawn) else f"{proofs.proven} of "
    steps = f"{lacking}{plural(len(drawn), 'step')} proven ({ranges(drawn)})"
    share = "" if proofs.share is None else f", {percent(proofs.share, 1)} of the training"
    return f"{steps} in {proofs.seconds:.3g} s{share}"


def traced_steps(trace: TraceRecord) -> str:
    """The steps of a trace, and which of them are longer by a proof."""
    if trace.first == trace.last:
        return f"step {trace.first}{' (proven)' if trace.proven else ''}"
    proven = f" ({ranges(trace.proven)} proven)" if trace.proven else ""
    return f"steps {trace.first}-{trace.last}{proven}"


def percent(part: float | None, whole: float | None) -> str:
    """A share in percent; `-` without one."""
    return "-" if part is None or not whole else f"{100 * part / whole:.0f} %"


def _job_cause(phase: PhaseRecord) -> str:
    first = next((finding for finding in phase.findings if finding.primary), None)
    if first is None:
        return phase.reason or "no reason was recorded"
    return add_place(first.cause, first.hosts, first.ranks)


def _list_failures(phase: PhaseRecord) -> list[str]:
    """The failed criteria, each with the first line of its text."""
    return [
        f"{name}: {next(iter(criterion.text.strip().splitlines()), 'no message')}"
        for name, criterion in phase.criteria.items()
        if criterion.result == "failed"
    ]


def phase_row(phase: PhaseRecord, missing: Iterable[MissingRecord]) -> list[str]:
    """The cells of a phase, in the order of COLUMNS."""
    measured = {name: show(metric.value) for name, metric in phase.metrics.items()}
    rates = [f"{measured[name]} {unit}" for name, unit in RATES.items() if name in measured]
    return [
        phase.phase,
        judge_phase(phase, missing).words,
        str(len(phase.nodes)),
        format_seconds(phase.queue_s),
        format_seconds(phase.run_s),
        measured.get("steps_per_s", "-"),
        rates[-1] if rates else "-",
        compare_with_usual(phase),
        measured.get("peak_memory_gib", "-"),
        phase.transport,
        _compare_with_references(phase.metrics),
    ]


def compare_with_usual(phase: PhaseRecord) -> str:
    """How far the phase's rate is from the median of its past runs, `-25 %`; `-` if that is not
    known."""
    for name in (*reversed(RATES), "steps_per_s"):
        metric = phase.metrics.get(name)
        if metric and metric.past and metric.past["median"] and not isinstance(metric.value, str):
            if metric.past.get("other_versions"):
                return "-"  # the page names the versions beside the comparison
            return f"{round((metric.value / metric.past['median'] - 1) * 100):+d} %"
    return "-"


def _compare_with_references(metrics: Mapping[str, MetricRecord]) -> str:
    """The references that are missed, otherwise those met."""
    compared = {name: metric for name, metric in metrics.items() if metric.met is not None}
    if not compared:
        has_any = any(metric.reference for metric in metrics.values())
        return "reference of other sizes" if has_any else "no reference"
    missed = [_miss(name, metric) for name, metric in compared.items() if not metric.met]
    return "; ".join(missed) if missed else f"met ({', '.join(compared)})"


def _miss(name: str, metric: MetricRecord) -> str:
    """`steps_per_s -61.7 %`; the failed criterion has the details."""
    expected = metric.reference.value if metric.reference else 0
    if isinstance(metric.value, str) or not expected:
        return f"{name} {metric.value}"
    return f"{name} {(metric.value / expected - 1) * 100:+.1f} %"


def describe_isolation(phase: PhaseRecord) -> str:
    """What --cluster-isolate found, in a few words; empty if it was not asked."""
    answers = [
        finding.detail.get("answer")
        for finding in phase.findings
        if finding.id == ISOLATION_FINDING
    ]
    return str(answers[0]) if answers else ""
