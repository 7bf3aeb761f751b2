"""What the scheduler would not run, told beside usage errors: nobody mends these only to hear next
what Slurm has against the rest."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import Problem
from ..findings import Finding
from ..rundir import RunDir
from .way import scheduler_environ

if TYPE_CHECKING:
    from ..cluster import Profile
    from ..phase import Phase


def refusals(
    profile: Profile, phases: Iterable[Phase], environ: Mapping[str, str]
) -> list[Problem]:
    """Slurm's findings about these phases; none where it cannot be asked. No run is made of it:
    the batch scripts that sbatch is shown are gone when this returns."""
    phases = list(phases)
    environ, unusable = scheduler_environ(profile, environ)
    if profile.backend != "slurm" or unusable or not phases:
        return []
    from ..submit import make_backend
    from .check import SlurmCheck

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
