"""Builds the record of a run: from its tally, which decides the verdict, from the evidence that its
jobs left behind, and from the past. Every view is rendered from the complete record."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from .. import __version__
from ..config.expectations import Reference
from ..config.marker import size_mark
from ..config.metrics import METRICS, compare
from ..config.phase import Phase
from ..config.profile import Profile
from ..criteria.past_annotation import annotate
from ..criteria.past_criterion import read_judgement
from ..evidence.collective_curves import read_curves
from ..evidence.fingerprint import fingerprint_of
from ..evidence.history.history_database import HistoryUnusable
from ..evidence.node_observation import DeviceFigure, NodeObservation
from ..evidence.phase_attempts import PhaseAttempt, read_attempts
from ..evidence.phase_result import PhaseResult, collect_phase, with_bounds
from ..evidence.run_counts import ProofRecord, RunTally
from ..evidence.run_directory import RunDir
from ..evidence.run_record import (
    SCHEMA,
    FactsRecord,
    MetricRecord,
    NodeRecord,
    ReferenceRecord,
    RemarkRecord,
    RunRecord,
)
from ..evidence.run_request import read_request
from ..evidence.screen_record import ScreenRecord
from ..evidence.telemetry import read_events
from ..evidence.variable_names import hide_values
from ..jobs.outcome import Judgement, judge_attempts
from ..preflight.observed_variables import remark_on_job
from ..text import sanitize_line
from .acknowledgements import Acknowledgements
from .job_progress import progress_record
from .named_nodes import name_nodes
from .node_records import FactsCollector, find_differences
from .rank_records import (
    mean_losses,
    measure_peak_shares,
    peaks_record,
    proven_steps_record,
    rank_records,
    trace_records,
)
from .topology import build_topology
from .verdict import INCONCLUSIVE, RunVerdict, judge_record

MAX_REMARK = 500
NEVER_ENDED = "the run ended before the job did"
# The fields of a phase without evidence, whose job nobody saw end.
NO_EVIDENCE: dict[str, Any] = {
    "job_id": "",
    "outcome": "lost",
    "reason": "",
    "scheduler_state": "",
    "scheduler_nodes": "",
    "estimated_start": None,
    "submitted": None,
    "started": None,
    "ended": None,
    "queue_s": None,
    "run_s": None,
    "torchrun_s": None,
    "overhead_s": None,
    "findings": [],
    "world_size": 0,
    "marks": [],
    "args": {},
    "nodes": [],
    "ranks": [],
    "versions": {},
    "hardware": "",
    "shape": "",
    "transport": "",
    "topology": None,
    "metrics": {},
    "loss": [],
    "trend": None,
    "changed": [],
    "remarks": [],
    "stage_seconds": {},
}
# The fields of a run that follow from its evidence or from its verdict, before these are known.
UNJUDGED: dict[str, Any] = {
    "verdict": INCONCLUSIVE,
    "sentence": "",
    "failed": [],
    "not_measured": [],
    "missing": [],
    "known": [],
    "known_remarks": [],
    "selection": "",
    "partial": "",
    "changes": [],
    "nodes": [],
    "differences": [],
}


@dataclass(frozen=True)
class FinishedRun:
    """A run whose jobs have ended: its directories, run.json and tally."""

    directory: RunDir
    target: Path  # its report
    about: Mapping[str, Any]  # run.json
    tally: RunTally
    profile: Profile | None = None
    phases: Mapping[str, Phase] = field(default_factory=dict)
    absences: tuple[str, ...] = ()
    acknowledgements: Acknowledgements | None = None
    proof: ProofRecord | None = None
    screen: ScreenRecord | None = None
    screened: Sequence[FactsRecord] = ()  # the nodes that answered it
    results: Mapping[str, PhaseResult] = field(default_factory=dict)  # already read
    unread: list[str] = field(default_factory=list)  # why the past is not in the record, if so
    # For the history, beside what the record's phases say of nodes.
    observations: tuple[NodeObservation, ...] = ()
    figures: tuple[DeviceFigure, ...] = ()

    @cached_property
    def verdict(self) -> RunVerdict:
        """The verdict, known even if the evidence cannot be read."""
        return judge_record(count_run(self))

    @cached_property
    def record(self) -> RunRecord:
        """The complete record, from which every view is rendered."""
        return make_record(self)


def count_run(
    run: FinishedRun, evidence: Mapping[str, Mapping[str, Any]] | None = None
) -> RunRecord:
    """The record of what was counted, with the evidence of each phase, but not judged. Raises
    ValueError if run.json is unusable."""
    about, evidence = run.about, evidence or {}
    phases = [
        {"phase": name, **NO_EVIDENCE, **evidence.get(name, {}), **phase.as_dict()}
        for name, phase in run.tally.phases.items()
    ]
    return RunRecord.model_validate(
        {
            "schema": SCHEMA,
            "run_id": about["run_id"],
            "package_version": __version__,
            "cluster": about["cluster"],
            "backend": about["backend"],
            "hardware": about["hardware"],
            "evidence": str(run.directory.root),
            "begun": about["begun"],
            "written": time.time(),
            "attached": [mark["time"] for mark in about.get("attached", ())],
            "request": read_request(about),
            **UNJUDGED,
            **run.tally.as_dict(),
            "absent_phases": list(run.absences),
            "phases": phases,
            **({} if run.proof is None else {"proof": run.proof}),
            **({} if run.screen is None else {"screen": run.screen}),
        }
    )


def make_record(run: FinishedRun) -> RunRecord:
    """The complete record of a finished run. Raises ValueError if run.json is unusable."""
    results = {name: run.results.get(name) or _read_phase(run, name) for name in run.tally.phases}
    evidence = {name: describe_phase(result, run) for name, result in results.items()}
    record = count_run(run, evidence)
    shares = measure_peak_shares(results)
    for phase in record.phases:
        if share := shares.get(phase.phase):
            phase.peak_share, phase.dense_share = share.measured, share.dense
    store_verdict(record, judge_record(record))
    collector = FactsCollector()
    for result in results.values():
        collector.add(result)
    record.nodes = collector.records()
    record.differences = find_differences([*record.nodes, *run.screened])
    record.named_nodes = name_nodes(record)
    if run.acknowledgements is not None:
        record.known_remarks = run.acknowledgements.remarks(record)
    run.unread[:] = try_history(lambda: annotate(record, run.target.parent))
    return record


def try_history(work: Callable[[], None]) -> list[str]:
    """Read or write the history; a remark if that failed."""
    try:
        work()
    except HistoryUnusable as error:
        return [str(error)]
    except Exception as error:  # unforeseen damage: the report comes first
        return [sanitize_line(f"history: {type(error).__name__}: {error}")[:MAX_REMARK]]
    return []


def store_verdict(record: RunRecord, verdict: RunVerdict) -> None:
    """Write the verdict into the record that it was judged from."""
    record.verdict, record.sentence = verdict.name, verdict.sentence
    record.failed, record.known = verdict.failed, verdict.known
    record.missing, record.not_measured = verdict.missing, verdict.not_measured
    record.selection, record.partial = verdict.scope, verdict.partial


def _read_phase(run: FinishedRun, name: str) -> PhaseResult:
    """The evidence of a phase that this process has not read yet."""
    result = collect_phase(run.directory.phase(name))
    return with_bounds(result, run.profile) if run.profile else result


def describe_phase(result: PhaseResult, run: FinishedRun) -> dict[str, Any]:
    """What the job of a phase left behind, for its record."""
    fingerprint = fingerprint_of(result)
    return {
        **_describe_job(result, run),
        "world_size": result.world_size,
        "marks": _marks(result),
        "args": hide_values(result.args),
        "nodes": [
            NodeRecord(node_rank=node.node_rank, node=node.name, host=node.host)
            for node in result.nodes
        ],
        "ranks": rank_records(result),
        "versions": fingerprint.versions,
        "hardware": fingerprint.hardware,
        "shape": fingerprint.shape,
        "transport": result.transport_summary(),
        "topology": build_topology(result),
        "metrics": _metrics(result),
        "loss": mean_losses(result),
        "remarks": _remarks(result, run),
        "stage_seconds": result.stage_seconds(),
        "proven_steps": proven_steps_record(result),
        "peaks": peaks_record(result),
        "traces": trace_records(result),
        "collectives": read_curves(result.ranks),
        "progress": progress_record(result),
    }


def _describe_job(result: PhaseResult, run: FinishedRun) -> dict[str, Any]:
    """The fields of result.json; without one, what the journal says about the submission, and how
    the jobs before it ended."""
    job = {key: value for key, value in result.job.items() if key != "schema"}
    if job:
        return job
    journal = read_events(run.directory.journal)
    sent = [event for event in journal.named("submitted") if event.get("phase") == result.name]
    before = read_attempts(run.directory.phase(result.name))
    judgement, findings = judge_attempts(before, Judgement("lost", NEVER_ENDED), [])
    job_id = str(sent[-1].get("job_id")) if sent else ""
    attempts = [*before, PhaseAttempt(before[-1].number + 1, "lost", NEVER_ENDED)] if before else []
    return {
        "reason": judgement.reason,
        "job_id": job_id,
        "findings": [finding.as_dict() for finding in findings],
        **({"attempts": [attempt.as_record() for attempt in attempts]} if attempts else {}),
    }


def _marks(result: PhaseResult) -> list[str]:
    nodes = int(result.spec["nodes"])
    return [size_mark(nodes, result.world_size // nodes)] if nodes else []


def _metrics(result: PhaseResult) -> dict[str, MetricRecord]:
    metrics: dict[str, MetricRecord] = {}
    past = read_judgement(result.directory)
    for name, value in result.metrics().items():
        reference = result.references.get(name)
        comparison = compare(name, value, reference, result.resized)
        metrics[name] = MetricRecord(
            value=value,
            unit=METRICS[name].unit,
            higher_is_better=METRICS[name].higher_is_better,
            reference=_reference(reference),
            met=comparison.met,
            text=comparison.text,
            past=past.get(name),
        )
    return metrics


def _reference(reference: Reference | None) -> ReferenceRecord | None:
    if reference is None:
        return None
    return ReferenceRecord(
        value=reference.value, low=reference.low, high=reference.high, source=reference.source
    )


def _remarks(result: PhaseResult, run: FinishedRun) -> list[RemarkRecord]:
    """Remarks about environment variables, from what the nodes saw."""
    phase = run.phases.get(result.name)
    remarks = remark_on_job(result, phase, run.profile, os.environ) if phase and run.profile else []
    return [
        RemarkRecord(name=note.name, severity=note.severity, source=note.where, text=note.text)
        for note in remarks
    ]
