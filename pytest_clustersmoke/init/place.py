"""What this shell and its file systems tell: shared directory, interpreter, modules, InfiniBand.

A value comes with why it is a guess; the reason is empty where it was found.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import socket
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from ..preflight.mounts import LOCAL_DISK, PRIVATE, exists, exported, mount_of, read_mounts

# Where sites say that large files go; the first that is there is taken.
SCRATCH = ("SCRATCH", "WORK", "WORKDIR")
INFINIBAND = Path("/sys/class/infiniband")
LOCAL_SHARED_DIR = "${CLUSTERSMOKE_SHARED_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/clustersmoke/runs}"
_MODULE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+/@-]*")


class Guess(NamedTuple):
    """A value, and why it is none that was found."""

    value: str
    why: str


def one_machine(hosts: Iterable[str]) -> bool:
    """Whether every node is this machine, as Slurm names its hosts."""
    name = socket.gethostname()
    return set(hosts) <= {name, name.split(".")[0], "localhost"}


def shared_dir(asked: Path | None, suite: Path, environ: Mapping[str, str], alone: bool) -> Guess:
    """Where runs go: as asked, else a scratch directory that the shell names, else beside the
    suite, which nodes must see in any case."""
    if asked is not None:
        path, why = asked, ""
    else:
        named = [(name, Path(environ.get(name, ""))) for name in SCRATCH]
        usable = [(name, path) for name, path in named if path.is_absolute() and _writable(path)]
        if usable:
            name, scratch = usable[0]
            path, why = scratch / "clustersmoke" / "runs", f"it is below ${name} of this shell"
        else:
            path, why = suite / "runs", "nodes must see the suite, so it lies beside it"
    if alone:
        return Guess(str(path), "" if asked else why)
    return Guess(str(path), "; ".join(filter(None, (why, unseen(path)))))


def _writable(path: Path) -> bool:
    return exists(path) and path.is_dir() and os.access(path, os.W_OK | os.X_OK)


def unseen(path: Path) -> str:
    """Why nodes on other machines may not see a path; empty where its file system is shared."""
    mount = mount_of(path, read_mounts())
    if mount is None:
        return "what file system it is on is not known; every node must see it"
    if mount.kind in PRIVATE:
        return f"it lies on {mount.kind} of this machine alone; every node must see it"
    if mount.kind in LOCAL_DISK and not exported(path):
        return (
            f"it lies on a disk of this machine ({mount.kind}); every node must see it under the "
            "same path"
        )
    return ""


def python(alone: bool) -> Guess:
    """This interpreter, which has the plugin; whether nodes see it, and it can train, may be
    open."""
    path = Path(sys.executable)
    reasons = [] if alone else [unseen(path)]
    if importlib.util.find_spec("torch") is None:
        reasons.append(
            "this Python has no torch; name one that the nodes see and that has "
            "pytest-clustersmoke[train]"
        )
    return Guess(shlex.quote(str(path)), "; ".join(filter(None, reasons)))


def modules(environ: Mapping[str, str]) -> list[str]:
    """Lines that load the modules of this shell; none where it has none."""
    names = [one for one in environ.get("LOADEDMODULES", "").split(":") if _MODULE.fullmatch(one)]
    return ["module purge", *(f"module load {name}" for name in names)] if names else []


def infiniband(devices: Path = INFINIBAND) -> list[str]:
    """The RDMA devices of this machine."""
    try:
        return sorted(one.name for one in devices.iterdir())
    except OSError:
        return []
