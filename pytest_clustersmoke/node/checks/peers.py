"""What the nodes measured of each other, from what each wrote down: reachability and clocks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from ...evidence.telemetry import number
from .check_result import MEETING, WARNING, Check, Node, nodes_of

# Logs of nodes whose clocks differ by more cannot be put in order: steps take less.
CLOCK_S = 1.0


def checks(
    facts: Sequence[Mapping[str, Any] | None], words: Sequence[Mapping[str, Any] | None]
) -> list[Check]:
    """`facts` and what the nodes wrote of the meeting, both by node rank."""
    told = nodes_of(words)
    names = {node.rank: node.name for node in nodes_of(facts)}
    return [*_unreachable(told, names), *_clocks(told)]


def _unreachable(told: Sequence[Node], names: Mapping[int, str]) -> Iterator[Check]:
    for node in told:
        if node.facts.get("ok") is not False:
            continue
        address = f"{node.text('address')}:{(node.number('port') or 0):.0f}"
        yield Check(
            "master-unreachable",
            (node.rank,),
            f"cannot reach node 0 ({names.get(0, 'node 0')}) at {address}: {node.text('error')}",
            "check which interface has that address and whether a firewall separates the nodes; "
            "GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME in the profile's `env` selects another one",
            fact="error",
            file=MEETING,
            detail={"address": address},
        )


def _clocks(told: Sequence[Node]) -> Iterator[Check]:
    """Each node's clock against the middle of all, by more than its measurement may be wrong."""
    offsets: dict[int, tuple[float, float]] = {}
    for node in told:  # node 0 is what the others measured against
        clock = node.mapping("clock") or {}
        offset, error = number(clock.get("offset_s")), number(clock.get("error_s"))
        if node.rank == 0:
            offsets[0] = (0.0, 0.0)
        elif offset is not None and error is not None and math.isfinite(offset + error):
            offsets[node.rank] = (offset, abs(error))
    if 0 not in offsets or len(offsets) < 2:
        return
    if len(offsets) == 2:  # either may be the wrong one
        ((rank, (offset, error)),) = (pair for pair in offsets.items() if pair[0] != 0)
        if abs(offset) - error > CLOCK_S:
            what = f"their clocks differ by {abs(offset):.2f} s"
            yield _clock((0, rank), abs(offset), error, what)
        return
    middle = median(offset for offset, _ in offsets.values())
    middle_error = median(error for _, error in offsets.values())
    for rank, (offset, error) in offsets.items():
        apart, unsure = abs(offset - middle), error + middle_error
        if apart - unsure > CLOCK_S:
            which = "ahead of" if offset > middle else "behind"
            what = f"its clock is {apart:.2f} s {which} those of most other nodes"
            yield _clock((rank,), apart, unsure, what)


def _clock(nodes: tuple[int, ...], seconds: float, unsure: float, what: str) -> Check:
    return Check(
        "clock-differs",
        nodes,
        f"{what}, measured to within {unsure:.3f} s",
        "check that the time service runs on each of the nodes (chronyc tracking, timedatectl)",
        WARNING,
        "clock",
        MEETING,
        detail={"seconds": seconds, "error_s": unsure},
    )
