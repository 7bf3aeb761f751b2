"""What facts of nodes say against running there: pure functions from facts to checks that failed.

The nodes decide by them whether to start torchrun, and the controller tells of them: both read the
same facts, so none depends on another's word. Facts are what jobs wrote, hence hostile text: what
is missing, or of the wrong kind, is unknown, and the unknown is never a failure.

model.py       a check that failed; a node's facts by kind
gpu.py         GPUs: how many, which, their errors, who else is on them
system.py      /dev/shm, limits, directories for temporary files and builds
interfaces.py  interfaces that variables pin, and those that are up on the other nodes
rdma.py        RDMA ports, against those of the other nodes
alike.py       versions, driver and GPU model, against the other nodes
meeting.py     what the nodes measured of each other: reachability, clocks
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from . import alike, gpu, interfaces, meeting, rdma, system
from .model import FACTS, FAILURE, MANY, WARNING, Check, Node, listed, merged, nodes_of

__all__ = [
    "FACTS",
    "FAILURE",
    "MANY",
    "WARNING",
    "Check",
    "Node",
    "failed",
    "listed",
    "meeting",
    "merged",
    "nodes_of",
]


def failed(facts: Sequence[Mapping[str, Any] | None], spec: Mapping[str, Any]) -> list[Check]:
    """Every check that failed, of each node and between them. `facts` by node rank."""
    nodes = nodes_of(facts)
    own: Iterable[Check] = (
        check
        for node in nodes
        for look in (gpu.checks, system.checks)
        for check in look(node, spec)
    )
    between: Iterable[Check] = (
        check
        for look in (alike.versions, alike.models, alike.drivers, interfaces.checks, rdma.checks)
        for check in look(nodes, spec)
    )
    return [*own, *between]
