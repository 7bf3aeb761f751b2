"""The record of a run: what report.json holds, and all else is rendered from it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, cast

from .. import __version__
from ..environment import seen
from ..history.past_criterion import read_judgement
from ..identity import identity
from ..marker import size_mark
from ..references import compare
from ..result import PhaseResult, collect
from ..telemetry import METRICS, plain, read_events
from ..verdict import Tally
from .differences import differences
from .model import SCHEMA, MetricRecord, PhaseRecord, ReferenceRecord, RunRecord
from .nodes import Facts, nodes
from .ranks import losses, ranks
from .topology import topology

if TYPE_CHECKING:
    from ..cluster import Profile, Reference
    from ..phase import Phase
    from ..rundir import RunDir

# What result.json says of a phase's job; of a job that nobody saw end it says nothing.
JOB: dict[str, Any] = {
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
class Run:
    """What a record is made from: the run's directory, what was asked, and what was heard."""

    directory: RunDir
    about: Mapping[str, Any]  # run.json
    tally: Tally
    profile: Profile | None
    phases: Mapping[str, Phase] = field(default_factory=dict)
    absences: tuple[str, ...] = ()
    partial: str = ""


def make_record(run: Run) -> RunRecord:
    """The record of a run that is over, as plain data."""
    about, tally = run.about, run.tally
    phases, facts = [], Facts()
    for name in tally.chosen:
        # One after the other, and without marks: what 512 ranks wrote down fills memory.
        result = collect(run.directory.phase(name), run.profile, all_marks=False)
        phases.append(phase_record(result, run))
        facts.add(result)
    told = facts.records()
    record = {
        "schema": SCHEMA,
        "run_id": about["run_id"],
        "package_version": __version__,
        "cluster": about["cluster"],
        "backend": about["backend"],
        "hardware": about["hardware"],
        "evidence": str(run.directory.root),
        "begun": about["begun"],
        "written": time.time(),
        **tally.as_dict(),
        "partial": run.partial,
        "absent_phases": list(run.absences),
        "changes": [],
        "nodes": told,
        "differences": differences(told),
        "phases": phases,
    }
    return cast(RunRecord, plain(record))


def phase_record(result: PhaseResult, run: Run) -> PhaseRecord:
    """All that is known of one phase."""
    who = identity(result)
    record = {
        **_job(result, run),
        "phase": result.name,
        "known": run.tally.known_phases.get(result.name),
        "world_size": result.world_size,
        "marks": _marks(result),
        "args": dict(result.args),
        "nodes": nodes(result),
        "ranks": ranks(result),
        "versions": who.versions,
        "hardware": who.hardware,
        "shape": who.shape,
        "transport": result.transport_summary(),
        "topology": topology(result),
        "metrics": _metrics(result),
        "loss": losses(result),
        "trend": None,
        "changed": [],
        "remarks": _remarks(result, run),
        "stage_seconds": result.stage_seconds(),
        "criteria": run.tally.criteria.get(result.name, {}),
        "all_criteria": run.tally.heard_all(result.name),
        "not_measured": sorted(run.tally.unmeasured.get(result.name, set())),
    }
    return cast(PhaseRecord, record)


def _job(result: PhaseResult, run: Run) -> dict[str, Any]:
    """What result.json says; where there is none, what the journal says of the submission."""
    said = {key: value for key, value in result.job.items() if key != "schema"}
    if not said:
        journal = read_events(run.directory.journal)
        sent = [one for one in journal.named("submitted") if one.get("phase") == result.name]
        said = {"reason": NEVER_ENDED, "job_id": str(sent[-1].get("job_id")) if sent else ""}
    return {**JOB, **said}


def _marks(result: PhaseResult) -> list[str]:
    nodes = int(result.spec["nodes"])
    return [size_mark(nodes, result.world_size // nodes)] if nodes else []


def _metrics(result: PhaseResult) -> dict[str, MetricRecord]:
    found: dict[str, MetricRecord] = {}
    past = read_judgement(result.directory)
    for name, value in result.metrics().items():
        reference = result.references.get(name)
        comparison = compare(name, value, reference)
        found[name] = {
            "value": value,
            "unit": METRICS[name].unit,
            "higher_is_better": METRICS[name].higher_is_better,
            "reference": _reference(reference),
            "met": comparison.met,
            "text": comparison.text,
            "past": past.get(name),
        }
    return found


def _reference(reference: Reference | None) -> ReferenceRecord | None:
    if reference is None:
        return None
    return {
        "value": reference.value,
        "low": reference.low,
        "high": reference.high,
        "source": reference.source,
    }


def _remarks(result: PhaseResult, run: Run) -> list[dict[str, Any]]:
    """What is to be said of the variables that the nodes saw."""
    phase = run.phases.get(result.name)
    found = seen(result, phase, run.profile, os.environ) if phase and run.profile else []
    return [asdict(remark) for remark in found]
