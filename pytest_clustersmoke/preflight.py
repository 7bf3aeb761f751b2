"""What can be known to fail before anything is submitted; everything found at once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import Problem, UsageProblems
from .rundir import RunDir, check_path, create_run, write_json

if TYPE_CHECKING:
    from .cluster import Profile
    from .phase import Phase
    from .submit import Backend

SLURM_COMMANDS = ("sbatch", "squeue", "scancel", "scontrol")


def prepare(
    profile: Profile,
    phases: Iterable[Phase],
    run_id: str,
    report_dir: Path,
    environ: Mapping[str, str],
) -> tuple[RunDir, Backend]:
    """Check the way to the cluster and to the reports, and make the run's directory.

    Raises UsageProblems with all that is wrong; nothing was submitted then.
    """
    from .submit import make_backend

    environ, problems = scheduler_environ(profile, environ)
    problems += _directories(profile)
    problems += _reports(report_dir)
    for phase in phases:
        problems += check_path(phase.script, f"phase `{phase.name}`", "move the suite")
    if problems:
        raise UsageProblems(problems)
    run = create_run(profile.shared_dir, run_id)
    write_json(run.run, {"schema": 1, "run_id": run_id, "cluster": profile.name})
    return run, make_backend(profile, environ)


def scheduler_environ(
    profile: Profile, environ: Mapping[str, str]
) -> tuple[Mapping[str, str], list[Problem]]:
    """The environment for the scheduler's commands (with the lab's SLURM_CONF), and what lacks."""
    if profile.backend != "slurm":
        return environ, []
    from .submit.scheduler import which

    missing = [name for name in SLURM_COMMANDS if which(name, environ) is None]
    if missing:
        todo = "run this on a login node of the cluster"
        if profile.lab:
            todo = "run `clustersmoke lab install`, then `clustersmoke lab up`"
        what = f"no `{missing[0]}` on PATH, and {profile.name} is a Slurm cluster"
        return environ, [Problem(what, profile.where("backend"), "Slurm's commands", todo)]
    if not profile.lab:
        return environ, []
    from .lab import LabError, find

    try:
        lab = find(environ)
    except LabError as error:
        return environ, [Problem(str(error), profile.where("lab"))]
    return {**environ, "SLURM_CONF": str(lab.slurm_conf)}, []


def _directories(profile: Profile) -> list[Problem]:
    where = profile.where("shared_dir")
    problems = check_path(profile.shared_dir, where, "choose another `shared_dir`")
    for local in profile.node_local:
        if profile.shared_dir.is_relative_to(local):
            problems.append(
                Problem(
                    f"shared_dir {profile.shared_dir} lies under {local}, which every node has "
                    "for itself",
                    where,
                    "a directory that all nodes share",
                )
            )
    return problems


def _reports(report_dir: Path) -> list[Problem]:
    """Whether the report can be written when the run is over; nothing is made here yet."""
    there = next(path for path in (report_dir, *report_dir.parents) if path.exists())
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return []
    what = "cannot be written" if there.is_dir() else "is no directory"
    return [
        Problem(
            f"the reports would go to {report_dir}, but {there} {what}",
            "--cluster-report-dir",
            "a directory that this user can write",
        )
    ]
