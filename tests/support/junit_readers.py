"""Programs that show junit.xml, as dashboards do: junit2html, and from npm Allure and xunit-viewer.

`python -m tests.support.junit_readers` installs those of npm beside this Python (npm itself on
Debian, as root), or says why it cannot.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from pytest_clustersmoke.lab import packages
from tests.support import debian

REQUIRE = "CLUSTERSMOKE_REQUIRE_READERS"
PLACE = Path(sys.prefix) / "junit-readers"
OF_NPM = {"allure": "3", "xunit-viewer": "10"}  # with the versions that are installed


class Counted(NamedTuple):
    """What a reader counts in a file; errors are failures."""

    passed: int
    failed: int
    skipped: int


def count_cases(reader: str, junit: Path, folder: Path) -> Counted:
    """Let a reader write its pages of a file, and return what it counts. Without the reader the
    test is skipped, or fails if REQUIRE is set."""
    counts, page = READERS[reader](junit, folder)
    assert page.stat().st_size > 0
    failed = sum(counts.get(word, 0) for word in ("failed", "failure", "error", "errors", "broken"))
    return Counted(counts.get("passed", 0), failed, counts.get("skipped", 0))


def _junit2html(junit: Path, folder: Path) -> tuple[dict[str, int], Path]:
    command, page = [sys.executable, "-m", "junit2htmlreport"], folder / "junit2html.html"
    _run([*command, str(junit), str(page)], folder)
    shown = _run([*command, "--summary-matrix", str(junit)], folder)
    return _parse_counts(r"^\s*(\w+)\s*:\s+(\d+)$", shown.partition("Test Results:")[2]), page


def _xunit_viewer(junit: Path, folder: Path) -> tuple[dict[str, int], Path]:
    page = folder / "xunit-viewer.html"
    shown = _run([_of_npm("xunit-viewer"), "-c", "-r", str(junit), "-o", str(page)], folder)
    *_, line = [line for line in shown.splitlines() if re.match(r"\d+ \w", line)]
    return {word: int(number) for number, word in re.findall(r"(\d+) (\w+)", line)}, page


def _allure(junit: Path, folder: Path) -> tuple[dict[str, int], Path]:
    results, made = folder / "allure-results", folder / "allure"
    results.mkdir()
    shutil.copy(junit, results)
    _run([_of_npm("allure"), "generate", str(results), "-o", str(made)], folder)
    stats = json.loads((made / "summary.json").read_text())["stats"]
    return {word: int(number) for word, number in stats.items()}, made / "index.html"


READERS: dict[str, Callable[[Path, Path], tuple[dict[str, int], Path]]] = {
    "junit2html": _junit2html,
    "xunit-viewer": _xunit_viewer,
    "allure": _allure,
}


def _parse_counts(pattern: str, text: str) -> dict[str, int]:
    found = re.findall(pattern, text, re.MULTILINE)
    return {word.lower(): int(number) for word, number in found}


def _of_npm(name: str) -> str:
    program = PLACE / "node_modules" / ".bin" / name
    if not program.exists():
        why = f"{name} is not installed: python -m {__spec__.name}"
        assert not os.environ.get(REQUIRE), why
        pytest.skip(why)
    return str(program)


def _run(command: Sequence[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def main() -> int:
    if all((PLACE / "node_modules" / ".bin" / name).exists() for name in OF_NPM):
        return 0
    untested = "what dashboards read of junit.xml"
    if status := debian.install(set() if packages.which("npm") else {"npm"}, untested):
        return status
    names = [f"{name}@{version}" for name, version in OF_NPM.items()]
    command = ["npm", "install", "--prefix", str(PLACE), "--no-fund", "--no-audit", *names]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(f"{untested} cannot be tested here: {done.stderr}", file=sys.stderr)
    return min(done.returncode, 1)


if __name__ == "__main__":
    sys.exit(main())
