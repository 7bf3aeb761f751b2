"""Launchers of their own, which start ranks on other nodes over SSH.

Here the scheduler has started one task on each node already, and torchrun starts the ranks:
nothing needs SSH between nodes, which many clusters do not allow (Gilbreth HPC Training Guide,
section 4.3).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import Problem
from .program import read_program

if TYPE_CHECKING:
    from ..cluster import Profile
    from ..phase import Phase

LAUNCHERS = frozenset({"deepspeed", "pdsh", "mpirun", "mpiexec"})
HOST_FILES = frozenset({"hostfile", "host_file", "hostsfile"})
# DeepSpeed's --launcher (deepspeed/launcher/constants.py).
REMOTE = frozenset({"pdsh", "openmpi", "mpich", "impi", "mvapich", "ssh"})
EXPECTED = "a program that torchrun runs on each node, which `srun` reaches without SSH"


def launchers(profile: Profile, phases: list[Phase]) -> Iterator[Problem]:
    """Launchers in `python` and `setup`, in phases' arguments and in their scripts."""
    if profile.python and (word := _program(profile.python)) in LAUNCHERS:
        yield Problem(
            f"`python` is the launcher `{word}`",
            profile.where("python"),
            "the shell command for Python on the nodes",
        )
    for index, line in enumerate(profile.setup):
        if _program(line) == "deepspeed":
            yield Problem(
                "a setup line starts the launcher `deepspeed`, which reaches other nodes over SSH",
                profile.where("setup", index),
                EXPECTED,
                "take it out: set-up runs before the job's work, on its first node",
            )
    for phase in phases:
        yield from _arguments(phase)
    for phase in {phase.script: phase for phase in phases}.values():
        yield from _script(phase)


def _arguments(phase: Phase) -> Iterator[Problem]:
    for name, one in phase.args.items():
        remote = name == "launcher" and str(one.value).lower() in REMOTE
        if (name in HOST_FILES and one.value) or remote:
            yield Problem(
                f"phase `{phase.name}` has the argument {name}={one.value}: a launcher that "
                "reaches other nodes over SSH",
                one.source,
                EXPECTED,
                "take the argument out",
            )


def _script(phase: Phase) -> Iterator[Problem]:
    if not _mentions(phase.script):
        return
    program = read_program(phase.script)
    for call, word in program.started() if program else ():
        if word in LAUNCHERS:
            yield Problem(
                f"the script of phase `{phase.name}` starts the launcher `{word}`, which reaches "
                "other nodes over SSH, once for each rank",
                f"{call.file}:{call.line}",
                EXPECTED,
                "train in the script itself: torchrun has started one for each rank",
            )


def _mentions(script: Path) -> bool:
    """Whether a launcher is named there at all: parsing takes longer than looking."""
    try:
        text = script.read_text(errors="replace")
    except OSError:
        return False
    return any(word in text for word in LAUNCHERS)


def _program(line: str) -> str:
    """The program that a shell line starts, where that can be told."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return ""
    words = [word for word in words if "=" not in word.split("/", 1)[0]]
    return words[0].rsplit("/", 1)[-1] if words else ""
