"""The nodes of a job meet through the run directory, and agree on an address and a port."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..rundir import read_json, write_json
from .flag import Aborted, NodeFailed, visible

if TYPE_CHECKING:
    from . import NodeJob

LOOPBACK = "127.0.0.1"
POLL_S = 0.1


@dataclass(frozen=True)
class Meeting:
    """Where torchrun's agents meet. `one_host`: all nodes are virtual, on one network stack."""

    address: str
    port: int
    one_host: bool


def meet(job: NodeJob, limit_s: float) -> Meeting:
    """Wait until every node's facts are visible here; node 0 publishes the address and a port.

    Raises NodeFailed naming the nodes that were not seen within `limit_s` seconds: either they did
    not start, or the shared directory does not show their files to this node.
    """
    if job.nodes == 1:
        return Meeting(LOOPBACK, 0, True)
    deadline = time.monotonic() + limit_s
    paths = [job.dir.node_facts(node) for node in range(job.nodes)]
    facts = _wait(job, paths, deadline, "the facts of the other nodes")
    path = job.dir.rendezvous
    if job.node_rank == 0:
        one_host = _on_one_host(facts)
        address = LOOPBACK if one_host else _own_address(job.node_name, facts[0])
        write_json(path, {"address": address, "port": free_port(address), "one_host": one_host})
    (published,) = _wait(job, [path], deadline, "node 0's rendezvous file")
    match published:
        case {"address": str(address), "port": int(port), "one_host": bool(one_host)}:
            return Meeting(address, port, one_host)
    raise NodeFailed(
        f"{path} was expected to hold node 0's address, port and one_host; it holds {published}: "
        "do all nodes run the same version of pytest-clustersmoke?"
    )


def _on_one_host(facts: list[dict[str, Any]]) -> bool:
    """Whether all nodes say that they share a kernel and a network stack; unknown is not shared."""
    stacks = [(one.get("boot_id"), one.get("network_namespace")) for one in facts]
    return None not in stacks[0] and all(stack == stacks[0] for stack in stacks)


def _wait(job: NodeJob, paths: list[Path], deadline: float, what: str) -> list[dict[str, Any]]:
    """What these files hold, once all can be read here: one may be visible before its content is,
    or go stale between the two looks."""
    found: dict[Path, dict[str, Any]] = {}
    while missing := _unread(paths, found):
        if visible(job.dir.abort):
            raise Aborted(read_json(job.dir.abort) or {})
        if time.monotonic() > deadline:
            names = ", ".join(str(path.relative_to(job.dir.root)) for path in missing)
            raise NodeFailed(
                f"{job.node_name} ({socket.gethostname()}) waited for {what} and never could read "
                f"{names}: those nodes did not start, or {job.dir.root} is not shared with them"
            )
        time.sleep(POLL_S)
    return [found[path] for path in paths]


def _unread(paths: list[Path], found: dict[Path, dict[str, Any]]) -> list[Path]:
    """Add to `found` what can be read now; returns what still cannot."""
    for path in paths:
        if path not in found and visible(path) and (content := read_json(path)) is not None:
            found[path] = content
    return [path for path in paths if path not in found]


def _own_address(node_name: str, facts: dict[str, Any]) -> str:
    """An IPv4 address of this node which the others can reach.

    The interface that the environment pins comes first, then what the scheduler's name of the node
    resolves to, then any interface that is up.
    """
    pinned = os.environ.get("GLOO_SOCKET_IFNAME") or os.environ.get("NCCL_SOCKET_IFNAME") or ""
    interfaces = facts["interfaces"]
    for prefix in pinned.lstrip("=").split(",") if pinned and not pinned.startswith("^") else []:
        for name, entry in interfaces.items():
            if name.startswith(prefix) and entry["ipv4"]:
                return str(entry["ipv4"][0])
    for host in (node_name, socket.gethostname()):
        try:
            address = socket.gethostbyname(host)
        except OSError:
            continue
        if not address.startswith("127."):
            return address
    up = [entry["ipv4"][0] for entry in interfaces.values() if entry["up"] and entry["ipv4"]]
    outward = [address for address in up if not address.startswith("127.")]
    return str(outward[0]) if outward else LOOPBACK


def free_port(address: str) -> int:
    """A TCP port nothing listens on at `address` at this moment."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
