"""The way from this machine to the cluster: its commands, the run's directory, the reports."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..errors import Problem, UsageProblems
from ..locks import describe_run
from ..rundir import RunDir, check_path, create_run, write_json
from .mounts import exists

if TYPE_CHECKING:
    from ..cluster import Profile
    from ..phase import Phase
    from ..submit import Backend
    from .check import Checked

SLURM_COMMANDS = ("sbatch", "squeue", "scancel", "scontrol")


class Start(NamedTuple):
    """What a run starts with: its directory, the way to the cluster, and the question to the
    scheduler about all phases; None where there is no scheduler to ask."""

    run: RunDir
    backend: Backend
    check: Callable[[Iterable[Phase], RunDir], Checked] | None


def unusable(profile: Profile, phases: Iterable[Phase], report_dir: Path) -> list[Problem]:
    """Paths that cannot be written, or that sbatch would misread."""
    where = profile.where("shared_dir")
    found = check_path(profile.shared_dir, where, "choose another")
    found += _writable(profile.shared_dir, "the run directory", where)
    found += _writable(report_dir, "the reports", "--cluster-report-dir")
    for phase in phases:
        found += check_path(phase.script, f"phase `{phase.name}`", "move the suite")
    return found


def prepare(profile: Profile, run_id: str, environ: Mapping[str, str]) -> Start:
    """Make the run's directory and the way to the cluster. Raises UsageProblems."""
    from ..submit import make_backend

    environ, found = scheduler_environ(profile, environ)
    if found:
        raise UsageProblems(found)
    run = create_run(profile.shared_dir, run_id)
    write_json(run.run, describe_run(profile, run_id))
    backend = make_backend(profile, environ)
    if profile.backend != "slurm":
        return Start(run, backend, None)
    from .check import SlurmCheck

    return Start(run, backend, SlurmCheck(profile, backend, environ))


def scheduler_environ(
    profile: Profile, environ: Mapping[str, str]
) -> tuple[Mapping[str, str], list[Problem]]:
    """The environment for the scheduler's commands (with the lab's SLURM_CONF), and what lacks."""
    if profile.backend != "slurm":
        return environ, []
    from ..submit.slurm_client import find_command

    missing = [name for name in SLURM_COMMANDS if find_command(name, environ) is None]
    if missing:
        todo = "run this on a login node of the cluster"
        if profile.lab:
            todo = "run `clustersmoke lab install`, then `clustersmoke lab up`"
        what = f"no `{missing[0]}` on PATH, and {profile.name} is a Slurm cluster"
        return environ, [Problem(what, profile.where("backend"), "Slurm's commands", todo)]
    if not profile.lab:
        return environ, []
    from ..lab import LabError, find

    try:
        lab = find(environ)
    except LabError as error:
        return environ, [Problem(str(error), profile.where("lab"))]
    return {**environ, "SLURM_CONF": str(lab.slurm_conf)}, []


def _writable(directory: Path, what: str, where: str) -> list[Problem]:
    """Whether files can be made there when they are needed; nothing is made here yet."""
    there = next(path for path in (directory, *directory.parents) if exists(path))
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return []
    why = "cannot be written" if there.is_dir() else "is no directory"
    return [
        Problem(
            f"{what} would go to {directory}, but {there} {why}",
            where,
            "a directory that this user can write",
        )
    ]
