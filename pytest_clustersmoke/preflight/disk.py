"""Room for what the phases write: free space, inodes and the user's quota."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import Problem
from .mounts import existing, mount_of, read_mounts

if TYPE_CHECKING:
    from ..cluster import Profile
    from ..phase import Phase

GIB = 2**30
# A run's own files (events, logs, dumps) are some megabytes and a few dozen files a rank.
LEAST_BYTES, FILES_PER_RANK, LEAST_FILES = 64 * 2**20, 50, 500
ANSWER_S = 5.0


@dataclass(frozen=True)
class Quota:
    """A user's limits on one file system; in bytes and files, None where there is none."""

    used: int
    limit: int | None
    files: int
    files_limit: int | None


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
        f"at once the phases write {', '.join(told)} (`writes_gib`)" if told else "",
    )


def room(
    profile: Profile, phases: Iterable[Phase], environ: Mapping[str, str]
) -> Iterator[Problem]:
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
        expected = f"room for {need.files}, as a run of these phases may make"
        yield Problem(what, where, expected, "delete what is not needed, or set `shared_dir`")
    quota = ask_quota(directory, environ)
    if quota is not None:
        yield from over_quota(quota, directory, where, need)


def over_quota(quota: Quota, directory: Path, where: str, need: Need) -> Iterator[Problem]:
    if quota.limit is not None and quota.used + need.bytes > quota.limit:
        left = _size(max(0, quota.limit - quota.used))
        what = f"of this user's quota for {directory}, {_size(quota.limit)}, {left} are left"
        yield _too_small(what, where, need)
    if quota.files_limit is not None and quota.files + need.files > quota.files_limit:
        what = (
            f"of this user's quota for {directory}, {quota.files_limit} files, "
            f"{max(0, quota.files_limit - quota.files)} are left"
        )
        expected = f"room for {need.files}, as a run of these phases may make"
        yield Problem(what, where, expected, "delete what is not needed, or set `shared_dir`")


def _too_small(what: str, where: str, need: Need) -> Problem:
    expected = f"at least {_size(need.bytes)}" + (f": {need.words}" if need.words else "")
    return Problem(what, where, expected, "delete what is not needed, or set `shared_dir`")


def _size(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / 2**20:.0f} MiB"


def ask_quota(directory: Path, environ: Mapping[str, str]) -> Quota | None:
    """The user's quota there, where a tool is installed that tells it; None where not known."""
    mount = mount_of(directory, read_mounts())
    if mount is None:
        return None
    lustre = mount.kind == "lustre"
    path = environ.get("PATH", os.defpath)
    tool = shutil.which("lfs" if lustre else "quota", path=path)
    if tool is None:
        return None
    command = (
        [tool, "quota", "-q", "-u", str(os.getuid()), str(mount.point)]
        if lustre
        else [tool, "-w", "-p"]
    )
    try:
        answer = subprocess.run(
            command,
            env={**environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_quota(answer.stdout, str(mount.point) if lustre else mount.source)


def parse_quota(text: str, file_system: str) -> Quota | None:
    """The row of a file system in what `quota -w -p` and `lfs quota -q` print: its name, then
    KiB used, soft and hard limit and grace, then the same of files. A `*` marks what is over; a
    limit of 0 is none. A long name stands on a line of its own."""
    words = text.split()
    for index, word in enumerate(words):
        row = words[index + 1 : index + 9]
        if word != file_system or len(row) < 7:
            continue
        numbers = [_number(one) for one in (row[0], row[2], row[4], row[6])]
        if None in numbers:
            return None
        used, limit, files, files_limit = (one or 0 for one in numbers)
        return Quota(used * 1024, limit * 1024 or None, files, files_limit or None)
    return None


def _number(text: str) -> int | None:
    digits = text.strip("*[]")
    return int(digits) if digits.isdigit() else None
