"""The network interfaces of this node and its RDMA ports, as the kernel shows them.

The standard library alone: the screen of a node has a tenth of a second.
"""

from __future__ import annotations

import array
import fcntl
import re
import socket
import struct
from collections import defaultdict
from pathlib import Path
from typing import Any

NETWORK = Path("/sys/class/net")
IPV6_ADDRESSES = Path("/proc/net/if_inet6")
# linux/sockios.h and linux/if.h (netdevice(7)).
SIOCGIFCONF, SIOCGIFFLAGS = 0x8912, 0x8913
IFF_RUNNING = 0x40
LINK_LOCAL = re.compile("fe[89ab]")  # fe80::/10
NAME_BYTES, REQUEST_BYTES, MOST_ADDRESSES = 16, 40, 1024


def describe_network() -> dict[str, Any]:
    """The facts `interfaces` and `rdma_ports`."""
    return {"interfaces": _interfaces(), "rdma_ports": _rdma_ports()}


def _interfaces() -> dict[str, dict[str, Any]]:
    ipv6 = _ipv6_addresses()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        ipv4 = _ipv4_addresses(asked)
        return {
            name: {
                "up": _is_running(asked, name),
                "speed_mbit": _speed(name),
                "physical": _is_physical(name),
                "ipv4": ipv4[name],
                "ipv6": ipv6[name],
            }
            for _, name in socket.if_nameindex()
        }


def _ipv4_addresses(asked: socket.socket) -> defaultdict[str, list[str]]:
    """By interface; an alias such as `eth0:1` counts for its interface, too."""
    room = array.array("B", bytes(REQUEST_BYTES * MOST_ADDRESSES))
    place, size = room.buffer_info()
    answer = fcntl.ioctl(asked.fileno(), SIOCGIFCONF, struct.pack("iL", size, place))
    used = struct.unpack("iL", answer)[0]
    found: defaultdict[str, list[str]] = defaultdict(list)
    for start in range(0, used, REQUEST_BYTES):
        entry = room[start : start + REQUEST_BYTES].tobytes()
        label = entry[:NAME_BYTES].partition(b"\0")[0].decode(errors="replace")
        found[label.partition(":")[0]].append(socket.inet_ntoa(entry[20:24]))
    return found


def _ipv6_addresses() -> defaultdict[str, list[str]]:
    """By interface, with its name behind an address that holds on that link alone."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    try:
        lines = IPV6_ADDRESSES.read_text().splitlines()
    except OSError:  # a kernel without IPv6
        return found
    for number, _, _, _, _, name in filter(lambda row: len(row) == 6, map(str.split, lines)):
        address = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(number))
        found[name].append(f"{address}%{name}" if LINK_LOCAL.match(number) else address)
    return found


def _is_running(asked: socket.socket, name: str) -> bool:
    """Whether the interface is up and has a link."""
    request = struct.pack("256s", name.encode()[: NAME_BYTES - 1])
    try:
        answer = fcntl.ioctl(asked.fileno(), SIOCGIFFLAGS, request)
    except OSError:  # it has gone
        return False
    flags: int = struct.unpack_from("H", answer, NAME_BYTES)[0]
    return bool(flags & IFF_RUNNING)


def _speed(name: str) -> int:
    """In Mbit/s; 0 if the driver does not say."""
    try:
        return max(0, int((NETWORK / name / "speed").read_text()))
    except (OSError, ValueError):
        return 0


def _is_physical(name: str) -> bool:
    """Whether an interface is an adapter or a bond of adapters; bridges and tunnels are not."""
    return any((NETWORK / name / kind).exists() for kind in ("device", "bonding"))


def _rdma_ports() -> list[dict[str, str | None]]:
    ports = sorted(Path("/sys/class/infiniband").glob("*/ports/*"))
    return [
        {
            "hca": port.parent.parent.name,
            "port": port.name,
            "state": _read_text(port / "state"),
            "rate": _read_text(port / "rate"),
            "link_layer": _read_text(port / "link_layer"),
            "firmware": _read_text(port.parent.parent / "fw_ver"),
        }
        for port in ports
    ]


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None
