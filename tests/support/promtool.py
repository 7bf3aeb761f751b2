"""Finds Prometheus' promtool, with which the alert rules are tested, or installs it.

`python -m tests.support.promtool` installs it (on Debian, as root), or says why it cannot.
"""

from __future__ import annotations

import os
import sys

import pytest

from pytest_clustersmoke.lab import packages
from pytest_clustersmoke.lab.lab_settings import LabError

REQUIRE = "CLUSTERSMOKE_REQUIRE_PROMETHEUS"


def need_promtool() -> str:
    """The path of promtool. Without it the test is skipped, or fails if REQUIRE is set."""
    path = packages.which("promtool")
    if path is None:
        why = "promtool is not installed: apt-get install prometheus"
        assert not os.environ.get(REQUIRE), why
        pytest.skip(why)
    return path


def main() -> int:
    if packages.which("promtool"):
        return 0
    try:
        packages.install(["prometheus"], print)
    except LabError as error:
        print(f"the alert rules cannot be tested here: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
