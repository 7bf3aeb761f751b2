"""Opens and closes the process group; loads DeepSpeed on CPU ranks without a compiler or Intel's
extensions, and makes it wait for gloo."""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import importlib.util
import os
import re
import sys
import time
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any
from unittest import mock

from .rank_environment import RankMisuse

if TYPE_CHECKING:
    import torch

# DeepSpeed compiles this op for CPU ranks when it opens the group. That takes half a minute, needs
# ninja and g++, and waits forever on the lock of a build that was killed. gloo replaces it.
SHARED_MEMORY_OP = "deepspeed_shm_comm"
# Up to 0.14.0 DeepSpeed refuses CPU unless these two can be imported. Under gloo it uses neither.
FREE_OF_INTEL = (0, 14, 1)
INTEL = ("intel_extension_for_pytorch", "oneccl_bindings_for_pytorch")


def choose_cpu_accelerator() -> None:
    """Set DeepSpeed's device before its first import."""
    # Without it DeepSpeed guesses with a warning, and picks GPUs where they exist.
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    # It takes this for the number of devices; without it, it counts NUMA nodes by numactl, which
    # need not be installed (FileNotFoundError under ZeRO-3 with DeepSpeed 0.14).
    os.environ.setdefault("LOCAL_SIZE", os.environ.get("LOCAL_WORLD_SIZE", "1"))


def load_deepspeed_on_cpu() -> None:
    """Import DeepSpeed and make it leave all communication to torch."""
    if _deepspeed_version() < FREE_OF_INTEL:
        _import_without_intel()
    import deepspeed
    from deepspeed.accelerator import get_accelerator

    # DeepSpeed's own table of the ops that it may compile here.
    deepspeed.ops.__compatible_ops__[SHARED_MEMORY_OP] = False
    # It asks oneDNN, which wants AVX512-FP16; torch computes in fp16 on every CPU.
    get_accelerator().is_fp16_supported = lambda: True
    _import_muon_uncompiled()
    end_gathers_at_once(deepspeed.comm)


def end_gathers_at_once(comm: Any) -> None:
    """Make the gathers of `comm`, DeepSpeed's, end before it gets their handles.

    Of the parameters that ZeRO-3 gathers together, older versions wait for the last alone
    (github.com/deepspeedai/DeepSpeed/pull/8539). On CUDA that is enough. gloo's threads may end the
    others later: until then a weight is what was in memory, and a step with it can give NaN.
    """
    gather = comm.all_gather_into_tensor

    def gather_to_the_end(*args: Any, **named: Any) -> Any:
        work = gather(*args, **named)
        if work is not None:  # a call that waits itself returns none
            work.wait()
        return work

    comm.all_gather_into_tensor = gather_to_the_end


def _import_muon_uncompiled() -> None:
    """Import DeepSpeed's Muon before its engine does, which would load torch's compiler for it.

    That takes every rank more than two seconds of CPU time, whichever optimizer it uses.
    """
    import torch

    with contextlib.suppress(ImportError), mock.patch.object(torch, "compile", _leave_uncompiled):
        importlib.import_module("deepspeed.runtime.zero.muon.original_muon")


def _leave_uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _deepspeed_version() -> tuple[int, ...]:
    version = importlib.metadata.version("deepspeed")
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _import_without_intel() -> None:
    """Import DeepSpeed with empty modules in place of Intel's during the import."""
    missing = [name for name in INTEL if importlib.util.find_spec(name) is None]
    # The modules have a spec, for libraries that ask for one during the import.
    sys.modules.update((n, importlib.util.module_from_spec(ModuleSpec(n, None))) for n in missing)
    try:
        from deepspeed.accelerator import get_accelerator

        # Its only choice here is oneCCL, which it would compile; later versions fall back to gloo.
        get_accelerator()._communication_backend_name = "gloo"
    finally:
        for name in missing:
            del sys.modules[name]


# The process group: opened with an explicit timeout, tested with one barrier, closed if clean.

INITS = ("torch", "deepspeed", "trainer")
FLIGHT_RECORDER_ENTRIES = "2000"
# A gloo thread releases a collective's tensors shortly after the collective has ended, and needs
# Python's lock for it; the group's destructor holds that lock and waits for the thread. With torch
# 2.2, ranks that ended right after a collective hung this way, again and again.
GLOO_RELEASE_S = 0.2


def reduce_max(values: torch.Tensor) -> None:
    """Replace each value by the largest of all ranks."""
    import torch.distributed as dist

    dist.all_reduce(values, op=dist.ReduceOp.MAX)


def any_rank(holds: bool, device: torch.device) -> bool:
    """Whether it holds on any rank."""
    import torch
    import torch.distributed as dist

    place = device if dist.get_backend() == "nccl" else "cpu"
    found = torch.tensor([float(holds)], device=place)
    reduce_max(found)
    return bool(found.item())


def backend_of(device: torch.device) -> str:
    return "nccl" if device.type == "cuda" else "gloo"


def prepare(init: str, device: torch.device, repeats: bool) -> None:
    """Set the variables that must be set before libraries are imported or the group is opened;
    `repeats` if reductions must give the same bits again."""
    if repeats:
        # NVLink SHARP adds in another order in each call (github.com/NVIDIA/nccl/issues/1497).
        os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    # With this workspace cuBLAS gives the same bits again, so that a pass can be repeated. The node
    # sets it as well; this is for programs run by hand.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # The number of entries the flight recorder keeps. torch before 2.9 knows only the old name;
    # later versions warn about it.
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", FLIGHT_RECORDER_ENTRIES)
    if _torch_version() < (2, 9):
        os.environ.setdefault("TORCH_NCCL_TRACE_BUFFER_SIZE", FLIGHT_RECORDER_ENTRIES)
    if init == "deepspeed" and device.type == "cpu":
        choose_cpu_accelerator()


def _torch_version() -> tuple[int, ...]:
    import torch

    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])


def open_group(init: str, device: torch.device, timeout_s: float) -> None:
    """Open the default process group over all ranks, with torch or DeepSpeed."""
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


def join_group(rank: int, world_size: int) -> str:
    """The backend of the open group; for a single rank without a group, of one that this opens.
    Raises RankMisuse if the group is not that of the launcher."""
    import torch.distributed as dist

    if world_size == 1 and not dist.is_initialized():
        dist.init_process_group("gloo")
    found = dist.get_rank(), dist.get_world_size()
    if found != (rank, world_size):
        raise RankMisuse(
            f"the process group has this rank as {found[0]} of {found[1]}; expected {rank} of "
            f"{world_size}, as RANK and WORLD_SIZE say"
        )
    return str(dist.get_backend())


def barrier(device: torch.device) -> float:
    """Wait for all ranks; returns the seconds it took. NCCL is given this rank's device."""
    import torch
    import torch.distributed as dist

    started = time.perf_counter()
    if dist.get_backend() == "nccl":
        dist.barrier(device_ids=[torch.cuda.current_device()])
        # The barrier is a kernel: it has completed only once the device has run it.
        torch.cuda.synchronize(device)
    else:
        dist.barrier()
    return time.perf_counter() - started


def meet(device: torch.device) -> None:
    """Wait for all ranks, if a process group is open."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        barrier(device)


def broadcast_object(value: Any) -> Any:
    """Rank 0's value, on every rank."""
    import torch.distributed as dist

    shared = [value]
    dist.broadcast_object_list(shared, src=0)
    return shared[0]


def gather_objects(value: Any) -> list[Any]:
    """Every rank's value, on every rank."""
    import torch.distributed as dist

    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def share_text(key: str, text: str | None, within_s: float) -> str:
    """What the rank that gives a text shares under this key, on all ranks that ask for it. They
    wait for it without using their devices. Raises an error of torch if it does not come."""
    from torch.distributed import distributed_c10d

    store: Any = distributed_c10d._get_default_store()
    if text is not None:
        store.set(key, text)
    store.wait([key], datetime.timedelta(seconds=within_s))
    return str(store.get(key).decode())


def close_group() -> None:
    """Close the open group, after a clean run only: this would wait for a peer that is gone."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        if dist.get_backend() == "gloo":
            time.sleep(GLOO_RELEASE_S)
        dist.destroy_process_group()
