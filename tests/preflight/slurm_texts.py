"""Output of Slurm: of 22.05 as recorded on a lab, of newer versions from Slurm's sources
(slurm_sprint_node_table and slurm_sprint_partition_info of 24.11) and public reports."""

from __future__ import annotations

HEAD = "Arch=x86_64 CoresPerSocket=1  CPUAlloc=0 CPUEfctv=8 CPUTot=8 CPULoad=0.71 "
FEATURES = "AvailableFeatures={features} ActiveFeatures={features} Gres={gres} "
HOST_22 = "NodeAddr=127.0.0.1 NodeHostName={host} Port=20439 Version=22.05.8 "
KERNEL = "OS=Linux 6.18.44 #1 SMP PREEMPT_DYNAMIC @0  RealMemory=1048576 AllocMem=0 FreeMem=22475 "
STATE = "Sockets=8 Boards=1 State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A "
PARTITIONS = "MCS_label=N/A Partitions={partitions}  BootTime=2026-11-21T16:13:44 "
TIMES_22 = "SlurmdStartTime=2026-11-21T22:35:25 LastBusyTime=2026-11-21T22:35:25 "
TRES_22 = (
    "CfgTRES=cpu=8,mem=1T,billing=8,gres/gpu=2 AllocTRES= CapWatts=n/a CurrentWatts=0 AveWatts=0 "
    "ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s"
)


def node(
    name: str = "n0",
    state: str = "IDLE",
    reason: str = "",
    partitions: str = "main,high",
    gres: str = "gpu:fake:2",
    features: str = "(null)",
    host: str = "vm",
) -> str:
    """A line of `scontrol -o show node`, as 22.05 prints it."""
    line = f"NodeName={name} {HEAD}{FEATURES}{HOST_22}{KERNEL}{STATE}{PARTITIONS}"
    values = {"features": features, "gres": gres, "host": host}
    filled = line.format(state=state, partitions=partitions, **values) + TIMES_22 + TRES_22
    return filled + (f" Reason={reason} [root@2026-11-21T22:35:51]" if reason else "")


# 24.11: GPUs with their sockets, specialised cores, ResumeAfterTime, no more sensors, and what
# follows the reason.
NODE_24 = (
    "NodeName=gpu-b03 Arch=x86_64 CoresPerSocket=48  CPUAlloc=0 CPUEfctv=94 CPUTot=96 "
    "CPULoad=0.08 AvailableFeatures=a100,80gb,ib ActiveFeatures=a100,80gb,ib "
    "Gres=gpu:a100:3(S:0-1),gpu:1g.10gb:7(S:1),shard:8 NodeAddr=gpu-b03 NodeHostName=gpu-b03 "
    "Version=24.11.4 OS=Linux 5.14.0-503.38.1.el9_5.x86_64 #1 SMP PREEMPT_DYNAMIC Wed Apr 16 "
    "16:38:39 UTC 2025  RealMemory=515002 AllocMem=0 FreeMem=N/A Sockets=2 Boards=1 "
    "CoreSpecCount=2 CPUSpecList=63,127  "
    "State=IDLE+CLOUD+DRAIN+DYNAMIC_NORM+NOT_RESPONDING ThreadsPerCore=1 TmpDisk=0 Weight=1 "
    "Owner=N/A MCS_label=N/A Partitions=gpu,long  BootTime=None SlurmdStartTime=None "
    "LastBusyTime=2025-09-22T16:10:19 ResumeAfterTime=None "
    "CfgTRES=cpu=96,mem=515002M,billing=96,gres/gpu=10 AllocTRES= CurrentWatts=n/a AveWatts=n/a "
    "Reason=Kill task failed [root@2025-09-22T16:11:00]        State=IDLE of old "
    "Comment=State=IDLE InstanceId=i-0 InstanceType=p4 ReservationName=hack"
)

PARTITION_22 = (
    "PartitionName={name} AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL "
    "Default={default} QoS=N/A DefaultTime=01:00:00 DisableRootJobs=NO ExclusiveUser=NO "
    "GraceTime=0 Hidden=NO MaxNodes={nodes} MaxTime={time} MinNodes=0 LLN=NO "
    "MaxCPUsPerNode=UNLIMITED Nodes=node[0-2] PriorityJobFactor=1 PriorityTier=1 RootOnly=NO "
    "ReqResv=NO OverSubscribe=NO OverTimeLimit=NONE PreemptMode=REQUEUE State={state} "
    "TotalCPUs=24 TotalNodes=3 SelectTypeParameters=NONE JobDefaults=(null) "
    "DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED TRES=cpu=24,mem=3T,node=3,gres/gpu=6"
)
PARTITION_24 = (
    "PartitionName=gpu AllowGroups=hpc,gpu AllowAccounts=euge,lab DenyQos=standby AllocNodes=ALL "
    "Default=NO QoS=gpu-limits DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO "
    "ExclusiveTopo=NO GraceTime=0 Hidden=NO MaxNodes=4 MaxTime=3-00:00:00 MinNodes=2 LLN=NO "
    "MaxCPUsPerNode=UNLIMITED MaxCPUsPerSocket=UNLIMITED NodeSets=ALL Nodes=gpu-b[00-03] "
    "PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO OverSubscribe=NO "
    "OverTimeLimit=NONE PreemptMode=OFF State=UP TotalCPUs=384 TotalNodes=4 "
    "SelectTypeParameters=NONE JobDefaults=(null) DefMemPerCPU=2500 MaxMemPerNode=UNLIMITED "
    "TRES=cpu=384,mem=2T,node=4,billing=384,gres/gpu=16"
)
CONFIG = """\
Configuration data as of 2026-11-21T22:35:51
AccountingStorageBackupHost = (null)
AccountingStorageEnforce = associations,limits,qos
AccountingStorageType   = accounting_storage/slurmdbd
ClusterName             = pf
SLURM_VERSION           = 22.05.8
"""
QOS = "normal|||||\nstandby|DenyOnLimit|00:30:00|node=1|gres/gpu=2|cpu=64\n"
ASSOCIATIONS = "pf|lab||normal,standby|normal|||\nother|euge||normal||||\npf|root||normal||||\n"


def partition(
    name: str = "main",
    state: str = "UP",
    default: str = "YES",
    nodes: str = "UNLIMITED",
    time: str = "UNLIMITED",
) -> str:
    """A line of `scontrol -o show partition`, as 22.05 prints it."""
    return PARTITION_22.format(name=name, state=state, default=default, nodes=nodes, time=time)
