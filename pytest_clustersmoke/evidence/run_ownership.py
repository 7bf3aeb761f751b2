"""Whose a run's directory is. What its files say is believed, and the jobs and processes that they
name are touched, only if nobody else can have written them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from .run_directory import RUN_ID, RunDir


def find_stranger(root: Path) -> str:
    """Why a run's directory is not this user's alone, as `it belongs to user 7`; empty if it is."""
    try:
        info = root.lstat()
    except OSError as error:
        return f"it cannot be looked at ({error.strerror or error})"
    if not stat.S_ISDIR(info.st_mode):
        return "it is not a directory"
    if info.st_uid != os.getuid():
        return f"it belongs to user {info.st_uid}"
    if (mode := stat.S_IMODE(info.st_mode)) & 0o077:
        return f"it is open to other users (mode {mode:o}, expected 700)"
    return ""


def list_runs(shared_dir: Path) -> Iterator[RunDir]:
    """This user's runs below a shared directory, oldest first. Links are not followed."""
    try:
        names = sorted(path.name for path in shared_dir.iterdir())
    except OSError:
        return
    for name in names:
        if RUN_ID.fullmatch(name) and not find_stranger(shared_dir / name):
            yield RunDir(shared_dir / name)


def find_run(shared_dir: Path, word: str) -> tuple[RunDir | None, str]:
    """The run of this id below a shared directory; None, and why, if this user has none."""
    if not word:
        return None, "the id of the run is empty"
    root = shared_dir / word
    if not RUN_ID.fullmatch(word) or not root.is_dir():
        return None, f"there is no run {word} below {shared_dir}"
    if why := find_stranger(root):
        return None, f"run {word} is not this user's alone: {why}"
    return RunDir(root), ""
