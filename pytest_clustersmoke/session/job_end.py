"""The end of a phase's job: its judgement and findings, and the `result.json` that has them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .. import diagnose
from ..config.profile import Profile
from ..diagnose.node_findings import check_warnings
from ..evidence.file_problems import is_full
from ..evidence.finding import Finding
from ..evidence.phase_result import PhaseResult, collect_phase
from ..evidence.run_directory import PhaseDir, write_json
from ..evidence.scheduler_record import JobState
from ..evidence.telemetry import to_json_value
from ..jobs.backend import Backend
from ..jobs.job_watch import WatchedJob
from ..jobs.outcome import Judgement, job_times, judge_job
from ..report.run_archive import name_archived


def judge_end(
    job: WatchedJob, backend: Backend | None, cancelled: Judgement | None
) -> tuple[PhaseResult, Judgement, list[Finding]]:
    """Read the evidence of a job that is over, and judge it. `backend`: to be asked for details;
    `cancelled`: the judgement if this run ended the job."""
    result = collect_phase(job.directory, job.results)
    for attempt in job.directory.attempts():
        for node in range(job.nodes):  # a node that was killed has left it
            with contextlib.suppress(OSError):
                attempt.node_environment(node).unlink(missing_ok=True)
    result = job.save_details(backend, result)
    if backend is not None and job.holds_nodes:
        job.cancel(backend)  # after its details, which would show the cancellation
    judgement = judge_job(result, job.last_state(), cancelled)
    findings = [] if judgement.outcome == "passed" else diagnose.diagnose(result, judgement)
    if judgement.outcome == "failed":  # the reason that a node gave may be a consequence
        judgement = Judgement("failed", findings[0].cause)
    return result, judgement, findings + check_warnings(result)


def write_result(
    directory: PhaseDir,
    profile: Profile,
    result: PhaseResult | None,
    judgement: Judgement,
    job_id: str,
    state: JobState | None,
    findings: Sequence[Finding],
    submitted: float | None,
    marks: Mapping[str, Any],
) -> PhaseResult:
    """Write the phase's result, and return its evidence with it. `marks` are further fields;
    `result`: the evidence, if it was read already. If there is no room for the file, this process
    alone knows the result, with a finding. Raises OSError."""
    result = result or collect_phase(directory)
    found = [name_archived(each, directory, profile.file) for each in findings]
    values = {
        "schema": 1,
        "phase": directory.root.name,
        "job_id": job_id,
        "outcome": judgement.outcome,
        "reason": judgement.reason,
        **marks,
        "scheduler_state": state.raw if state else "",
        "scheduler_nodes": state.nodes if state else "",
        **job_times(result, state, submitted),
        "findings": [finding.as_dict() for finding in found],
    }
    record = to_json_value(values)
    try:
        write_json(directory.result, record)
    except OSError as error:
        if not is_full(error):
            raise
        record["findings"] = _add_lack_of_room(record["findings"], profile, judgement)
    return replace(result, job=record)


def _add_lack_of_room(
    findings: list[dict[str, Any]], profile: Profile, judgement: Judgement
) -> list[dict[str, Any]]:
    """The findings of a phase whose result has no room in the shared directory. Of one that passed
    that is a warning: its evidence was read."""
    lost = "the phase's result could not be written there"
    is_cause = judgement.outcome != "passed"
    full = diagnose.explain_full_directory(profile.shared_dir, lost, is_cause).as_dict()
    return findings if full["id"] in {found["id"] for found in findings} else [full, *findings]
