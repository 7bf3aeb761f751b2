"""`--cluster-here`: the allocation in which the phases shall run as steps, and which of them fit.

Without an allocation, or if no phase fits, nothing can run: usage errors. If only some fit, the
others never run, each with a finding that says why.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping

from ..config.phase import Phase
from ..config.profile import Profile
from ..evidence.finding import Finding
from ..evidence.run_directory import RunDir
from ..jobs.slurm_client import SlurmClient, SlurmUnavailable, find_command
from ..jobs.slurm_jobs import Allocation
from ..jobs.step_request import StepMisfit, StepRequest
from ..text import Problem
from .partition_fit import setting_evidence
from .slurm_check import ANSWER_S, CheckNotes, CheckResult

OPTION = "--cluster-here"
EXPECTED = "a running allocation of this user"
TODO = (
    "run pytest in one (`salloc --nodes=N ... pytest ...`), or omit --cluster-here to submit jobs"
)


class AllocationCheck:
    """Compares phases with the allocation once more when the run starts, before any step does."""

    def __init__(self, profile: Profile, environ: Mapping[str, str]) -> None:
        self._profile, self._environ = profile, environ

    def __call__(self, phases: Iterable[Phase], run: RunDir) -> CheckResult:
        allocation = find_allocation(self._environ)
        if isinstance(allocation, Problem):
            return CheckResult(lines=(f"not checked: {allocation}",))
        findings = {}
        for phase, misfit in find_misfits(allocation, self._profile, phases):
            notes = CheckNotes(run.phase(phase.name))
            evidence = notes.note(allocation.text)
            notes.write()
            findings[phase.name] = [
                Finding(
                    "allocation-too-short" if misfit.is_time else "allocation-too-small",
                    f"phase {phase.name} does not fit allocation {allocation.job_id}: "
                    f"{misfit.what}",
                    misfit.todo,
                    evidence=(*setting_evidence(misfit.setting, misfit.name), evidence),
                )
            ]
        return CheckResult(findings)


def find_allocation_problems(
    profile: Profile, phases: Iterable[Phase], environ: Mapping[str, str]
) -> tuple[list[Problem], list[str]]:
    """Why nothing can run in this allocation; if some phases can, a line on each that cannot."""
    phases = list(phases)
    if profile.backend != "slurm":
        what = f"the backend of `{profile.name}` is `{profile.backend}`, which has no allocations"
        return [Problem(what, OPTION, "a cluster with Slurm", f"omit {OPTION}")], []
    missing = [name for name in ("srun", "scontrol") if find_command(name, environ) is None]
    if missing:
        what = f"no `{missing[0]}` on PATH"
        return [Problem(what, OPTION, "Slurm's commands", "run this in an allocation")], []
    allocation = find_allocation(environ)
    if isinstance(allocation, Problem):
        return [allocation], []
    misfits = find_misfits(allocation, profile, phases)
    if len(misfits) == len(phases):
        return [
            Problem(
                f"no selected phase fits allocation {allocation.job_id}; phase `{phase.name}`: "
                f"{misfit.what}",
                misfit.setting.source,
                todo=misfit.todo,
            )
            for phase, misfit in misfits
        ], []
    return [], [
        f"{phase.name} does not fit allocation {allocation.job_id} and will not run: {misfit.what}"
        for phase, misfit in misfits
    ]


def find_allocation(environ: Mapping[str, str]) -> Allocation | Problem:
    """The allocation that these variables name, or why steps cannot run in it."""
    job_id = environ.get("SLURM_JOB_ID", "")
    if not job_id.isdigit():
        return Problem("SLURM_JOB_ID names no allocation", OPTION, EXPECTED, TODO)
    try:
        allocation = SlurmClient(environ, ANSWER_S).allocation(job_id)
    except SlurmUnavailable as error:
        what = f"Slurm does not show job {job_id}, which SLURM_JOB_ID names: {error}"
        return Problem(what, OPTION, EXPECTED, TODO)
    if not allocation.runs:
        state = allocation.state.raw or "unknown to Slurm"
        what = f"job {job_id}, which SLURM_JOB_ID names, is {state}"
        return Problem(what, OPTION, EXPECTED, TODO)
    if allocation.uid not in (None, os.getuid()):
        what = f"job {job_id}, which SLURM_JOB_ID names, belongs to the user {allocation.uid}"
        return Problem(what, OPTION, EXPECTED, TODO)
    return allocation


def find_misfits(
    allocation: Allocation, profile: Profile, phases: Iterable[Phase]
) -> list[tuple[Phase, StepMisfit]]:
    """The phases that this allocation could not run even one after the other."""
    now = time.time()
    pairs = ((phase, StepRequest(phase, profile).find_misfit(allocation, now)) for phase in phases)
    return [(phase, misfit) for phase, misfit in pairs if misfit is not None]
