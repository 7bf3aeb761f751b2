"""`make test-all` can run a part, and `make soak` can go on in another clone."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tests.support.harness import ROOT

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")


def make(*words: str) -> subprocess.CompletedProcess[str]:
    """Print what make would run; variables of a make that runs this test do not count."""
    own = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PART", "SOAK_STATE", "WORKERS")
    env = {name: value for name, value in os.environ.items() if name not in own}
    command = ["make", "--dry-run", *words]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        (("test",), "tests -m 'not slow and not slow_lab'"),
        (("test-all",), "tests"),
        (("test-all", "PART=faults"), "tests/faults"),
        (("test-all", "PART=lab"), "tests/lab"),
        (("test-all", "PART=smoke"), "tests/smoke"),
        (("test-all", "PART=ladder"), "tests/test_ladder.py"),
        (("test-all", "PART=slow"), "tests -m slow"),
        (("test-all", "PART=slow_lab"), "tests -m slow_lab"),
    ],
    ids=" ".join,
)
def test_part_is_a_folder_a_file_or_a_mark(words: tuple[str, ...], arguments: str) -> None:
    """Files stay together on a worker, whatever is run."""
    done = make(*words)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "--dist loadfile" in line]
    assert line.endswith(f" -n 3 --dist loadfile --no-loadscope-reorder {arguments}")


def test_unknown_part_is_refused() -> None:
    """With what was expected, before anything is installed."""
    done = make("test-all", "PART=fautls")
    assert done.returncode == 2 and done.stdout == ""
    assert "PART=fautls: expected a folder of tests/, a file of it (ladder for" in done.stderr


def test_state_of_a_soak_may_be_kept_elsewhere() -> None:
    """Otherwise it is in pytest's cache of this clone."""
    assert "cache_dir" not in make("soak").stdout
    for given, meant in (("state", ROOT / "state"), ("/var/x", "/var/x")):
        *_, line = make("soak", f"SOAK_STATE={given}").stdout.splitlines()
        assert line.endswith(f" tests/soak.py -o cache_dir={meant}")
