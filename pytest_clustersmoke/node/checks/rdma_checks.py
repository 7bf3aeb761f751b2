"""Checks RDMA ports that are down or slow on one node and not on the others.

A port that is down on every node is not cabled, which is not a finding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...evidence.finding import Finding
from ...evidence.interfaces import (
    is_active,
    read_node_variables,
    read_rate,
    selects_port,
    uses_infiniband,
)
from ...evidence.variable_names import show_value
from ...text import FAILURE, WARNING, plural
from .node_values import Node, find_usual, shorten_names

ACTIVE = "ACTIVE"
FIX = (
    "check the port on the node (ibstat, ibstatus), its cable and its switch port; take the node "
    "out of service until it is up"
)
Key = tuple[str, str]


def expects_infiniband(nodes: Sequence[Node], spec: Mapping[str, Any]) -> bool:
    """Whether the job's profile expects InfiniBand between nodes."""
    several = isinstance(spec.get("nodes"), int) and spec["nodes"] > 1
    if not several or spec.get("device") == "cpu" or not nodes:
        return False
    uses = uses_infiniband(read_node_variables(nodes[0].facts, spec))
    return uses and spec.get("infiniband") is True


def check_rdma_ports(nodes: Sequence[Node], spec: Mapping[str, Any]) -> Iterator[Finding]:
    if not expects_infiniband(nodes, spec):
        return
    ports = [(node, usable) for node in nodes if (usable := _ports(node, spec)) is not None]
    if len(ports) < 2:
        return
    active = [sum(map(is_active, table.values())) for _, table in ports]
    for index, (node, own) in enumerate(ports):
        others = [table for other, table in ports if other is not node]
        yield from _down(node, own, others)
        yield from _slow(node, own, others)
        if not own and 2 * sum(map(bool, others)) > len(others):
            yield _without(node, others)
        elif own:
            yield from _fewer(node, own, [*active[:index], *active[index + 1 :]])


def _without(node: Node, others: Sequence[Mapping[Key, Any]]) -> Finding:
    names, having = sorted({hca for keys in others for hca, _ in keys}), sum(map(bool, others))
    which = "every other node has" if having == len(others) else f"most nodes ({having}) have"
    problem = f"has no RDMA port; {which} one ({', '.join(names)})"
    return node.build_finding("rdma-port-down", problem, FIX, "rdma_ports")


def _fewer(node: Node, own: Mapping[Key, Any], active: Sequence[int]) -> Iterator[Finding]:
    """An adapter that the node does not show at all, by how many ports are active on each other
    node: with one adapter less, the names of the rest may have moved up."""
    usual = find_usual(active)
    if len(own) < usual:
        having = sum(count >= usual for count in active)
        problem = (
            f"shows {plural(len(own), 'RDMA port')} ({shorten_names(hca for hca, _ in own)}); "
            f"{having} of the {len(active)} other nodes have {usual} or more that are {ACTIVE}"
        )
        fix = "check whether the adapter is still on the node's bus (lspci, dmesg); " + FIX
        yield node.build_finding("rdma-port-down", problem, fix, "rdma_ports", WARNING)


def _down(
    node: Node, own: Mapping[Key, Mapping[str, str]], others: list[dict[Key, dict[str, str]]]
) -> Iterator[Finding]:
    for key, port in own.items():
        if is_active(port):
            continue
        counterparts = [
            other[key] for other in others if key in other and not _built_differently(own, other)
        ]
        up = [port for port in counterparts if is_active(port)]
        if not up:
            continue
        # Some nodes may be cabled differently on purpose; a single one hardly is.
        alone = len(up) == len(others)
        state = show_value(str(port.get("state")))
        yield node.build_finding(
            "rdma-port-down",
            f"{_label(key)} is {state}; it is {ACTIVE} on {len(up)} of the {len(others)} other "
            "nodes",
            FIX,
            "rdma_ports",
            FAILURE if alone else WARNING,
            hca=key[0],
            port=key[1],
            state=state,
        )


def _built_differently(own: Mapping[Key, Mapping[str, str]], other: Mapping[Key, Any]) -> bool:
    """Whether another node's ports have other names, and no more of them are up than here. Ports of
    the same name are then not counterparts."""
    own_up, other_up = (sum(map(is_active, ports.values())) for ports in (own, other))
    return own.keys() != other.keys() and own_up >= other_up


def _slow(
    node: Node, own: Mapping[Key, Mapping[str, str]], others: list[dict[Key, dict[str, str]]]
) -> Iterator[Finding]:
    for key, port in own.items():
        rate = read_rate(port)
        rates = [
            read_rate(other[key]) for other in others if key in other and is_active(other[key])
        ]
        best = max((r for r in rates if r is not None), default=None)
        if rate is not None and best is not None and is_active(port) and rate < best:
            yield node.build_finding(
                "rdma-port-slow",
                f"{_label(key)} runs at {show_value(str(port.get('rate')))}; the same port runs at "
                f"{best:g} Gb/sec on another node",
                "check the port's cable and switch port (iblinkinfo); if the nodes' adapters are "
                "meant to differ, choose nodes of one kind",
                "rdma_ports",
                WARNING,
                hca=key[0],
                port=key[1],
                rate_gb_per_s=rate,
                best_gb_per_s=best,
            )


def _ports(node: Node, spec: Mapping[str, Any]) -> dict[Key, dict[str, str]] | None:
    """The ports that NCCL may use; Ethernet ports do not count if there are InfiniBand ports."""
    rows = node.rows("rdma_ports")
    if rows is None or any("state" not in row for row in rows):
        return None
    layers = {row.get("link_layer") for row in rows}
    if "InfiniBand" in layers:
        rows = [row for row in rows if row.get("link_layer") == "InfiniBand"]
    pinned = read_node_variables(node.facts, spec).get("NCCL_IB_HCA", "")
    return {
        (show_value(str(row.get("hca"))), show_value(str(row.get("port")))): row
        for row in rows
        if not pinned or selects_port(pinned, row)
    }


def _label(key: Key) -> str:
    return f"RDMA port {key[0]}:{key[1]}"
