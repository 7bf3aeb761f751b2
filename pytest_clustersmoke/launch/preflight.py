"""The node's checks before torchrun starts: what ends the job here, on all nodes at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import checks
from .flag import NodeFailed

if TYPE_CHECKING:
    from . import NodeJob

MAX_WHY = 1000


class PreflightFailed(NodeFailed):
    """Checks that failed, of this node or of others: there is no sense in starting torchrun."""

    def __init__(self, failed: Iterable[checks.Check], names: Mapping[int, str]) -> None:
        self.checks = checks.merged(failed)
        said = [
            f"{checks.listed(names.get(rank, f'node {rank}') for rank in one.nodes)}: {one.what}"
            for one in self.checks
        ]
        super().__init__("; ".join(said)[:MAX_WHY])


def judge(job: NodeJob, facts: Sequence[Mapping[str, Any]]) -> None:
    """End this node where the facts of any node say so. Each node reads the facts of all, so all
    come to the same, and what is wrong with each host is told at once.

    Raises PreflightFailed.
    """
    refuse(checks.failed(facts, job.spec), facts)


def refuse(found: Iterable[checks.Check], facts: Sequence[Mapping[str, Any]]) -> None:
    """Raise PreflightFailed for the failures among these checks; warnings end nothing."""
    failures = [one for one in found if one.severity == checks.FAILURE]
    if failures:
        names = {node.rank: node.name for node in checks.nodes_of(facts)}
        raise PreflightFailed(failures, names)
