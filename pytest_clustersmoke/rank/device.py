"""The device that a rank uses, and its description."""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING, Any

from ..evidence.process_start import read_namespaces, start_s
from ..evidence.telemetry import SCHEMA
from ..text import plural

if TYPE_CHECKING:
    import torch

    from .rank_environment import RankEnvironment


def choose_device(environment: RankEnvironment) -> torch.device:
    """Choose this rank's device and make it current.

    "auto" takes CUDA only if every rank of the node has a device of its own. With some ranks on CPU
    and others on GPUs, they would open different process groups and wait for each other.
    """
    import torch

    wanted = environment.wanted_device
    available = torch.cuda.device_count() if wanted != "cpu" and torch.cuda.is_available() else 0
    if wanted == "cuda" and available <= environment.local_rank:
        raise RuntimeError(_describe_missing_device(environment, available))
    if wanted == "cuda" or (wanted == "auto" and available >= max(1, environment.local_world_size)):
        device = torch.device("cuda", environment.local_rank)
        torch.cuda.set_device(device)
        return device
    return torch.device("cpu")


def _describe_missing_device(environment: RankEnvironment, available: int) -> str:
    import torch

    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return (
        f"CLUSTERSMOKE_DEVICE=cuda, but torch {torch.__version__} (built for {build}) sees "
        f"{plural(available, 'CUDA device')} on {environment.node}; local rank "
        f"{environment.local_rank} needs device {environment.local_rank}; CUDA_VISIBLE_DEVICES is "
        f"{'not set' if visible is None else repr(visible)}"
    )


def start_facts(environment: RankEnvironment, device: torch.device) -> dict[str, Any]:
    """The fields of the `start` event."""
    import torch

    on_cuda = device.type == "cuda"
    return {
        "schema": SCHEMA,
        "job": environment.job,
        "nonce": environment.nonce,
        "rank": environment.rank,
        "local_rank": environment.local_rank,
        "node_rank": environment.node_rank,
        "world_size": environment.world_size,
        "local_world_size": environment.local_world_size,
        "pid": os.getpid(),
        "pid_started": start_s(os.getpid()),
        "namespaces": read_namespaces(),
        "host": platform.node(),
        "node": environment.node,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": _cudnn_version() if on_cuda else None,
        "nccl": _nccl_version(),
        "device": str(device),
        "device_name": name_device(device),
        "gpu_uuid": _gpu_uuid(device) if on_cuda else None,
        **(_processors(device) if on_cuda else {}),
    }


def name_device(device: torch.device) -> str:
    """The model of the GPU, or of the CPU."""
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else name_cpu()


def _processors(device: torch.device) -> dict[str, Any]:
    """From what the peak of the GPU follows, with its clock."""
    import torch

    known = torch.cuda.get_device_properties(device)
    return {
        "capability": f"{known.major}.{known.minor}",
        "multiprocessors": known.multi_processor_count,
    }


def _gpu_uuid(device: torch.device) -> str | None:
    """The GPU's UUID as nvidia-smi prints it; torch knows it since 2.4."""
    import torch

    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return None if uuid is None else f"GPU-{uuid}"


def _cudnn_version() -> str | None:
    import torch

    version = torch.backends.cudnn.version()
    return None if version is None else str(version)


def _nccl_version() -> str | None:
    import torch

    if not torch.version.cuda or not torch.distributed.is_nccl_available():
        return None
    version: Any = torch.cuda.nccl.version()
    return ".".join(map(str, version)) if isinstance(version, tuple) else str(version)


def name_cpu() -> str:
    """The model of the CPU, as the kernel names it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123 - no Path needed
            names = (line.partition(":")[2].strip() for line in lines if "model name" in line)
            return next(names, "") or platform.machine()
    except OSError:
        return platform.machine()
