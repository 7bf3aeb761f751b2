"""The space that a run needs in its directory."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_clustersmoke.preflight import disk_space
from tests.support.evidence import make_phase, make_profile


def sizes(**keys: int) -> SimpleNamespace:
    """An answer of statvfs; by default, 100 GiB and a million files are free."""
    known = {"f_bavail": 25 * 2**20, "f_frsize": 4096, "f_files": 2_000_000, "f_favail": 1_000_000}
    return SimpleNamespace(**(known | keys))


@pytest.mark.parametrize(
    ("free", "words"),
    [
        (sizes(), ""),
        (sizes(f_bavail=5 * 2**18), "has 5 GiB free"),
        (sizes(f_favail=20), "has room for 20 more files"),
        (sizes(f_files=0, f_favail=0), ""),  # no fixed number of inodes
        (sizes(f_bavail=0), "has 0 B free"),
    ],
)
def test_space_for_checkpoints_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: SimpleNamespace, words: str
) -> None:
    """Space and files for the phases that run at the same time, from `writes_gib`."""
    monkeypatch.setattr(os, "statvfs", lambda path: free)
    profile = make_profile(
        tmp_path,
        phases={"a": {"writes_gib": 14}, "b": {"writes_gib": 10}, "c": None},
        limits={"max_jobs": 1},
    )
    phases = [make_phase(profile, name) for name in "abc"]
    problems = list(disk_space.find_lack_of_space(profile, phases))
    assert len(problems) == bool(words) and all(words in problem.what for problem in problems)
    need = disk_space.estimate_need(profile, phases)
    assert need.bytes == disk_space.LEAST_BYTES + 14 * 2**30 and "a 14 GiB" in need.words
    assert "b 10 GiB" not in need.words  # one job at a time
