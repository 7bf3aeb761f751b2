"""Requirements of tests on the machine: if one is missing, the test is skipped with the reason, or
fails if a variable, which CI sets, requires it."""

from __future__ import annotations

import os
from importlib import metadata

import pytest
from packaging.requirements import Requirement

from pytest_clustersmoke import lab
from tests.support import browser


def has_packages(*requirements: str) -> bool:
    """Whether these packages are installed, such as "torch>=2.6"; none is imported."""
    for needed in map(Requirement, requirements):
        try:
            version = metadata.version(needed.name)
        except metadata.PackageNotFoundError:
            return False
        if not needed.specifier.contains(version, prereleases=True):
            return False
    return True


def need_packages(*requirements: str) -> None:
    """Skip the module of tests if they are not. In place of `importorskip`: each worker collects
    all modules, and would spend seconds on imports for tests that another one runs."""
    if not has_packages(*requirements):
        pytest.skip(f"needs {', '.join(requirements)}", allow_module_level=True)


def need_lab(accounting: bool = False, isolated: bool = False, memory: bool = False) -> None:
    """Skip the test if no real Slurm can run here; with CLUSTERSMOKE_REQUIRE_LAB=1, fail it."""
    reason = lab.find_obstacle(accounting, isolated, memory)
    if reason and os.environ.get("CLUSTERSMOKE_REQUIRE_LAB"):
        pytest.fail(f"a real Slurm is required here: {reason}", pytrace=False)
    if reason:
        pytest.skip(f"no real Slurm here: {reason}")


def need_browser() -> str:
    """The path of Chromium. If there is none, skip the test; with CLUSTERSMOKE_REQUIRE_BROWSER=1,
    fail it."""
    path = browser.path()
    reason = "no Chromium here: `make browser` installs Debian's package as root"
    if not path and os.environ.get("CLUSTERSMOKE_REQUIRE_BROWSER"):
        pytest.fail(reason, pytrace=False)
    if not path:
        pytest.skip(reason)
    return path
