"""The shipped suite, and writing its files to a new place without overwriting others."""

from __future__ import annotations

import os
import re
import runpy
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .. import __file__ as package_file
from ..config.marker import PhaseMarker, read_marker
from ..text import Problem, UsageProblems

FOLDER = "smoke_tests"
PACKAGE = Path(package_file).resolve().parent
# Files that pytest reads its settings from (its documentation, "Configuration"), and the start of
# pytest's table there; pytest's own files need none.
SETTINGS = {
    "pytest.ini": r"",
    ".pytest.ini": r"",
    "pytest.toml": r"",
    ".pytest.toml": r"",
    "pyproject.toml": r"(?m)^\s*\[tool\.pytest(\.ini_options)?\]",
    "tox.ini": r"(?m)^\[pytest\]",
    "setup.cfg": r"(?m)^\[tool:pytest\]",
}
PYTEST_INI = """\
# pytest finds the root of the suite, and with it cluster.yaml, by this file.
[pytest]
testpaths = smoke_tests
"""


def shipped_suite() -> Path:
    """The directory of the suite: in the package, or next to it in an editable installation.
    Raises UsageProblems if the installation has none."""
    for path in (PACKAGE / f"_{FOLDER}", PACKAGE.parent / FOLDER):
        if any(path.glob("test_*.py")):
            return path
    text = f"this installation of pytest-clustersmoke has no suite next to {PACKAGE}"
    todo = "reinstall it (pip install --force-reinstall pytest-clustersmoke)"
    raise UsageProblems([Problem(text, todo=todo)])


def shipped_profile(name: str) -> dict[str, Any]:
    """A profile of the shipped cluster.yaml, as written there."""
    import yaml

    # In the repository this is a link to its cluster.yaml.
    file = yaml.safe_load((PACKAGE / "_cluster.yaml").read_text(encoding="utf-8"))
    profile: dict[str, Any] = file["clusters"][name]
    return profile


def shipped_phases() -> list[PhaseMarker]:
    """The phases of the suite as their markers describe them, the smallest first. Raises
    UsageProblems if a marker is not valid."""
    phases: list[PhaseMarker] = []
    problems: list[Problem] = []
    for path in sorted(shipped_suite().glob("test_*.py")):
        classes = [item for item in _run_test_file(path).values() if isinstance(item, type)]
        for mark in (mark for cls in classes for mark in vars(cls).get("pytestmark", ())):
            if mark.name == "phase":
                marked, misfits = read_marker(mark.args, mark.kwargs, path, str(path))
                phases += [marked] if marked else []
                problems += misfits
    if problems:
        raise UsageProblems(problems)
    return sorted(phases, key=lambda phase: (phase.nodes, phase.gpus_per_node))


def _run_test_file(path: Path) -> dict[str, Any]:
    """The names that a test file defines; modules beside it can be imported, as under pytest."""
    sys.path.insert(0, str(path.parent))
    try:
        return runpy.run_path(str(path))
    finally:
        sys.path.remove(str(path.parent))


def suite_files() -> dict[str, bytes]:
    """The suite's files by their paths in a new cluster's directory."""
    root = shipped_suite()
    files = {}
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        hidden = any(part.startswith((".", "__pycache__")) for part in parts)
        if path.is_file() and not hidden and path.suffix in (".py", ".jsonl"):
            files["/".join((FOLDER, *parts))] = path.read_bytes()
    return files


def has_settings(directory: Path) -> bool:
    """Whether a file of settings in this directory makes it pytest's root directory."""
    for name, table in SETTINGS.items():
        try:
            text = (directory / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if re.search(table, text) and not (name == "pytest.ini" and text == PYTEST_INI):
            return True
    return False


def write_files(directory: Path, files: Mapping[str, bytes], force: bool) -> list[str]:
    """Write files below `directory` in order, and return the names of those that changed. Raises
    UsageProblems with all problems, and OSError."""
    if problems := list(dict.fromkeys(find_problems(directory, files, force))):
        raise UsageProblems(problems)
    new = [name for name, data in files.items() if not _is_written(directory / name, data)]
    for name in new:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # removes a link, and not its target
        path.write_bytes(files[name])
    return new


def find_problems(directory: Path, files: Mapping[str, bytes], force: bool) -> Iterator[Problem]:
    """The reasons why the files cannot be written to the directory, or would overwrite others."""
    nearest = next(folder for folder in (directory, *directory.parents) if os.path.lexists(folder))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        why = "cannot be written" if nearest.is_dir() else "is not a directory"
        yield Problem(f"{nearest} {why}", "DIRECTORY", "a directory that this user can write")
        return
    for name, data in files.items():
        path = directory / name
        above = next(folder for folder in path.parents if os.path.lexists(folder))
        if not above.is_dir():
            yield Problem(f"{above} is not a directory", "DIRECTORY", todo="move it away")
        elif path.is_dir():
            yield Problem(f"{path} is a directory", "DIRECTORY", todo="move it away")
        elif os.path.lexists(path) and not force and not _is_written(path, data):
            todo = "choose another directory, or replace it with --force"
            yield Problem(f"{path} already exists", "DIRECTORY", todo=todo)


def _is_written(path: Path, data: bytes) -> bool:
    """Whether the file already has this content."""
    try:
        return not path.is_symlink() and path.read_bytes() == data
    except OSError:
        return False
