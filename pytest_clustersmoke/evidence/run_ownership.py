"""Whose a run's directory is. What its files say is believed, and the jobs and processes that they
name are touched, only if nobody else can have written them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from ..text import Problem, UsageProblems
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


def is_of_another_user(root: Path) -> bool:
    """Whether a run's directory belongs to another user."""
    try:
        return root.lstat().st_uid != os.getuid()
    except OSError:
        return False


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


def create_run(shared_dir: Path, run_id: str) -> RunDir:
    """Create the run's directory with mode 0700.

    Raises UsageProblems if it cannot be created or belongs to another user.
    """
    root = shared_dir / run_id
    try:
        create_shared(shared_dir)
        root.mkdir(mode=0o700)
        root.chmod(0o700)  # whatever its parent hands down
        info = root.lstat()
    except OSError as error:
        raise UsageProblems(
            [
                Problem(
                    f"the run directory {root} cannot be created ({error.strerror or error})",
                    "shared_dir",
                    "a directory that this user can write",
                    "change `shared_dir` of this cluster",
                )
            ]
        ) from error
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o077:
        what = f"the run directory {root} is not a directory that this user alone can open"
        raise UsageProblems([Problem(what, "shared_dir")])
    return RunDir(root)


def create_shared(directory: Path) -> None:
    """Create the directory that runs share, for this user alone, with its parents, which others
    must not be able to write, whatever the umask. Raises OSError."""
    for parent in reversed(directory.parents):
        if not parent.exists():
            parent.mkdir(mode=0o775, exist_ok=True)
    directory.mkdir(mode=0o700, exist_ok=True)
