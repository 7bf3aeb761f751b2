"""Check that nodes can see the run directory, scripts, interpreter and outputs."""

from __future__ import annotations

import re
import shlex
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ..config.phase import Phase
from ..config.profile import Profile
from ..jobs.slurm_records import SlurmNode
from ..text import Problem, quote_names
from .mounts import LOCAL_DISK, PRIVATE, Mount, exists, find_mount, is_exported, read_mounts

# Arguments that say where a program writes what outlives the job.
OUTPUTS = re.compile(
    r"(output|out|save|checkpoints?|ckpt|logging|log)_(dir|path|folder|root)|output|"
    r"resume_from(_checkpoint)?"
)
# Arguments that name DeepSpeed's configuration file, which every rank reads.
CONFIGURATIONS = re.compile(r"deepspeed|deepspeed_config|ds_config")
ANSWER_S = 5.0
ROOT = Path("/")
# Parts of a system's image, which every node has.
OF_THE_IMAGE = tuple(map(Path, ("/bin", "/lib", "/lib64", "/opt", "/sbin", "/usr")))


class SharedPath(NamedTuple):
    """A path that all nodes must see, and where it was configured.

    `folder` is the directory in which it lies: a link and its target can lie in different ones.
    `installed`: it may come from a system image that the nodes use too.
    """

    what: str
    path: Path
    where: str
    todo: str
    folder: Path
    installed: bool = False

    def is_private(self, mount: Mount) -> bool:
        """Whether no node can see the path if it lies on this mount."""
        return mount.kind in PRIVATE and not (self.installed and mount.point == ROOT)


def find_node_local(profile: Profile, phases: Iterable[Phase]) -> Iterator[Problem]:
    """Find scripts, interpreter, outputs and DeepSpeed configuration under a `node_local` path.

    `shared_dir` is checked when cluster.yaml is read.
    """
    phases = list(phases)
    for local in profile.node_local:
        yield from _check_scripts(
            [phase for phase in phases if phase.script.is_relative_to(local)], local
        )
    if profile.backend == "local":
        return
    python = _find_interpreter(profile)
    for local in profile.node_local:
        if python is not None and python.is_relative_to(local):
            yield Problem(
                f"the interpreter of the nodes, {python}, lies under {local}, which nodes do not "
                "share",
                profile.where("python"),
                "an interpreter that all nodes share",
                "create the environment on a shared file system, and set `python` to its Python",
            )
        for phase in phases:
            yield from _check_arguments(phase, local)


def _check_scripts(phases: Sequence[Phase], local: str) -> Iterator[Problem]:
    """Report all scripts under one path as one problem."""
    if not phases:
        return
    scripts = f"the script of phase `{phases[0].name}`, {phases[0].script}, lies"
    if len(phases) > 1:
        names = quote_names(phase.name for phase in phases)
        scripts = f"the scripts of phases {names}, in {phases[0].script.parent}, lie"
    yield Problem(
        f"{scripts} under {local}, which nodes do not share",
        phases[0].where,
        "a script on a file system that all nodes share",
        "move the suite there",
    )


def _find_interpreter(profile: Profile) -> Path | None:
    """The interpreter's path; None if the nodes look up a command."""
    if profile.python is None:
        return Path(sys.executable)
    try:
        word = shlex.split(profile.python)[0]
    except (ValueError, IndexError):
        return None
    return Path(word) if word.startswith("/") else None


def _check_arguments(phase: Phase, local: str) -> Iterator[Problem]:
    """Find arguments of a phase of several nodes that name a path below `local`."""
    for name, argument in phase.args.items():
        value = argument.value
        if not isinstance(value, str) or phase.nodes.value < 2:
            continue
        if not value.startswith("/") or not Path(value).is_relative_to(local):
            continue
        text = (
            f"phase `{phase.name}` of {phase.nodes.value} nodes has {name}={value}, under "
            f"{local}, which nodes do not share"
        )
        if OUTPUTS.fullmatch(name):
            yield Problem(
                text,
                argument.source,
                "a directory that all nodes share, so that each can read what another wrote",
                "omit it if the program can write to the run's own directory",
            )
        elif CONFIGURATIONS.fullmatch(name):
            yield Problem(text, argument.source, "a file that all nodes share")


def list_shared_paths(profile: Profile, phases: Iterable[Phase]) -> list[SharedPath]:
    """The paths that every node must see as this machine does."""
    where, shared = profile.where("shared_dir"), profile.shared_dir
    paths = [SharedPath("the run directory", shared, where, "move `shared_dir` to one", shared)]
    scripts = {phase.script: phase for phase in phases}
    for script, phase in scripts.items():
        role = f"the script of phase `{phase.name}`"
        paths.append(SharedPath(role, script, phase.where, "move the suite to one", script))
    return [*paths, *_list_interpreters(profile)]


def _list_interpreters(profile: Profile) -> Iterator[SharedPath]:
    """The interpreter and the target of its link: every node needs both."""
    python = _find_interpreter(profile)
    if python is None or not exists(python):
        return
    todo = "create the environment on one, and set `python` to its Python"
    others = (*OF_THE_IMAGE, *map(Path, profile.node_local))  # reported elsewhere
    by_folder = {path.parent: path for path in (python.resolve(), python)}
    for folder, path in reversed(by_folder.items()):
        role = "the interpreter" if path == python else "the target of the interpreter's link"
        if not any(path.is_relative_to(other) for other in others):
            yield SharedPath(role, path, profile.where("python"), todo, folder, installed=True)


def find_unshared(
    profile: Profile, phases: Iterable[Phase], environ: Mapping[str, str]
) -> list[Problem]:
    """Find paths on a file system that only this machine sees, if nodes are other machines."""
    if profile.backend != "slurm":
        return []
    mounts = read_mounts()
    bad = [
        (place, mount)
        for place in list_shared_paths(profile, phases)
        if (mount := find_mount(place.folder, mounts)) and place.is_private(mount)
    ]
    if not bad or _is_one_machine(profile, environ):
        return []
    return [
        Problem(
            f"{place.what}, {place.path}, lies on {mount.point}, a file system that only this "
            f"machine sees ({mount.kind})",
            place.where,
            "a file system that all nodes share, such as NFS or Lustre",
            place.todo,
        )
        for place, mount in bad
    ]


def find_doubtful(
    profile: Profile, phases: Iterable[Phase], nodes: Iterable[SlurmNode]
) -> list[str]:
    """Remarks about paths on a disk of this machine that it does not export.

    Nodes may still see them in another way. No remarks if every node is this machine.
    """
    hosts = {node.host for node in nodes}
    if profile.lab or not hosts or hosts <= _own_names():
        return []
    mounts = read_mounts()
    by_mount: dict[Mount, list[SharedPath]] = {}
    for place in list_shared_paths(profile, phases):
        mount = find_mount(place.folder, mounts)
        if mount is None or place.is_private(mount):  # reported as an error
            continue
        if mount.kind in LOCAL_DISK | PRIVATE and not is_exported(place.folder):
            by_mount.setdefault(mount, []).append(place)
    return [
        f"{' and '.join(f'{path.what} ({path.path}, {path.where})' for path in paths[:3])} "
        f"{'lies' if len(paths) == 1 else 'lie'} on {mount.point}, a file system of this machine "
        f"({mount.kind} on {mount.source}): nodes see it only if it is exported to them"
        for mount, paths in by_mount.items()
    ]


def _is_one_machine(profile: Profile, environ: Mapping[str, str]) -> bool:
    """Whether all nodes of this Slurm are this machine; asked only if a path looks wrong."""
    if profile.lab or _is_lab(environ):
        return True
    from ..jobs.slurm_client import SlurmClient, SlurmUnavailable

    try:
        hosts = {node.host for node in SlurmClient(environ, ANSWER_S).nodes().values()}
    except SlurmUnavailable:
        return False
    return bool(hosts) and hosts <= _own_names()


def _is_lab(environ: Mapping[str, str]) -> bool:
    """Whether SLURM_CONF belongs to a lab, which has lab.json beside it."""
    conf = environ.get("SLURM_CONF")
    return bool(conf) and Path(str(conf)).with_name("lab.json").is_file()


def _own_names() -> set[str]:
    name = socket.gethostname()
    return {name, name.split(".")[0], "localhost"}
