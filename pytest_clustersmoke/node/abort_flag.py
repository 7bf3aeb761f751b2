"""The flag in the run directory that ends a phase on every node."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..evidence.whole_files import create_once, list_directory

if TYPE_CHECKING:
    from ..evidence.run_directory import PhaseDir
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
    create_once(directory.abort, flag)


def visible(path: Path) -> bool:
    """Whether a file exists. Listing its directory first clears NFS's cache of missing files."""
    return list_directory(path.parent) and path.exists()
