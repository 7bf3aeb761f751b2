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
    facts = _all_facts(job, deadline)
    path = job.dir.rendezvous
    if job.node_rank == 0:
        one_host = len({(one["boot_id"], one["network_namespace"]) for one in facts}) == 1
        address = LOOPBACK if one_host else _own_address(job.node_name, facts[0])
        published: dict[str, Any] = {
            "address": address,
            "port": free_port(address),
            "one_host": one_host,
        }
        write_json(path, published)
    _wait(job, [path], deadline, "node 0's rendezvous file")
    published = read_json(path) or {}
    return Meeting(str(published["address"]), int(published["port"]), bool(published["one_host"]))


def _all_facts(job: NodeJob, deadline: float) -> list[dict[str, Any]]:
    paths = [job.dir.node_facts(node) for node in range(job.nodes)]
    _wait(job, paths, deadline, "the facts of the other nodes")
    return [read_json(path) or {} for path in paths]


def _wait(job: NodeJob, paths: list[Path], deadline: float, what: str) -> None:
    missing = paths
    while missing := [path for path in missing if not visible(path)]:
        if visible(job.dir.abort):
            raise Aborted(read_json(job.dir.abort) or {})
        if time.monotonic() > deadline:
            names = ", ".join(str(path.relative_to(job.dir.root)) for path in missing)
            raise NodeFailed(
                f"{job.node_name} ({socket.gethostname()}) waited for {what} and never saw "
                f"{names}: those nodes did not start, or {job.dir.root} is not shared with them"
            )
        time.sleep(POLL_S)


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
