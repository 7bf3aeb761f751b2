"""A real Slurm on this machine: up, down, which runs, and why none can.

model       what is asked for and what runs, in plain data
paths       where a lab's files are
packages    what Debian must have installed
config      the texts of the configuration files
ports       free ports that stay free until their daemon has them
processes   pids with start times; what belongs to a lab
state       the journal and state of each lab; which one is meant
claim       taking a name and a directory
control     the address that daemons listen on
daemons     starting daemons and waiting for them
accounting  the database, slurmdbd, accounts
isolation   namespaces and the virtual network
memory      limits that the kernel holds jobs to
bringup     all of that, in order
teardown    the end of all of that
command     `clustersmoke lab`
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from .lab_settings import Lab as Lab
from .lab_settings import LabError as LabError
from .lab_settings import LabSettings as LabSettings
from .lab_settings import LabStartError as LabStartError

__all__ = [
    "Lab",
    "LabError",
    "LabSettings",
    "LabStartError",
    "can_run",
    "down",
    "find",
    "missing_packages",
    "running",
    "up",
]


def _silent(_: str) -> None:
    """Progress that nobody asked for."""


def can_run(accounting: bool = False, isolated: bool = False, memory: bool = False) -> str | None:
    """Why no such lab can be had on this machine; None where one can."""
    from . import bringup

    return bringup.can_run(accounting, isolated, memory)


def missing_packages(accounting: bool, isolated: bool) -> list[str]:
    """The Debian packages that such a lab needs and this machine lacks."""
    from . import packages

    return packages.missing_packages(accounting, isolated)


def up(settings: LabSettings, say: Callable[[str], None] = _silent) -> Lab:
    """Start a lab and wait until its nodes are idle; `say` is told how it goes on.

    Raises UsageProblems, LabError (none can be had) or LabStartError (it did not start).
    """
    from .bringup import bring_up

    return bring_up(settings, say)


def down(name: str, keep_logs: bool = False) -> None:
    """End the lab of this name, whatever state it is in. Raises LabError where there is none."""
    from . import lab_state, teardown

    for record in lab_state.records():
        if record.name == name:
            teardown.end_lab(record, keep_logs)
            return
    raise LabError(f"there is no lab `{name}`; `clustersmoke lab status` lists all labs")


def find(environ: Mapping[str, str] | None = None) -> Lab:
    """The running lab that `environ` means. Raises LabError, saying what to do, where none is."""
    from . import lab_state

    return lab_state.find(os.environ if environ is None else environ)


def running() -> list[Lab]:
    """This user's labs that run."""
    from . import lab_state

    return [record.lab() for record in lab_state.running()]
