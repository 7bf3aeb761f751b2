"""A fake sysfs: a tree of files as the kernel shows network ports, written into a folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

WORD = 4


@dataclass
class FakePort:
    """One RDMA port; a counter that is None is not there."""

    hca: str
    sent: int | None = 10**9  # bytes, and so below
    received: int | None = 10**9
    port: str = "1"
    layer: str = "InfiniBand"
    state: str = "4: ACTIVE"
    width: int | None = 16
    max_width: int | None = 16
    counters: dict[str, int] = field(default_factory=dict)
    hardware: dict[str, int] = field(default_factory=dict)


QUIET = {"symbol_error": 0, "link_error_recovery": 0, "link_downed": 0, "port_rcv_errors": 0}


def write_tree(root: Path, ports: list[FakePort], interfaces: dict[str, tuple[int, int]]) -> None:
    """Write the ports, and interfaces of adapters with the bytes that they sent and received."""
    for made in ports:
        device = root / "class/infiniband" / made.hca
        port = device / "ports" / made.port
        words = {"port_xmit_data": made.sent, "port_rcv_data": made.received}
        counters = {name: count // WORD for name, count in words.items() if count is not None}
        if made.layer == "InfiniBand":
            counters |= QUIET
        _write(port / "counters", {**counters, **made.counters})
        _write(port / "hw_counters", made.hardware)
        _write(port, {"state": made.state, "link_layer": made.layer})
        lanes = {"current_link_width": made.width, "max_link_width": made.max_width}
        _write(device / "device", {name: n for name, n in lanes.items() if n is not None})
    for name, (sent, received) in interfaces.items():
        folder = root / "class/net" / name
        _write(folder / "statistics", {"tx_bytes": sent, "rx_bytes": received})
        (folder / "device").mkdir(exist_ok=True)
    (root / "class/net/lo/statistics").mkdir(parents=True, exist_ok=True)


def _write(folder: Path, files: dict[str, int] | dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / name).write_text(f"{value}\n")


def write_pci_way(root: Path, *ends: tuple[str, str, str, str] | None) -> Path:
    """A GPU behind PCI bridges, the one at the root first: of each the highest speed and lanes, and
    those now, in the kernel's words; None for a bridge without a link. Returns the GPU's link in
    `bus/pci/devices`."""
    place = root / "devices/pci0000:15"
    for number, each in enumerate(ends):
        place = place / f"0000:{0x15 + number:02x}:00.0"
        place.mkdir(parents=True)
        names = ("max_link_speed", "max_link_width", "current_link_speed", "current_link_width")
        _write(place, dict(zip(names, each, strict=True)) if each else {})
    device = root / "bus/pci/devices" / place.name
    device.parent.mkdir(parents=True, exist_ok=True)
    device.symlink_to(place)
    return device
