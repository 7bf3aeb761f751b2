"""The flag in the run directory that ends a phase on every node."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..evidence.run_directory import PhaseDir, list_directory

if TYPE_CHECKING:
    from .node_job import NodeJob


class NodeFailed(Exception):
    """This node's part of the job failed; the text is the reason."""


class Aborted(Exception):
    """Another node raised the flag; the text is that node and its reason."""

    def __init__(self, flag: dict[str, Any]) -> None:
        super().__init__(f"{flag.get('node')}: {flag.get('why')}")


def raise_abort(job: NodeJob, reason: str, why: str, rank: int | None = None) -> None:
    """Raise the flag that ends the phase on every node; only the first flag is kept."""
    raise_flag(job.dir, job.node_rank, job.node_name, {"reason": reason, "why": why, "rank": rank})


def raise_flag(directory: PhaseDir, node_rank: int, node: str, cause: dict[str, Any]) -> None:
    """Raise the flag on behalf of a node. `gone` in the cause is a node that can no longer write.

    Raises OSError if the reason cannot be written; the flag is up even then, if a file can be
    created.
    """
    flag = {"node_rank": node_rank, "node": node, "time": time.time(), **cause}
    text = json.dumps(flag) + "\n"
    draft = directory.start / f".abort.{node_rank}.{os.getpid()}"
    try:
        draft.write_text(text)
        os.link(draft, directory.abort)  # atomic, and fails if the flag is already up
    except FileExistsError:
        pass
    except OSError:  # no hard links on this file system, or a full disk
        with contextlib.suppress(FileExistsError), directory.abort.open("x") as stream:
            stream.write(text)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def visible(path: Path) -> bool:
    """Whether a file exists. Listing its directory first clears NFS's cache of missing files."""
    return list_directory(path.parent) and path.exists()
