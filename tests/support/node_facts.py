"""Facts of healthy nodes, for tests of everything that judges them."""

from __future__ import annotations

from typing import Any

from tests.fakes.nvidia_smi import gpu

GIB = 2**30
CUDA: dict[str, Any] = {
    "backend": "slurm",
    "nodes": 1,
    "ranks_per_node": 2,
    "device": "cuda",
    "gpu": "NVIDIA H100 80GB HBM3",
    "infiniband": True,
}
CPU = {**CUDA, "device": "cpu", "gpu": "any"}


def port(number: int = 0, state: str = "4: ACTIVE", **more: str) -> dict[str, str]:
    """An RDMA port as the kernel shows it in /sys/class/infiniband."""
    rate = {"rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand"}
    return {"hca": f"mlx5_{number}", "port": "1", "state": state, **rate, **more}


def node(rank: int = 0, gpus: Any = None, **more: Any) -> dict[str, Any]:
    """The facts of a healthy node with two GPUs and two InfiniBand ports."""
    listed = [gpu(0), gpu(1)] if gpus is None else gpus
    return {
        "node": f"n{rank}",
        "python": "3.11.7",
        "packages": {"torch": "2.5.1", "numpy": "2.1.0"},
        "torch_cuda": "12.4",
        "gpus": [{key: str(value) for key, value in device.items()} for device in listed],
        "gpu_processes": [],
        "gpu_tool_failed": None,
        "gpu_driver": True,
        "cuda_visible_devices": "0,1",
        "rdma_ports": [port(0), port(1)],
        "variables": {},
        "dev_shm_bytes": 500 * GIB,
        "dev_shm_free_bytes": 500 * GIB,
        "memlock_limit_bytes": None,
        "may_lock_memory": False,
        "open_files_limit": 1024,
        "tmp": {"path": "/tmp", "error": None, "free_bytes": 100 * GIB},
        "build_directory": None,
        **more,
    }
