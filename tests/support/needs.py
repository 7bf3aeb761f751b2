"""What a test needs of the machine: there, or skipped with the reason, or a failure where CI says
that it must be there."""

from __future__ import annotations

import os

import pytest

from pytest_clustersmoke import lab
from tests.support import browser


def need_lab(accounting: bool = False, isolated: bool = False, memory: bool = False) -> None:
    """Skip where no real Slurm can run here; with CLUSTERSMOKE_REQUIRE_LAB=1 that is a failure."""
    reason = lab.find_obstacle(accounting, isolated, memory)
    if reason and os.environ.get("CLUSTERSMOKE_REQUIRE_LAB"):
        pytest.fail(f"a real Slurm must be had here: {reason}", pytrace=False)
    if reason:
        pytest.skip(f"no real Slurm here: {reason}")


def need_browser() -> str:
    """The path of Chromium. Skip where there is none; with CLUSTERSMOKE_REQUIRE_BROWSER=1 that is a
    failure."""
    found = browser.path()
    reason = "no Chromium here: `make browser` installs Debian's package as root"
    if not found and os.environ.get("CLUSTERSMOKE_REQUIRE_BROWSER"):
        pytest.fail(reason, pytrace=False)
    if not found:
        pytest.skip(reason)
    return found
