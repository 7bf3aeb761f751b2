"""Memory limits of a lab: control groups of its own, in which the kernel ends what takes too much.

slurmd names its groups after the node alone, so that two labs would share theirs. Each lab gives
its slurmds a directory in which `memory` leads to a group of that lab, as the whole hierarchy.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from .lab_paths import LabDir

HIERARCHY = Path("/sys/fs/cgroup/memory")
# What a job gets that says nothing of memory; else it would get, and keep, all of its node's.
DEFAULT_MIB_PER_CPU = 4096


def can_limit() -> str | None:
    """Why jobs' memory cannot be limited on this machine; None where it can."""
    if os.geteuid() != 0:
        return "--memory makes control groups, which only root can do; run it as root"
    if not (HIERARCHY / "memory.limit_in_bytes").exists():
        return (
            f"--memory needs the memory controller of cgroup v1 at {HIERARCHY} (with cgroup v2 "
            "slurmd requires systemd)"
        )
    if not os.access(HIERARCHY, os.W_OK):
        return (
            f"--memory makes control groups in {HIERARCHY}, which is not writable on this machine"
        )
    return None


def mountpoint(files: LabDir) -> Path:
    """Where the lab's slurmds find the hierarchies of control groups."""
    return files.run / "cgroup"


def make(files: LabDir, token: str) -> None:
    """Make the lab's group, and the directory that leads to it."""
    group = _group(token)
    group.mkdir()
    mountpoint(files).mkdir(mode=0o700)
    (mountpoint(files) / "memory").symlink_to(group)


def remove(token: str) -> None:
    """Remove the lab's group and all below it, once nothing runs in them."""
    for folder, _, _ in os.walk(_group(token), topdown=False):
        with contextlib.suppress(OSError):  # the kernel takes a moment after the last process
            Path(folder).rmdir()


def _group(token: str) -> Path:
    return HIERARCHY / f"clustersmoke_{token}"
