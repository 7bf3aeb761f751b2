"""Installs what the tests need beside Python, from Debian: for `make browser` and the like."""

from __future__ import annotations

import sys
from collections.abc import Collection

from pytest_clustersmoke.lab import packages
from pytest_clustersmoke.lab.lab_settings import LabError


def install(missing: Collection[str], untested: str) -> int:
    """Install these packages as root, if there are any. Returns 1 if that cannot be done, and says
    why, and what cannot be tested then."""
    if not missing:
        return 0
    try:
        packages.install(sorted(missing), print)
    except LabError as error:
        print(f"{untested} cannot be tested here: {error}", file=sys.stderr)
        return 1
    return 0
