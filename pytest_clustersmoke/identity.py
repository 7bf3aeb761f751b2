"""What a phase ran on, in words: only runs of the same are compared with each other.

Hardware, shape (nodes, ranks, the program's arguments) and versions are kept apart: a change of
versions is told beside a regression, one of the others makes a run another thing altogether.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import clean

if TYPE_CHECKING:
    from .result import PhaseResult

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
MAX_WORDS = 200


@dataclass(frozen=True)
class Identity:
    """`hardware` and `shape` in words; `versions` by name, those of all ranks joined."""

    hardware: str
    shape: str
    versions: dict[str, str]


def identity(result: PhaseResult) -> Identity:
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
    """Nodes, ranks a node and the arguments, as JSON that two equal runs have in common."""
    spec = result.spec
    asked = {"nodes": spec["nodes"], "ranks_per_node": spec["ranks_per_node"], **result.args}
    return json.dumps(asked, sort_keys=True, default=str)


def _word(value: str) -> str:
    return clean.line(value[:MAX_WORDS])
