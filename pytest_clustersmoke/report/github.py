"""GitHub Actions: what a step adds to the page of its job.

GITHUB_STEP_SUMMARY names a file for Markdown; each step has one of its own, which all its commands
append to.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import TYPE_CHECKING

from .markdown import short, summary

if TYPE_CHECKING:
    from .model import RunRecord

VARIABLE = "GITHUB_STEP_SUMMARY"
MAX_STEP_BYTES = 2**20  # beyond it GitHub drops all of the step's summary


def add_step_summary(record: RunRecord, environ: Mapping[str, str]) -> None:
    """Append the run's summary to the step's, whole or not at all, where there is one.

    Raises OSError where that cannot be done, or the step's summary has no room left.
    """
    path = environ.get(VARIABLE)
    if not path:
        return
    # Not blocking: a pipe that nobody reads would hold up the end of the run.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(path, flags, 0o644)
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise OSError(f"{VARIABLE} names {path}, which is no file")
        _append(fd, info.st_size, _fitting(record, MAX_STEP_BYTES - info.st_size))
    finally:
        os.close(fd)


def _fitting(record: RunRecord, room: int) -> bytes:
    """The summary, or the verdict alone where only that has room."""
    for text in (summary(record), short(record)):
        made = f"\n{text}".encode()
        if len(made) <= room:
            return made
    raise OSError(f"the step's summary is full: {MAX_STEP_BYTES} bytes")


def _append(fd: int, size: int, made: bytes) -> None:
    try:
        written = os.write(fd, made)
        if written < len(made):  # the disk is full
            raise OSError(f"only {written} of {len(made)} bytes could be written")
    except OSError:
        os.ftruncate(fd, size)
        raise
