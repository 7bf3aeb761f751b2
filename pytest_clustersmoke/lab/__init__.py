"""A lab: a real Slurm on this machine, with fake or real GPUs (`clustersmoke lab`).

lab_settings.py   the settings of a lab, and a running lab, as plain data
lab_paths.py      where a lab's files are
lab_gpus.py       the GPUs of each node
packages.py       which Debian packages a lab needs
slurm_config.py   the contents of the configuration files
addresses.py      the address that daemons listen on, and free ports for them
lab_processes.py  processes by pid and start time, and which of them belong to a lab
lab_state.py      the journal and state of each lab; finds the lab to use
lab_claim.py      takes a name and a directory
daemons.py        starts daemons and waits for them
accounting.py     the database, slurmdbd, accounts
isolation.py      namespaces and the virtual network
memory_limits.py  control groups that limit jobs' memory
bringup.py        starts a lab
teardown.py       ends a lab
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
    "find_lab",
    "find_obstacle",
    "list_running_labs",
    "missing_packages",
    "start_lab",
    "stop_lab",
]


def _discard(_: str) -> None:
    """Ignore progress messages."""


def find_obstacle(
    accounting: bool = False, isolated: bool = False, memory: bool = False
) -> str | None:
    """Why this machine cannot run such a lab; None if it can."""
    from . import bringup

    return bringup.find_obstacle(accounting, isolated, memory)


def missing_packages(accounting: bool, isolated: bool) -> list[str]:
    """The Debian packages that such a lab needs and that this machine lacks."""
    from . import packages

    return packages.missing_packages(accounting, isolated)


def start_lab(settings: LabSettings, say: Callable[[str], None] = _discard) -> Lab:
    """Start a lab and wait until its nodes are idle; `say` receives progress messages.

    Raises UsageProblems, LabError (it cannot run here) or LabStartError (it did not start).
    """
    from .bringup import bring_up

    return bring_up(settings, say)


def stop_lab(name: str, keep_logs: bool = False) -> None:
    """End the lab of this name, in whatever state it is. Raises LabError if none exists."""
    from . import lab_state, teardown

    for record in lab_state.records():
        if record.name == name:
            teardown.end_lab(record, keep_logs)
            return
    raise LabError(f"there is no lab `{name}`; `clustersmoke lab status` lists all labs")


def find_lab(environ: Mapping[str, str] | None = None) -> Lab:
    """Find the running lab that `environ` selects. Raises LabError if there is none."""
    from . import lab_state

    return lab_state.find_lab(os.environ if environ is None else environ)


def list_running_labs() -> list[Lab]:
    """This user's running labs."""
    from . import lab_state

    return [record.lab() for record in lab_state.list_running()]
