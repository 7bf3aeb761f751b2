"""The GPUs of a lab's nodes: fake ones, or this machine's own, divided among the nodes."""

from __future__ import annotations

from typing import NamedTuple

from ..node.gpu_facts import query_gpus, share
from ..text import plural
from .lab_settings import LabError, LabSettings

FAKE_PER_NODE = 2


class NodeGpus(NamedTuple):
    """How many GPUs each node has and, of real ones, their UUIDs by node."""

    per_node: int
    uuids: tuple[tuple[str, ...], ...] = ()


def divide_gpus(settings: LabSettings) -> NodeGpus:
    """The GPUs of each node: no two nodes share a real one. By default, 2 fake ones each, or as
    many real ones as there are for each.

    Raises LabError if this machine has too few, or does not say which it has.
    """
    each = settings.gpus_per_node
    if settings.gpus == "fake":
        return NodeGpus(FAKE_PER_NODE if each is None else each)
    found = _list_uuids()
    if each is None:
        each = max(1, len(found) // settings.nodes)
    wanted = each * settings.nodes
    if wanted > len(found):
        raise LabError(
            f"no lab can be started on this machine: {plural(settings.nodes, 'node')} with "
            f"{plural(each, 'GPU')} each need {wanted}, and it has {len(found)}; choose fewer with "
            "--nodes or --gpus-per-node, or fake GPUs (--gpus fake)"
        )
    shares = (found[first : first + each] for first in range(0, wanted, each or 1))
    return NodeGpus(each, tuple(map(tuple, shares)))


def _list_uuids() -> list[str]:
    """The GPUs that this shell may use, in the order of CUDA_VISIBLE_DEVICES or of the bus."""
    facts = query_gpus(health=False)
    if (problem := facts["gpu_tool_failed"]) is not None:
        raise LabError(f"no lab can be started on this machine: nvidia-smi failed: {problem}")
    ours = share(facts)
    if ours is None and facts["gpus"] is not None:
        raise LabError(
            "no lab can be started on this machine: CUDA_VISIBLE_DEVICES names parts of GPUs "
            "(MIG), and only whole ones can be divided; unset it, or use fake GPUs (--gpus fake)"
        )
    return [gpu.get("uuid", "") for gpu in ours.gpus] if ours else []
