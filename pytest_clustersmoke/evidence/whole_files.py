"""Files that are written whole or not at all, and read as hostile text."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import tempfile
from pathlib import Path
from typing import Any

from .telemetry import open_regular, read_part

MAX_JSON_BYTES = 64 * 2**20


def write_atomically(path: Path, text: str, mode: int = 0o600) -> None:
    """Write a whole file or none, with its final permissions."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as stream:
            stream.write(text)
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any, mode: int = 0o600) -> None:
    write_atomically(path, json.dumps(value, indent=1, allow_nan=False) + "\n", mode)


def create_once(path: Path, value: Any) -> bool:
    """Write a JSON file that others may be creating, too; return whether this call created it.
    Raises OSError if it cannot be written whole; it may exist even then, if a file could be
    created."""
    text = json.dumps(value) + "\n"
    draft = path.parent / f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}"
    try:
        draft.write_text(text)
        os.link(draft, path)  # atomic, and fails if the file exists
    except FileExistsError:  # on NFS perhaps our own link, whose reply was lost
        return path.samefile(draft)
    except OSError:  # no hard links on this file system, or a full disk
        try:
            with path.open("x") as stream:
                stream.write(text)
        except FileExistsError:
            return draft.exists() and path.samefile(draft)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
    return True


def read_json(path: Path, most_bytes: int = MAX_JSON_BYTES) -> dict[str, Any] | None:
    """The JSON object in a file; None if it cannot be read, or is too large to be one of ours."""
    try:
        with open_regular(path, most_bytes) as stream:
            value = json.loads(read_part(stream, most_bytes))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def list_directory(directory: Path) -> bool:
    """Whether a directory can be listed. Listing makes NFS forget which files were missing."""
    try:
        next(directory.iterdir(), None)
    except OSError:
        return False
    return True
