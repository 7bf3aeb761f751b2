"""Find the file system of a path in the kernel's table of mounts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
EXPORTS = Path("/etc/exports")
EXPORT = re.compile(r'\s*(?:"(/[^"]*)"|(/\S*))')
# In one machine's memory or one container's layers: no other node can see it.
PRIVATE = frozenset({"tmpfs", "ramfs", "devtmpfs", "overlay", "aufs"})
# On one machine's disk, which may be exported to the nodes.
LOCAL_DISK = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "jfs", "bcachefs"})


@dataclass(frozen=True)
class Mount:
    """A line of the table: mount point, kind (`nfs4`, `ext4`), and source (`server:/home`)."""

    point: Path
    kind: str
    source: str


def read_mounts(table: Path = MOUNTS) -> list[Mount]:
    """This machine's mounts; empty if the table cannot be read."""
    try:
        text = table.read_text(errors="replace")
    except OSError:
        return []
    return parse_mounts(text)


def parse_mounts(text: str) -> list[Mount]:
    """Parse mountinfo (man 5 proc): the mount point is the fifth field; kind and source follow the
    single `-`."""
    mounts = []
    for line in text.splitlines():
        before, dash, behind = line.partition(" - ")
        fields, tail = before.split(), behind.split()
        if dash and len(fields) >= 5 and len(tail) >= 2:
            mounts.append(Mount(Path(_unescape(fields[4])), tail[0], _unescape(tail[1])))
    return mounts


def _unescape(text: str) -> str:
    """Special characters in a path are octal escapes, such as `\\040` for a space."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def is_exported(path: Path) -> bool:
    """Whether this machine's NFS server exports the path or a directory above it (man 5 exports);
    False if its tables cannot be read."""
    target = path.resolve()
    tables = [EXPORTS, *sorted(EXPORTS.with_name("exports.d").glob("*.exports"))]
    return any(target.is_relative_to(folder) for table in tables for folder in _read_exports(table))


def _read_exports(table: Path) -> list[Path]:
    try:
        lines = table.read_text(errors="replace").replace("\\\n", " ").splitlines()
    except OSError:
        return []
    folders = [match[1] or match[2] for line in lines if (match := EXPORT.match(line))]
    return [Path(_unescape(folder)).resolve() for folder in folders]


def resolve_existing(path: Path) -> Path:
    """The path, or the nearest existing directory above it, with links resolved."""
    nearest = next((folder for folder in (path, *path.parents) if exists(folder)), Path("/"))
    return nearest.resolve()


def exists(path: Path) -> bool:
    """Whether the path exists, as far as this user can see."""
    try:
        return path.exists()
    except OSError:  # in a directory that this user may not search
        return False


def find_mount(path: Path, mounts: Iterable[Mount]) -> Mount | None:
    """The mount of a path: the deepest one above it, and the last of several there."""
    target = resolve_existing(path)  # the access also triggers an automounter
    above = [mount for mount in mounts if target.is_relative_to(mount.point)]
    return max(reversed(above), key=lambda mount: len(mount.point.parts), default=None)
