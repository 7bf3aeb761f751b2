"""Checks a node's /dev/shm, its limits, its directories for temporary files and builds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ...evidence.finding import Finding
from ...text import FAILURE, WARNING, format_bytes
from . import gpu_checks
from .node_values import Node
from .rdma_checks import expects_infiniband

# NCCL's troubleshooting guide on Docker's default of 64 MiB: `--shm-size=1g`.
SHM_BYTES = 2**30
# One segment of NCCL's shared-memory transport: 9,637,888 bytes (NVIDIA/nccl issue 342).
SHM_SEGMENT_BYTES = 9_637_888
# NCCL's troubleshooting guide: `--ulimit memlock=-1`. Linux's default, 8 MiB (64 KiB before 5.16),
# is less than the buffers of a few peers need.
MEMLOCK_BYTES = 2**30
# Linux's default for the soft limit since 2.x (RLIMIT_NOFILE); NCCL's sockets count as files.
OPEN_FILES = 1024
TMP_BYTES = 64 * 2**20


def check_system(node: Node, spec: Mapping[str, Any]) -> Iterator[Finding]:
    yield from _shm(node, spec)
    yield from _limits(node, spec)
    yield from _tmp(node)
    yield from _build_directory(node)


def _shm(node: Node, spec: Mapping[str, Any]) -> Iterator[Finding]:
    """Only NCCL between GPUs of one node needs /dev/shm; gloo does not."""
    if gpu_checks.count_ranks_per_node(spec) < 2 or not gpu_checks.uses_gpus(node, spec):
        return
    capacity, free = node.number("dev_shm_bytes"), node.number("dev_shm_free_bytes")
    if free is not None and free < SHM_SEGMENT_BYTES:
        yield node.build_finding(
            "shm-full",
            f"/dev/shm has {format_bytes(free)} free"
            + (f" of {format_bytes(capacity)}" if capacity is not None else "")
            + f"; one NCCL segment needs {format_bytes(SHM_SEGMENT_BYTES)}",
            "remove files that earlier jobs left there (ls /dev/shm: nccl-*, torch_*), or make it "
            "larger",
            "dev_shm_free_bytes",
        )
    elif capacity is not None and capacity < SHM_BYTES:
        yield node.build_finding(
            "shm-small",
            f"/dev/shm has {format_bytes(capacity)}; NCCL's guide asks for 1 GiB in a container",
            "start the container with --shm-size=1g (or --ipc=host), or mount /dev/shm larger",
            "dev_shm_bytes",
            WARNING,
        )


def _limits(node: Node, spec: Mapping[str, Any]) -> Iterator[Finding]:
    locked = node.number("memlock_limit_bytes")
    exempt = node.facts.get("may_lock_memory") is not False
    if (
        locked is not None
        and locked < MEMLOCK_BYTES
        and not exempt
        and expects_infiniband([node], spec)
    ):
        yield node.build_finding(
            "memlock-limit",
            f"a process may lock {format_bytes(locked)} of memory; InfiniBand locks the buffers "
            f"that it registers, and needs {format_bytes(MEMLOCK_BYTES)} or more",
            "set `ulimit -l unlimited` for slurmd (LimitMEMLOCK=infinity) and keep Slurm from "
            "propagating the login node's limit (PropagateResourceLimitsExcept=MEMLOCK)",
            "memlock_limit_bytes",
            WARNING,
        )
    files = node.number("open_files_limit")
    if files is not None and files < OPEN_FILES:
        yield node.build_finding(
            "open-files-limit",
            f"a process may open {files:.0f} files; Linux's default is {OPEN_FILES}",
            "raise the soft limit (`ulimit -n`) in `setup`, or for slurmd (LimitNOFILE)",
            "open_files_limit",
            WARNING,
        )


def _tmp(node: Node) -> Iterator[Finding]:
    tmp = replace(node, facts=node.mapping("tmp") or {})
    path, error, instead = tmp.text("path"), tmp.text("error"), tmp.text("instead")
    free = tmp.number("free_bytes")
    if error:
        problem = f"cannot create files in {path}, the directory for temporary files: {error}"
        yield node.build_finding(
            "tmp-not-writable",
            problem + (f"; {instead} is used instead" if instead else ""),
            "free or repair that file system on the node, or set TMPDIR to a directory that exists "
            "on every node of the job",
            "tmp",
            WARNING if instead else FAILURE,
        )
    elif free is not None and free < TMP_BYTES:
        yield node.build_finding(
            "tmp-full",
            f"{path}, the directory for temporary files, has {format_bytes(free)} free",
            "free space on that file system: compiled kernels and dumps are written there",
            "tmp",
            WARNING,
        )


def _build_directory(node: Node) -> Iterator[Finding]:
    build = replace(node, facts=node.mapping("build_directory") or {})
    if build.text("error"):
        yield node.build_finding(
            "build-directory-not-writable",
            f"TORCH_EXTENSIONS_DIR={build.text('path')}: {build.text('error')}",
            "set it in cluster.yaml to a directory that this user can write to on every node, or "
            "omit it: each run then has its own",
            "build_directory",
            WARNING,
        )
