"""Room for what the phases write: free space and inodes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..config.phase import Phase
from ..config.profile import Profile
from ..text import Problem
from .mounts import existing

GIB = 2**30
# A run's own files (events, logs, dumps) are some megabytes and a few dozen files a rank.
LEAST_BYTES, FILES_PER_RANK, LEAST_FILES = 64 * 2**20, 50, 500


@dataclass(frozen=True)
class Need:
    """What a run may write at the same time."""

    bytes: int
    files: int
    words: str


def need_of(profile: Profile, phases: Iterable[Phase]) -> Need:
    """Bytes and files of the phases that may run at once. What a phase writes is known where its
    `writes_gib` says it; a checkpoint is deleted once its phase has passed."""
    phases = list(phases)
    written = sorted(
        ((profile.phases[one.name].writes_gib or 0.0, one.name) for one in phases), reverse=True
    )[: profile.limits.max_jobs]
    told = [f"{name} {gib:g} GiB" for gib, name in written if gib]
    ranks = sum(phase.world_size for phase in phases)
    return Need(
        LEAST_BYTES + int(sum(gib for gib, _ in written) * GIB),
        LEAST_FILES + FILES_PER_RANK * ranks,
        f"phases that run at the same time write {', '.join(told)} (`writes_gib`)" if told else "",
    )


def room(profile: Profile, phases: Iterable[Phase]) -> Iterator[Problem]:
    """What of the run directory's file system is too small for these phases."""
    need = need_of(profile, phases)
    directory = existing(profile.shared_dir)
    try:
        free = os.statvfs(directory)
    except OSError:
        return  # whether it can be used at all is checked elsewhere
    where = profile.where("shared_dir")
    if free.f_bavail * free.f_frsize < need.bytes:
        yield _too_small(
            f"the file system of {directory} has {_size(free.f_bavail * free.f_frsize)} free",
            where,
            need,
        )
    # A file system without a fixed number of inodes says 0 of both.
    if free.f_files and free.f_favail < need.files:
        what = f"the file system of {directory} has room for {free.f_favail} more files"
        expected = f"room for {need.files}, the most that a run of these phases may create"
        yield Problem(what, where, expected, "delete what is not needed, or move `shared_dir`")


def _too_small(what: str, where: str, need: Need) -> Problem:
    expected = f"at least {_size(need.bytes)}" + (f": {need.words}" if need.words else "")
    return Problem(what, where, expected, "delete what is not needed, or move `shared_dir`")


def _size(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / 2**20:.0f} MiB"
