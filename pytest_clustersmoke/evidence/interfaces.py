"""Which interfaces and RDMA ports of a node a variable selects, and where it selects none.

Used by everything that judges pinned interfaces: the nodes' checks, node 0's choice of its address,
the criterion, and the remarks after the job.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .telemetry import parse_rows
from .variable_names import NAME, filter_variables, show_value
from .variable_values import parse_integer, parse_selection

BY_PREFIX = "NCCL_SOCKET_IFNAME"
OUT_OF_BAND = "NCCL_OOB_NET_IFNAME"  # NCCL reads it only with NCCL_OOB_NET_ENABLE=1
BY_NAME = "GLOO_SOCKET_IFNAME"
BY_DEVICE = "NCCL_IB_HCA"
LOOPBACK = "lo"
RATE = re.compile(r"\s*(\d{1,6}(?:\.\d{1,3})?) Gb/sec")


@dataclass(frozen=True)
class Unmatched:
    """A node on which a variable selects no usable interface.

    `source` is where the variable was set; `available` lists the node's interfaces, or its RDMA
    ports with their states.
    """

    node: str
    name: str
    value: str
    source: str
    why: str
    available: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.node}: {self.name}={self.value} ({self.source}) {self.why}; {self.has}"

    @property
    def has(self) -> str:
        return f"it has {', '.join(self.available) or 'none'}"


def find_unmatched_on_node(
    node: str, facts: Mapping[str, Any], spec: Mapping[str, Any], apart: bool
) -> Iterator[Unmatched]:
    """The variables that select nothing on this node. `apart`: every node has its own network
    stack, so loopback reaches no other."""
    variables = read_node_variables(facts, spec)
    for name, why, available in _find_misses(facts, variables, apart):
        source = "the profile" if name in _read_env_set(spec) else "set on the node"
        yield Unmatched(show_value(node), name, show_value(variables[name]), source, why, available)


def read_node_variables(facts: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, str]:
    """The variables that a node's ranks saw, with those that NCCL's configuration files add. If the
    node reported none, those of the profile."""
    reported = facts.get("variables")
    environ = filter_variables(reported if isinstance(reported, dict) else _read_env_set(spec))
    for values in read_nccl_conf_files(facts).values():
        environ = {**values, **environ}
    return environ


def read_nccl_conf_files(facts: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """NCCL's configuration files on a node and what they set; earlier files win."""
    files = facts.get("nccl_conf")
    pairs = files.items() if isinstance(files, dict) else ()
    return {
        show_value(path): {
            name: value
            for name, value in filter_variables(values).items()
            if NAME.fullmatch(name) and name.startswith("NCCL_")
        }
        for path, values in pairs
        if isinstance(path, str) and isinstance(values, dict)
    }


def _read_env_set(spec: Mapping[str, Any]) -> dict[str, str]:
    values = spec.get("env_set")
    return values if isinstance(values, dict) else {}


def have_separate_networks(nodes: Iterable[Mapping[str, Any]]) -> bool:
    """Whether each node is known, by its facts, to have a network stack of its own."""
    stacks = [(facts.get("boot_id"), facts.get("network_namespace")) for facts in nodes]
    known = all(isinstance(part, str) for stack in stacks for part in stack)
    return len(stacks) > 1 and known and len(set(stacks)) == len(stacks)


def _find_misses(
    facts: Mapping[str, Any], variables: Mapping[str, str], apart: bool
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Each variable that selects nothing, why, and what the node has instead."""
    interfaces = facts.get("interfaces")
    if isinstance(interfaces, dict):
        usable = list_usable_interfaces(interfaces)
        available = tuple(show_value(str(name)) for name in interfaces)
        for name in (BY_PREFIX, OUT_OF_BAND, BY_NAME):
            value = variables.get(name, "")
            if len(value) > 1:  # NCCL and torch ignore shorter values
                why = _explain_miss(name, value, usable, apart)
                if why:
                    yield name, why, available
    ports = facts.get("rdma_ports")
    value = variables.get(BY_DEVICE, "")
    if isinstance(ports, list) and value and uses_infiniband(variables):
        known = parse_rows(ports)
        chosen = [port for port in known if selects_port(value, port)]
        if not any(is_active(port) for port in chosen):
            why = f"selects no {'active ' if chosen else ''}RDMA port"
            yield BY_DEVICE, why, tuple(_describe_port(port) for port in known)


def _explain_miss(name: str, value: str, usable: list[str], apart: bool) -> str:
    chosen = select_interfaces(name, value, usable)
    if name == BY_NAME:
        missing = [name for name in value.split(",") if name not in chosen]
        if missing:
            return f"names {show_value(', '.join(missing))}, which does not exist or has no address"
    elif not chosen:
        return "selects no interface with an address"
    if apart and set(chosen) == {LOOPBACK}:
        return "selects only loopback, which cannot reach another node"
    return ""


def select_interfaces(name: str, value: str, usable: Iterable[str]) -> list[str]:
    """The interfaces that a variable selects: gloo by full names, NCCL by its own list rules."""
    if name == BY_NAME:
        return [entry for entry in value.split(",") if entry in usable]
    return [interface for interface in usable if parse_selection(value).selects(interface)]


def list_usable_interfaces(interfaces: Mapping[str, Any]) -> list[str]:
    return [name for name, entry in interfaces.items() if _has_address(entry)]


def _has_address(entry: Any) -> bool:
    """Whether an interface has an IP address; if its addresses are unknown, it counts as having
    one."""
    if not isinstance(entry, dict):
        return False
    lists = [entry.get("ipv4"), entry.get("ipv6")]
    return any(not isinstance(addresses, list) or addresses for addresses in lists)


def uses_infiniband(variables: Mapping[str, str]) -> bool:
    """Whether the variables let NCCL use InfiniBand."""
    off = parse_integer(variables.get("NCCL_IB_DISABLE", "")) != 0
    return not off and variables.get("NCCL_NET", "").casefold() != "socket"


def selects_port(value: str, port: Mapping[str, Any]) -> bool:
    """Whether NCCL_IB_HCA selects an RDMA port."""
    text = str(port.get("port"))
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 4 else None
    return parse_selection(value).selects(str(port.get("hca")), number)


def is_active(port: Mapping[str, Any]) -> bool:
    """Whether a port is `4: ACTIVE`, as the kernel says; an unknown state counts as active."""
    state = port.get("state")
    return not isinstance(state, str) or "ACTIVE" in state.split()


def read_rate(port: Mapping[str, Any]) -> float | None:
    """The Gbit/s of a port by the kernel's `200 Gb/sec (4X HDR)`; None if it says nothing else."""
    match = RATE.match(str(port.get("rate")))
    return float(match.group(1)) if match else None


def _describe_port(port: Mapping[str, Any]) -> str:
    return show_value(f"{port.get('hca')}:{port.get('port')} ({port.get('state')})")
