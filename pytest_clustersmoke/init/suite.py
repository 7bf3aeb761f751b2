"""Where the suite that ships is: in the package, or beside it where it is installed editable."""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import Problem, UsageProblems

FOLDER = "smoke_tests"
PACKAGE = Path(__file__).resolve().parents[1]
# What pytest reads its settings from (its documentation, "Configuration"), and how the table of
# pytest begins there; the files that are its own need none.
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
addopts = -ra
"""


def shipped() -> Path:
    """The directory of the suite. Raises UsageProblems where the installation has none."""
    for place in (PACKAGE / f"_{FOLDER}", PACKAGE.parent / FOLDER):
        if (place / "test_mlp.py").is_file():
            return place
    raise UsageProblems(
        [
            Problem(
                f"this installation of pytest-clustersmoke has no suite beside {PACKAGE}",
                todo="install it again (pip install --force-reinstall pytest-clustersmoke)",
            )
        ]
    )


def files() -> dict[str, bytes]:
    """The suite's files by their paths in a new cluster's directory."""
    root = shipped()
    found = {}
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        hidden = any(part.startswith((".", "__pycache__")) for part in parts)
        if path.is_file() and not hidden and path.suffix in (".py", ".jsonl"):
            found["/".join((FOLDER, *parts))] = path.read_bytes()
    return found


def has_settings(directory: Path) -> bool:
    """Whether pytest takes this directory for a root by a file of its own that is there."""
    for name, table in SETTINGS.items():
        try:
            text = (directory / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if re.search(table, text) and not (name == "pytest.ini" and text == PYTEST_INI):
            return True
    return False
