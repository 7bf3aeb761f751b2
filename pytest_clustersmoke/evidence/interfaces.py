"""Which interfaces and RDMA ports of a node a variable selects, and where it selects none.

Whatever judges pinned interfaces asks here: the nodes' checks, node 0's choice of its address, the
criterion and the remarks after the job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .phase_result import PhaseResult
from .variable_names import NAME, of_families, shown
from .variable_values import integer, selection

BY_PREFIX = ("NCCL_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME")
BY_NAME = "GLOO_SOCKET_IFNAME"
BY_DEVICE = "NCCL_IB_HCA"
LOOPBACK = "lo"


@dataclass(frozen=True)
class Unmatched:
    """A node on which a variable selects no interface that could be used.

    `source`: who set it; `there`: the node's interfaces, or its RDMA ports with their states.
    """

    node: str
    name: str
    value: str
    source: str
    why: str
    there: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.node}: {self.name}={self.value} ({self.source}) {self.why}; {self.has}"

    @property
    def has(self) -> str:
        return f"it has {', '.join(self.there) or 'none'}"


def unmatched_interfaces(result: PhaseResult) -> list[Unmatched]:
    """Each node and variable that pins an interface which that node does not have.

    A node whose facts do not tell of interfaces is passed over: nothing is known of it.
    """
    uses_nccl = result.spec.get("device") != "cpu" and not only_gloo(result)
    apart = are_apart(node.facts for node in result.nodes)
    return [
        one
        for node in result.nodes
        for one in unmatched_on(node.name, node.facts, result.spec, apart)
        if uses_nccl or not one.name.startswith("NCCL_")
    ]


def unmatched_on(
    node: str, facts: Mapping[str, Any], spec: Mapping[str, Any], apart: bool
) -> Iterator[Unmatched]:
    """The variables that select nothing on this node. `apart`: no other node shares its network
    stack, so loopback leads to none."""
    variables = node_variables(facts, spec)
    for name, why, there in _misses(facts, variables, apart):
        source = "the profile" if name in _env_set(spec) else "set on the node"
        yield Unmatched(shown(node), name, shown(variables[name]), source, why, there)


def node_variables(facts: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, str]:
    """The variables that a node's ranks saw, NCCL's own files included: NCCL takes from them
    what the environment does not set. The profile's, where the node did not say."""
    said = facts.get("variables")
    environ = of_families(said if isinstance(said, dict) else _env_set(spec))
    for values in conf_files(facts).values():
        environ = {**values, **environ}
    return environ


def conf_files(facts: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """NCCL's configuration files on a node, the one that wins first, and what they set."""
    files = facts.get("nccl_conf")
    pairs = files.items() if isinstance(files, dict) else ()
    return {
        shown(path): {
            name: value
            for name, value in of_families(values).items()
            if NAME.fullmatch(name) and name.startswith("NCCL_")
        }
        for path, values in pairs
        if isinstance(path, str) and isinstance(values, dict)
    }


def _env_set(spec: Mapping[str, Any]) -> dict[str, str]:
    values = spec.get("env_set")
    return values if isinstance(values, dict) else {}


def only_gloo(result: PhaseResult) -> bool:
    """Whether the ranks are known to have talked over gloo, so that no NCCL ran."""
    backends = {record.get("backend") for record in result.events("group").values()}
    return backends == {"gloo"}


def are_apart(nodes: Iterable[Mapping[str, Any]]) -> bool:
    """Whether nodes, by their facts, are known to have network stacks of their own, each."""
    stacks = [(facts.get("boot_id"), facts.get("network_namespace")) for facts in nodes]
    known = all(isinstance(part, str) for stack in stacks for part in stack)
    return len(stacks) > 1 and known and len(set(stacks)) == len(stacks)


def _misses(
    facts: Mapping[str, Any], variables: Mapping[str, str], apart: bool
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Variable, why it selects nothing, and what there is."""
    interfaces = facts.get("interfaces")
    if isinstance(interfaces, dict):
        usable = with_address(interfaces)
        there = tuple(shown(str(name)) for name in interfaces)
        for name in (*BY_PREFIX, BY_NAME):
            value = variables.get(name, "")
            if len(value) > 1:  # NCCL and torch pass over shorter ones
                why = _misses_name(name, value, usable, apart)
                if why:
                    yield name, why, there
    ports = facts.get("rdma_ports")
    value = variables.get(BY_DEVICE, "")
    if isinstance(ports, list) and value and uses_infiniband(variables):
        known = [port for port in ports if isinstance(port, dict)]
        chosen = [port for port in known if selects_port(value, port)]
        if not any(is_active(port) for port in chosen):
            why = f"selects no {'active ' if chosen else ''}RDMA port"
            yield BY_DEVICE, why, tuple(_port_words(port) for port in known)


def _misses_name(name: str, value: str, usable: list[str], apart: bool) -> str:
    chosen = selected(name, value, usable)
    if name == BY_NAME:
        missing = [one for one in value.split(",") if one not in chosen]
        if missing:
            return f"names {shown(', '.join(missing))}, which does not exist or has no address"
    elif not chosen:
        return "selects no interface with an address"
    if apart and set(chosen) == {LOOPBACK}:
        return "selects only loopback, which cannot reach another node"
    return ""


def selected(name: str, value: str, usable: Iterable[str]) -> list[str]:
    """The interfaces that a variable selects: gloo by whole names, NCCL as it reads its lists."""
    if name == BY_NAME:
        return [one for one in value.split(",") if one in usable]
    return [one for one in usable if selection(value).selects(one)]


def with_address(interfaces: Mapping[str, Any]) -> list[str]:
    return [name for name, entry in interfaces.items() if _has_address(entry)]


def _has_address(entry: Any) -> bool:
    """Whether an interface has an IP address; one of which that is not known counts as having."""
    if not isinstance(entry, dict):
        return False
    lists = [entry.get("ipv4"), entry.get("ipv6")]
    return any(not isinstance(one, list) or one for one in lists)


def uses_infiniband(variables: Mapping[str, str]) -> bool:
    """Whether the variables leave NCCL its InfiniBand."""
    off = integer(variables.get("NCCL_IB_DISABLE", "")) != 0
    return not off and variables.get("NCCL_NET", "").casefold() != "socket"


def selects_port(value: str, port: Mapping[str, Any]) -> bool:
    """Whether NCCL_IB_HCA selects an RDMA port."""
    text = str(port.get("port"))
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 4 else None
    return selection(value).selects(str(port.get("hca")), number)


def is_active(port: Mapping[str, Any]) -> bool:
    """The kernel says `4: ACTIVE`; a state that is not known counts as active."""
    state = port.get("state")
    return not isinstance(state, str) or "ACTIVE" in state.split()


def _port_words(port: Mapping[str, Any]) -> str:
    return shown(f"{port.get('hca')}:{port.get('port')} ({port.get('state')})")
