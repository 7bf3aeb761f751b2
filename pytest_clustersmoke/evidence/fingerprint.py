"""What a phase ran on, in words: only runs of the same are compared with each other.

Hardware, shape (nodes, ranks, the program's arguments, the job's environment and its options of
sbatch) and versions are kept apart: a change of versions is told beside a regression, one of the
others makes a run another thing altogether.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass

from ..text import sanitize_line
from .phase_result import PhaseResult

# In the order in which people read them.
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
# Those that can change what is measured; history compares runs in which these are the same.
COMPARED = ("driver", "cuda", "nccl", "torch", "deepspeed")
# What a shape has beside the program's arguments.
SHAPE = ("nodes", "ranks_per_node", "env", "sbatch")
# Options of sbatch that say when and for whom a job runs, and nothing of what it measures.
QUEUEING = {
    *("account", "qos", "priority", "nice", "wckey", "comment", "mail_type", "mail_user"),
    *("time", "time_min", "begin", "deadline"),
}
DIGEST = 8  # hex digits
MAX_WORDS = 200


@dataclass(frozen=True)
class Identity:
    """`hardware` and `shape` in words; `versions` by name, those of all ranks joined."""

    hardware: str
    shape: str
    versions: dict[str, str]


def fingerprint_of(result: PhaseResult) -> Identity:
    """What the phase ran on, as its ranks and nodes said."""
    versions = {}
    for name in VERSIONS:
        said = {_word(value) for value in result.versions(name).values() if value is not None}
        if said:
            versions[name] = " and ".join(sorted(said))
    return Identity(_hardware(result), _shape(result), versions)


def _hardware(result: PhaseResult) -> str:
    """`2 x (2 x NVIDIA H100)`: the devices that the ranks named, by node."""
    by_node: dict[str, list[str]] = {}
    for rank in result.ranks:
        start = rank.start
        kind = str(start.get("device", "unknown")).partition(":")[0]
        name = start.get("device_name")
        device = _word(name) if isinstance(name, str) and name else kind
        by_node.setdefault(rank.node, []).append(device)
    nodes = Counter(" + ".join(_counted(devices)) for devices in by_node.values())
    return " and ".join(f"{count} x ({words})" for words, count in sorted(nodes.items()))


def _counted(devices: list[str]) -> list[str]:
    return [f"{count} x {device}" for device, count in sorted(Counter(devices).items())]


def _shape(result: PhaseResult) -> str:
    """Nodes, ranks a node, the arguments, and digests of the variables and of sbatch's options, as
    JSON that two equal runs have in common."""
    spec = result.spec
    asked = {"nodes": spec["nodes"], "ranks_per_node": spec["ranks_per_node"]}
    env = [spec.get("env_set") or {}, sorted(spec.get("env_unset") or [])]
    sbatch = {
        name: value
        for name, value in (spec.get("sbatch") or {}).items()
        if name not in QUEUEING and value is not None and value is not False
    }
    asked |= {"env": _digest(env)} if any(env) else {}
    asked |= {"sbatch": _digest(sbatch)} if sbatch else {}
    args = {f"args.{name}" if name in SHAPE else name: one for name, one in result.args.items()}
    return json.dumps({**asked, **args}, sort_keys=True, default=str)


def _digest(value: object) -> str:
    written = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(written.encode()).hexdigest()[:DIGEST]


def _word(value: str) -> str:
    return sanitize_line(value[:MAX_WORDS])
