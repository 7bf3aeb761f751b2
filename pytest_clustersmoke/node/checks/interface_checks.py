"""Checks interfaces that a variable selects, and interfaces that are down on few nodes only.

NCCL and gloo fail if they find none of the interfaces that they have to use. A problem that does
not certainly end the job is at most a warning: a criterion judges it later, from what the ranks
used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from ...evidence.finding import Finding
from ...evidence.interfaces import (
    BY_DEVICE,
    BY_NAME,
    BY_PREFIX,
    find_unmatched_on_node,
    have_separate_networks,
    list_usable_interfaces,
    read_node_variables,
    select_interfaces,
)
from ...evidence.telemetry import parse_texts
from ...evidence.variable_names import show_value
from ...evidence.variable_values import parse_selection
from ...text import FAILURE, WARNING
from . import rdma_checks
from .gpu_checks import count_ranks_per_node
from .node_values import Node, find_usual, is_usual, shorten_names

FIX_DOWN = (
    "check the interface on the node (`ip -br addr`, ethtool), its cable and its switch port; "
    "take the node out of service until it is up"
)
Table = Mapping[str, Mapping[str, Any]]


def check_interfaces(nodes: Sequence[Node], spec: Mapping[str, Any]) -> Iterator[Finding]:
    apart = have_separate_networks(node.facts for node in nodes)
    without_port = {
        host for port in rdma_checks.check_rdma_ports(nodes, spec) for host in port.hosts
    }
    for node in nodes:
        for finding in _missing(node, spec, apart):
            if finding.detail["variable"] != BY_DEVICE or node.name not in without_port:
                yield finding
    if compares_links(nodes):
        tables = {node.rank: table for node in nodes if (table := _table(node)) is not None}
        for node in nodes:
            yield from _down(node, spec, tables)


def compares_links(nodes: Sequence[Node]) -> bool:
    """Whether these nodes' interfaces can be compared: each node has shown its own, and has a
    network of its own."""
    apart = have_separate_networks(node.facts for node in nodes)
    return apart and all(_table(node) is not None for node in nodes)


def _missing(node: Node, spec: Mapping[str, Any], apart: bool) -> Iterator[Finding]:
    """Variables whose value matches nothing on this node over which its ranks could communicate."""
    unmatched = {
        variable.name: variable
        for variable in find_unmatched_on_node(node.name, node.facts, spec, apart)
    }
    for name, variable in unmatched.items():
        severity = _severity(name, unmatched, node, spec)
        if severity is None:
            continue
        there = shorten_names(variable.available) or "none"
        yield node.build_finding(
            "interface-missing",
            f"{name}={variable.value} ({variable.source}) {variable.why}; it has {there}",
            f"unset {name}, or set it to a value that selects something on every node "
            "(`ip -br addr`, ibstat)",
            "rdma_ports" if name == BY_DEVICE else "interfaces",
            severity,
            variable=name,
            value=variable.value,
        )


def _severity(
    name: str, unmatched: Collection[str], node: Node, spec: Mapping[str, Any]
) -> str | None:
    """FAILURE if it certainly ends the job; None if it may have no effect."""
    # With NCCL_COMM_ID the ranks connect over the interface that leads to its address.
    several = _nodes(spec) * count_ranks_per_node(spec) > 1
    comm_id = read_node_variables(node.facts, spec).get("NCCL_COMM_ID")
    ends_nccl = several and BY_PREFIX in unmatched and not comm_id
    if name == BY_NAME:  # with `auto` the ranks use either gloo or NCCL
        either = ends_nccl and spec.get("device") == "auto"
        return FAILURE if either or _talks_gloo(node, spec) else WARNING
    if not _talks_nccl(spec):
        return None
    if name == BY_PREFIX:
        return FAILURE if ends_nccl else WARNING
    # Without an RDMA port NCCL falls back to sockets.
    return WARNING if name == BY_DEVICE and _nodes(spec) > 1 else None


def _talks_nccl(spec: Mapping[str, Any]) -> bool:
    """Whether the ranks certainly train on GPUs."""
    return spec.get("device") == "cuda"


def _talks_gloo(node: Node, spec: Mapping[str, Any]) -> bool:
    """Whether the ranks certainly train on CPUs, and so communicate over gloo."""
    device = spec.get("device")
    return device == "cpu" or (device == "auto" and node.facts.get("gpu_driver") is False)


def _nodes(spec: Mapping[str, Any]) -> int:
    count = spec.get("nodes")
    return count if isinstance(count, int) else 0


def _down(node: Node, spec: Mapping[str, Any], tables: Mapping[int, Table]) -> Iterator[Finding]:
    """Interfaces that are down here and up on the other nodes: a failure if a variable leaves the
    ranks no other interface."""
    own = tables[node.rank]
    others = [table for rank, table in tables.items() if rank != node.rank]
    pinned = _pinned_down(node, spec, own, others)
    if pinned:
        name, value, chosen, having = pinned
        names = shorten_names(map(show_value, chosen))
        problem = f"{name}={show_value(value)} selects {names}, which is down; "
        yield _is_down_here(node, chosen, problem, having, len(others), FAILURE)
        return
    down = [name for name in own if _physical(own[name]) and own[name].get("up") is False]
    if not down or _carriers(own) >= find_usual(map(_carriers, others)):
        return  # built or cabled differently, with as many links
    for name in down:
        having = sum(_carries(other.get(name, {})) for other in others)
        if is_usual(having, len(others)):
            problem = f"{show_value(name)} is down; "
            yield _is_down_here(node, [name], problem, having, len(others), WARNING)


def _is_down_here(
    node: Node, names: Sequence[str], problem: str, having: int, count: int, severity: str
) -> Finding:
    every = "the other node" if count == 1 else f"each of the {count} other nodes"
    up = f"it is up on {every if having == count else f'{having} of the {count} other nodes'}"
    return node.build_finding(
        "interface-down",
        problem + up,
        FIX_DOWN,
        "interfaces",
        severity,
        interfaces=[show_value(name) for name in names[:8]],
    )


def _pinned_down(
    node: Node, spec: Mapping[str, Any], own: Table, others: Sequence[Table]
) -> tuple[str, str, list[str], int] | None:
    """The variable whose selected interfaces are all down here, and on how many of the other nodes
    one of them is up."""
    variables = read_node_variables(node.facts, spec)
    for name, counts in ((BY_NAME, _talks_gloo(node, spec)), (BY_PREFIX, _talks_nccl(spec))):
        value = variables.get(name, "")
        if not counts or len(value) < 2 or (name == BY_PREFIX and parse_selection(value).negated):
            continue
        chosen = select_interfaces(name, value, list_usable_interfaces(own))
        if not chosen or not all(own[interface].get("up") is False for interface in chosen):
            continue
        having = sum(
            any(
                table[interface].get("up") is True
                for interface in select_interfaces(name, value, list_usable_interfaces(table))
            )
            for table in others
        )
        if is_usual(having, len(others)):
            return name, value, chosen, having
    return None


def _table(node: Node) -> Table | None:
    """The node's interfaces; None if they were not recorded, or not completely."""
    table = node.mapping("interfaces")
    whole = table is not None and all(isinstance(entry, dict) for entry in table.values())
    return table if whole else None


def _carriers(table: Table) -> int:
    return sum(map(_carries, table.values()))


def _carries(entry: Mapping[str, Any]) -> bool:
    """Whether an adapter is up with an address that is not link-local."""
    addresses = [*parse_texts(entry.get("ipv4")), *parse_texts(entry.get("ipv6"))]
    routed = [a for a in addresses if not a.startswith(("169.254.", "fe80:"))]
    return _physical(entry) and entry.get("up") is True and bool(routed)


def _physical(entry: Mapping[str, Any]) -> bool:
    return entry.get("physical") is True
