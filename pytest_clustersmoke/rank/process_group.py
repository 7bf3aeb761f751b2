"""DeepSpeed on CPU ranks: nothing is compiled, and 0.14.0 runs without Intel's extensions."""

from __future__ import annotations

import datetime
import importlib.metadata
import importlib.util
import os
import re
import sys
import time
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# DeepSpeed compiles this op for CPU ranks when it opens the group: half a minute of C++ that needs
# ninja and g++, and that waits for ever on the lock of a build that was killed. gloo does its work.
SHARED_MEMORY_OP = "deepspeed_shm_comm"
# Up to 0.14.0 DeepSpeed refuses CPU unless these two can be imported. Under gloo it uses neither.
FREE_OF_INTEL = (0, 14, 1)
INTEL = ("intel_extension_for_pytorch", "oneccl_bindings_for_pytorch")


def choose_cpu_accelerator() -> None:
    """Tell DeepSpeed the device, before its first import."""
    # Unset, DeepSpeed guesses with a warning; where GPUs exist it would guess them.
    os.environ.setdefault("DS_ACCELERATOR", "cpu")


def load_deepspeed_on_cpu() -> None:
    """Import DeepSpeed and have it leave all communication to torch."""
    if _version() < FREE_OF_INTEL:
        _import_without_intel()
    import deepspeed

    # DeepSpeed's own table of what it may compile here.
    deepspeed.ops.__compatible_ops__[SHARED_MEMORY_OP] = False


def _version() -> tuple[int, ...]:
    found = importlib.metadata.version("deepspeed")
    return tuple(int(part) for part in re.findall(r"\d+", found)[:3])


def _import_without_intel() -> None:
    """Import DeepSpeed with empty modules in the place of Intel's, while the import lasts."""
    missing = [name for name in INTEL if importlib.util.find_spec(name) is None]
    # With a spec, for libraries that ask for one while the import lasts.
    sys.modules.update((n, importlib.util.module_from_spec(ModuleSpec(n, None))) for n in missing)
    try:
        from deepspeed.accelerator import get_accelerator

        # oneCCL is its only choice here, and would be compiled; later versions fall back to gloo.
        get_accelerator()._communication_backend_name = "gloo"
    finally:
        for name in missing:
            del sys.modules[name]


# The process group: opened with an explicit timeout, tried with one barrier, closed if clean.

INITS = ("torch", "deepspeed", "trainer")
FLIGHT_RECORDER_ENTRIES = "2000"
# A thread of gloo lets go of a collective's tensors a moment after the collective has ended, and
# needs Python's lock for it; the group's destructor holds that lock and waits for the thread. With
# torch 2.2, ranks that ended right after a collective hung so, again and again.
GLOO_LETS_GO_S = 0.2


def backend_of(device: torch.device) -> str:
    return "nccl" if device.type == "cuda" else "gloo"


def prepare(init: str, device: torch.device) -> None:
    """Set what has to be set before the libraries are imported or the group is opened."""
    # How many entries the flight recorder keeps. torch before 2.9 knows the old name only; later
    # ones warn of it.
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", FLIGHT_RECORDER_ENTRIES)
    if _torch_version() < (2, 9):
        os.environ.setdefault("TORCH_NCCL_TRACE_BUFFER_SIZE", FLIGHT_RECORDER_ENTRIES)
    if init == "deepspeed" and device.type == "cpu":
        choose_cpu_accelerator()


def _torch_version() -> tuple[int, ...]:
    import torch

    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])


def open_group(init: str, device: torch.device, timeout_s: float) -> None:
    """Open the default process group over all ranks, by torch or by DeepSpeed."""
    import torch.distributed as dist

    timeout = datetime.timedelta(seconds=timeout_s)
    if init == "torch":
        dist.init_process_group(backend_of(device), timeout=timeout)
        return
    if device.type == "cpu":
        load_deepspeed_on_cpu()
    import deepspeed

    deepspeed.init_distributed(
        dist_backend=backend_of(device), timeout=timeout, auto_mpi_discovery=False, verbose=False
    )


def barrier(device: torch.device) -> float:
    """Wait for all ranks; the seconds it took. With NCCL it says which device is this rank's."""
    import torch
    import torch.distributed as dist

    started = time.perf_counter()
    if dist.get_backend() == "nccl":
        dist.barrier(device_ids=[torch.cuda.current_device()])
        # The barrier is a kernel: it has been passed when the device says so.
        torch.cuda.synchronize(device)
    else:
        dist.barrier()
    return time.perf_counter() - started


def share_text(text: str) -> str:
    """Rank 0's text, on every rank."""
    import torch.distributed as dist

    shared: list[str] = [text]
    dist.broadcast_object_list(shared, src=0)
    return shared[0]


def close_group() -> None:
    """Close what is open. Only after a clean run: where a peer is gone this would wait for it."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        if dist.get_backend() == "gloo":
            time.sleep(GLOO_LETS_GO_S)
        dist.destroy_process_group()
