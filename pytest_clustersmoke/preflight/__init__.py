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
from typing import TYPE_CHECKING

from ..environment import remarks as variable_remarks
from ..errors import Problem
from ..phase import misfits
from . import disk, launchers, precision, shared
from .ahead import refusals
from .way import Start, prepare, scheduler_environ, unusable

if TYPE_CHECKING:
    from ..cluster import Profile
    from ..phase import Phase

__all__ = [
    "Start",
    "misplaced",
    "planned",
    "prepare",
    "problems",
    "refusals",
    "remarks",
    "scheduler_environ",
]


def remarks(profile: Profile, phases: Iterable[Phase], environ: Mapping[str, str]) -> list[str]:
    """What is to be said of the variables that the nodes will see, each once for all phases."""
    told = {one.name: variable_remarks.planned(one, profile, environ) for one in phases}
    return variable_remarks.lines(variable_remarks.grouped(told))


def planned(profile: Profile, phases: Iterable[Phase]) -> list[Problem]:
    """What is wrong in the user's own words and files, whatever machine this is."""
    phases = list(phases)
    return [
        *(problem for phase in phases for problem in misfits(phase, profile)),
        *(problem for phase in phases for problem in variable_remarks.problems(phase, profile)),
        *launchers.launchers(profile, phases),
        *(problem for phase in phases for problem in precision.bf16_arguments(phase, profile)),
    ]


def misplaced(profile: Profile, phases: Iterable[Phase]) -> list[Problem]:
    """Paths that the nodes of a run could not see; a plan is printed all the same."""
    return list(shared.node_local(profile, phases))


def problems(
    profile: Profile, phases: Iterable[Phase], report_dir: Path, environ: Mapping[str, str]
) -> list[Problem]:
    """What is wrong with the way from this machine to the cluster, and with its directories."""
    phases = list(phases)
    environ, found = scheduler_environ(profile, environ)
    return [
        *misplaced(profile, phases),
        *found,
        *unusable(profile, phases, report_dir),
        *shared.unshared(profile, phases, environ),
        *disk.room(profile, phases),
    ]
