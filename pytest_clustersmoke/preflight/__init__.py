"""Checks before submission: find what would fail before a GPU is used, and report it together.

Usage errors, known without a scheduler; a dry run reports those in the user's own files:

access.py               Slurm's commands, directories that can be written, Slurm's refusals
shared_paths.py         paths that every node must see; mounts.py: their file systems
phase_sizes.py          more nodes or GPUs than there are, or too few to show anything, or no time
precision.py            bf16 on hardware without it
unfit_launchers.py      launchers that cannot start a phase here, or need SSH
disk_space.py           space for what the phases write
transport_variables.py  variables that rule out the expected transports

Findings from Slurm, which is asked once for all phases when the run starts:

slurm_check.py          the questions, and everything that keeps a phase from running
partition_fit.py        a phase compared with partitions and nodes
account_limits.py       a phase compared with accounts, QOS and their limits

With --cluster-here:

allocation_check.py     a phase compared with the allocation in which it shall run

Remarks about environment variables, which never change a verdict:

variable_remarks.py     before the job
observed_variables.py   after the job, from what the nodes saw
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from ..config.phase import Phase
from ..config.profile import Profile
from ..text import Problem
from . import (
    disk_space,
    phase_sizes,
    precision,
    shared_paths,
    unfit_launchers,
    variable_remarks,
)
from .access import (
    Start,
    find_missing_commands,
    find_slurm_problems,
    find_unusable_paths,
    prepare_run,
    remark_on_access,
)

__all__ = [
    "Start",
    "find_allocation_problems",
    "find_misplaced_paths",
    "find_missing_commands",
    "find_plan_problems",
    "find_slurm_problems",
    "find_start_problems",
    "prepare_run",
    "remark_on_start",
]


def remark_on_start(
    profile: Profile, phases: Iterable[Phase], environ: Mapping[str, str]
) -> list[str]:
    """Remarks about who can write above the shared directory, and about the variables that the
    nodes will see, each once for all phases."""
    by_phase = {
        phase.name: variable_remarks.remark_on_plan(phase, profile, environ) for phase in phases
    }
    grouped = variable_remarks.group_remarks(by_phase)
    return [*remark_on_access(profile), *variable_remarks.format_remarks(grouped)]


def find_plan_problems(profile: Profile, phases: Iterable[Phase]) -> list[Problem]:
    """Problems in the user's options and files, which do not depend on this machine."""
    phases = list(phases)
    return [
        *(problem for phase in phases for problem in phase_sizes.find_unfit_sizes(phase, profile)),
        *(
            problem
            for phase in phases
            for problem in variable_remarks.find_contradictory_settings(phase, profile)
        ),
        *unfit_launchers.find_launchers(profile, phases),
        *(problem for phase in phases for problem in precision.find_bf16_arguments(phase, profile)),
    ]


def find_allocation_problems(
    profile: Profile, phases: Iterable[Phase], environ: Mapping[str, str]
) -> tuple[list[Problem], list[str]]:
    """For --cluster-here: why nothing can run in this allocation, or a line on each phase that
    cannot."""
    from . import allocation_check

    return allocation_check.find_allocation_problems(profile, phases, environ)


def find_misplaced_paths(profile: Profile, phases: Iterable[Phase]) -> list[Problem]:
    """Paths that the nodes could not see; a dry run reports them and still prints its plan."""
    return list(shared_paths.find_node_local(profile, phases))


def find_start_problems(
    profile: Profile,
    phases: Iterable[Phase],
    report_dir: Path,
    environ: Mapping[str, str],
    keeps: bool = False,
) -> list[Problem]:
    """Problems with access from this machine to the cluster, and with its directories. `keeps`: no
    process deletes what phases wrote."""
    phases = list(phases)
    return [
        *find_misplaced_paths(profile, phases),
        *find_missing_commands(profile, environ),
        *find_unusable_paths(profile, phases, report_dir),
        *shared_paths.find_unshared(profile, phases, environ),
        *disk_space.find_lack_of_space(profile, phases, environ, keeps),
    ]
