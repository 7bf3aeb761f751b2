"""The end of a phase's job: its judgement and findings, and the `result.json` that has them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..config.hostlist import expand_hostlist
from ..config.phase import SETUP_S, Phase, has_default_timeout
from ..config.profile import Profile
from ..evidence.finding import Finding
from ..evidence.phase_attempts import NODE_FAILED, PhaseAttempt
from ..evidence.phase_result import PhaseResult, collect_phase
from ..evidence.run_directory import PhaseDir, write_json
from ..evidence.telemetry import to_json_value
from ..evidence.whole_files import is_full
from ..jobs.backend import Backend
from ..jobs.job_watch import WatchedJob
from ..jobs.outcome import OVERDUE, Judgement, job_times, judge_attempts, judge_job
from ..node.abort_flag import visible
from .phase_ledger import find_failed_nodes


def judge_end(
    job: WatchedJob,
    backend: Backend | None,
    cancelled: Judgement | None,
    end: Callable[[WatchedJob], object] | None = None,
) -> tuple[PhaseResult, Judgement, list[Finding]]:
    """Read the evidence of a job that is over, and judge it. `backend`: to be asked for details;
    `cancelled`: the judgement if this run ended the job; `end`: what ends one that still holds its
    nodes."""
    # Loaded while jobs run (early_load), since it would hold up the first submission.
    from .. import diagnose
    from ..criteria.hardware_health import warn_of_devices
    from ..diagnose.node_findings import check_warnings

    result = collect_phase(job.directory, job.results)
    result = replace(result, job={**result.job, "job_id": job.job_id})
    for attempt in job.directory.attempts():
        for node in range(job.nodes):  # a node that was killed has left it
            with contextlib.suppress(OSError):
                attempt.node_environment(node).unlink(missing_ok=True)
    result = job.save_details(backend, result)
    if backend is not None and end is not None and job.holds_nodes:
        end(job)  # after its details, which would show the cancellation
    judgement = judge_job(result, job.last_state(), cancelled)
    findings = [] if judgement.outcome == "passed" else diagnose.diagnose(result, judgement)
    if judgement.outcome == "failed":  # the reason that a node gave may be a consequence
        judgement = Judgement("failed", findings[0].cause)
    return result, judgement, findings + check_warnings(result) + warn_of_devices(result)


def judge_overdue(job: WatchedJob, phase: Phase, profile: Profile) -> Judgement | None:
    """The judgement of a job that nothing else would end: it runs for twice as long as its phase
    and `setup` may take. Its node ends the ranks before, unless it stands still itself. None of any
    other job."""
    limit_s = 2 * (job.timeout_s + SETUP_S)
    if job.running_since is None or time.monotonic() - job.running_since <= limit_s:
        return None
    has_limit = "time" in phase.slurm or not has_default_timeout(phase)
    if profile.backend == "ssh" or (profile.backend == "slurm" and has_limit):
        return None  # the host, or Slurm, ends it
    where = f" on {job.allocated}" if job.allocated else ""
    ran = f"job {job.job_id} has run{where} for {limit_s:.0f} s, and nothing ends it"
    if visible(job.directory.claim):
        return Judgement("lost", f"{ran}: the process of its node stands still", OVERDUE)
    return Judgement("never_ran", f"{ran}: `setup`, or the start of Python, hangs", OVERDUE)


def judge_order(name: str, before: Judgement) -> tuple[Judgement, list[Finding]]:
    """The end of a phase that does not run, since the one of this name, which it runs after, did
    not pass."""
    from ..diagnose import explain_order

    finding = explain_order(name, before)
    return Judgement("never_ran", finding.cause), [finding]


def describe_end(
    job: WatchedJob,
    judgement: Judgement,
    findings: Sequence[Finding],
    result: PhaseResult,
    submitted: float | None,
    profile: Profile,
) -> PhaseAttempt:
    """How a job of a phase ended, for the record of the phase's attempts. `submitted`: when, in
    Unix seconds."""
    directory = PhaseDir(job.directory.phase)
    times = job_times(result, job.state, submitted, judgement.outcome)
    failed = judgement.outcome == NODE_FAILED
    return PhaseAttempt(
        job.directory.number,
        judgement.outcome,
        judgement.reason,
        job.job_id,
        tuple(expand_hostlist(job.allocated)) or tuple(node.name for node in result.nodes),
        find_failed_nodes(job.allocated, job.nodes, findings) if failed else (),
        submitted,
        times["ended"],
        times["queue_s"],
        times["run_s"],
        tuple(_name_archived(findings, directory, profile)),
    )


def _name_archived(
    findings: Iterable[Finding], directory: PhaseDir, profile: Profile
) -> list[Finding]:
    """The findings with the files of their evidence as the report has them."""
    from ..report.run_archive import name_archived  # early_load

    return [name_archived(each, directory, profile.file) for each in findings]


@dataclass(frozen=True)
class WrittenResult:
    """A phase's evidence with its result, its judgement, and why the disk did not take it."""

    result: PhaseResult
    judgement: Judgement
    error: OSError | None = None


def write_result(
    directory: PhaseDir,
    profile: Profile,
    result: PhaseResult | None,
    last: Judgement,
    job: WatchedJob | None,
    findings: Sequence[Finding],
    submitted: float | None,
    marks: Mapping[str, Any],
    before: Sequence[PhaseAttempt] = (),
) -> WrittenResult:
    """Write the phase's result, by the judgement of its last job and by those `before`. `marks` are
    further fields; `result`: the evidence of the last job, if it was read already."""
    result, state = result or collect_phase(directory), job.state if job else None
    attempts = _list_attempts(before, job, last, result, submitted, profile)
    judgement, findings = judge_attempts(before, last, findings, profile.limits.retried == "pass")
    found = _name_archived(findings, directory, profile)
    restarts = result.directory.restarts
    paused_s = max(
        (node.paused_s for attempt in (*result.earlier, result) for node in attempt.nodes),
        default=0.0,
    )
    values = {
        "schema": 1,
        "phase": directory.name,
        "job_id": job.job_id if job else "",
        "outcome": judgement.outcome,
        "reason": judgement.reason,
        **marks,
        **({"attempts": [attempt.as_record() for attempt in attempts]} if attempts else {}),
        **({"requeues": restarts} if restarts else {}),
        **({"suspended_s": paused_s} if paused_s else {}),
        "scheduler_state": state.raw if state else "",
        "scheduler_nodes": state.nodes if state else "",
        **job_times(result, state, submitted, last.outcome),
        "findings": [finding.as_dict() for finding in found],
    }
    record = to_json_value(values)
    written = WrittenResult(replace(result, job=record), judgement)
    try:
        write_json(directory.result, record)
    except OSError as error:
        if not is_full(error):
            raise
        record["findings"] = _add_lack_of_room(record["findings"], profile, judgement)
        return WrittenResult(replace(result, job=record), judgement, error)
    return written


def _add_lack_of_room(
    findings: list[dict[str, Any]], profile: Profile, judgement: Judgement
) -> list[dict[str, Any]]:
    """The findings of a phase whose result has no room in the shared directory. Of one that passed
    that is a warning: its evidence was read."""
    from .. import diagnose

    lost = "the phase's result could not be written there"
    is_cause = judgement.outcome != "passed"
    full = diagnose.explain_full_directory(profile.shared_dir, lost, is_cause).as_dict()
    return findings if full["id"] in {found["id"] for found in findings} else [full, *findings]


def _list_attempts(
    before: Sequence[PhaseAttempt],
    job: WatchedJob | None,
    last: Judgement,
    result: PhaseResult,
    submitted: float | None,
    profile: Profile,
) -> list[PhaseAttempt]:
    """All jobs of a phase that was tried again; none if it was not."""
    if not before:
        return []
    if job is None:
        return [*before, PhaseAttempt(before[-1].number + 1, last.outcome, last.reason)]
    return [*before, describe_end(job, last, (), result, submitted, profile)]
