"""Which phases of the suite fit a cluster's hardware, and how large they are there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from ..preflight.precision import lacks_bf16
from .pick import Kind, Picked

# What each phase's marker in the suite asks for: nodes, GPUs a node.
NEEDS: Mapping[str, tuple[int, int]] = {
    "mlp_1gpu": (1, 1),
    "ddp_2gpu": (1, 2),
    "zero1_2gpu": (1, 2),
    "zero1_4node": (4, 2),
    "lora_sft_ddp": (1, 8),
    "lora_sft_2node": (2, 8),
    "allreduce_1node": (1, 2),
    "allreduce_multinode": (4, 2),
}
# Their checkpoints, of 14 bytes for each of 805,429,248 and 1,073,905,664 parameters.
WRITES_GIB = {"zero1_2gpu": 10.5, "zero1_4node": 14}
BF16 = ("zero1_2gpu", "zero1_4node", "lora_sft_ddp", "lora_sft_2node")
# All-reduce runs on what there is: six pairs to compare where there are four nodes.
SWEEPS_NODES = 4
# Nodes of one GPU make no pair inside a node; one node none between nodes.
PAIR = 2
# A job's limit in Slurm's own form, where the partition allows it.
ONE_NODE_S, SEVERAL_NODES_S = 1800, 3600
# Of a node's memory the rest stays with its system.
MEMORY_SHARE = 0.9

# Where two CPU cores train `small` sizes: as the profiles `local` and `lab` that ship.
SMALL: Mapping[str, Mapping[str, Any]] = {
    "mlp_1gpu": {"timeout_s": 300},
    "ddp_2gpu": {"timeout_s": 300},
    "zero1_2gpu": {"timeout_s": 420},
    "zero1_4node": {"nodes": 4, "gpus_per_node": 2, "timeout_s": 600},
    "lora_sft_ddp": {"nodes": 1, "gpus_per_node": 2, "timeout_s": 420},
    "lora_sft_2node": {"nodes": 2, "gpus_per_node": 2, "timeout_s": 600},
    "allreduce_1node": {"nodes": 1, "gpus_per_node": 2, "timeout_s": 300},
    # One rank a node: eight that share two cores wait for a core, and not for each other.
    "allreduce_multinode": {"nodes": 4, "gpus_per_node": 1, "timeout_s": 420},
}
STAGE_LIMITS_S = {
    "init": 90,
    "data": 120,
    "model": 120,
    "compile": 300,
    "first_step": 120,
    "train_step": 30,
    "probe": 120,
    "checkpoint": 120,
    "reload": 120,
}


@dataclass(frozen=True)
class Sized:
    """A phase as the profile lists it; with `left_out`, why it does not."""

    name: str
    nodes: int = 0
    gpus: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    left_out: str = ""


def small(nodes: float, ranks: int) -> list[Sized]:
    """The phases in small sizes, for nodes that can carry so many ranks each."""
    return list(_small(nodes, ranks))


def _small(nodes: float, ranks: int) -> Iterator[Sized]:
    for name, shipped in SMALL.items():
        settings = dict(shipped)
        wants = int(settings.get("nodes", NEEDS[name][0]))
        each = int(settings.get("gpus_per_node", NEEDS[name][1]))
        if name == "allreduce_multinode":
            wants = settings["nodes"] = int(min(wants, max(nodes, PAIR)))
        why = _too_few(wants, each, nodes, ranks, "ranks")
        yield Sized(name, left_out=why) if why else Sized(name, wants, each, settings)


def full(picked: Picked) -> list[Sized]:
    """The phases in their documented sizes, on nodes of this kind."""
    return [_full(name, picked) for name in NEEDS]


def _full(name: str, picked: Picked) -> Sized:
    kind, most = picked.kind, picked.nodes_of_a_job
    nodes, gpus = NEEDS[name]
    if name == "allreduce_1node":
        gpus = max(kind.gpus, PAIR)
    elif name == "allreduce_multinode":
        nodes, gpus = max(PAIR, min(SWEEPS_NODES, most)), kind.gpus
    why = _too_few(nodes, gpus, most, kind.gpus, "GPUs")
    if name in BF16 and not why:
        why = lacks_bf16(kind.gpu)
    if why:
        return Sized(name, left_out=why)
    settings: dict[str, Any] = {"nodes": nodes, "gpus_per_node": gpus}
    if name in WRITES_GIB:
        settings["writes_gib"] = WRITES_GIB[name]
    settings["slurm"] = {**_share(kind, gpus), "time": _time(nodes, picked)}
    return Sized(name, nodes, gpus, settings)


def _too_few(nodes: int, each: int, most: float, has: int, what: str) -> str:
    """Why a phase does not fit; empty where it does."""
    if each > has:
        return f"needs {each} {what} a node, they have {has}"
    return f"needs {nodes} nodes, there {_are(int(most))}" if nodes > most else ""


def _are(number: int) -> str:
    return "is 1" if number == 1 else f"are {number}"


def _share(kind: Kind, gpus: int) -> dict[str, Any]:
    """CPUs and memory in proportion to the GPUs that are used of a node."""
    part = gpus / kind.gpus
    share: dict[str, Any] = {"cpus_per_task": max(1, int(kind.cpus * part))}
    memory = int(kind.memory * part * MEMORY_SHARE)
    if memory >= 1024:
        share["mem"] = f"{memory // 1024}G"
    elif memory:
        share["mem"] = f"{memory}M"
    return share


def _time(nodes: int, picked: Picked) -> str:
    seconds = min(
        SEVERAL_NODES_S if nodes > 1 else ONE_NODE_S,
        picked.partition.max_time if picked.partition.max_time > 0 else inf,
    )
    minutes = max(1, int(seconds // 60))
    return f"{minutes // 60:02d}:{minutes % 60:02d}:00"
