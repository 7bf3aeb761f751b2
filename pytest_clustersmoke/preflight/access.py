"""Access to the cluster: Slurm's commands, directories that can be written, and Slurm's refusals.

Refusals are reported together with usage errors, so that users can fix both at once.
"""

from __future__ import annotations

import os
import pwd
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ..config.phase import Phase
from ..config.profile import Profile
from ..evidence.finding import Finding
from ..evidence.locks import describe_run
from ..evidence.run_directory import RunDir, write_json
from ..evidence.run_ownership import create_run
from ..jobs.backend import Backend
from ..text import FAILURE, WARNING, Problem, UsageProblems
from .mounts import exists
from .slurm_check import CheckResult, SlurmCheck


def find_slurm_problems(
    profile: Profile, phases: Iterable[Phase], environ: Mapping[str, str]
) -> list[Problem]:
    """Slurm's findings about these phases; empty if Slurm cannot be asked.

    No run is created: the batch scripts for sbatch are deleted before this returns.
    """
    phases = list(phases)
    if profile.backend != "slurm" or not phases or find_missing_commands(profile, environ):
        return []
    from ..jobs.backend import make_backend

    try:
        with tempfile.TemporaryDirectory(prefix="clustersmoke-") as folder:
            check = SlurmCheck(profile, make_backend(profile, environ), environ)
            by_phase = check(phases, RunDir(Path(folder) / "refused")).findings
            problems = [
                _to_problem(finding, folder)
                for findings in by_phase.values()
                for finding in findings
            ]
    except Exception:  # must not hide the usage errors; the next run will meet it again
        return []
    return list(dict.fromkeys(problems))


def _to_problem(finding: Finding, folder: str) -> Problem:
    """A finding as a problem at the setting's line; the file with Slurm's lines is deleted."""
    settings = [line for line in finding.evidence if not line.file.startswith(folder)]
    where = f"{settings[0].file}:{settings[0].line}" if settings else ""
    return Problem(finding.cause, where, todo=finding.fix)


SLURM_COMMANDS = ("sbatch", "squeue", "scancel", "scontrol")


class Start(NamedTuple):
    """What a run starts with: its directory, its backend, and the check of all phases by the
    scheduler, which is None without a scheduler."""

    run: RunDir
    backend: Backend
    check: Callable[[Iterable[Phase], RunDir], CheckResult] | None


def find_unusable_paths(
    profile: Profile, phases: Iterable[Phase], report_dir: Path
) -> list[Problem]:
    """Find paths that cannot be written or that sbatch would misread."""
    where = profile.where("shared_dir")
    problems = check_path(profile.shared_dir, where, "choose another")
    problems += _check_writable(profile.shared_dir, "the run directory", where)
    problems += _check_writable(report_dir, "the reports", "--cluster-report-dir")
    problems += (each for each in _check_trust(profile) if each.severity != WARNING)
    for phase in phases:
        problems += check_path(phase.script, f"phase `{phase.name}`", "move the suite")
    return problems


def remark_on_access(profile: Profile) -> list[str]:
    """Remarks on directories above `shared_dir` in which a group can replace others' files."""
    return [str(problem) for problem in _check_trust(profile) if problem.severity == WARNING]


def prepare_run(
    profile: Profile,
    run_id: str,
    environ: Mapping[str, str],
    here: bool = False,
    attached: RunDir | None = None,
) -> Start:
    """Create the run's directory, unless it is `attached`, and the backend; raises UsageProblems.

    `environ` is the user's, with the lab's SLURM_CONF if the profile is a lab's; `here`: in the
    allocation that it names.
    """
    from ..jobs.backend import make_backend

    if missing := find_missing_commands(profile, environ):
        raise UsageProblems(missing)
    run = attached or create_run(profile.shared_dir, run_id)
    if attached is None:
        _write_run(run, profile)
    backend = make_backend(profile, environ, here)
    if profile.backend == "ssh":
        from ..jobs.ssh_backend import SshBackend
        from .host_check import HostCheck

        assert isinstance(backend, SshBackend)
        return Start(run, backend, HostCheck(profile, backend))
    if profile.backend != "slurm":
        return Start(run, backend, None)
    if here:
        from .allocation_check import AllocationCheck

        return Start(run, backend, AllocationCheck(profile, environ))
    return Start(run, backend, SlurmCheck(profile, backend, environ))


def _write_run(run: RunDir, profile: Profile) -> None:
    """Write run.json. Raises UsageProblems."""
    try:
        write_json(run.run, describe_run(profile, run.run_id))
    except OSError as error:
        what = f"{run.run} cannot be written ({error.strerror or error})"
        expected = "a directory with room for the files of a run"
        raise UsageProblems([Problem(what, profile.where("shared_dir"), expected)]) from error


def find_missing_commands(profile: Profile, environ: Mapping[str, str]) -> list[Problem]:
    """Report commands of Slurm, or `ssh`, that are not on PATH as one problem."""
    if profile.backend == "local":
        return []
    from ..jobs.slurm_client import find_command

    if profile.backend == "ssh":
        if find_command("ssh", environ):
            return []
        what = f"no `ssh` on PATH, but {profile.name} is a cluster that it reaches"
        return [Problem(what, profile.where("backend"), "OpenSSH's client", "install it")]

    missing = [name for name in SLURM_COMMANDS if find_command(name, environ) is None]
    if not missing:
        return []
    todo = "run this on a login node of the cluster"
    if profile.lab:
        todo = "run `clustersmoke lab install`, then `clustersmoke lab up`"
    text = f"no `{missing[0]}` on PATH, but {profile.name} is a Slurm cluster"
    return [Problem(text, profile.where("backend"), "Slurm's commands", todo)]


def _check_writable(directory: Path, role: str, where: str) -> list[Problem]:
    """Check that files can be created there later; nothing is created now."""
    nearest = next(path for path in (directory, *directory.parents) if exists(path))
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return []
    why = "cannot be written" if nearest.is_dir() else "is not a directory"
    return [
        Problem(
            f"{role} would go to {directory}, but {nearest} {why}",
            where,
            "a directory that this user can write",
        )
    ]


def _check_trust(profile: Profile) -> Iterator[Problem]:
    """Find directories in which other users could replace the run's directory, from which a job
    loads its code: `shared_dir`, and those above it. Where only a group can do so above it, that is
    a warning, since each job checks whose directory it opens."""
    shared, where = profile.shared_dir, profile.where("shared_dir")
    above = [*shared.parents, *Path(os.path.realpath(shared)).parents]
    for folder in dict.fromkeys([shared, *above]):
        info = folder.stat() if exists(folder) else None
        why = _why_untrusted(info, is_above=folder != shared) if info else ""
        if not info or not why:
            continue
        owner, mode = _name_user(info.st_uid), stat.S_IMODE(info.st_mode)
        nodes = "hosts" if profile.backend == "ssh" else "nodes"
        what = (
            f"{folder} {why} (owner {owner}, mode {mode:04o}), and whoever can write there can "
            f"replace the files that the {nodes} run"
        )
        expected, todo = "a directory that only this user or root can write, or a sticky one", ""
        severity = WARNING if folder != shared and not mode & stat.S_IWOTH else FAILURE
        if severity == FAILURE:
            todo = _close_directory(folder, info)
        yield Problem(what, where, expected, todo, severity=severity)


def _why_untrusted(info: os.stat_result, is_above: bool) -> str:
    """Why other users can replace what lies in a directory; empty if they cannot, as far as that
    matters of one `is_above` the shared directory."""
    if not is_above and info.st_uid not in (0, os.getuid()):
        return "belongs to another user"
    if info.st_mode & stat.S_ISVTX:
        return ""
    if info.st_mode & stat.S_IWOTH:
        return "can be written by every user"
    return "can be written by its group" if info.st_mode & stat.S_IWGRP else ""


def _close_directory(folder: Path, info: os.stat_result) -> str:
    """What to do about a directory that others can write."""
    if info.st_uid == os.getuid():
        return f"`chmod go-w {folder}`"
    if info.st_mode & stat.S_IWOTH and not info.st_mode & stat.S_ISVTX:
        return f"ask its owner for `chmod +t {folder}`, or choose another `shared_dir`"
    own = folder / _name_user(os.getuid())
    return (
        f"make a directory of your own below it (`mkdir -m 700 {own}`) and set `shared_dir` to it"
    )


def _name_user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def check_path(path: Path, where: str, todo: str) -> list[Problem]:
    """Problems with characters that sbatch would misread: `%` starts one of its patterns, `\\` ends
    them, and a newline ends a line of the script."""
    names = {
        "%": "a `%`",
        "\\": "a backslash",
        "\n": "a newline",
        "\r": "a carriage return",
        "control": "a control character",
    }
    found = {"control" if char < " " and char not in names else char for char in str(path)}
    found |= {"control"} & {"control" for char in str(path) if char == "\x7f"}
    bad = [name for char, name in names.items() if char in found]
    if not bad:
        return []
    what = f"the path {str(path)!r} contains {' and '.join(bad)}, which sbatch would misread"
    return [Problem(what, where, "a path without it", todo)]
