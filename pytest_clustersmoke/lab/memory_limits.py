"""Memory limits of a lab: control groups in which the kernel kills tasks over their limit.

slurmd names its groups after the node alone, so two labs would share them. Each lab therefore gives
its slurmds a directory in which `memory` links to the lab's own group, in place of the hierarchy.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from .lab_paths import LabDir

HIERARCHY = Path("/sys/fs/cgroup/memory")
# For a job that requests no memory; otherwise it would get all of its node's memory.
DEFAULT_MIB_PER_CPU = 4096


def find_memory_obstacle() -> str | None:
    """Why jobs' memory cannot be limited on this machine; None if it can."""
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
    """The directory in which the lab's slurmds look for the hierarchies of control groups."""
    return files.run / "cgroup"


def make_group(files: LabDir, token: str) -> None:
    """Make the lab's group and the directory that links to it."""
    group = _group(token)
    group.mkdir()
    mountpoint(files).mkdir(mode=0o700)
    (mountpoint(files) / "memory").symlink_to(group)


def remove_group(token: str) -> None:
    """Remove the lab's group and all groups below it, once nothing runs in them."""
    for folder, _, _ in os.walk(_group(token), topdown=False):
        with contextlib.suppress(OSError):  # the kernel takes a moment after the last process
            Path(folder).rmdir()


def _group(token: str) -> Path:
    return HIERARCHY / f"clustersmoke_{token}"
