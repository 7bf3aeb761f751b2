"""Finds Chromium, in which index.html is tested, or installs it.

`python -m tests.support.browser` installs it (on Debian, as root), or says why it cannot.
"""

from __future__ import annotations

import sys

from pytest_clustersmoke.lab import packages
from tests.support import debian

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def path() -> str | None:
    """The path of this machine's browser, or None."""
    paths = map(packages.which, PROGRAMS)
    return next((path for path in paths if path), None)


def main() -> int:
    return debian.install([] if path() else ["chromium"], "index.html")


if __name__ == "__main__":
    sys.exit(main())
