"""The environment of a node's ranks, whichever launcher starts them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..evidence.run_directory import ATTEMPT_VARIABLE, PhaseDir
from .node_job import NodeJob
from .rendezvous import Endpoint

# Variables of a login shell or a set-up line that must not reach the ranks. A shared build
# directory can hold a stale lock, on which a compile waits forever. NCCL_DEBUG_SUBSYS can hide the
# connections that criteria judge. The fault that ranks stage comes only from the job's spec.
FAULT, NONCE = "CLUSTERSMOKE_FAULT", "CLUSTERSMOKE_NONCE"
KEPT = "CLUSTERSMOKE_KEPT"
NEVER_INHERITED = ("TORCH_EXTENSIONS_DIR", "NCCL_DEBUG_SUBSYS", FAULT)
# With this workspace cuBLAS gives the same bits again, so that a pass can be repeated. cuBLAS reads
# it when it is opened, which a program may do before its `Rank.start`.
CUBLAS_WORKSPACE = ":4096:8"
# Levels of NCCL_DEBUG that show the transports; NCCL accepts them in upper or lower case.
TRANSPORT_LEVELS = ("INFO", "TRACE")


def apply_environment(to_set: Mapping[str, str], to_unset: Iterable[str]) -> None:
    """Set and unset the profile's variables again: they may have been lost on the way to the node.

    The interpreter's own directory goes first on PATH, where DeepSpeed looks for ninja.
    """
    for name in (*NEVER_INHERITED, *to_unset):
        os.environ.pop(name, None)
    os.environ.update(to_set)
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"


def launcher_environment(
    directory: PhaseDir,
    device: str,
    node_rank: int | str,
    node_name: str,
    profile: Mapping[str, str],
) -> dict[str, str]:
    """Variables that the launcher sets for the ranks, even if the `profile` sets them; only a level
    of NCCL_DEBUG that shows the transports is kept."""
    level = profile.get("NCCL_DEBUG", "")
    return {
        "CLUSTERSMOKE_PHASE_DIR": str(directory.root),
        ATTEMPT_VARIABLE: str(directory.attempt),
        "CLUSTERSMOKE_NODE_RANK": str(node_rank),
        "CLUSTERSMOKE_NODE_NAME": node_name,
        "CLUSTERSMOKE_DEVICE": device,
        # One file per process: lines of two processes in one file would overwrite each other.
        "NCCL_DEBUG": level if level.upper() in TRANSPORT_LEVELS else "INFO",
        "NCCL_DEBUG_FILE": str(directory.nccl_logs(node_rank) / "%h.%p.log"),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
    }


def defaults(directory: PhaseDir, node_rank: int | str) -> dict[str, str]:
    """Variables that the launcher sets if neither the profile nor the node does (the node's build
    directory is not inherited: NEVER_INHERITED).

    Each run and node has a build directory of its own: no stale lock, no race with another build.
    """
    return {
        "TORCH_EXTENSIONS_DIR": str(directory.build(node_rank)),
        "OMP_NUM_THREADS": "1",
        "CUBLAS_WORKSPACE_CONFIG": CUBLAS_WORKSPACE,
    }


def rank_environment(job: NodeJob, endpoint: Endpoint) -> dict[str, str]:
    """The environment of the ranks: this process's own, and the launcher's variables."""
    env = dict(os.environ)
    job.dir.nccl_logs(job.node_rank).mkdir(parents=True, exist_ok=True)
    job.dir.output.mkdir(parents=True, exist_ok=True)
    job.dir.dumps.mkdir(parents=True, exist_ok=True)
    env |= launcher_environment(
        job.dir, str(job.spec["device"]), job.node_rank, job.node_name, job.spec["env_set"]
    )
    for name, value in defaults(job.dir, job.node_rank).items():
        env.setdefault(name, value)
    if endpoint.one_host and job.spec["device"] != "cuda":
        # Virtual nodes of one machine: nothing must listen beyond loopback.
        env.setdefault("GLOO_SOCKET_IFNAME", "lo")
    env[NONCE] = job.nonce
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", FAULT):
        env.pop(name, None)
    if fault := job.spec.get("fault"):  # staged by --cluster-prove; never inherited
        env[FAULT] = fault["name"]
    if job.spec.get("nccl_hostid"):
        env["NCCL_HOSTID"] = f"{job.spec['run_id']}-{job.node_rank}"
    return env


def keep_variables(env: Mapping[str, str], *names: str) -> dict[str, str]:
    """A variable that carries the values of others past a launcher that changes them."""
    return {KEPT: json.dumps({name: env.get(name) for name in names})}


def restore_variables() -> None:
    """Give this process the values that `keep_variables` kept."""
    for name, value in json.loads(os.environ.pop(KEPT, "{}")).items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def number_rank(
    spec: Mapping[str, Any], node_rank: int, local_rank: int, address: str, port: str
) -> dict[str, str]:
    """The variables of a rank that its launcher does not number; ranks are numbered by node."""
    count = int(spec["ranks_per_node"])
    return {
        "RANK": str(node_rank * count + local_rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(int(spec["nodes"]) * count),
        "LOCAL_WORLD_SIZE": str(count),
        "GROUP_RANK": str(node_rank),
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
    }
