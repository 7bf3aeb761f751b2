"""Renders a lab's configuration files from plain data."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from .lab_paths import LabDir
from .memory_limits import DEFAULT_MIB_PER_CPU, mountpoint

# Far more than the machine has, so that job scripts of large clusters are accepted.
NODE_MEMORY_MIB = 1024 * 1024
PARTITIONS = ("main", "preemptible", "high")  # the last preempts jobs of the others
# From the notice of a preemption to the end of a job of the partition that grants it.
GRACE_S = 60


@dataclass(frozen=True)
class NodePlan:
    """One node: its name, the host name it reports, and where its slurmd listens."""

    name: str
    hostname: str
    address: str
    port: int
    gpus: tuple[str, ...] = ()  # UUIDs of real ones


@dataclass(frozen=True)
class Plan:
    """The data of all configuration files."""

    files: LabDir
    cluster: str
    user: str
    control_host: str
    control_address: str
    control_port: int
    nodes: tuple[NodePlan, ...]
    cpus_per_node: int
    gpus_per_node: int
    slurm_version: tuple[int, int]
    accounting_port: int | None = None
    # Whether jobs are limited to the memory they request.
    memory: bool = False
    # Whether the daemons and the clients (srun) listen on one address only.
    daemons_bound: bool = True
    clients_bound: bool = True

    @property
    def real_gpus(self) -> bool:
        return any(node.gpus for node in self.nodes)

    @property
    def daemons_conf(self) -> Path:
        """The slurm.conf of the daemons and of jobs; often the same as that of clients."""
        same = self.daemons_bound == self.clients_bound
        return self.files.slurm_conf if same else self.files.daemons_conf


def render_slurm_conf(plan: Plan, bound: bool) -> str:
    """slurm.conf, tuned to start, schedule and cancel quickly.

    `bound`: its readers listen only on the address that the host's name resolves to. Otherwise
    only slurmctld does, and slurmd and srun listen on every address they have.
    """
    listening = "NoInAddrAny,NoCtldInAddrAny" if bound else "NoCtldInAddrAny"
    files = plan.files
    lines = [
        f"ClusterName={plan.cluster}",
        f"SlurmctldHost={plan.control_host}({plan.control_address})",
        f"SlurmctldPort={plan.control_port}",
        f"SlurmUser={plan.user}",
        f"SlurmdUser={plan.user}",
        "AuthType=auth/munge",
        "CredType=cred/munge",
        f"AuthInfo=socket={files.munge_socket}",
        f"CommunicationParameters={listening}",
        f"StateSaveLocation={files.controller_spool}",
        f"SlurmdSpoolDir={files.run}/spool/%n",
        f"SlurmctldPidFile={files.run}/slurmctld.pid",
        f"SlurmdPidFile={files.run}/slurmd.%n.pid",
        f"SlurmctldLogFile={files.log('slurmctld')}",
        f"SlurmdLogFile={files.logs}/slurmd-%n.log",
        # Not the system's file, whose plugins belong to another cluster.
        f"PlugStackConfig={files.plugstack_conf}",
        "MailProg=/bin/true",
        "ProctrackType=proctrack/linuxproc",
        f"TaskPlugin=task/{'cgroup' if plan.memory else 'none'}",
        "JobAcctGatherType=jobacct_gather/none",
        "MpiDefault=none",
        "SelectType=select/cons_tres",
        *_consumable(plan),
        # Accept the CPUs and memory below even if the machine has less.
        "SlurmdParameters=config_overrides",
        "ReturnToService=2",
        "PreemptType=preempt/partition_prio",
        "PreemptMode=REQUEUE",
        # The notice is the signal that a job asked for with --signal, or SIGTERM.
        "SlurmctldParameters=preempt_send_user_signal",
        "SlurmdTimeout=5",
        "KillWait=2",
        "CompleteWait=0",
        "MessageTimeout=10",
        "SchedulerParameters=bf_interval=1,sched_interval=2,batch_sched_delay=0,"
        "sched_min_interval=0",
    ]
    lines += _accounting(plan)
    gres = ""
    if plan.gpus_per_node:
        lines.append("GresTypes=gpu")
        gres = f" Gres=gpu:{'' if plan.real_gpus else 'fake:'}{plan.gpus_per_node}"
    lines += [
        f"NodeName={node.name} NodeHostname={node.hostname} NodeAddr={node.address} "
        f"Port={node.port} CPUs={plan.cpus_per_node} RealMemory={NODE_MEMORY_MIB}{gres} "
        "State=UNKNOWN"
        for node in plan.nodes
    ]
    if plan.real_gpus:
        lines.append(f"TaskProlog={plan.files.task_prolog}")
    names = ",".join(node.name for node in plan.nodes)
    low, graceful, high = PARTITIONS
    times = "DefaultTime=01:00:00 MaxTime=INFINITE State=UP"
    lines += [
        f"PartitionName={low} Nodes={names} Default=YES PriorityTier=1 {times}",
        f"PartitionName={graceful} Nodes={names} Default=NO PriorityTier=1 GraceTime={GRACE_S} "
        + times,
        f"PartitionName={high} Nodes={names} Default=NO PriorityTier=10 {times}",
    ]
    return "\n".join(lines) + "\n"


def _consumable(plan: Plan) -> list[str]:
    if not plan.memory:
        return ["SelectTypeParameters=CR_CPU"]
    return ["SelectTypeParameters=CR_CPU_Memory", f"DefMemPerCPU={DEFAULT_MIB_PER_CPU}"]


def _accounting(plan: Plan) -> list[str]:
    if plan.accounting_port is None:
        return ["AccountingStorageType=accounting_storage/none"]
    return [
        "AccountingStorageType=accounting_storage/slurmdbd",
        f"AccountingStorageHost={plan.control_address}",
        f"AccountingStoragePort={plan.accounting_port}",
        f"AccountingStoragePass={plan.files.munge_socket}",
        # Without it Slurm would accept an unknown account or QOS.
        "AccountingStorageEnforce=associations,limits,qos",
        *(["AccountingStorageTRES=gres/gpu"] if plan.gpus_per_node else []),
    ]


def render_gres_conf(plan: Plan) -> str:
    """gres.conf: the GPUs of each node, with files that stand in for their devices."""
    if not plan.gpus_per_node:
        return "AutoDetect=off\n"
    return (
        "AutoDetect=off\n"
        f"Name=gpu{'' if plan.real_gpus else ' Type=fake'} "
        f"File={plan.files.devices}/nvidia[0-{plan.gpus_per_node - 1}]\n"
    )


def render_task_prolog(plan: Plan) -> str:
    """The task prolog: names a task's GPUs by UUID. Slurm counts the GPUs of each node from 0,
    whatever the numbers of its devices, so all nodes on one machine would get the same ones."""
    cases = "\n".join(
        f"  {node.name}:{index}) uuid={shlex.quote(uuid)} ;;"
        for node in plan.nodes
        for index, uuid in enumerate(node.gpus)
    )
    return f"""#!/bin/sh
uuids=
for index in $(echo "${{SLURM_STEP_GPUS:-$SLURM_JOB_GPUS}}" | tr , ' '); do
  case $SLURMD_NODENAME:$index in
{cases}
  *) continue ;;
  esac
  uuids=$uuids,$uuid
done
echo "export CUDA_VISIBLE_DEVICES=${{uuids#,}}"
"""


def render_cgroup_conf(plan: Plan) -> str:
    """cgroup.conf: the lab's memory groups, or no control groups, which versions of Slurm switch
    off in different ways."""
    if plan.memory:
        return (
            "CgroupPlugin=cgroup/v1\n"
            f"CgroupMountpoint={mountpoint(plan.files)}\n"
            "ConstrainRAMSpace=yes\n"
            "MinRAMSpace=1\n"  # MiB; low enough for tests
            + ("CgroupAutomount=no\n" if plan.slurm_version < (23, 11) else "")
        )
    if plan.slurm_version >= (23, 11):
        return "CgroupPlugin=disabled\n"
    return "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n"


def render_slurmdbd_conf(plan: Plan) -> str:
    """slurmdbd.conf; slurmdbd refuses it unless only its owner can read it."""
    files = plan.files
    return "\n".join(
        [
            "AuthType=auth/munge",
            f"AuthInfo=socket={files.munge_socket}",
            "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny",
            "DbdHost=localhost",
            f"DbdAddr={plan.control_address}",
            f"DbdPort={plan.accounting_port}",
            f"SlurmUser={plan.user}",
            f"PidFile={files.run}/slurmdbd.pid",
            f"LogFile={files.log('slurmdbd')}",
            "StorageType=accounting_storage/mysql",
            "StorageHost=localhost",
            "StorageLoc=slurm_acct_db",
            f"StorageUser={plan.user}",
            "",
        ]
    )
