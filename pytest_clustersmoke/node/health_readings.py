"""Reads what the hardware of a node has counted: once before a phase's ranks start, once after."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..evidence.run_directory import write_json
from ..evidence.telemetry import parse_int
from . import gpu_facts
from .node_job import NodeJob
from .port_counters import SYS, read_number, read_ports, subtract

GPU_COUNTERS = [sys.executable, "-m", "pytest_clustersmoke.node.gpu_counters"]
GPU_S = 10.0  # the other nodes wait for this one, and a broken driver may hang


def read_health(device: str) -> dict[str, Any]:
    """The counters of the ports, and of the GPUs if ranks may train on them."""
    return {
        "ports": read_ports(),
        "interfaces": read_interfaces(),
        "gpus": _read_gpus() if device != "cpu" and gpu_facts.has_driver() else None,
    }


def _read_gpus() -> Any:
    (answer,) = gpu_facts.run_all([GPU_COUNTERS], GPU_S)
    with contextlib.suppress(ValueError):
        return json.loads(answer.text or "null")
    return None


@contextlib.contextmanager
def watched_health(job: NodeJob) -> Iterator[None]:
    """Write both readings around what the node does meanwhile. A reading that fails is missing, and
    so is the second one of a node that is ended."""
    device, readings = str(job.spec["device"]), {}
    path = job.dir.node_health(job.node_rank)
    with contextlib.suppress(OSError):
        readings["before"] = read_health(device)
    yield
    with contextlib.suppress(OSError):
        readings["after"] = read_health(device)
        write_json(path, readings)


# Bytes of network interfaces: class/net/<interface>/statistics.


def read_interfaces(root: Path = SYS) -> dict[str, dict[str, int | None]]:
    """The bytes that each interface of an adapter sent and received."""
    return {
        interface.name: {
            "sent": read_number(interface / "statistics" / "tx_bytes"),
            "received": read_number(interface / "statistics" / "rx_bytes"),
        }
        for interface in sorted((root / "class/net").glob("*"))
        if (interface / "device").exists()
    }


def compare_interfaces(before: Any, after: Any) -> dict[str, int]:
    """Interface -> the bytes that it sent and received together, where both could be read."""
    found = {}
    first, last = (value if isinstance(value, dict) else {} for value in (before, after))
    for name, counted in first.items():
        later = last.get(name)
        if isinstance(counted, dict) and isinstance(later, dict):
            ways = [
                subtract(parse_int(counted.get(way)), parse_int(later.get(way)), 64).value
                for way in ("sent", "received")
            ]
            if None not in ways:
                found[str(name)] = sum(filter(None, ways))
    return found
