"""Files that are written whole or not at all, and read as hostile text."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

from ..text import format_bytes
from .telemetry import open_regular, read_part

MAX_JSON_BYTES = 64 * 2**20
READABLE, SHARED, SHARED_DIRECTORY = 0o644, 0o664, 0o2775
MAX_NODE_BYTES = 8 * 2**20  # what one node writes of itself is a few KiB


def is_visible(path: Path) -> bool:
    """Whether a file or folder exists, as far as this user can see: not in the folder of someone
    who lets no others in."""
    try:
        return path.exists()
    except OSError:
        return False


def is_visible_file(path: Path) -> bool:
    return is_visible(path) and path.is_file()


def write_atomically(path: Path, text: str, mode: int = 0o600) -> None:
    """Write a whole file or none, with its final permissions."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.parent / f".{path.name}.{os.urandom(4).hex()}"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as stream:
            stream.write(text)
        draft.chmod(mode)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def shared_mode(directory: Path) -> int:
    """The permissions of a file that others read: in a setgid directory that its group can write,
    several users share the files, too; elsewhere one user writes them."""
    try:
        mode = directory.stat().st_mode
    except OSError:
        return READABLE
    return SHARED if mode & stat.S_ISGID and mode & stat.S_IWGRP else READABLE


def make_shared_directory(directory: Path) -> None:
    """Create a directory, and those above it that are missing. Below one that several users share,
    they share it, too. Raises OSError."""
    if directory.is_dir():
        return
    make_shared_directory(directory.parent)
    directory.mkdir(exist_ok=True)
    if shared_mode(directory.parent) == SHARED:
        directory.chmod(SHARED_DIRECTORY)


def write_json(path: Path, value: Any, mode: int = 0o600) -> None:
    write_atomically(path, json.dumps(value, indent=1, allow_nan=False) + "\n", mode)


def create_once(path: Path, value: Any) -> bool:
    """Write a JSON file that others may be creating, too; return whether this call created it.
    Raises OSError if it cannot be written whole; it may exist even then, if a file could be
    created."""
    text = json.dumps(value) + "\n"
    draft = path.parent / f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}"
    try:
        draft.write_text(text)
        os.link(draft, path)  # atomic, and fails if the file exists
    except FileExistsError:  # on NFS perhaps our own link, whose reply was lost
        return path.samefile(draft)
    except OSError:  # no hard links on this file system, or a full disk
        try:
            with path.open("x") as stream:
                stream.write(text)
        except FileExistsError:
            return draft.exists() and path.samefile(draft)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
    return True


def read_json(path: Path, most_bytes: int = MAX_JSON_BYTES) -> dict[str, Any] | None:
    """The JSON object in a file; None if it cannot be read, or is too large to be one of ours."""
    try:
        with open_regular(path, most_bytes) as stream:
            value = json.loads(read_part(stream, most_bytes))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def list_directory(directory: Path) -> bool:
    """Whether a directory can be listed. Listing makes NFS forget which files were missing."""
    try:
        next(directory.iterdir(), None)
    except OSError:
        return False
    return True


def list_names(directory: Path) -> set[str]:
    """The names in a directory, as the file server has them now; none if it cannot be listed."""
    try:
        return {path.name for path in directory.iterdir()}
    except OSError:
        return set()


def is_full(error: OSError) -> bool:
    """Whether a write failed because the disk is full, or this user's quota is used up."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def explain_unreadable(path: Path, most_bytes: int) -> str:
    """Why `read_json` finds nothing in a file that is there; empty if it does, or if there is no
    file."""
    try:
        info = path.lstat()
    except OSError:
        return ""
    if not stat.S_ISREG(info.st_mode):
        return "is not a regular file"
    if info.st_size > most_bytes:
        return f"has {format_bytes(info.st_size)}, more than any that was ever written"
    return "" if read_json(path, most_bytes) is not None else "is not a JSON object"
