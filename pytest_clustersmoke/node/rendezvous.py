"""The nodes of a job wait for each other, and agree on an address and a port for their ranks."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..evidence.interfaces import select_interfaces
from ..evidence.run_directory import read_json, write_json
from . import checks
from .abort_flag import Aborted, NodeFailed, visible
from .checks import refuse_failures
from .node_job import NodeJob
from .reachability import CONNECT_S, NodeConnection, NodeListener, Unreachable

LOOPBACK = "127.0.0.1"
POLL_S = 0.1
# A node that cannot reach node 0 gives the others time to report the same.
OTHERS_S = CONNECT_S + 2.0
FLAG_S = 5.0


@dataclass(frozen=True)
class Endpoint:
    """The address and port at which the ranks meet. `one_host`: all nodes are virtual, on one
    network stack.

    As long as `hold` lives, the system gives node 0's port to no other process.
    """

    address: str
    port: int
    one_host: bool
    hold: socket.socket | None = field(default=None, compare=False, repr=False)


class NotSeen(NodeFailed):
    """Files of other nodes never became visible here; `nodes` are the ranks of those nodes."""

    def __init__(self, text: str, nodes: list[int]) -> None:
        super().__init__(text)
        self.nodes = nodes


def wait_for_facts(job: NodeJob, deadline: float) -> list[dict[str, Any]]:
    """Wait for the facts of all nodes and return them in rank order.

    Raises NotSeen with the nodes whose facts cannot be read by `deadline`: they did not start, or
    the shared directory does not show their files to this node.
    """
    paths = {job.dir.node_facts(node): node for node in range(job.nodes)}
    return _wait_for_files(job, paths, deadline, "the facts of the other nodes")


def agree_on_endpoint(job: NodeJob, facts: list[dict[str, Any]], deadline: float) -> Endpoint:
    """Node 0 publishes an address and a port, and every other node connects to it there.

    Raises PreflightFailed if a node cannot connect, and NotSeen if node 0's file is not visible.
    """
    if job.nodes == 1:
        listener = NodeListener(LOOPBACK, backlog=1)
        listener.close(go=False)
        return Endpoint(LOOPBACK, listener.port, True, listener.hold)
    if job.node_rank == 0:
        return _publish_endpoint(job, facts, deadline)
    return _join_endpoint(job, facts, deadline)


def _publish_endpoint(job: NodeJob, facts: list[dict[str, Any]], deadline: float) -> Endpoint:
    """Node 0's part."""
    one_host = _on_one_host(facts)
    address = LOOPBACK if one_host else _own_address(job.node_name, facts)
    listener = NodeListener(address, backlog=job.nodes)
    published = {"address": address, "port": listener.port, "one_host": one_host}
    write_json(job.dir.rendezvous, {**published, "token": listener.token})
    missing = _await_nodes(job, listener, deadline)
    _write_report(job)
    refuse_failures(checks.peers.check_peers(facts, _read_reports(job)))
    if missing:
        names = {node.rank: node.name for node in checks.nodes_of(facts)}
        silent = checks.shorten_names(names.get(node, f"node {node}") for node in missing)
        raise NodeFailed(
            f"{silent} never connected to node 0 at {address}:{listener.port} and reported no error"
        )
    return Endpoint(address, listener.port, one_host, listener.hold)


def _await_nodes(job: NodeJob, listener: NodeListener, deadline: float) -> list[int]:
    """Wait for every other node's report, and let them go on if all could connect. Returns the
    nodes without a report."""
    paths = {job.dir.node_meeting(node): node for node in range(1, job.nodes)}
    reports: dict[Path, dict[str, Any]] = {}
    failed, go = False, False
    try:
        while (missing := _read_missing(list(paths), reports)) and time.monotonic() < deadline:
            if any(report.get("ok") is False for report in reports.values()) and not failed:
                # Give the other nodes time to report the same.
                failed, deadline = True, min(deadline, time.monotonic() + OTHERS_S)
            elif not failed:
                _raise_if_aborted(job)
            listener.greet(POLL_S)
        go = not missing and all(report.get("ok") is True for report in reports.values())
    finally:
        listener.close(go)
    return [paths[path] for path in missing]


def _join_endpoint(job: NodeJob, facts: list[dict[str, Any]], deadline: float) -> Endpoint:
    """The part of every other node."""
    path = job.dir.rendezvous
    (published,) = _wait_for_files(job, {path: 0}, deadline, "node 0's rendezvous file")
    match published:
        case {
            "address": str(address),
            "port": int(port),
            "one_host": bool(one_host),
            "token": str(token),
        }:
            endpoint = Endpoint(address, port, one_host)
        case _:
            raise NodeFailed(
                f"{path} holds {published}; expected node 0's address, port, token and one_host; "
                "check that all nodes run the same version of pytest-clustersmoke"
            )
    try:
        connection = NodeConnection(address, port, token)
    except Unreachable as error:
        _write_report(job, ok=False, address=address, port=port, error=str(error))
        _await_others(job)
        refuse_failures(checks.peers.check_peers(facts, _read_reports(job)))
        raise NodeFailed(str(error)) from error
    _write_report(job, clock={"offset_s": connection.offset_s, "error_s": connection.error_s})
    if connection.wait(deadline, lambda: _raise_if_aborted(job)):
        return endpoint
    end = time.monotonic() + FLAG_S
    while time.monotonic() < end:
        _raise_if_aborted(job)
        time.sleep(POLL_S)
    raise NodeFailed(f"node 0 closed the connection at {address}:{port} and reported no reason")


def _write_report(job: NodeJob, ok: bool = True, **fields: Any) -> None:
    """Record whether this node could connect to node 0."""
    write_json(job.dir.node_meeting(job.node_rank), {"ok": ok, **fields})


def _read_reports(job: NodeJob) -> list[dict[str, Any] | None]:
    """Each node's report on its connection to node 0; None if it cannot be read here."""
    paths = [job.dir.node_meeting(node) for node in range(job.nodes)]
    return [read_json(path) if visible(path) else None for path in paths]


def _await_others(job: NodeJob) -> None:
    """Wait for the other nodes' reports, because the scheduler ends all nodes once one fails."""
    deadline = time.monotonic() + OTHERS_S
    others = [node for node in range(1, job.nodes) if node != job.node_rank]
    while others and time.monotonic() < deadline and not visible(job.dir.abort):
        others = [node for node in others if not visible(job.dir.node_meeting(node))]
        time.sleep(POLL_S)


def _raise_if_aborted(job: NodeJob) -> None:
    if visible(job.dir.abort):
        raise Aborted(read_json(job.dir.abort) or {})


def _on_one_host(facts: list[dict[str, Any]]) -> bool:
    """Whether all nodes share a kernel and a network stack; if that is unknown, they do not."""
    stacks = [(own.get("boot_id"), own.get("network_namespace")) for own in facts]
    return None not in stacks[0] and all(stack == stacks[0] for stack in stacks)


def _wait_for_files(
    job: NodeJob, paths: Mapping[Path, int], deadline: float, label: str
) -> list[dict[str, Any]]:
    """Wait until all these files of nodes can be read, and return their contents. A file may be
    visible before its content is, or go stale between the two accesses."""
    contents: dict[Path, dict[str, Any]] = {}
    while missing := _read_missing(list(paths), contents):
        _raise_if_aborted(job)
        if time.monotonic() > deadline:
            names = ", ".join(str(path.relative_to(job.dir.root)) for path in missing)
            raise NotSeen(
                f"{job.node_name} ({socket.gethostname()}) waited for {label} and could not read "
                f"{names}: those nodes did not start, or {job.dir.root} is not shared with them",
                [paths[path] for path in missing],
            )
        time.sleep(POLL_S)
    return [contents[path] for path in paths]


def _read_missing(paths: list[Path], contents: dict[Path, dict[str, Any]]) -> list[Path]:
    """Add files that can be read now to `found`; returns the files that still cannot."""
    for path in paths:
        if path not in contents and visible(path) and (content := read_json(path)) is not None:
            contents[path] = content
    return [path for path in paths if path not in contents]


def _own_address(node_name: str, facts: list[dict[str, Any]]) -> str:
    """An IPv4 address of this node, of rank 0, that the other nodes can reach.

    The first choice is the interface that the environment selects; then the address that the
    scheduler's name of the node resolves to (if this node has it, and not a gateway in front);
    then any interface that is up. Addresses that another node also has (a container bridge's) and
    link-local ones (a management controller's, RFC 3927) are left out.

    Raises NodeFailed if there is none.
    """
    interfaces = facts[0]["interfaces"]
    with_ipv4 = {name: entry for name, entry in interfaces.items() if entry["ipv4"]}
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        value = os.environ.get(variable, "")
        if value and not value.startswith("^"):
            for name in select_interfaces(variable, value, with_ipv4):
                return str(with_ipv4[name]["ipv4"][0])
    for host in (node_name, socket.gethostname()):
        try:
            address = socket.gethostbyname(host)
        except OSError:
            continue
        if not address.startswith("127.") and address in _addresses(facts[0]):
            return address
    up = [entry["ipv4"][0] for entry in interfaces.values() if entry["up"] and entry["ipv4"]]
    theirs = {address for other in facts[1:] for address in _addresses(other)}
    own = [a for a in up if not a.startswith(("127.", "169.254.")) and a not in theirs]
    if not own:
        raise NodeFailed(
            f"{node_name} has no IPv4 address that other nodes can reach, and the launcher needs "
            f"one; its interfaces have {', '.join(up) or 'none'}; make its name resolve to such an "
            "address there, or select the interface with GLOO_SOCKET_IFNAME"
        )
    return str(own[0])


def _addresses(facts: Mapping[str, Any]) -> Iterator[str]:
    """The IPv4 addresses in a node's facts."""
    interfaces = facts.get("interfaces")
    for entry in interfaces.values() if isinstance(interfaces, dict) else ():
        addresses = entry.get("ipv4") if isinstance(entry, dict) else None
        yield from addresses if isinstance(addresses, list) else ()
