"""The space that a run needs in its directory."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_clustersmoke.jobs.local_backend import count_cores, count_places
from pytest_clustersmoke.preflight import disk_space
from pytest_clustersmoke.text import plural
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
    """Space and files for the phases that run at the same time, from `writes_gib`; for all
    of a detached run, since nothing is deleted until it is attached."""
    monkeypatch.setattr(os, "statvfs", lambda path: free)
    profile = make_profile(
        tmp_path,
        phases={"a": {"writes_gib": 14}, "b": {"writes_gib": 10}, "c": None},
        limits={"max_jobs": 1},
    )
    phases = [make_phase(profile, name) for name in "abc"]
    problems = list(disk_space.find_lack_of_space(profile, phases, {}))
    assert len(problems) == bool(words) and all(words in problem.what for problem in problems)
    need = disk_space.estimate_need(profile, phases, None)
    assert need.bytes == disk_space.LEAST_BYTES + 14 * 2**30 and "a 14 GiB" in need.words
    assert "b 10 GiB" not in need.words  # one job at a time
    need = disk_space.estimate_need(profile, phases, None, keeps=True)
    assert need.bytes == disk_space.LEAST_BYTES + 24 * 2**30 and "b 10 GiB" in need.words
    assert "detached" in need.words


@pytest.mark.parametrize(
    ("capacity", "jobs", "together"),
    [
        (None, 8, "abcd"),  # the scheduler's affair
        (None, 2, "ab"),
        (1, 8, "a"),  # one GPU: one after another, also those that are wider
        (2, 8, "a"),  # not b and c, which write less
        (4, 8, "ab"),
        (4, 1, "a"),
        (5, 8, "abd"),
        (3, 8, "ad"),
    ],
)
def test_phases_that_cannot_run_at_once_need_no_room_at_once(
    tmp_path: Path, capacity: int | None, jobs: int, together: str
) -> None:
    """a and b have two ranks, c four, d one; together they write 14, 10, 3 and 1 GiB."""
    sizes = {"a": (2, 14), "b": (2, 10), "c": (4, 3), "d": (1, 1)}
    written = {name: {"writes_gib": gib} for name, (_, gib) in sizes.items()}
    profile = make_profile(tmp_path, phases=written, limits={"max_jobs": jobs})
    phases = [make_phase(profile, name, gpus_per_node=ranks) for name, (ranks, _) in sizes.items()]
    need = disk_space.estimate_need(profile, phases, capacity)
    total = sum(sizes[name][1] for name in together)
    assert need.bytes == disk_space.LEAST_BYTES + total * 2**30
    assert f"`limits.max_jobs` is {jobs}" in need.words
    room = f"room for {plural(capacity, 'rank')})" if capacity else f"is {jobs})"
    assert room in need.words
    assert all(f"{name} {sizes[name][1]} GiB" in need.words for name in together)


@pytest.mark.parametrize(
    ("after", "together"),
    [
        ({}, "abcd"),
        ({"b": "a"}, "acd"),
        ({"b": "a", "c": "b"}, "ad"),  # a, then b, then c
        ({"b": "d", "c": "d", "a": "d"}, "abc"),
        ({"d": "a", "c": "a"}, "ab"),  # a writes more than both that wait for it
        ({"a": "c", "b": "c"}, "abd"),
        ({"b": "x"}, "abcd"),  # not selected, so it is not waited for
    ],
)
@pytest.mark.parametrize("capacity", [None, 12])
def test_phase_and_what_runs_after_it_need_no_room_at_once(
    tmp_path: Path, after: dict[str, str], together: str, capacity: int | None
) -> None:
    """a to d write 14, 10, 3 and 1 GiB; what a phase wrote is deleted once its job has passed."""
    sizes = {"a": 14, "b": 10, "c": 3, "d": 1}
    keys: dict[str, Any] = {name: {"writes_gib": gib} for name, gib in sizes.items()}
    for name, before in after.items():
        keys[name] |= {"after": before}
    profile = make_profile(tmp_path, phases={"x": {}, **keys})
    phases = [make_phase(profile, name) for name in sizes]
    need = disk_space.estimate_need(profile, phases, capacity)
    total = sum(sizes[name] for name in together)
    assert need.bytes == disk_space.LEAST_BYTES + total * 2**30
    assert all((f"{name} {sizes[name]} GiB" in need.words) == (name in together) for name in sizes)


def test_gpus_of_this_machine_limit_what_runs_at_once(tmp_path: Path) -> None:
    """By CUDA_VISIBLE_DEVICES; without a GPU by its cores."""
    profile = make_profile(tmp_path, hardware={"gpu": "any", "gpus_per_node": 8})
    assert count_places(profile, {"CUDA_VISIBLE_DEVICES": "0,2,3"}) == 3
    assert count_places(profile, {"CUDA_VISIBLE_DEVICES": ""}) == count_cores()
