"""Judges what the ports of the nodes carried and counted during a phase, by readings before it and
after it.

NCCL's log says which ports were chosen; the counters say which carried. Other jobs and storage use
the same ports, so a port that carried more than its share is only named if the node as a whole
carried no more than the others: then it carried what another port did not. A port that every node
uses in the same way is not named.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...evidence.finding import Finding
from ...evidence.variable_names import show_value
from ...text import FAILURE, WARNING, format_bytes, plural
from ..health_readings import compare_interfaces
from ..port_counters import INFINIBAND, PortDelta, compare_ports
from .node_values import Node, shorten_names

LEAST_BYTES = 2**26  # of a rail: with less nothing can be said
SILENT, DOUBLED = 0.05, 1.6  # of a rail's share
MORE_TOTAL = 0.15  # by which other traffic makes what a node carries more than the others
CARRIED_NOTHING = 2**20
# Counters of a worn cable, and how much of each is too much.
ERRORS = {
    "symbol_error": 100,
    "link_error_recovery": 1,
    "port_rcv_errors": 100,
    "local_link_integrity_errors": 1,
    "rx_icrc_encapsulated": 1,
}
LINK_FIX = (
    "check the port on the node (ibstat, mlxlink), its cable and its switch port, before anything "
    "else runs there"
)


@dataclass(frozen=True)
class Traffic:
    """One node over a phase: its ports, what its other interfaces carried (bytes), and how many of
    NCCL's connections to other nodes use each HCA. `uses_sockets`: some of them use sockets."""

    node: Node
    ports: Sequence[PortDelta]
    interfaces: Mapping[str, int]
    connections: Mapping[str, int]
    uses_sockets: bool = False


def read_traffic(
    node: Node, readings: Any, connections: Mapping[str, int], uses_sockets: bool = False
) -> Traffic | None:
    """The traffic of a node by its two readings; None without both of them."""
    pair = readings if isinstance(readings, dict) else {}
    before, after = pair.get("before"), pair.get("after")
    if not isinstance(before, dict) or not isinstance(after, dict):
        return None
    ports = compare_ports(before.get("ports"), after.get("ports"))
    interfaces = compare_interfaces(before.get("interfaces"), after.get("interfaces"))
    return Traffic(node, ports, interfaces, connections, uses_sockets)


def check_traffic(nodes: Sequence[Traffic]) -> Iterator[Finding]:
    """All findings about the ports of a job's nodes."""
    for traffic in nodes:
        yield from _count_errors(traffic)
        yield from _sockets_beside(traffic)
    if len(nodes) > 1:
        yield from _uneven_rails(nodes)


def _count_errors(traffic: Traffic) -> Iterator[Finding]:
    for port in traffic.ports:
        downs = port.counted.get("link_downed")
        times = (downs.value or 0) if downs is not None else 0
        if times or port.was_lost:
            how = f"went down {plural(times, 'time')}" if times else "went down for good"
            cause = f"RDMA port {_show(port)} {how} during the job"
            yield _lost_link(traffic, cause, port.hca in traffic.connections)
        grown = {
            name: counted.value
            for name, least in ERRORS.items()
            if (counted := port.counted.get(name)) and (counted.value or 0) >= least
        }
        if grown:
            words = ", ".join(f"{name} {count:,}" for name, count in grown.items())
            cause = f"RDMA port {_show(port)} counted errors during the job: {words}"
            yield traffic.node.build_finding(
                "rdma-port-errors", cause, LINK_FIX, "rdma_ports", WARNING
            )
        if port.is_active and port.width and port.max_width and port.width < port.max_width:
            yield traffic.node.build_finding(
                "pcie-link-narrow",
                f"{show_value(port.hca)} uses {port.width} of the {port.max_width} lanes of its "
                "PCIe link",
                "reseat the card, or have its slot and riser checked: it carries less than it "
                "could",
                "rdma_ports",
                WARNING,
            )


def _lost_link(traffic: Traffic, cause: str, is_used: bool) -> Finding:
    """Damage if NCCL used the port; others may be unused, or have been pulled on purpose."""
    if is_used:
        return traffic.node.build_finding("rdma-link-went-down", cause, LINK_FIX, "rdma_ports")
    cause += "; NCCL is not known to use it"
    return traffic.node.build_finding("rdma-port-errors", cause, LINK_FIX, "rdma_ports", WARNING)


def _sockets_beside(traffic: Traffic) -> Iterator[Finding]:
    """Connections between nodes over sockets on a node whose InfiniBand is up; or InfiniBand that
    NCCL chose, and which carried nothing while other interfaces did."""
    up = [port for port in traffic.ports if port.link_layer == INFINIBAND and port.is_active]
    if not up:
        return
    others = sum(traffic.interfaces.values())
    carried = [port.bytes for port in up if port.bytes is not None]
    names = shorten_names(_show(port) for port in up)
    if traffic.uses_sockets and others >= LEAST_BYTES:
        cause = f"NCCL uses sockets between nodes, and InfiniBand is up ({names})"
    elif (
        any(port.hca in traffic.connections for port in up)
        and len(carried) == len(up)
        and sum(carried) < CARRIED_NOTHING
        and others >= LEAST_BYTES
    ):
        cause = f"NCCL chose InfiniBand, which carried {format_bytes(sum(carried))} ({names})"
    else:
        return
    busiest = max(traffic.interfaces, key=lambda name: traffic.interfaces[name])
    cause += f"; {show_value(busiest)} carried {format_bytes(traffic.interfaces[busiest])}"
    fix = "check NCCL_NET, NCCL_IB_HCA and NCCL_IB_DISABLE, and NCCL's log for why it fell back"
    yield traffic.node.build_finding("sockets-beside-infiniband", cause, fix, "rdma_ports", WARNING)


def _uneven_rails(nodes: Sequence[Traffic]) -> Iterator[Finding]:
    carried = [{port.name: port.bytes or 0 for port in _rails(traffic)} for traffic in nodes]
    for number, traffic in enumerate(nodes):
        shares = _shares(traffic)
        others = carried[:number] + carried[number + 1 :]
        silent = [
            name
            for name, part in shares.items()
            if part < SILENT and _carries_elsewhere(name, carried[number][name], others)
        ]
        for name in silent:
            yield _silent_rail(traffic, name, shares)
        usual = statistics.median(sum(rails.values()) for rails in others)
        is_more = sum(carried[number].values()) > (1 + MORE_TOTAL) * usual
        for name, part in shares.items():
            if part > DOUBLED and not is_more and not _is_usual(name, part, number, nodes):
                yield _doubled_rail(traffic, name, part, silent)


def _rails(traffic: Traffic) -> list[PortDelta]:
    """The ports that NCCL chose for connections to other nodes and whose bytes are known."""
    return [
        port for port in traffic.ports if port.hca in traffic.connections and port.bytes is not None
    ]


def _shares(traffic: Traffic) -> dict[str, float]:
    """Rail -> what it carried, as a multiple of its share by the connections that NCCL chose for
    it; empty if too little was carried, or there is nothing to compare."""
    rails = _rails(traffic)
    total = sum(port.bytes or 0 for port in rails)
    chosen = sum(traffic.connections[port.hca] for port in rails)
    if len(rails) < 2 or not chosen or total < LEAST_BYTES * len(rails):
        return {}
    if len({port.hca for port in rails}) != len(rails):
        return {}  # the log does not say which port of a card
    return {
        port.name: (port.bytes or 0) / total * chosen / traffic.connections[port.hca]
        for port in rails
        if traffic.connections[port.hca]
    }


def _carries_elsewhere(name: str, own: int, others: Sequence[Mapping[str, int]]) -> bool:
    """Whether the rail of this name carries far more on most of the other nodes. Other jobs make a
    rail's share small, and leave its bytes as they are."""
    usual = [rails[name] for rails in others if name in rails]
    return bool(usual) and statistics.median(usual) >= max(LEAST_BYTES, own / SILENT)


def _is_usual(name: str, part: float, number: int, nodes: Sequence[Traffic]) -> bool:
    """Whether the rail of this name carries about as much on most of the other nodes."""
    shares = [_shares(traffic) for at, traffic in enumerate(nodes) if at != number]
    parts = [share[name] for share in shares if name in share]
    return not parts or part < DOUBLED * statistics.median(parts)


def _silent_rail(traffic: Traffic, name: str, shares: Mapping[str, float]) -> Finding:
    carrying = shorten_names(rail for rail, part in shares.items() if part >= SILENT)
    return traffic.node.build_finding(
        "rdma-rail-silent",
        f"NCCL chose RDMA port {show_value(name)}, which carried nearly nothing "
        f"({shares[name]:.1%} of its share); {carrying} carried the rest, and on other nodes this "
        "port does",
        LINK_FIX,
        "rdma_ports",
        FAILURE,
        rail=name,
    )


def _doubled_rail(traffic: Traffic, name: str, part: float, silent: Sequence[str]) -> Finding:
    instead = f"; {shorten_names(silent)} carried nearly nothing" if silent else ""
    return traffic.node.build_finding(
        "rdma-rail-doubled",
        f"RDMA port {show_value(name)} carried {part:.1f} times its share of the job's bytes"
        f"{instead}",
        "look for the port whose traffic it carries: its cable, its PCIe path, NCCL's log",
        "rdma_ports",
        WARNING,
        rail=name,
    )


def _show(port: PortDelta) -> str:
    return show_value(port.name)
