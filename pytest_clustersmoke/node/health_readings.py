"""Reads what the hardware of a node has counted: once before a phase's ranks start, once after."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import Any

from ..evidence.run_directory import write_json
from . import gpu_facts
from .node_job import NodeJob
from .port_counters import read_interfaces, read_ports

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
