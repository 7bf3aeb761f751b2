"""torchrun's command line, and the environment its ranks see."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..evidence.run_directory import PhaseDir
from .node_job import NodeJob
from .rendezvous import Endpoint

# How often torchrun polls its ranks. Our own watch polls more often, so that it can take dumps of
# the other ranks before torchrun ends them. A successful run ends up to this much later.
MONITOR_INTERVAL_S = 0.5
# Variables of a login shell or a set-up line that must not reach the ranks. A shared build
# directory can hold a stale lock, on which a compile waits forever. NCCL_DEBUG_SUBSYS can hide the
# connections that criteria judge. The fault that ranks stage comes only from the job's spec.
FAULT, NONCE = "CLUSTERSMOKE_FAULT", "CLUSTERSMOKE_NONCE"
NEVER_INHERITED = ("TORCH_EXTENSIONS_DIR", "NCCL_DEBUG_SUBSYS", FAULT)
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


def describe(spec: Mapping[str, Any], directory: PhaseDir) -> str:
    """The readable torchrun line of a phase, with shell variables for values known only on the
    node."""
    names = Agent("NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
    # shlex does not quote `@`, but it would quote `$`.
    words = arguments(spec, directory, Agent(*(f"@{name}@" for name in names)))
    line = shlex.join(["torchrun", *words])
    for name in names:
        line = line.replace(f"@{name}@", f"${name}")
    return line


def command(job: NodeJob, endpoint: Endpoint) -> list[str]:
    """The exact command of this node's torchrun agent."""
    node = Agent(str(job.node_rank), endpoint.address, str(endpoint.port))
    run = [sys.executable, "-m", "torch.distributed.run"]
    return [*run, *arguments(job.spec, job.dir, node)]


class Agent(NamedTuple):
    """The arguments that differ between the torchrun agents of a job."""

    node_rank: str
    master_addr: str
    master_port: str


def arguments(spec: Mapping[str, Any], directory: PhaseDir, node: Agent) -> list[str]:
    """torchrun's arguments for the job of `spec`."""
    if spec["nodes"] == 1:
        where = ["--standalone", "--local-addr", "127.0.0.1"]
    else:
        where = ["--nnodes", str(spec["nodes"]), "--node-rank", node.node_rank]
        where += ["--master-addr", node.master_addr, "--master-port", node.master_port]
    return [
        *where,
        *("--nproc-per-node", str(spec["ranks_per_node"])),
        *("--max-restarts", "0"),
        *("--monitor-interval", str(MONITOR_INTERVAL_S)),
        *("--log-dir", str(directory.rank_logs(node.node_rank))),
        *("--redirects", "3"),
        str(spec["script"]),
        *spec["argv"],
    ]


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
    return {"TORCH_EXTENSIONS_DIR": str(directory.build(node_rank)), "OMP_NUM_THREADS": "1"}


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
