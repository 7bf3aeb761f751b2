"""What facts of nodes say against running there: pure functions from facts to checks that failed.

The nodes decide by them whether to start torchrun, and the controller tells of them: both read the
same facts, so none depends on another's word. Facts are what jobs wrote, hence hostile text: what
is missing, or of the wrong kind, is unknown, and the unknown is never a failure.

check_result.py      a check that failed; a node's facts by kind
gpu_checks.py        GPUs: how many, which, their errors, who else is on them
system_checks.py     /dev/shm, limits, directories for temporary files and builds
interface_checks.py  interfaces that variables pin, and those that are up on the other nodes
rdma_checks.py       RDMA ports, against those of the other nodes
consistency.py       versions, driver and GPU model, against the other nodes
peers.py             what the nodes measured of each other: reachability, clocks
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..abort_flag import NodeFailed
from ..node_job import NodeJob
from . import consistency, gpu_checks, interface_checks, peers, rdma_checks, system_checks
from .check_result import FACTS, FAILURE, MANY, WARNING, Check, Node, listed, merged, nodes_of

__all__ = [
    "FACTS",
    "FAILURE",
    "MANY",
    "WARNING",
    "Check",
    "Node",
    "failed",
    "listed",
    "merged",
    "nodes_of",
    "peers",
]


def failed(facts: Sequence[Mapping[str, Any] | None], spec: Mapping[str, Any]) -> list[Check]:
    """Every check that failed, of each node and between them. `facts` by node rank."""
    nodes = nodes_of(facts)
    own: Iterable[Check] = (
        check
        for node in nodes
        for look in (gpu_checks.checks, system_checks.checks)
        for check in look(node, spec)
    )
    between: Iterable[Check] = (
        check
        for look in (
            consistency.versions,
            consistency.models,
            consistency.drivers,
            interface_checks.checks,
            rdma_checks.checks,
        )
        for check in look(nodes, spec)
    )
    return [*own, *between]


# The node's checks before torchrun starts: what ends the job here, on all nodes at once.

MAX_WHY = 1000


class PreflightFailed(NodeFailed):
    """Checks that failed, of this node or of others: there is no sense in starting torchrun."""

    def __init__(self, failed: Iterable[Check], names: Mapping[int, str]) -> None:
        self.checks = merged(failed)
        said = [
            f"{listed(names.get(rank, f'node {rank}') for rank in one.nodes)}: {one.what}"
            for one in self.checks
        ]
        super().__init__("; ".join(said)[:MAX_WHY])


def judge(job: NodeJob, facts: Sequence[Mapping[str, Any]]) -> None:
    """End this node where the facts of any node say so. Each node reads the facts of all, so all
    come to the same, and what is wrong with each host is told at once.

    Raises PreflightFailed.
    """
    refuse(failed(facts, job.spec), facts)


def refuse(found: Iterable[Check], facts: Sequence[Mapping[str, Any]]) -> None:
    """Raise PreflightFailed for the failures among these checks; warnings end nothing."""
    failures = [one for one in found if one.severity == FAILURE]
    if failures:
        names = {node.rank: node.name for node in nodes_of(facts)}
        raise PreflightFailed(failures, names)
