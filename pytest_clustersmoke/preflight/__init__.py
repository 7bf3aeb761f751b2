"""What can be known to fail before a GPU is spent; everything found at once.

Usage errors, known without a scheduler; those in the user's own words in the dry run, too:

way.py         the way to the cluster: its commands, directories that can be written
shared.py      what all nodes must see lies where they see it; mounts.py: on which file system
precision.py   hardware without bf16
launchers.py   launchers that need SSH
disk.py        room for what the phases write

Findings, what the scheduler says, asked once for all phases when the run starts:

check.py       the questions, and all that keeps a phase from running
ahead.py       the same beside usage errors, in their words
judge.py       a phase against partitions and nodes
rights.py      a phase against accounts, QOS and their limits
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from ..config.phase import Phase, check_sizes
from ..config.profile import Profile
from ..text import Problem
from . import disk_space, launchers, precision, shared_paths, variable_remarks
from .access import Start, missing_commands, prepare, refusals, unusable

__all__ = [
    "Start",
    "misplaced",
    "missing_commands",
    "planned",
    "prepare",
    "problems",
    "refusals",
    "remarks",
]


def remarks(profile: Profile, phases: Iterable[Phase], environ: Mapping[str, str]) -> list[str]:
    """What is to be said of the variables that the nodes will see, each once for all phases."""
    told = {one.name: variable_remarks.planned(one, profile, environ) for one in phases}
    return variable_remarks.lines(variable_remarks.grouped(told))


def planned(profile: Profile, phases: Iterable[Phase]) -> list[Problem]:
    """What is wrong in the user's own words and files, whatever machine this is."""
    phases = list(phases)
    return [
        *(problem for phase in phases for problem in check_sizes(phase, profile)),
        *(problem for phase in phases for problem in variable_remarks.problems(phase, profile)),
        *launchers.launchers(profile, phases),
        *(problem for phase in phases for problem in precision.bf16_arguments(phase, profile)),
    ]


def misplaced(profile: Profile, phases: Iterable[Phase]) -> list[Problem]:
    """Paths that the nodes of a run could not see; a plan is printed all the same."""
    return list(shared_paths.node_local(profile, phases))


def problems(
    profile: Profile, phases: Iterable[Phase], report_dir: Path, environ: Mapping[str, str]
) -> list[Problem]:
    """What is wrong with the way from this machine to the cluster, and with its directories."""
    phases = list(phases)
    return [
        *misplaced(profile, phases),
        *missing_commands(profile, environ),
        *unusable(profile, phases, report_dir),
        *shared_paths.unshared(profile, phases, environ),
        *disk_space.room(profile, phases),
    ]
