"""Builds the record of a run from what its jobs left behind and from its verdict."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from .. import __version__
from ..config.marker import size_mark
from ..config.metrics import METRICS, compare
from ..config.phase import Phase
from ..config.profile import Profile, Reference
from ..criteria.past_criterion import read_judgement
from ..evidence.fingerprint import fingerprint_of
from ..evidence.phase_result import PhaseResult, collect_phase, with_bounds
from ..evidence.run_directory import RunDir
from ..evidence.run_record import (
    SCHEMA,
    MetricRecord,
    NodeRecord,
    PhaseRecord,
    ReferenceRecord,
    RemarkRecord,
    RunRecord,
)
from ..evidence.telemetry import read_events
from ..preflight.observed_variables import remark_on_job
from .acknowledgements import Acknowledgements
from .node_records import FactsCollector, find_differences
from .rank_records import mean_losses, rank_records
from .topology import build_topology
from .verdict import RunTally, RunVerdict

# The job fields of result.json, for a job whose end nobody observed.
JOB_UNKNOWN: dict[str, Any] = {
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
}
NEVER_ENDED = "the run ended before the job did"


@dataclass(frozen=True)
class FinishedRun:
    """A run whose jobs have ended: its directories, run.json, tally and verdict."""

    directory: RunDir
    target: Path  # its report
    about: Mapping[str, Any]  # run.json
    tally: RunTally
    verdict: RunVerdict
    profile: Profile | None = None
    phases: Mapping[str, Phase] = field(default_factory=dict)
    absences: tuple[str, ...] = ()
    acknowledgements: Acknowledgements | None = None
    proof: Mapping[str, Any] | None = None  # ProofRecord as plain data
    results: Mapping[str, PhaseResult] = field(default_factory=dict)  # already read

    @cached_property
    def record(self) -> RunRecord:
        """The record, from which every view is rendered."""
        return make_record(self)


def make_record(run: FinishedRun) -> RunRecord:
    """The record of a finished run. Raises ValueError if run.json is unusable."""
    results = {name: run.results.get(name) or _read_phase(run, name) for name in run.tally.phases}
    collector = FactsCollector()
    for result in results.values():
        collector.add(result)
    entries = run.acknowledgements
    about, verdict, nodes = run.about, run.verdict, collector.records()
    proof = {} if run.proof is None else {"proof": run.proof}
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
            "verdict": verdict.name,
            "sentence": verdict.sentence,
            "failed": verdict.failed,
            "not_measured": verdict.not_measured,
            "missing": [asdict(missing) for missing in verdict.missing],
            "known": [asdict(known) for known in verdict.known],
            "known_remarks": entries.remarks(run.tally, results) if entries else [],
            "phases_chosen": list(run.tally.phases),
            "phases_of_cluster": run.tally.phases_of_cluster,
            "selection": verdict.scope,
            "interrupted": run.tally.interrupted,
            "partial": verdict.partial,
            "absent_phases": list(run.absences),
            "changes": [],
            "nodes": nodes,
            "differences": find_differences(nodes),
            "phases": [phase_record(result, run) for result in results.values()],
            **proof,
        }
    )


def _read_phase(run: FinishedRun, name: str) -> PhaseResult:
    """The evidence of a phase that this process has not read yet."""
    result = collect_phase(run.directory.phase(name))
    return with_bounds(result, run.profile) if run.profile else result


def phase_record(result: PhaseResult, run: FinishedRun) -> PhaseRecord:
    """Everything known about one phase."""
    fingerprint, counted = fingerprint_of(result), run.tally.phases[result.name]
    return PhaseRecord.model_validate(
        {
            **_job(result, run),
            "phase": result.name,
            "known": asdict(counted.known) if counted.known else None,
            "world_size": result.world_size,
            "marks": _marks(result),
            "args": dict(result.args),
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
            "trend": None,
            "changed": [],
            "remarks": _remarks(result, run),
            "stage_seconds": result.stage_seconds(),
            "criteria": {name: criterion.as_dict() for name, criterion in counted.criteria.items()},
            "all_criteria": counted.all_reported,
            "not_measured": sorted(counted.unmeasured),
        }
    )


def _job(result: PhaseResult, run: FinishedRun) -> dict[str, Any]:
    """The fields of result.json; without one, what the journal says about the submission."""
    job = {key: value for key, value in result.job.items() if key != "schema"}
    if not job:
        journal = read_events(run.directory.journal)
        sent = [event for event in journal.named("submitted") if event.get("phase") == result.name]
        job = {"reason": NEVER_ENDED, "job_id": str(sent[-1].get("job_id")) if sent else ""}
    return {**JOB_UNKNOWN, **job}


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
