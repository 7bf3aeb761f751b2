"""Claims a name and a directory for a lab, so that no other lab can, and opens its journal."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path

from . import lab_paths, lab_state, teardown
from .lab_processes import Process, start_time
from .lab_settings import LabError, LabSettings

Say = Callable[[str], None]
# Directories private to each node of an isolated lab: the host and other nodes do not see them.
PRIVATE = ("/tmp", "/dev/shm")


def claim(settings: LabSettings, say: Say) -> Path:
    """Make the lab's directory, which claims the name, and open its journal; return the path."""
    from filelock import FileLock  # late: the other commands load this module, too

    home = lab_paths.labs_home()
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Otherwise two concurrent claims would take each other's half-made directory for leftovers.
    with FileLock(home.parent / "lock"):
        return _claim(settings, home, say)


def _claim(settings: LabSettings, home: Path, say: Say) -> Path:
    entry = home / settings.name
    if entry.exists() or entry.is_symlink():
        _remove_dead_lab(settings.name, entry, say)
    root = entry if settings.directory is None else settings.directory.resolve()
    _check_path(root, settings.isolated)
    try:
        if settings.directory is not None:
            entry.symlink_to(root)
            if root.is_dir() and not any(root.iterdir()):
                root.rmdir()
        root.mkdir(parents=settings.directory is not None, mode=0o700)
    except OSError as error:
        if entry.is_symlink():
            entry.unlink()
        raise LabError(
            f"the directory {root} of lab {settings.name} cannot be made ({error.strerror}); "
            "expected a path that does not exist, or an empty directory"
        ) from error
    try:
        token = secrets.token_hex(16)
        journal = lab_state.Journal(lab_paths.journal_of(root))
        journal.open(settings.name, token, lab_paths.choose_run(root))
        journal.started(Process(lab_state.STARTER, os.getpid(), start_time(os.getpid()) or 0))
    except BaseException:
        teardown.remove_directory(lab_state.read_record(settings.name, root))
        raise
    return root


def _remove_dead_lab(name: str, entry: Path, say: Say) -> None:
    """Remove what is left of a dead lab of this name; refuse if it is not dead."""
    record = lab_state.read_record(name, entry.resolve())
    if record.status != lab_state.DOWN:
        todo = f"end it with `clustersmoke lab down --name {name}`, or choose another --name"
        if record.status == lab_state.ELSEWHERE:
            todo = f"end it there ({record.host}), or choose another --name"
        raise LabError(f"lab {name} is already {record.status}; {todo}")
    say(f"lab {name}: removing what is left of an earlier lab of this name")
    teardown.end_lab(record)


def _check_path(root: Path, isolated: bool) -> None:
    if re.search(r"[^\w./+@:-]", str(root)):
        raise LabError(
            f"the path {str(root)!r} cannot be written in slurm.conf; expected only letters, "
            "digits and . _ - + @ : /; choose another directory with --dir"
        )
    above = Path(os.path.realpath(root)).parents
    hidden = [base for base in PRIVATE if Path(base) in above]
    if isolated and hidden:
        raise LabError(
            f"{root} is below {hidden[0]}, which is private to each node of an isolated lab; "
            "choose another directory with --dir"
        )
