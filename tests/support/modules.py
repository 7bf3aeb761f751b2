"""Every module of the package."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "pytest_clustersmoke"


def module_paths() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    modules = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(REPOSITORY).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


MODULES = module_paths()
