"""Check that the run directory has space and inodes for what the phases write."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..config.phase import Phase
from ..config.profile import Profile
from ..text import Problem, format_bytes, plural
from .mounts import resolve_existing

GIB = 2**30
# Phases that can run at the same time, by their number and that of their ranks.
Choices = dict[tuple[int, int], list[Phase]]
# A run's own files (events, logs, dumps) take a few megabytes and dozens of files per rank.
LEAST_BYTES, FILES_PER_RANK, LEAST_FILES = 64 * 2**20, 50, 500


@dataclass(frozen=True)
class SpaceNeed:
    """What the phases that run at the same time may write."""

    bytes: int
    files: int
    words: str


def estimate_need(
    profile: Profile, phases: Iterable[Phase], capacity: int | None, keeps: bool = False
) -> SpaceNeed:
    """Bytes and files of the phases that may run at the same time, from their `writes_gib`: at most
    `limits.max_jobs`, with `capacity` ranks (None: the scheduler's affair).

    Later phases need no space of their own: what a phase wrote is deleted once its job has passed.
    A run that `keeps` it, since no process watches its jobs, needs space for all.
    """
    phases, most = list(phases), profile.limits.max_jobs
    written = choose_largest(phases, most, capacity)
    room = f", room for {plural(capacity, 'rank')}" if capacity else ""
    which = f"phases that can run at the same time (`limits.max_jobs` is {most}{room})"
    if keeps:
        written = list_largest(phases)
        which = "phases of a detached run, which deletes nothing until it is attached,"
    amounts = [f"{phase.name} {phase.writes_gib:g} GiB" for phase in written]
    ranks = sum(phase.world_size for phase in phases)
    return SpaceNeed(
        LEAST_BYTES + int(sum(phase.writes_gib for phase in written) * GIB),
        LEAST_FILES + FILES_PER_RANK * ranks,
        f"{which} write {', '.join(amounts)} (`writes_gib`)" if amounts else "",
    )


def choose_largest(phases: Sequence[Phase], most: int, capacity: int | None) -> list[Phase]:
    """Those that write the most of what can run at the same time. One that is too wide for the
    ranks that fit runs alone, and none runs while one waits `after` it."""
    names = {phase.name for phase in phases}
    followers: dict[str, list[Phase]] = defaultdict(list)
    for phase in phases:
        followers[phase.after.value if phase.after.value in names else ""].append(phase)
    best = max(_choose_after("", followers, most, capacity).values(), key=_sum_written)
    return list_largest(best)


def list_largest(phases: Iterable[Phase]) -> list[Phase]:
    """Those that write anything, the largest first."""
    written = [phase for phase in phases if phase.writes_gib]
    return sorted(written, key=lambda phase: -phase.writes_gib)


def _choose_after(
    name: str, followers: Mapping[str, Sequence[Phase]], most: int, capacity: int | None
) -> Choices:
    """What can run at the same time once the phase of this name is over: of each number of phases
    and of ranks, those that write the most."""
    best: Choices = {(0, 0): []}
    for phase in followers.get(name, ()):
        others = _choose_after(phase.name, followers, most, capacity)
        alone = 1, 0 if capacity is None else min(phase.world_size, capacity)
        others[alone] = max(others.get(alone, []), [phase], key=_sum_written)
        combined: Choices = {}
        for (jobs, ranks), chosen in best.items():
            for (more, wider), added in others.items():
                size = jobs + more, ranks + wider
                if size[0] <= most and (capacity is None or size[1] <= capacity):
                    both = [*chosen, *added]
                    combined[size] = max(combined.get(size, []), both, key=_sum_written)
        best = combined
    return best


def _sum_written(phases: Iterable[Phase]) -> float:
    return sum(phase.writes_gib for phase in phases)


def find_lack_of_space(
    profile: Profile, phases: Iterable[Phase], environ: Mapping[str, str], keeps: bool = False
) -> Iterator[Problem]:
    """Report too little space or too few inodes on the run directory's file system."""
    capacity = None
    if profile.backend == "local":
        from ..jobs.local_backend import count_places

        capacity = count_places(profile, environ)
    need = estimate_need(profile, phases, capacity, keeps)
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
