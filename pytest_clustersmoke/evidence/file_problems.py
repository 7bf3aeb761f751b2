"""What can be wrong with a file of a run: its path, its content, the room for it."""

from __future__ import annotations

import errno
import stat
from pathlib import Path

from ..text import Problem, format_bytes
from .run_directory import read_json

MAX_NODE_BYTES = 8 * 2**20  # what one node writes of itself is a few KiB


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


def check_path(path: Path, where: str, todo: str) -> list[Problem]:
    """Problems with characters that sbatch would misread: `%` starts one of its patterns, `\\` ends
    them, and a newline ends a line of the script."""
    names = {
        "%": "a `%`",
        "\\": "a backslash",
        "\n": "a newline",
        "\r": "a carriage return",
        "control": "a control character",
    }
    found = {"control" if char < " " and char not in names else char for char in str(path)}
    found |= {"control"} & {"control" for char in str(path) if char == "\x7f"}
    bad = [name for char, name in names.items() if char in found]
    if not bad:
        return []
    what = f"the path {str(path)!r} contains {' and '.join(bad)}, which sbatch would misread"
    return [Problem(what, where, "a path without it", todo)]
