"""The launchers of a phase's ranks: command lines, configurations, and what each needs in its
environment.

Every launcher starts the same processes, with the variables of torchrun's contract (RANK,
LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and so on). A launcher that sets only some of them starts each
rank through `rank_starter`.
"""

from __future__ import annotations

import os
import shlex
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ..config.marker import TORCHRUN, LauncherName
from ..evidence.run_directory import PhaseDir, write_atomically, write_json
from .launch_environment import keep_variables, number_rank
from .node_job import NodeJob
from .rendezvous import Endpoint

# How often torchrun polls its ranks. Our own watch polls more often, so that it can take dumps of
# the other ranks before torchrun ends them. A successful run ends up to this much later.
MONITOR_INTERVAL_S = 0.5
STARTER = "pytest_clustersmoke.node.rank_starter"
# Slurm's variables that are kept, so that srun finds the job. The others describe the outer step
# and would size or bind that of the ranks.
KEPT_BY_SRUN = ("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_NAME", "SLURM_CONF")


@dataclass(frozen=True)
class NodeLaunch:
    """A job on one node. The node's rank, address and port are text: in a dry run they are the
    names of shell variables."""

    spec: Mapping[str, Any]
    directory: PhaseDir
    node_rank: str
    address: str
    port: str
    own_address: str  # this node's, where node 0 is at `address`
    is_host: str  # 1 on node 0, otherwise 0

    @property
    def nodes(self) -> int:
        return int(self.spec["nodes"])

    @property
    def ranks_per_node(self) -> int:
        return int(self.spec["ranks_per_node"])

    @property
    def program(self) -> list[str]:
        return [str(self.spec["script"]), *self.spec["argv"]]


class Launcher(Protocol):
    """Starts the ranks of a node, or those of all nodes from node 0."""

    shown: str  # its command, as a user would type it

    def command(self) -> list[str]:
        """The words that start it on this node, before its arguments."""

    def arguments(self, launch: NodeLaunch) -> list[str]:
        """Its arguments, with the program and the program's own."""

    def prepare(self, launch: NodeLaunch, env: dict[str, str]) -> dict[str, str]:
        """Write the files that it reads on this node; returns its environment, made of that of the
        ranks."""


class Torchrun:
    """torchrun with a static rendezvous: ranks are numbered by node."""

    shown = "torchrun"

    def command(self) -> list[str]:
        return [sys.executable, "-m", "torch.distributed.run"]

    def arguments(self, launch: NodeLaunch) -> list[str]:
        return [
            *self.rendezvous(launch),
            *("--nproc-per-node", str(launch.ranks_per_node)),
            *("--max-restarts", "0"),
            *("--monitor-interval", str(MONITOR_INTERVAL_S)),
            *("--log-dir", str(launch.directory.rank_logs(launch.node_rank))),
            *("--redirects", "3"),
            *launch.program,
        ]

    def rendezvous(self, launch: NodeLaunch) -> list[str]:
        if launch.nodes == 1:
            return ["--standalone", "--local-addr", "127.0.0.1"]
        return [
            *("--nnodes", str(launch.nodes), "--node-rank", launch.node_rank),
            *("--master-addr", launch.address, "--master-port", launch.port),
        ]

    def prepare(self, launch: NodeLaunch, env: dict[str, str]) -> dict[str, str]:
        return env


class TorchrunC10d(Torchrun):
    """torchrun whose nodes meet in a store on node 0, which numbers them in an order of its own."""

    def rendezvous(self, launch: NodeLaunch) -> list[str]:
        if launch.nodes == 1:
            return super().rendezvous(launch)
        limit_s = int(launch.spec["stage_limits_s"].get("init", 0)) or 600
        return [
            *("--nnodes", str(launch.nodes)),
            *("--rdzv-backend", "c10d"),
            *("--rdzv-endpoint", f"{launch.address}:{launch.port}"),
            *("--rdzv-id", str(launch.spec["run_id"])),
            # By itself torchrun looks for node 0's address among those of its host's name.
            *("--rdzv-conf", f"is_host={launch.is_host},join_timeout={limit_s}"),
            *("--local-addr", launch.own_address),
        ]


class Accelerate:
    """`accelerate launch` on each node, with a configuration of that node."""

    shown = "accelerate launch"

    def command(self) -> list[str]:
        return [sys.executable, "-m", "accelerate.commands.launch"]

    def arguments(self, launch: NodeLaunch) -> list[str]:
        config = launch.directory.accelerate_config(launch.node_rank)
        return [
            *("--config_file", str(config), "--monitor_interval", str(MONITOR_INTERVAL_S)),
            *("--module", STARTER, *launch.program),
        ]

    def prepare(self, launch: NodeLaunch, env: dict[str, str]) -> dict[str, str]:
        write_atomically(
            launch.directory.accelerate_config(launch.node_rank),
            "".join(f"{name}: {value}\n" for name, value in self.configuration(launch).items()),
        )
        return env | keep_variables(env, "OMP_NUM_THREADS")  # it counts threads by itself

    def configuration(self, launch: NodeLaunch) -> dict[str, str | int]:
        """The keys of accelerate's configuration file. Only with a type of several processes does
        accelerate set RANK, also on CPU."""
        return {
            "compute_environment": "LOCAL_MACHINE",
            "distributed_type": "MULTI_GPU",
            "mixed_precision": "'no'",
            "gpu_ids": "all",
            "num_machines": launch.nodes,
            "num_processes": launch.nodes * launch.ranks_per_node,
            "machine_rank": launch.node_rank,
            "main_process_ip": launch.address,
            "main_process_port": launch.port,
            "rdzv_backend": "static",
            "same_network": "true",
        }


class DeepSpeed:
    """DeepSpeed's launcher, on one node: over several it needs SSH."""

    shown = "deepspeed"

    def command(self) -> list[str]:
        guard = [sys.executable, "-m", STARTER, "--guard"]
        return [*guard, sys.executable, "-m", "deepspeed.launcher.runner"]

    def arguments(self, launch: NodeLaunch) -> list[str]:
        return [
            *("--num_gpus", str(launch.ranks_per_node), "--master_port", launch.port),
            *("--hostfile", os.devnull),  # not /job/hostfile, whose hosts it would reach over SSH
            *("--no_local_rank", "--module", STARTER),
            *launch.program,
        ]

    def prepare(self, launch: NodeLaunch, env: dict[str, str]) -> dict[str, str]:
        # DeepSpeed sets neither, and gives the ranks the machine's first GPUs even if this node has
        # others.
        own = {"LOCAL_WORLD_SIZE": str(launch.ranks_per_node), "GROUP_RANK": "0"}
        return {**env, **own, **keep_variables(env, "CUDA_VISIBLE_DEVICES")}


class PlainTask:
    """One plain process a node, with the variables of a rank."""

    shown = "python"

    def command(self) -> list[str]:
        return [sys.executable]

    def arguments(self, launch: NodeLaunch) -> list[str]:
        return ["-m", STARTER, *launch.program]

    def prepare(self, launch: NodeLaunch, env: dict[str, str]) -> dict[str, str]:
        return env | number_rank(launch.spec, int(launch.node_rank), 0, launch.address, launch.port)


class SrunStep:
    """One step of the job, started on node 0, with a task for each rank of all nodes."""

    shown = "srun"

    def command(self) -> list[str]:
        nodes = os.environ.get("SLURM_STEP_NODELIST")  # an allocation may have others, too
        return ["srun", *([f"--nodelist={nodes}"] if nodes else [])]

    def arguments(self, launch: NodeLaunch) -> list[str]:
        run = launch.directory.run.root
        place = launch.directory.root.relative_to(run)
        return [
            "--overlap",
            f"--nodes={launch.nodes}",
            f"--ntasks={launch.nodes * launch.ranks_per_node}",
            f"--ntasks-per-node={launch.ranks_per_node}",
            "--distribution=block",
            # The ranks share all CPUs of the job: a number for each would leave the rest out.
            *("--overcommit", "--cpu-bind=none"),
            "--mpi=none",  # the ranks meet at MASTER_ADDR, and no plug-in has to start
            "--input=none",
            # The nodes' watch ends the others, once their dumps are taken.
            *("--kill-on-bad-exit=0", "--wait=0"),
            "--export=ALL",
            # The signal to stop is for the nodes, and would end a Python that is only starting.
            *(("sh", "-c", 'trap "" USR1; exec "$@"', "sh") if launch.spec.get("resume") else ()),
            *(sys.executable, "-m", STARTER, "--step", str(run), str(place)),
        ]

    def prepare(self, launch: NodeLaunch, env: dict[str, str]) -> dict[str, str]:
        meeting = {"MASTER_ADDR": launch.address, "MASTER_PORT": launch.port}
        write_json(launch.directory.node_environment(launch.node_rank), env | meeting)
        return {
            name: value
            for name, value in env.items()
            if name in KEPT_BY_SRUN or not name.startswith(("SLURM_", "SRUN_", "SBATCH_"))
        }


LAUNCHERS: Mapping[LauncherName, Launcher] = {
    "torchrun": Torchrun(),
    "torchrun-c10d": TorchrunC10d(),
    "srun": SrunStep(),
    "accelerate": Accelerate(),
    "deepspeed": DeepSpeed(),
    "none": PlainTask(),
}


def find_launcher(spec: Mapping[str, Any]) -> Launcher:
    return LAUNCHERS[spec.get("launcher", TORCHRUN)]


def launch_of(job: NodeJob, endpoint: Endpoint) -> NodeLaunch:
    where = (str(job.node_rank), endpoint.address, str(endpoint.port))
    is_host = str(int(job.node_rank == 0))
    return NodeLaunch(job.spec, job.dir, *where, _address_towards(endpoint.address), is_host)


def describe(spec: Mapping[str, Any], directory: PhaseDir) -> str:
    """The readable command line of a phase's launcher, with shell variables for values known only
    on the node."""
    names = ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "NODE_ADDR", "IS_HOST")
    launcher = find_launcher(spec)
    # shlex does not quote `@`, but it would quote `$`.
    node = NodeLaunch(spec, directory, *(f"@{name}@" for name in names))
    words = launcher.arguments(node)
    line = f"{launcher.shown} {shlex.join(words)}"
    for name in names:
        line = line.replace(f"@{name}@", f"${name}")
    runs = f"\n# each task runs: {shlex.join(node.program)}"
    return line if node.program[0] in words else line + runs


def _address_towards(address: str) -> str:
    """This node's own address on the way to that one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))  # sends nothing
        return str(probe.getsockname()[0])
