"""What the kernel has counted of a node's network ports, read from sysfs before and after a phase.

    class/infiniband/<hca>/ports/<port>/counters      of InfiniBand, and of most RoCE devices
    class/infiniband/<hca>/ports/<port>/hw_counters   what else the device counts
    class/infiniband/<hca>/device/current_link_width  of its PCIe slot, beside max_link_width

`port_xmit_data` and `port_rcv_data` count words of four bytes. The counters of the InfiniBand
architecture (volume 1, 16.1.3.5) do not wrap: one that has reached its maximum stays there, so what
it counted since is unknown. Kernels show wider ones under the same names where the device has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..evidence.telemetry import parse_int, parse_rows, parse_text

SYS = Path("/sys")
WORD_BYTES = 4
SENT, RECEIVED = "port_xmit_data", "port_rcv_data"
# Bits of counters that stay at their maximum.
BITS = {
    "symbol_error": 16,
    "link_error_recovery": 8,
    "link_downed": 8,
    "port_rcv_errors": 16,
    "port_rcv_remote_physical_errors": 16,
    "port_xmit_discards": 16,
    "local_link_integrity_errors": 4,
    "excessive_buffer_overrun_errors": 4,
}
# Of RoCE devices: what was lost on the way and sent again.
HARDWARE = (
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "rx_icrc_encapsulated",
)
DATA_BITS = (32, 64)  # of the counters of data: one at either maximum may have stayed there
INFINIBAND, ETHERNET = "InfiniBand", "Ethernet"
MAX_DIGITS = 20  # of 64 bits


def read_ports(root: Path = SYS) -> list[dict[str, Any]]:
    """The RDMA ports, with every counter that can be read."""
    return [_read_port(port) for port in sorted((root / "class/infiniband").glob("*/ports/*"))]


def _read_port(port: Path) -> dict[str, Any]:
    device = port.parent.parent
    counters = {
        name: read_number(port / folder / name)
        for folder, names in (("counters", (SENT, RECEIVED, *BITS)), ("hw_counters", HARDWARE))
        for name in names
    }
    return {
        "hca": device.name,
        "port": port.name,
        "state": _read_word(port / "state"),
        "link_layer": _read_word(port / "link_layer"),
        "width": read_number(device / "device" / "current_link_width"),
        "max_width": read_number(device / "device" / "max_link_width"),
        "counters": {name: value for name, value in counters.items() if value is not None},
    }


def _read_word(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def read_number(path: Path) -> int | None:
    word = _read_word(path) or ""
    is_number = word.isascii() and word.isdigit() and len(word) <= MAX_DIGITS
    return int(word) if is_number else None


# The difference of two readings. A job may have written them: only numbers are measured.

MISSING, SATURATED, BACKWARDS = "not readable", "at its maximum", "smaller than before"


@dataclass(frozen=True)
class Delta:
    """What a counter has counted; None if it was not measured, with the reason."""

    value: int | None
    why: str = ""


@dataclass(frozen=True)
class PortDelta:
    """One port over a phase: the bytes that it sent and received, and the other counters."""

    hca: str
    port: str
    link_layer: str
    is_active: bool
    sent: Delta
    received: Delta
    counted: Mapping[str, Delta] = field(default_factory=dict)
    width: int | None = None
    max_width: int | None = None
    was_lost: bool = False  # it was active before, and is there, and is not active any more

    @property
    def name(self) -> str:
        return f"{self.hca}:{self.port}"

    @property
    def bytes(self) -> int | None:
        """Both ways together; None if either was not measured."""
        if self.sent.value is None or self.received.value is None:
            return None
        return self.sent.value + self.received.value


def subtract(before: int | None, after: int | None, *bits: int) -> Delta:
    """What a counter of so many bits has counted between two readings. If it reached its maximum
    meanwhile, it counted at least that; if its size is one of several, nothing is known then."""
    if before is None or after is None:
        return Delta(None, MISSING)
    if any(after == 2**size - 1 for size in bits) and (len(bits) > 1 or before >= after):
        return Delta(None, SATURATED)
    if after < before:
        return Delta(None, BACKWARDS)
    return Delta(after - before)


def compare_ports(before: Any, after: Any) -> list[PortDelta]:
    """The ports that both readings have, or only the first: such a port counted nothing that can
    be read."""
    later = {_key(port): port for port in parse_rows(after)}
    return [_compare_port(port, later.get(_key(port), {})) for port in parse_rows(before)]


def _key(port: Mapping[str, Any]) -> tuple[str, str]:
    return str(port.get("hca")), str(port.get("port"))


def _compare_port(before: Mapping[str, Any], after: Mapping[str, Any]) -> PortDelta:
    first, last = _counters(before), _counters(after)
    data = {
        name: _to_bytes(subtract(first.get(name), last.get(name), *DATA_BITS))
        for name in (SENT, RECEIVED)
    }
    hca, port = _key(before)
    was_active, is_active = _is_active(before), _is_active(after)
    return PortDelta(
        hca,
        port,
        parse_text(before.get("link_layer")) or "",
        is_active is True,
        data[SENT],
        data[RECEIVED],
        dict(_counted(first, last)),
        parse_int(after.get("width")),
        parse_int(after.get("max_width")),
        was_active is True and is_active is False,
    )


def _is_active(port: Mapping[str, Any]) -> bool | None:
    """None if the port does not say."""
    state = parse_text(port.get("state"))
    return None if state is None else "ACTIVE" in state.split()


def _counters(port: Mapping[str, Any]) -> dict[str, int | None]:
    counters = port.get("counters")
    pairs = counters.items() if isinstance(counters, dict) else ()
    return {str(name): parse_int(value) for name, value in pairs}


def _counted(
    first: Mapping[str, int | None], last: Mapping[str, int | None]
) -> Iterator[tuple[str, Delta]]:
    for name, bits in BITS.items():
        yield name, subtract(first.get(name), last.get(name), bits)
    for name in HARDWARE:
        if name in first:
            yield name, subtract(first[name], last.get(name), 64)


def _to_bytes(words: Delta) -> Delta:
    return words if words.value is None else Delta(words.value * WORD_BYTES)
