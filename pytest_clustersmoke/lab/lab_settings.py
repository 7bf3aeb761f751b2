"""The settings of a lab, a running lab, and the errors, as plain data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ..text import Problem, UsageProblems

DEFAULT_NAME = "lab"
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,30}")


class LabError(Exception):
    """The lab does not exist or cannot run on this machine; the text says what to do."""


class LabStartError(LabError):
    """A lab did not start; everything that was started has been ended."""


@dataclass(frozen=True)
class LabSettings:
    """The settings of `clustersmoke lab up`."""

    name: str = DEFAULT_NAME
    nodes: int = 4
    gpus: str = "fake"  # or "real": this machine's own, divided among the nodes
    gpus_per_node: int | None = None
    cpus_per_node: int = 8
    accounting: bool = False
    isolated: bool = False
    memory: bool = False
    directory: Path | None = None


@dataclass(frozen=True)
class Lab:
    """A running Slurm; `slurm_conf` is all that sbatch, srun and squeue need to find it."""

    name: str
    slurm_conf: Path
    nodes: tuple[str, ...]
    gpus_per_node: int
    accounting: bool
    isolated: bool
    gpus: str = "fake"


def check_settings(settings: LabSettings) -> None:
    """Raise UsageProblems with everything that is wrong with the settings."""
    problems = []
    if not NAME.fullmatch(settings.name):
        problems.append(
            Problem(
                f"`{settings.name}` is not a valid name for a lab",
                where="--name",
                expected="1 to 31 of a-z, 0-9, `_` and `-`, starting with a letter or a digit",
            )
        )
    for option, value, low, high in (
        ("--nodes", settings.nodes, 1, 64),
        ("--gpus-per-node", settings.gpus_per_node or 0, 0, 16),
        ("--cpus-per-node", settings.cpus_per_node, 1, 256),
    ):
        if not low <= value <= high:
            problems.append(
                Problem(f"{value} is out of range", where=option, expected=f"{low} to {high}")
            )
    if settings.directory is not None and re.search(r"[^\w./+@:-]", str(settings.directory)):
        # slurm.conf has no quoting: a space, `#`, `%`, `,` or `[` in a path would be misread.
        problems.append(
            Problem(
                f"the path {str(settings.directory)!r} cannot be written in slurm.conf",
                where="--dir",
                expected="only letters, digits and . _ - + @ : /",
            )
        )
    if problems:
        raise UsageProblems(problems)
