"""The nodes of a job meet through the run directory, and agree on an address and a port."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..evidence.interfaces import selected
from ..evidence.run_directory import read_json, write_json
from . import checks
from .abort_flag import Aborted, NodeFailed, visible
from .checks import refuse
from .node_job import NodeJob
from .reachability import CONNECT_S, Door, Unreachable, Visit

LOOPBACK = "127.0.0.1"
POLL_S = 0.1
# A node that cannot reach node 0 gives the others time to say the same.
OTHERS_S = CONNECT_S + 2.0
FLAG_S = 5.0


@dataclass(frozen=True)
class Meeting:
    """Where torchrun's agents meet. `one_host`: all nodes are virtual, on one network stack.

    `hold` keeps node 0's port from being given to anybody by chance, for as long as it lives.
    """

    address: str
    port: int
    one_host: bool
    hold: socket.socket | None = field(default=None, compare=False, repr=False)


class NotSeen(NodeFailed):
    """Files of other nodes never came to be seen here; `nodes` are the ranks of these nodes."""

    def __init__(self, text: str, nodes: list[int]) -> None:
        super().__init__(text)
        self.nodes = nodes


def facts_of_all(job: NodeJob, deadline: float) -> list[dict[str, Any]]:
    """The facts of all nodes, by rank, once they can be read here.

    Raises NotSeen for the nodes whose facts cannot by `deadline`: they did not start, or the
    shared directory does not show their files to this node.
    """
    paths = {job.dir.node_facts(node): node for node in range(job.nodes)}
    return _wait(job, paths, deadline, "the facts of the other nodes")


def meet(job: NodeJob, facts: list[dict[str, Any]], deadline: float) -> Meeting:
    """Node 0 publishes an address and a port, and every other node connects to it there.

    Raises PreflightFailed where a node cannot, and NotSeen where node 0's word is not seen.
    """
    if job.nodes == 1:
        return Meeting(LOOPBACK, 0, True)
    if job.node_rank == 0:
        return _receive(job, facts, deadline)
    return _go_to(job, facts, deadline)


def _receive(job: NodeJob, facts: list[dict[str, Any]], deadline: float) -> Meeting:
    """Node 0's part."""
    one_host = _on_one_host(facts)
    address = LOOPBACK if one_host else _own_address(job.node_name, facts)
    door = Door(address, backlog=job.nodes)
    published = {"address": address, "port": door.port, "one_host": one_host}
    write_json(job.dir.rendezvous, {**published, "token": door.token})
    missing = _admit(job, door, deadline)
    _say(job)
    refuse(checks.peers.checks(facts, _said(job)), facts)
    if missing:
        names = {node.rank: node.name for node in checks.nodes_of(facts)}
        silent = checks.listed(names.get(node, f"node {node}") for node in missing)
        raise NodeFailed(
            f"{silent} never connected to node 0 at {address}:{door.port}, and reported no error"
        )
    return Meeting(address, door.port, one_host, door.hold)


def _admit(job: NodeJob, door: Door, deadline: float) -> list[int]:
    """Wait until every other node has said how it fared, and send them on where all got through.
    Returns those that said nothing."""
    paths = {job.dir.node_meeting(node): node for node in range(1, job.nodes)}
    said: dict[Path, dict[str, Any]] = {}
    failed, go = False, False
    try:
        while (missing := _unread(list(paths), said)) and time.monotonic() < deadline:
            if any(one.get("ok") is False for one in said.values()) and not failed:
                # The others get the time that they may need to say the same.
                failed, deadline = True, min(deadline, time.monotonic() + OTHERS_S)
            elif not failed:
                _look_at_flag(job)
            door.greet(POLL_S)
        go = not missing and all(one.get("ok") is True for one in said.values())
    finally:
        door.close(go)
    return [paths[path] for path in missing]


def _go_to(job: NodeJob, facts: list[dict[str, Any]], deadline: float) -> Meeting:
    """The part of every other node."""
    path = job.dir.rendezvous
    (published,) = _wait(job, {path: 0}, deadline, "node 0's rendezvous file")
    match published:
        case {
            "address": str(address),
            "port": int(port),
            "one_host": bool(one_host),
            "token": str(token),
        }:
            meeting = Meeting(address, port, one_host)
        case _:
            raise NodeFailed(
                f"{path} holds {published}; expected node 0's address, port, token and one_host; "
                "check that all nodes run the same version of pytest-clustersmoke"
            )
    try:
        visit = Visit(address, port, token)
    except Unreachable as error:
        _say(job, ok=False, address=address, port=port, error=str(error))
        _await_others(job)
        refuse(checks.peers.checks(facts, _said(job)), facts)
        raise NodeFailed(str(error)) from error
    _say(job, clock={"offset_s": visit.offset_s, "error_s": visit.error_s})
    if visit.wait(deadline, lambda: _look_at_flag(job)):
        return meeting
    end = time.monotonic() + FLAG_S
    while time.monotonic() < end:
        _look_at_flag(job)
        time.sleep(POLL_S)
    raise NodeFailed(f"node 0 closed the connection at {address}:{port} and reported no reason")


def _say(job: NodeJob, ok: bool = True, **found: Any) -> None:
    """Write down whether this node could reach node 0."""
    write_json(job.dir.node_meeting(job.node_rank), {"ok": ok, **found})


def _said(job: NodeJob) -> list[dict[str, Any] | None]:
    """What each node wrote of the meeting, as far as it can be read here."""
    paths = [job.dir.node_meeting(node) for node in range(job.nodes)]
    return [read_json(path) if visible(path) else None for path in paths]


def _await_others(job: NodeJob) -> None:
    """The scheduler ends all nodes once one fails; so let the others say first whether they got
    through."""
    deadline = time.monotonic() + OTHERS_S
    others = [node for node in range(1, job.nodes) if node != job.node_rank]
    while others and time.monotonic() < deadline and not visible(job.dir.abort):
        others = [node for node in others if not visible(job.dir.node_meeting(node))]
        time.sleep(POLL_S)


def _look_at_flag(job: NodeJob) -> None:
    if visible(job.dir.abort):
        raise Aborted(read_json(job.dir.abort) or {})


def _on_one_host(facts: list[dict[str, Any]]) -> bool:
    """Whether all nodes say that they share a kernel and a network stack; unknown is not shared."""
    stacks = [(one.get("boot_id"), one.get("network_namespace")) for one in facts]
    return None not in stacks[0] and all(stack == stacks[0] for stack in stacks)


def _wait(
    job: NodeJob, paths: Mapping[Path, int], deadline: float, what: str
) -> list[dict[str, Any]]:
    """What these files of nodes hold, once all can be read here: one may be visible before its
    content is, or go stale between the two looks."""
    found: dict[Path, dict[str, Any]] = {}
    while missing := _unread(list(paths), found):
        _look_at_flag(job)
        if time.monotonic() > deadline:
            names = ", ".join(str(path.relative_to(job.dir.root)) for path in missing)
            raise NotSeen(
                f"{job.node_name} ({socket.gethostname()}) waited for {what} and could not read "
                f"{names}: those nodes did not start, or {job.dir.root} is not shared with them",
                [paths[path] for path in missing],
            )
        time.sleep(POLL_S)
    return [found[path] for path in paths]


def _unread(paths: list[Path], found: dict[Path, dict[str, Any]]) -> list[Path]:
    """Add to `found` what can be read now; returns what still cannot."""
    for path in paths:
        if path not in found and visible(path) and (content := read_json(path)) is not None:
            found[path] = content
    return [path for path in paths if path not in found]


def _own_address(node_name: str, facts: list[dict[str, Any]]) -> str:
    """An IPv4 address of this node, of rank 0, which the others can reach.

    The interface that the environment pins comes first, then what the scheduler's name of the node
    resolves to (where that is this node, and no gateway before it), then any interface that is up:
    but for addresses that another node has, too (a container bridge's), and those of one link (a
    management controller's, RFC 3927).

    Raises NodeFailed where there is none.
    """
    interfaces = facts[0]["interfaces"]
    with_ipv4 = {name: entry for name, entry in interfaces.items() if entry["ipv4"]}
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        value = os.environ.get(variable, "")
        if value and not value.startswith("^"):
            for name in selected(variable, value, with_ipv4):
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
    own = [one for one in up if not one.startswith(("127.", "169.254.")) and one not in theirs]
    if not own:
        raise NodeFailed(
            f"{node_name} has no IPv4 address that other nodes can reach, and torchrun needs one; "
            f"its interfaces have {', '.join(up) or 'none'}; make its name resolve to such an "
            "address there, or select the interface with GLOO_SOCKET_IFNAME"
        )
    return str(own[0])


def _addresses(facts: Mapping[str, Any]) -> Iterator[str]:
    """The IPv4 addresses that another node says it has."""
    interfaces = facts.get("interfaces")
    for entry in interfaces.values() if isinstance(interfaces, dict) else ():
        known = entry.get("ipv4") if isinstance(entry, dict) else None
        yield from known if isinstance(known, list) else ()
