"""What the scheduler would not run, told beside usage errors: nobody mends these only to hear next
what Slurm has against the rest."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..config.phase import Phase
from ..config.profile import Profile
from ..evidence.finding import Finding
from ..evidence.locks import describe_run
from ..evidence.run_directory import RunDir, check_path, create_run, write_json
from ..jobs.backend import Backend
from ..text import Problem, UsageProblems
from .mounts import exists

if TYPE_CHECKING:
    from .slurm_check import Checked


def refusals(
    profile: Profile, phases: Iterable[Phase], environ: Mapping[str, str]
) -> list[Problem]:
    """Slurm's findings about these phases; none where it cannot be asked. No run is made of it:
    the batch scripts that sbatch is shown are gone when this returns."""
    phases = list(phases)
    if profile.backend != "slurm" or not phases or missing_commands(profile, environ):
        return []
    from ..jobs.backend import make_backend
    from .slurm_check import SlurmCheck

    try:
        with tempfile.TemporaryDirectory(prefix="clustersmoke-") as folder:
            ask = SlurmCheck(profile, make_backend(profile, environ), environ)
            found = ask(phases, RunDir(Path(folder) / "refused")).findings
            told = [_problem(one, folder) for findings in found.values() for one in findings]
    except Exception:  # whatever it is, it will come again, and must not hide the usage errors
        return []
    return list(dict.fromkeys(told))


def _problem(finding: Finding, folder: str) -> Problem:
    """A finding at the line of the setting; Slurm's own lines are in no file that stays."""
    written = [one for one in finding.evidence if not one.file.startswith(folder)]
    where = f"{written[0].file}:{written[0].line}" if written else ""
    return Problem(finding.cause, where, todo=finding.fix)


# The way from this machine to the cluster: its commands, the run's directory, the reports.

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
    """Make the run's directory and the backend. `environ`: the user's, with the lab's SLURM_CONF
    where the profile is a lab's. Raises UsageProblems."""
    from ..jobs.backend import make_backend

    if missing := missing_commands(profile, environ):
        raise UsageProblems(missing)
    run = create_run(profile.shared_dir, run_id)
    write_json(run.run, describe_run(profile, run_id))
    backend = make_backend(profile, environ)
    if profile.backend != "slurm":
        return Start(run, backend, None)
    from .slurm_check import SlurmCheck

    return Start(run, backend, SlurmCheck(profile, backend, environ))


def missing_commands(profile: Profile, environ: Mapping[str, str]) -> list[Problem]:
    """Slurm's commands that are not on PATH, as one problem; none for other backends."""
    if profile.backend != "slurm":
        return []
    from ..jobs.slurm_client import find_command

    missing = [name for name in SLURM_COMMANDS if find_command(name, environ) is None]
    if not missing:
        return []
    todo = "run this on a login node of the cluster"
    if profile.lab:
        todo = "run `clustersmoke lab install`, then `clustersmoke lab up`"
    what = f"no `{missing[0]}` on PATH, but {profile.name} is a Slurm cluster"
    return [Problem(what, profile.where("backend"), "Slurm's commands", todo)]


def _writable(directory: Path, what: str, where: str) -> list[Problem]:
    """Whether files can be made there when they are needed; nothing is made here yet."""
    there = next(path for path in (directory, *directory.parents) if exists(path))
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return []
    why = "cannot be written" if there.is_dir() else "is not a directory"
    return [
        Problem(
            f"{what} would go to {directory}, but {there} {why}",
            where,
            "a directory that this user can write",
        )
    ]
