"""Checks what the nodes measured of each other and recorded: reachability and clocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...evidence.finding import Finding
from ...evidence.telemetry import parse_number
from ...text import WARNING
from .node_values import Node, nodes_of

# If clocks differ by more, logs of several nodes cannot be put in order: steps take less.
CLOCK_S = 1.0


def check_peers(
    facts: Sequence[Mapping[str, Any] | None],
    reports: Sequence[Mapping[str, Any] | None],
    path_of: Callable[[int], Path] | None = None,
) -> list[Finding]:
    """`facts`, and the nodes' `reports` on connecting to node 0, both in node rank order; findings
    quote the reports that `path_of` names."""
    names = {node.rank: node.name for node in nodes_of(facts)}
    nodes = [
        replace(node, name=names.get(node.rank, node.name)) for node in nodes_of(reports, path_of)
    ]
    return [*_unreachable(nodes, names), *_clocks(nodes)]


def _unreachable(nodes: Sequence[Node], names: Mapping[int, str]) -> Iterator[Finding]:
    for node in nodes:
        if node.facts.get("ok") is not False:
            continue
        address = f"{node.text('address')}:{(node.number('port') or 0):.0f}"
        yield node.build_finding(
            "master-unreachable",
            f"cannot reach node 0 ({names.get(0, 'node 0')}) at {address}: {node.text('error')}",
            "check which interface has that address and whether a firewall separates the nodes; "
            "GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME in the profile's `env` selects another one",
            "error",
            address=address,
        )


def _clocks(nodes: Sequence[Node]) -> Iterator[Finding]:
    """Clocks that differ from the median by more than the measurement error explains."""
    from statistics import median  # late: a node that is screened measures no clocks

    offsets: dict[int, tuple[float, float]] = {}
    for node in nodes:  # the others measured against node 0
        clock = node.mapping("clock") or {}
        offset, error = parse_number(clock.get("offset_s")), parse_number(clock.get("error_s"))
        if node.rank == 0:
            offsets[0] = (0.0, 0.0)
        elif offset is not None and error is not None and math.isfinite(offset + error):
            offsets[node.rank] = (offset, abs(error))
    if 0 not in offsets or len(offsets) < 2:
        return
    if len(offsets) == 2:  # either may be the wrong one
        ((offset, error),) = (clock for rank, clock in offsets.items() if rank != 0)
        if abs(offset) - error > CLOCK_S:
            cause = f"their clocks differ by {abs(offset):.2f} s"
            for node in nodes:
                if node.rank in offsets:
                    yield _clock(node, abs(offset), error, cause)
        return
    typical = median(offset for offset, _ in offsets.values())
    typical_error = median(error for _, error in offsets.values())
    for node in nodes:
        offset, error = offsets.get(node.rank, (typical, 0.0))
        difference, bound = abs(offset - typical), error + typical_error
        if difference - bound > CLOCK_S:
            which = "ahead of" if offset > typical else "behind"
            cause = f"its clock is {difference:.2f} s {which} those of most other nodes"
            yield _clock(node, difference, bound, cause)


def _clock(node: Node, seconds: float, bound: float, cause: str) -> Finding:
    return node.build_finding(
        "clock-differs",
        f"{cause}, measured to within {bound:.3f} s",
        "check that the time service runs on each of the nodes (chronyc tracking, timedatectl)",
        "clock",
        WARNING,
        seconds=seconds,
        error_s=bound,
    )
