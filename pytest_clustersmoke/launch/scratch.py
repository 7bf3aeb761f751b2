"""The node's own directories that ranks write to: that for temporary files, that for builds."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DEFAULT = "/tmp"
FALLBACKS = (DEFAULT, "/var/tmp", "/usr/tmp")  # as Python's tempfile has them
PROBE_BYTES = 4096


def directories(environ: Mapping[str, str]) -> dict[str, Any]:
    """The facts `tmp` and `build_directory`; the second is null where the profile names none.

    Each has its `path`, why it cannot be used (`error`, else null), and its `free_bytes`; `tmp`
    has the directory that is taken in its place as `instead`, null where there is none.
    """
    path = environ.get("TMPDIR") or DEFAULT
    found = _look(path)
    if found["error"]:
        usable = (other for other in FALLBACKS if other != path and not _look(other)["error"])
        found["instead"] = next(usable, None)
    build = environ.get("TORCH_EXTENSIONS_DIR")
    return {"tmp": found, "build_directory": _look_above(build) if build else None}


def _look(path: str) -> dict[str, Any]:
    error = None
    try:
        with tempfile.TemporaryFile(dir=path, prefix=".clustersmoke.") as stream:
            stream.write(b"\0" * PROBE_BYTES)
            stream.flush()
    except OSError as failed:
        error = failed.strerror or str(failed)
    return {"path": path, "error": error, "free_bytes": _free(path)}


def _look_above(path: str) -> dict[str, Any]:
    """A directory that may still have to be made: whether it, or the first above it, takes files;
    nothing is written, since others may build there at this moment."""
    wanted = Path(path)
    there = next((one for one in (wanted, *wanted.parents) if one.exists()), None)
    usable = there is not None and there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    error = None if usable else f"{there} cannot be written"
    return {"path": path, "error": error, "free_bytes": _free(str(there))}


def _free(path: str) -> int | None:
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None
