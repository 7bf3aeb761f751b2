"""The fingerprint of a phase run: only runs with the same one are compared with each other.

Hardware, shape (nodes, ranks, the program's arguments, a twin run, the job's environment and its
sbatch options) and versions are kept apart: a change of versions is shown next to a regression,
while runs on other hardware or of another shape are not comparable.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass

from ..config.marker import TORCHRUN
from ..text import sanitize_line
from .phase_result import PhaseResult
from .variable_names import hide_values

# In reading order.
VERSIONS = (
    "driver",
    "cuda",
    "cudnn",
    "nccl",
    "torch",
    "deepspeed",
    "transformers",
    "peft",
    "datasets",
    "accelerate",
    "python",
)
# Versions that can change a measurement; history compares runs in which these are equal.
COMPARED = ("driver", "cuda", "nccl", "torch", "deepspeed")
# Keys of a shape other than the program's arguments.
SHAPE = ("nodes", "ranks_per_node", "launcher", "resume", "proof", "env", "sbatch")
# Options of sbatch that do not change what a job measures: when and for whom it runs, and which
# nodes it leaves out.
QUEUEING = {
    *("account", "qos", "priority", "nice", "wckey", "comment", "mail_type", "mail_user"),
    *("time", "time_min", "begin", "deadline", "exclude"),
}
DIGEST = 8  # hex digits
MAX_WORDS = 200


@dataclass(frozen=True)
class Fingerprint:
    """`hardware` and `shape` as text; `versions` by name, joined where ranks differ."""

    hardware: str
    shape: str
    versions: dict[str, str]


def fingerprint_of(result: PhaseResult) -> Fingerprint:
    """The fingerprint of a phase, from what its ranks and nodes reported."""
    versions = {}
    for name in VERSIONS:
        reported = {
            _clean_word(value) for value in result.versions(name).values() if value is not None
        }
        if reported:
            versions[name] = " and ".join(sorted(reported))
    return Fingerprint(_describe_hardware(result), _describe_shape(result), versions)


def _describe_hardware(result: PhaseResult) -> str:
    """`2 x (2 x NVIDIA H100)`: the devices that the ranks reported, by node."""
    by_node: dict[str, list[str]] = {}
    for rank in result.ranks:
        kind = rank.device.partition(":")[0]
        device = _clean_word(rank.device_name) if rank.device_name else kind
        by_node.setdefault(rank.node, []).append(device)
    nodes = Counter(" + ".join(_count_devices(devices)) for devices in by_node.values())
    return " and ".join(f"{count} x ({devices})" for devices, count in sorted(nodes.items()))


def _count_devices(devices: list[str]) -> list[str]:
    return [f"{count} x {device}" for device, count in sorted(Counter(devices).items())]


def _describe_shape(result: PhaseResult) -> str:
    """Nodes, ranks per node, arguments, and digests of the variables and sbatch options, as JSON
    that is equal for equal runs."""
    spec = result.spec
    shape = {"nodes": spec["nodes"], "ranks_per_node": spec["ranks_per_node"]}
    launcher = spec.get("launcher", TORCHRUN)
    shape |= {"launcher": launcher} if launcher != TORCHRUN else {}  # as in earlier versions
    shape |= {"proof": "twin"} if spec.get("proof") == "twin" else {}
    # The rates are those of what comes after the stop.
    shape |= {"resume": spec["resume"]} if spec.get("resume") else {}
    # A token may be new each day.
    env = [hide_values(spec.get("env_set") or {}), sorted(spec.get("env_unset") or [])]
    sbatch = {
        name: value
        for name, value in (spec.get("sbatch") or {}).items()
        if name not in QUEUEING and value is not None and value is not False
    }
    shape |= {"env": _digest(env)} if any(env) else {}
    shape |= {"sbatch": _digest(sbatch)} if sbatch else {}
    args = {
        f"args.{name}" if name in SHAPE else name: arg
        for name, arg in hide_values(result.args).items()
    }
    return json.dumps({**shape, **args}, sort_keys=True, default=str)


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST]


def _clean_word(value: str) -> str:
    return sanitize_line(value[:MAX_WORDS])
