"""Isolates nodes: each has namespaces with its own host name, address, /tmp and /dev/shm.

A sleeping process (the holder) keeps each node's namespaces alive, and one more keeps the hub's,
which contains the bridge that joins the nodes. Nothing in them is visible outside, so interfaces
and mounts disappear with these processes. One interface is in the host, with an address of the
lab's network: slurmctld listens there, and the user's shell connects to it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import random
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from ..evidence.run_directory import write_atomically
from . import packages
from .addresses import list_own_names
from .daemons import Daemons
from .lab_settings import LabError
from .lab_state import Journal, LabRecord
from .slurm_config import NodePlan

NETWORKS = ipaddress.IPv4Network("10.77.0.0/16")
# Of a lab's 256 addresses the host has .1 and node I has .(11 + I).
FIRST_NODE = 11
SLURMD_PORT = 6818

# Sets up a node's namespaces, then sleeps. /sys is mounted again because it shows the network
# interfaces of the namespace that mounted it; the control groups below it are kept. An empty
# resolv.conf makes unknown names fail at once instead of waiting for a name server.
NODE_SCRIPT = """
hostname "$1"
mount --bind "$2" /etc/hosts
if [ -e /etc/resolv.conf ]; then mount --bind /dev/null /etc/resolv.conf; fi
mount -t tmpfs -o size=50% tmpfs /dev/shm
if [ -d /sys/class/net ]; then
  mount -t tmpfs tmpfs /tmp
  mkdir /tmp/sys
  mount -t sysfs sysfs /tmp/sys
  if [ -d /sys/fs/cgroup ]; then mount --rbind /sys/fs/cgroup /tmp/sys/fs/cgroup; fi
  mount --rbind /tmp/sys /sys
  umount -l /tmp/sys
  umount /tmp
fi
mount -t tmpfs -o mode=1777 tmpfs /tmp
: > "$3"
exec sleep infinity
"""


class Isolation:
    """The virtual network of one lab that is being started."""

    def __init__(self, record: LabRecord, daemons: Daemons) -> None:
        self._files = record.files
        self._daemons = daemons
        self._journal = Journal(record.files.journal)
        # An interface name has at most 15 characters.
        self._interface = f"cs{record.token[:10]}"
        self._ip = packages.program_path("ip")

    @contextlib.contextmanager
    def network(self, count: int) -> Iterator[tuple[str, tuple[NodePlan, ...]]]:
        """Make the hub and its interface in the host; yield the host's address and the nodes.

        Inside the block no other lab on this machine can choose the same addresses.
        """
        with reserve_network(self._used_networks()) as network:
            hosts = [str(address) for address in network]
            nodes = tuple(
                NodePlan(f"node{i}", f"node{i}", hosts[FIRST_NODE + i], SLURMD_PORT)
                for i in range(count)
            )
            self._write_hosts(hosts[1], nodes)
            self._make_hub(hosts[1])
            yield hosts[1], nodes

    def join_nodes(self, nodes: tuple[NodePlan, ...]) -> tuple[tuple[str, ...], ...]:
        """Make the nodes' namespaces and connect them; return each node's command prefix."""
        holders = {node.name: self._start_node_holder(node) for node in nodes}
        commands = []
        for node in nodes:
            role, ready = f"host-{node.name}", self._ready_file(node.name)
            self._daemons.wait(role, ready.exists, "set up its namespaces")
            pid = holders[node.name]
            commands += [
                f"link add name {node.name} type veth peer name eth0 netns {pid}",
                f"link set dev {node.name} master lab up",
            ]
        self._run_ip(self._hub, commands)
        for node in nodes:
            address = [f"address add {node.address}/24 dev eth0", "link set dev eth0 up"]
            self._run_ip(holders[node.name], ["link set dev lo up", *address])
        nsenter = packages.program_path("nsenter")
        return tuple(
            (nsenter, "--target", str(holders[node.name]), "--net", "--uts", "--mount", "--")
            for node in nodes
        )

    def _used_networks(self) -> list[ipaddress.IPv4Network]:
        """The networks in which this host has addresses or to which it has routes."""
        routes = self._daemons.run([self._ip, "-o", "-4", "route", "show", "table", "all"])
        networks = []
        for word in routes.split():
            with contextlib.suppress(ValueError):
                networks.append(ipaddress.IPv4Network(word, strict=False))
        return networks

    def _write_hosts(self, control: str, nodes: tuple[NodePlan, ...]) -> None:
        lines = ["127.0.0.1 localhost", f"{control} {list_own_names()}"]
        lines += [f"{node.address} {node.name}" for node in nodes]
        write_atomically(self._files.hosts, "\n".join(lines) + "\n", mode=0o644)

    def _make_hub(self, control: str) -> None:
        self._hub = self._start_holder("hub", ["--net"], ["sleep", "infinity"])
        ours = Path("/proc/self/ns/net").stat().st_ino
        namespace = Path(f"/proc/{self._hub}/ns/net")

        def has_own_network() -> bool:
            return namespace.exists() and namespace.stat().st_ino != ours

        self._daemons.wait("hub", has_own_network, "make a network of its own")
        self._journal.link(self._interface)
        self._run_ip(
            self._hub,
            [
                "link add name lab type bridge",
                "link set dev lab up",
                # Made in one step with one end in the host, so that no half-made pair is left.
                f"link add name host type veth peer name {self._interface} netns {os.getpid()}",
                "link set dev host master lab up",
            ],
        )
        ipv6_switch = Path(f"/proc/sys/net/ipv6/conf/{self._interface}/disable_ipv6")
        if ipv6_switch.exists():
            ipv6_switch.write_text("1")
        self._run_ip(
            None,
            [
                f"address add {control}/24 dev {self._interface}",
                f"link set dev {self._interface} up",
            ],
        )

    def _start_node_holder(self, node: NodePlan) -> int:
        script = [str(self._files.hosts), str(self._ready_file(node.name))]
        return self._start_holder(
            f"host-{node.name}",
            ["--net", "--uts", "--mount", "--propagation", "private"],
            ["sh", "-ec", NODE_SCRIPT, "sh", node.hostname, *script],
        )

    def _start_holder(self, role: str, namespaces: list[str], command: list[str]) -> int:
        return self._daemons.start(
            role, [packages.program_path("unshare"), *namespaces, "--", *command]
        )

    def _ready_file(self, node: str) -> Path:
        return self._files.run / f"{node}.ready"

    def _run_ip(self, holder: int | None, commands: list[str]) -> None:
        """Run commands of `ip` in a holder's network namespace, or in the host's."""
        inside = [] if holder is None else ["nsenter", f"--net=/proc/{holder}/ns/net", "--"]
        self._daemons.run([*inside, self._ip, "-batch", "-"], text="\n".join(commands) + "\n")


@contextlib.contextmanager
def reserve_network(
    used: list[ipaddress.IPv4Network],
) -> Iterator[ipaddress.IPv4Network]:
    """A network that the host does not use; inside the block no other lab can choose it.

    It is reserved by an abstract socket, which belongs to the host's network namespace and
    disappears with the process.
    """
    candidates: list[ipaddress.IPv4Network] = list(NETWORKS.subnets(new_prefix=24))
    for network in random.sample(candidates, len(candidates)):
        if any(network.overlaps(other) for other in used if other.prefixlen):
            continue
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as holder:
            try:
                holder.bind(f"\0clustersmoke-network-{network}")
            except OSError:
                continue
            yield network
            return
    raise LabError(f"no free network is left in {NETWORKS}; end a lab (`clustersmoke lab status`)")


def find_isolation_obstacle() -> str | None:
    """Why this machine cannot isolate nodes; None if it can."""
    if os.geteuid() != 0:
        return "--isolated makes network namespaces, which only root can do; run it as root"
    trial = subprocess.run(
        [
            packages.program_path("unshare"),
            "--net",
            "--uts",
            "--mount",
            packages.program_path("ip"),
            "link",
            "add",
            "name",
            "a",
            "type",
            "veth",
            "peer",
            "name",
            "b",
        ],
        capture_output=True,
        text=True,
    )
    if trial.returncode:
        error = (trial.stderr.strip().splitlines() or ["refused"])[-1]
        return f"--isolated needs namespaces and veth interfaces: {error}"
    return None
