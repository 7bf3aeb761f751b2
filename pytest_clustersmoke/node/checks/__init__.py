"""Checks whether nodes can run a job: pure functions from facts to checks that failed.

The nodes use them to decide whether to start torchrun, the controller uses them for its report.
Both read the same facts, so neither relies on the other's result. Jobs write the facts, so they are
untrusted text: a fact that is missing or of the wrong type is unknown, and never a failure.

check_result.py      a check that failed; a node's facts by type
gpu_checks.py        GPUs: number, model, errors, processes of others
system_checks.py     /dev/shm, limits, directories for temporary files and builds
interface_checks.py  interfaces that variables select, and interfaces that are down on one node
rdma_checks.py       RDMA ports, compared with the other nodes
consistency.py       versions, driver and GPU model, compared with the other nodes
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
    """Every check that failed, on each node and between nodes. `facts` are in node rank order."""
    nodes = nodes_of(facts)
    own: Iterable[Check] = (
        check
        for node in nodes
        for run_checks in (gpu_checks.checks, system_checks.checks)
        for check in run_checks(node, spec)
    )
    between: Iterable[Check] = (
        check
        for run_checks in (
            consistency.versions,
            consistency.models,
            consistency.drivers,
            interface_checks.checks,
            rdma_checks.checks,
        )
        for check in run_checks(nodes, spec)
    )
    return [*own, *between]


# The checks before torchrun starts; a failure ends the job on all nodes at once.

MAX_WHY = 1000


class PreflightFailed(NodeFailed):
    """Checks failed, on this node or on others, so torchrun is not started."""

    def __init__(self, failed: Iterable[Check], names: Mapping[int, str]) -> None:
        self.checks = merged(failed)
        causes = [
            f"{listed(names.get(rank, f'node {rank}') for rank in check.nodes)}: {check.what}"
            for check in self.checks
        ]
        super().__init__("; ".join(causes)[:MAX_WHY])


def judge(job: NodeJob, facts: Sequence[Mapping[str, Any]]) -> None:
    """Raise PreflightFailed if the facts of any node fail a check.

    Each node reads the facts of all nodes, so all reach the same result, and the problems of all
    hosts are reported at once.
    """
    refuse(failed(facts, job.spec), facts)


def refuse(checks: Iterable[Check], facts: Sequence[Mapping[str, Any]]) -> None:
    """Raise PreflightFailed for the failures among these checks; warnings do not end the job."""
    failures = [check for check in checks if check.severity == FAILURE]
    if failures:
        names = {node.rank: node.name for node in nodes_of(facts)}
        raise PreflightFailed(failures, names)
