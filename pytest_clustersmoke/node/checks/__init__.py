"""Checks whether nodes can run a job: functions from facts to findings.

The nodes use them to decide whether to start the launcher, the controller uses them for its report.
Both read the same facts, so neither relies on the other's result. Jobs write the facts, so they are
untrusted text: a fact that is missing or of the wrong type is unknown, and never a failure.

node_values.py       a node's facts by type, and the findings about it
gpu_checks.py        GPUs: number, model, errors, processes of others
system_checks.py     /dev/shm, limits, directories for temporary files and builds
interface_checks.py  interfaces that variables select, and interfaces that are down on one node
rdma_checks.py       RDMA ports, compared with the other nodes
consistency.py       versions, driver and GPU model, compared with the other nodes
peers.py             what the nodes measured of each other: reachability, clocks
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...evidence.finding import Finding
from ...text import FAILURE
from ..abort_flag import NodeFailed
from . import consistency, gpu_checks, interface_checks, peers, rdma_checks, system_checks
from .node_values import MANY, Node, nodes_of, shorten_names

__all__ = ["find_failures", "merge_findings", "nodes_of", "peers", "shorten_names"]

NodeCheck = Callable[[Node, Mapping[str, Any]], Iterable[Finding]]
NodesCheck = Callable[[Sequence[Node], Mapping[str, Any]], Iterable[Finding]]
# By the names that `--cluster-screen` has for them.
ON_A_NODE: Mapping[str, NodeCheck] = {
    "gpus": gpu_checks.check_gpus,
    "system": system_checks.check_system,
}
BETWEEN_NODES: Mapping[str, NodesCheck] = {
    "versions": consistency.check_versions,
    "gpu_model": consistency.check_models,
    "driver": consistency.check_drivers,
    "interfaces": interface_checks.check_interfaces,
    "rdma": rdma_checks.check_rdma_ports,
}


def find_failures(
    facts: Sequence[Mapping[str, Any] | None],
    spec: Mapping[str, Any],
    path_of: Callable[[int], Path] | None = None,
) -> list[Finding]:
    """Every check that failed, on each node and between nodes. `facts` are in node rank order;
    findings quote the files that `path_of` names by node rank."""
    nodes = nodes_of(facts, path_of)
    own = (found for node in nodes for check in ON_A_NODE.values() for found in check(node, spec))
    between = (found for check in BETWEEN_NODES.values() for found in check(nodes, spec))
    return [*own, *between]


def merge_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Nodes with the same problem share a finding, which names them; failures come first."""
    by_problem: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in sorted(findings, key=lambda finding: finding.severity != FAILURE):
        key = (finding.severity, finding.id, finding.cause)
        by_problem.setdefault(key, []).append(finding)
    return [_merge(same) for same in by_problem.values()]


def _merge(same: Sequence[Finding]) -> Finding:
    hosts = tuple(dict.fromkeys(host for finding in same for host in finding.hosts))
    evidence = dict.fromkeys(line for finding in same for line in finding.evidence)
    return replace(
        same[0],
        cause=f"{shorten_names(hosts)}: {same[0].cause}",
        evidence=tuple(evidence)[:MANY],
        hosts=hosts,
    )


# The checks before the launcher starts; a failure ends the job on all nodes at once.

MAX_WHY = 1000


class PreflightFailed(NodeFailed):
    """Checks failed, on this node or on others, so the launcher is not started."""

    def __init__(self, failures: Iterable[Finding]) -> None:
        self.findings = merge_findings(failures)
        super().__init__("; ".join(finding.cause for finding in self.findings)[:MAX_WHY])


def refuse_unfit_nodes(spec: Mapping[str, Any], facts: Sequence[Mapping[str, Any]]) -> None:
    """Raise PreflightFailed if the facts of any node fail a check.

    Each node reads the facts of all nodes, so all reach the same result, and the problems of all
    hosts are reported at once.
    """
    refuse_failures(find_failures(facts, spec))


def refuse_failures(findings: Iterable[Finding]) -> None:
    """Raise PreflightFailed for the failures among these findings; warnings do not end the job."""
    failures = [finding for finding in findings if finding.severity == FAILURE]
    if failures:
        raise PreflightFailed(failures)
