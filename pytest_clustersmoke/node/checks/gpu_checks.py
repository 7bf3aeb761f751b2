"""Checks a node's GPUs: number, model, errors, processes of others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...evidence.finding import Finding
from ...evidence.gpu_model import ANY_GPU, is_gpu_model
from ...evidence.variable_names import show_value
from ...text import FAILURE, WARNING, plural
from ..gpu_facts import busy_processes, share
from .node_values import Node, shorten_names

YES = ("Yes", "1")  # how drivers write a flag
# NVIDIA GPU Memory Error Management: a pending replacement of a row or page happens only at a reset
# of the GPU. nvidia-smi(1) says of such pages that they "can still be allocated, and may cause
# further reliability issues".
ECC_ERRORS = "ecc.errors.uncorrected.volatile.total"
FLAGS = (
    (
        "gpu-row-remap-failed",
        "remapped_rows.failure",
        "a bad row of its memory could not be replaced",
        "take the node out of service and have the GPU replaced",
    ),
    (
        "gpu-row-remap-pending",
        "remapped_rows.pending",
        "a bad row of its memory has not been replaced yet",
        "reset the GPU (nvidia-smi --gpu-reset) or reboot the node, and watch it afterwards",
    ),
    (
        "gpu-page-retirement-pending",
        "retired_pages.pending",
        "a bad page of its memory has not been retired yet and may still be used",
        "reset the GPU (nvidia-smi --gpu-reset) or reboot the node, and watch it afterwards",
    ),
)


def uses_gpus(node: Node, spec: Mapping[str, Any]) -> bool:
    """Whether the node's ranks will train on GPUs. `auto` takes GPUs if each rank has one."""
    device = spec.get("device")
    if device == "auto":
        ours = share(node.facts)
        return ours is not None and 0 < count_ranks_per_node(spec) <= len(ours.gpus)
    return device == "cuda"


def count_ranks_per_node(spec: Mapping[str, Any]) -> int:
    per_node = spec.get("ranks_per_node")
    return per_node if isinstance(per_node, int) else 0


def check_gpus(node: Node, spec: Mapping[str, Any]) -> Iterator[Finding]:
    error = node.text("gpu_tool_failed")
    if error is not None and spec.get("device") != "cpu":
        needed = spec.get("device") == "cuda"
        if not needed and node.facts.get("gpu_on_bus") is False:
            return  # the tool is installed on a machine without a GPU
        yield node.build_finding(
            "gpu-driver-failed",
            f"nvidia-smi failed: {error}",
            "run nvidia-smi on the node and read its kernel log (dmesg, lines with NVRM); reload "
            "the driver or reboot the node",
            "gpu_tool_failed",
            FAILURE if needed else WARNING,
        )
        return
    if not uses_gpus(node, spec):
        return
    yield from _missing(node, spec)
    yield from _model(node, spec)
    yield from _errors(node)
    yield from _in_use(node, spec)


def list_unseen(node: Node) -> frozenset[str]:
    """The findings that nothing can be said of: a GPU does not show what they are about."""
    fields = {"gpu-ecc-errors": ECC_ERRORS} | {name: field for name, field, *_ in FLAGS}
    gpus = node.rows("gpus") or [{}]
    unseen = {name for name, field in fields.items() if not all(field in gpu for gpu in gpus)}
    return frozenset(unseen | ({"gpu-in-use"} if node.rows("gpu_processes") is None else set()))


def _missing(node: Node, spec: Mapping[str, Any]) -> Iterator[Finding]:
    ours, visible = share(node.facts), node.facts.get("cuda_visible_devices")
    if ours is None:
        if node.facts.get("gpus") is None and node.facts.get("gpu_driver") is False:
            problem = "has no GPU: no nvidia-smi, no GPU driver and no GPU device was found"
            yield _too_few(node, spec, 0, problem)
        return
    if len(ours.gpus) >= count_ranks_per_node(spec):
        return
    there = len(node.rows("gpus") or ())
    problem = f"nvidia-smi lists {plural(there, 'GPU')}"
    if isinstance(visible, str):
        problem += (
            f", and CUDA_VISIBLE_DEVICES={show_value(visible)!r} selects {len(ours.gpus)} of them"
        )
    yield _too_few(node, spec, len(ours.gpus), problem)


def _too_few(node: Node, spec: Mapping[str, Any], seen: int, problem: str) -> Finding:
    return node.build_finding(
        "gpus-missing",
        f"{problem}; the phase needs {count_ranks_per_node(spec)}",
        'check whether a GPU is lost (nvidia-smi -L; "fallen off the bus" in the kernel log), '
        "whether the job asked the scheduler for that many, and whether a setup line or the "
        "profile's `env` sets CUDA_VISIBLE_DEVICES",
        "gpus" if node.facts.get("gpus") is not None else "gpu_driver",
        seen=seen,
        asked=count_ranks_per_node(spec),
    )


def _model(node: Node, spec: Mapping[str, Any]) -> Iterator[Finding]:
    ours, model = share(node.facts), spec.get("gpu")
    if ours is None or not ours.exact or model in ANY_GPU or _divided(ours.gpus):
        return
    others = {
        gpu["name"] for gpu in ours.gpus if "name" in gpu and not is_gpu_model(gpu["name"], model)
    }
    if others:
        yield node.build_finding(
            "gpu-model-differs",
            f"has {shorten_names(sorted(map(show_value, others)))}; "
            f"the profile's hardware.gpu is {model}",
            "ask the scheduler for nodes with that GPU, or correct hardware.gpu in cluster.yaml",
            "gpus",
        )


def _divided(gpus: list[dict[str, str]]) -> bool:
    return any(gpu.get("mig.mode.current") == "Enabled" for gpu in gpus)


def _errors(node: Node) -> Iterator[Finding]:
    ours = share(node.facts)
    for gpu in ours.gpus if ours and ours.exact else ():
        errors = gpu.get(ECC_ERRORS, "")
        if errors.isascii() and errors.isdigit() and errors.strip("0"):
            yield node.build_finding(
                "gpu-ecc-errors",
                f"{_label(gpu)} has had {errors[:20]} uncorrectable memory errors since its driver "
                "was loaded",
                "reset the GPU (nvidia-smi --gpu-reset) or reboot the node; if the errors come "
                "back, take the node out of service (the kernel log has their Xid)",
                "gpus",
            )
        for identity, field, words, fix in FLAGS:
            if gpu.get(field) in YES:
                cause = f"{_label(gpu)}: {words} ({field})"
                yield node.build_finding(identity, cause, fix, "gpus")


def _label(gpu: Mapping[str, str]) -> str:
    return show_value(f"GPU {gpu.get('index')} ({gpu.get('name')}, {gpu.get('pci.bus_id')})")


def _in_use(node: Node, spec: Mapping[str, Any]) -> Iterator[Finding]:
    """The job's ranks have not started yet, so any process on its GPUs belongs to others."""
    processes = busy_processes(node.facts)
    if not processes:
        return
    lines = [
        show_value(f"pid {p.get('pid')} {p.get('name')} ({p.get('memory')} on {p.get('gpu')})")
        for p in processes
    ]
    # Nodes of a cluster are for one job alone; on the user's own machine a desktop may share a GPU.
    severity = WARNING if spec.get("backend") == "local" else FAILURE
    yield node.build_finding(
        "gpu-in-use",
        f"other processes use its GPUs before the job starts: {shorten_names(lines)}",
        "end these processes (left behind by an earlier job, or started outside the scheduler): "
        "with them on the GPU, measurements are worthless",
        "gpu_processes",
        severity,
        processes=lines[:100],
    )
