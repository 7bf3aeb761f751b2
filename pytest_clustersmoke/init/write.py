"""All files of a set or none, and nothing overwritten that is not meant to be."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from ..errors import Problem, UsageProblems

PREFIX = ".clustersmoke-init-"
Files = Mapping[str, bytes]


def write(directory: Path, files: Files, force: bool, check: Callable[[Path], None]) -> list[str]:
    """Write the files below `directory`, each where its key says; give the names of those written.

    They are written aside first, shown to `check` (which raises what is wrong with them), and then
    moved; what fails on the way is undone. What is there already with the same content stays.
    Raises UsageProblems with all refusals at once, and OSError.
    """
    problems = list(refusals(directory, files, force))
    if problems:
        raise UsageProblems(problems)
    new = {name: data for name, data in files.items() if not _same(directory / name, data)}
    near = next(one for one in (directory, *directory.parents) if one.exists())
    aside = Path(tempfile.mkdtemp(prefix=PREFIX, dir=near))
    try:
        staged = aside / "new"
        staged.mkdir()
        for name, data in files.items():
            (staged / name).parent.mkdir(parents=True, exist_ok=True)
            (staged / name).write_bytes(data)
        check(staged)
        if directory.exists():
            _move(staged, directory, aside / "old", list(new))
        else:
            directory.parent.mkdir(parents=True, exist_ok=True)
            staged.rename(directory)
    finally:
        try:
            shutil.rmtree(aside, ignore_errors=True)
        except KeyboardInterrupt:  # no second one comes (cli.py)
            shutil.rmtree(aside, ignore_errors=True)
            raise
    return list(new)


def refusals(directory: Path, files: Files, force: bool) -> Iterator[Problem]:
    """Why the files cannot be written, or must not be."""
    near = next(one for one in (directory, *directory.parents) if os.path.lexists(one))
    if not near.is_dir():
        yield Problem(f"{near} is no directory", "DIRECTORY", "a directory for the suite")
        return
    if not os.access(near, os.W_OK | os.X_OK):
        yield Problem(f"{near} cannot be written", "DIRECTORY", "one that this user can write")
        return
    blocked = set()
    for name, data in files.items():
        path = directory / name
        above = [one for one in path.parents if one.is_relative_to(directory)]
        bad = next((one for one in above if os.path.lexists(one) and not one.is_dir()), None)
        if bad is not None:
            if bad not in blocked:
                yield Problem(f"{bad} is no directory", "DIRECTORY", todo="move it away")
            blocked.add(bad)
        elif path.is_dir():
            yield Problem(f"{path} is a directory", "DIRECTORY", todo="move it away")
        elif os.path.lexists(path) and not force and not _same(path, data):
            yield Problem(
                f"{path} is there already",
                "DIRECTORY",
                todo="name another directory, or replace it with --force",
            )


def _same(path: Path, data: bytes) -> bool:
    """Whether the file is there as it would be written."""
    try:
        return not path.is_symlink() and path.read_bytes() == data
    except OSError:
        return False


def _move(staged: Path, directory: Path, old: Path, names: list[str]) -> None:
    """Move files into a directory that is there; what they replace comes back where one fails."""
    undo: list[Callable[[], object]] = []
    try:
        for name in names:
            target, saved = directory / name, old / name
            for folder in reversed([one for one in target.parents if not one.exists()]):
                folder.mkdir()
                undo.append(folder.rmdir)
            if os.path.lexists(target):
                saved.parent.mkdir(parents=True, exist_ok=True)
                # Known before it is done: a signal may come between the two.
                undo.append(partial(_back, saved, target))
                target.replace(saved)
            undo.append(partial(_back, target, staged / name))
            (staged / name).replace(target)
    except BaseException:
        for step in reversed(undo):
            step()
        raise


def _back(here: Path, there: Path) -> None:
    """Move a file back, if it went."""
    if os.path.lexists(here) and not os.path.lexists(there):
        here.replace(there)
