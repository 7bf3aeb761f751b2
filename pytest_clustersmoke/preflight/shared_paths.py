"""What all nodes must see lies where they see it: run directory, scripts, interpreter, outputs."""

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
from ..text import Problem
from .mounts import LOCAL_DISK, PRIVATE, Mount, exists, exported, mount_of, read_mounts

# Arguments by which programs are told where to write what outlives the job.
OUTPUTS = re.compile(
    r"(output|out|save|checkpoints?|ckpt|logging|log)_(dir|path|folder|root)|output|"
    r"resume_from(_checkpoint)?"
)
# Arguments that name DeepSpeed's configuration file, which every rank reads.
CONFIGURATIONS = re.compile(r"deepspeed|deepspeed_config|ds_config")
ANSWER_S = 5.0
ROOT = Path("/")
# What a system's image brings, each node's own as well as this machine's.
OF_THE_IMAGE = tuple(map(Path, ("/bin", "/lib", "/lib64", "/opt", "/sbin", "/usr")))


class SharedPath(NamedTuple):
    """A path of which nodes must see the same, and where it was written.

    `folder`: where it lies; a link lies elsewhere than what it leads to. `installed`: the root file
    system may have it of a system's image, which a node's may be, too.
    """

    what: str
    path: Path
    where: str
    todo: str
    folder: Path
    installed: bool = False

    def is_private(self, mount: Mount) -> bool:
        """Whether no node can see it, where it lies on this mount."""
        return mount.kind in PRIVATE and not (self.installed and mount.point == ROOT)


def node_local(profile: Profile, phases: Iterable[Phase]) -> Iterator[Problem]:
    """Scripts, interpreter, outputs and DeepSpeed configuration under a path that every node has
    for itself.

    The same of `shared_dir` is found when cluster.yaml is read.
    """
    phases = list(phases)
    for local in profile.node_local:
        yield from _scripts([one for one in phases if one.script.is_relative_to(local)], local)
    if profile.backend != "slurm":
        return
    python = _interpreter(profile)
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
            yield from _arguments(phase, local)


def _scripts(phases: Sequence[Phase], local: str) -> Iterator[Problem]:
    """One problem for all scripts under one path."""
    if not phases:
        return
    what = f"the script of phase `{phases[0].name}`, {phases[0].script}, lies"
    if len(phases) > 1:
        names = ", ".join(f"`{phase.name}`" for phase in phases)
        what = f"the scripts of phases {names}, in {phases[0].script.parent}, lie"
    yield Problem(
        f"{what} under {local}, which nodes do not share",
        phases[0].where,
        "a script on a file system that all nodes share",
        "move the suite there",
    )


def _interpreter(profile: Profile) -> Path | None:
    """The interpreter by its path; None where a command is looked up on the nodes."""
    if profile.python is None:
        return Path(sys.executable)
    try:
        word = shlex.split(profile.python)[0]
    except (ValueError, IndexError):
        return None
    return Path(word) if word.startswith("/") else None


def _arguments(phase: Phase, local: str) -> Iterator[Problem]:
    """Arguments of a phase of several nodes that name a path below `local`."""
    for name, one in phase.args.items():
        value = one.value
        if not isinstance(value, str) or phase.nodes.value < 2:
            continue
        if not value.startswith("/") or not Path(value).is_relative_to(local):
            continue
        what = (
            f"phase `{phase.name}` of {phase.nodes.value} nodes has {name}={value}, under "
            f"{local}, which nodes do not share"
        )
        if OUTPUTS.fullmatch(name):
            yield Problem(
                what,
                one.source,
                "a directory that all nodes share, so that each can read what another wrote",
                "omit it if the program can write to the run's own directory",
            )
        elif CONFIGURATIONS.fullmatch(name):
            yield Problem(what, one.source, "a file that all nodes share")


def places(profile: Profile, phases: Iterable[Phase]) -> list[SharedPath]:
    """The paths that every node must see as this machine does."""
    where, shared = profile.where("shared_dir"), profile.shared_dir
    found = [SharedPath("the run directory", shared, where, "move `shared_dir` to one", shared)]
    scripts = {phase.script: phase for phase in phases}
    for script, phase in scripts.items():
        what = f"the script of phase `{phase.name}`"
        found.append(SharedPath(what, script, phase.where, "move the suite to one", script))
    return [*found, *_interpreters(profile)]


def _interpreters(profile: Profile) -> Iterator[SharedPath]:
    """The interpreter, and what it is a link to: both have to be there on every node."""
    python = _interpreter(profile)
    if python is None or not exists(python):
        return
    todo = "create the environment on one, and set `python` to its Python"
    others = (*OF_THE_IMAGE, *map(Path, profile.node_local))  # of these it is told by itself
    by_folder = {path.parent: path for path in (python.resolve(), python)}
    for folder, path in reversed(by_folder.items()):
        what = "the interpreter" if path == python else "the target of the interpreter's link"
        if not any(path.is_relative_to(one) for one in others):
            yield SharedPath(what, path, profile.where("python"), todo, folder, installed=True)


def unshared(
    profile: Profile, phases: Iterable[Phase], environ: Mapping[str, str]
) -> list[Problem]:
    """Paths on a file system that never leaves this machine, where nodes are other machines."""
    if profile.backend != "slurm":
        return []
    mounts = read_mounts()
    bad = [
        (place, mount)
        for place in places(profile, phases)
        if (mount := mount_of(place.folder, mounts)) and place.is_private(mount)
    ]
    if not bad or _one_machine(profile, environ):
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


def doubtful(profile: Profile, phases: Iterable[Phase], nodes: Iterable[SlurmNode]) -> list[str]:
    """What is to be said of paths on a disk of this machine that it does not export itself: nodes
    may see it some other way. Silent where every node is this machine."""
    hosts = {node.host for node in nodes}
    if profile.lab or not hosts or hosts <= _this_host():
        return []
    mounts = read_mounts()
    by_mount: dict[Mount, list[SharedPath]] = {}
    for place in places(profile, phases):
        mount = mount_of(place.folder, mounts)
        if mount is None or place.is_private(mount):  # that was told as an error
            continue
        if mount.kind in LOCAL_DISK | PRIVATE and not exported(place.folder):
            by_mount.setdefault(mount, []).append(place)
    return [
        f"{' and '.join(f'{one.what} ({one.path}, {one.where})' for one in told[:3])} "
        f"{'lies' if len(told) == 1 else 'lie'} on {mount.point}, a file system of this machine "
        f"({mount.kind} on {mount.source}): nodes see it only if it is exported to them"
        for mount, told in by_mount.items()
    ]


def _one_machine(profile: Profile, environ: Mapping[str, str]) -> bool:
    """Whether this Slurm's nodes are all this machine. Asked only where a path looks wrong."""
    if profile.lab or _is_lab(environ):
        return True
    from ..jobs.slurm_client import SlurmClient, SlurmSilent

    try:
        hosts = {node.host for node in SlurmClient(environ, ANSWER_S).nodes().values()}
    except SlurmSilent:
        return False
    return bool(hosts) and hosts <= _this_host()


def _is_lab(environ: Mapping[str, str]) -> bool:
    """Whether SLURM_CONF is that of a lab, which writes lab.json beside it."""
    conf = environ.get("SLURM_CONF")
    return bool(conf) and Path(str(conf)).with_name("lab.json").is_file()


def _this_host() -> set[str]:
    name = socket.gethostname()
    return {name, name.split(".")[0], "localhost"}
