"""Check that the run directory has space and inodes for what the phases write."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..config.phase import Phase
from ..config.profile import Profile
from ..text import Problem, format_bytes
from .mounts import resolve_existing

GIB = 2**30
# A run's own files (events, logs, dumps) take a few megabytes and dozens of files per rank.
LEAST_BYTES, FILES_PER_RANK, LEAST_FILES = 64 * 2**20, 50, 500


@dataclass(frozen=True)
class SpaceNeed:
    """What the phases that run at the same time may write."""

    bytes: int
    files: int
    words: str


def estimate_need(profile: Profile, phases: Iterable[Phase]) -> SpaceNeed:
    """Bytes and files of the phases that may run at the same time, from their `writes_gib`.

    Later phases need no space of their own: checkpoints of a phase that passed are deleted.
    """
    phases = list(phases)
    written = sorted(((phase.writes_gib, phase.name) for phase in phases), reverse=True)
    written = written[: profile.limits.max_jobs]
    amounts = [f"{name} {gib:g} GiB" for gib, name in written if gib]
    ranks = sum(phase.world_size for phase in phases)
    return SpaceNeed(
        LEAST_BYTES + int(sum(gib for gib, _ in written) * GIB),
        LEAST_FILES + FILES_PER_RANK * ranks,
        f"phases that run at the same time write {', '.join(amounts)} (`writes_gib`)"
        if amounts
        else "",
    )


def find_lack_of_space(profile: Profile, phases: Iterable[Phase]) -> Iterator[Problem]:
    """Report too little space or too few inodes on the run directory's file system."""
    need = estimate_need(profile, phases)
    directory = resolve_existing(profile.shared_dir)
    try:
        free = os.statvfs(directory)
    except OSError:
        return  # access.py checks whether the directory can be used
    where = profile.where("shared_dir")
    available = free.f_bavail * free.f_frsize
    if available < need.bytes:
        yield _too_small(
            f"the file system of {directory} has {format_bytes(available)} free",
            where,
            need,
        )
    # A file system without a fixed number of inodes reports 0 for both.
    if free.f_files and free.f_favail < need.files:
        text = f"the file system of {directory} has room for {free.f_favail} more files"
        expected = f"room for {need.files}, the most that a run of these phases may create"
        yield Problem(text, where, expected, "delete what is not needed, or move `shared_dir`")


def _too_small(text: str, where: str, need: SpaceNeed) -> Problem:
    expected = f"at least {format_bytes(need.bytes)}" + (f": {need.words}" if need.words else "")
    return Problem(text, where, expected, "delete what is not needed, or move `shared_dir`")
