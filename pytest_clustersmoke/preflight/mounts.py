"""Which file system a path lies on, by the kernel's table of mounts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
EXPORTS = Path("/etc/exports")
EXPORT = re.compile(r'\s*(?:"(/[^"]*)"|(/\S*))')
# In the memory of one machine, or the layers of one container: no other node ever sees it.
PRIVATE = frozenset({"tmpfs", "ramfs", "devtmpfs", "overlay", "aufs"})
# On a disk of one machine, which may export it to the nodes.
LOCAL_DISK = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "jfs", "bcachefs"})


@dataclass(frozen=True)
class Mount:
    """One line of the table: where, of which kind (`nfs4`, `ext4`), and what is mounted."""

    point: Path
    kind: str
    source: str


def read_mounts(table: Path = MOUNTS) -> list[Mount]:
    """The mounts of this machine; none where the table cannot be read."""
    try:
        text = table.read_text(errors="replace")
    except OSError:
        return []
    return parse(text)


def parse(text: str) -> list[Mount]:
    """The lines of a mountinfo (man 5 proc): the mount point is the fifth field; kind and source
    stand behind the lone `-`."""
    mounts = []
    for line in text.splitlines():
        before, dash, behind = line.partition(" - ")
        fields, tail = before.split(), behind.split()
        if dash and len(fields) >= 5 and len(tail) >= 2:
            mounts.append(Mount(Path(_plain(fields[4])), tail[0], _plain(tail[1])))
    return mounts


def _plain(text: str) -> str:
    """A space in a path is written `\\040`, in octal."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def exported(path: Path) -> bool:
    """Whether this machine's NFS server exports the path or a directory above it (man 5 exports);
    False where its tables cannot be read."""
    there = path.resolve()
    tables = [EXPORTS, *sorted(EXPORTS.with_name("exports.d").glob("*.exports"))]
    return any(there.is_relative_to(one) for table in tables for one in _directories(table))


def _directories(table: Path) -> list[Path]:
    try:
        lines = table.read_text(errors="replace").replace("\\\n", " ").splitlines()
    except OSError:
        return []
    first = [found[1] or found[2] for line in lines if (found := EXPORT.match(line))]
    return [Path(_plain(one)).resolve() for one in first]


def existing(path: Path) -> Path:
    """The path, or the nearest directory above it that exists, with its links followed."""
    there = next((one for one in (path, *path.parents) if exists(one)), Path("/"))
    return there.resolve()


def exists(path: Path) -> bool:
    """Whether there is such a path, as far as this user can see."""
    try:
        return path.exists()
    except OSError:  # below a directory that this user may not search
        return False


def mount_of(path: Path, mounts: Iterable[Mount]) -> Mount | None:
    """The mount that a path lies on: the deepest above it, and of several there the last."""
    there = existing(path)  # looking at it also has an automounter mount it
    above = [one for one in mounts if there.is_relative_to(one.point)]
    return max(reversed(above), key=lambda one: len(one.point.parts), default=None)
