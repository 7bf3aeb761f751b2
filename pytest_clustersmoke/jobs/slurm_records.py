"""Parses what Slurm's commands print about the cluster into typed records.

All parsing of Slurm's output is here and in slurm_jobs.py. The formats are those of `scontrol -o`,
`sacctmgr -P`, `sinfo -o`, `squeue -o` and `sacct -P`, the same since Slurm 22.05; their `--json`
differs between versions. A value in an unknown format counts as missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from math import inf

from ..config.hostlist import expand_hostlist
from ..config.sbatch_options import parse_time_limit
from ..text import sanitize_line

# States and flags (man sinfo, NODE STATE CODES) that keep jobs off a node until somebody acts.
GONE = frozenset(
    {"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "ERROR", "INVALID_REG"}
)
# States that end by themselves, or when other users are done with the node.
REBOOTS = frozenset(
    {"REBOOT", "REBOOT_ISSUED", "REBOOT_REQUESTED"}
)  # drained until the reboot is over
# Drained until it is powered down (scontrol's POWER_DOWN_ASAP), then ready to be powered up.
DRAINS = frozenset({"DRAIN", "DRAINED", "DRAINING"})
POWER_DOWNS = frozenset({"POWER_DOWN", "POWER_DRAIN", "POWERING_DOWN"})
RESERVED = frozenset({"MAINT", "MAINTENANCE", "RESERVED"})  # free to jobs of the reservation
AWAY = REBOOTS | POWER_DOWNS | RESERVED | {"NOT_RESPONDING", "UNKNOWN"}
SHOWN_OF_NODES = (
    *("NodeName", "State", "Gres", "CPUTot", "RealMemory"),
    *("AvailableFeatures", "Partitions", "NodeHostName"),
)
SHOWN_OF_PARTITIONS = (
    *("PartitionName", "State", "Nodes", "TotalNodes", "MinNodes", "MaxNodes", "MaxTime", "QoS"),
    *("AllowGroups", "AllowAccounts", "DenyAccounts", "AllowQos", "DenyQos", "TRES"),
)
QOS_FIELDS = "Name,Flags,MaxWall,MaxTRES,MaxTRESPU,GrpTRES"
ASSOCIATION_FIELDS = "Cluster,Account,Partition,QOS,DefaultQOS,MaxWall,MaxTRES,GrpTRES"

# A limit on how many jobs or nodes one user may have: it passes when others of theirs end
# (slurm_errno.c and job_state_reason_string of 22.05 to 24.11).
_OWN_LIMIT = re.compile(
    r"(QOS|Assoc)\w*(Submit|Jobs?|Node|Cpu|Gres|Mem|Billing|RunMinutes)\w*(Limit|PerUser|PerAccount)"
    r"|MaxSubmitJob|job submit limit|MaxJobsPer",
    re.I,
)
_FIELD = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z_]*)=")
_REASON = re.compile(r" Reason=(.*?)(?: \[([^\s@\]]+)@([0-9T:-]+)\]|$)")
# What a NodeName can be made of; nothing that a shell or a hostlist would read otherwise.
NODE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_SOCKETS = re.compile(r"\([^)]*\)")
# A slice of a GPU (MIG), as gres names its types: `1g.10gb`, `a100_1g.5gb`.
_SLICE = re.compile(r"\d+g\.\d+gb")


@dataclass(frozen=True)
class SlurmConfig:
    """The controller's configuration. `enforced` is what accounting enforces."""

    cluster: str
    version: str
    accounting: bool
    enforced: frozenset[str]


@dataclass(frozen=True)
class SlurmNode:
    """One node. Memory in MiB; `host` is the machine that its slurmd runs on; `gpus_by_type` counts
    GPUs and MIG slices; the `usable_` values exclude what Slurm reserves for the system."""

    name: str
    states: frozenset[str]
    reason: str
    by: str
    since: str
    gpus_by_type: Mapping[str, int]
    cpus: int
    usable_cpus: int
    memory: int
    usable_memory: int
    features: frozenset[str]
    partitions: frozenset[str]
    host: str
    text: str

    @property
    def gpus(self) -> int:
        """The number of GPUs (gres/gpu) of all types."""
        return sum(self.gpus_by_type.values())

    @property
    def whole_gpus(self) -> dict[str, int]:
        """The number of GPUs by type, without MIG slices."""
        return {kind: n for kind, n in self.gpus_by_type.items() if n and not _SLICE.search(kind)}

    @property
    def gone(self) -> bool:
        """Whether it takes no job until somebody acts."""
        temporary = REBOOTS | (frozenset() if self.states & (GONE - DRAINS) else POWER_DOWNS)
        return bool(self.states & GONE) and not self.states & temporary

    @property
    def away(self) -> bool:
        """Whether it takes no job now, but will again without anybody acting."""
        return bool(self.states & AWAY) and not self.gone

    @property
    def is_silent(self) -> bool:
        """Whether its slurmd does not answer slurmctld."""
        return "NOT_RESPONDING" in self.states

    @property
    def unknown(self) -> bool:
        """Whether slurmctld, which has just started, has not heard of it yet."""
        return "UNKNOWN" in self.states

    @property
    def description(self) -> str:
        """Why it takes no jobs, as Slurm reports it: state, reason, who set it and when."""
        state = "+".join(sorted(self.states)).lower()
        details = [self.reason, " ".join(filter(None, (self.by, self.since)))]
        shown = "; ".join(filter(None, details))
        return f"{self.name} is {state}" + (f" ({shown})" if shown else "")


@dataclass(frozen=True)
class SlurmPartition:
    """One partition. Times in seconds; a limit that is not set is None or infinite."""

    name: str
    state: str
    default: bool
    root_only: bool
    max_nodes: int | None
    min_nodes: int
    max_time: float
    qos: str
    rules: Mapping[str, frozenset[str]]  # AllowAccounts and the like, if they name anybody
    text: str


@dataclass(frozen=True)
class AccountingLimits:
    """Limits that a QOS or an association sets; `tres` maps sacctmgr's columns to their limits."""

    owner: str
    max_wall: float = inf
    tres: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    text: str = ""


@dataclass(frozen=True)
class SlurmQos:
    """A quality of service."""

    name: str
    flags: frozenset[str]
    limits: AccountingLimits


@dataclass(frozen=True)
class Association:
    """A user's access to an account; `partition` is empty if it holds for all partitions."""

    account: str
    partition: str
    qos: frozenset[str]
    default_qos: str
    limits: AccountingLimits


def parse_config(text: str) -> SlurmConfig:
    """`scontrol show config`: one `Key = value` per line."""
    pairs = (line.partition(" = ") for line in text.splitlines())
    values = {key.strip(): sanitize_line(value.strip()) for key, mark, value in pairs if mark}
    return SlurmConfig(
        cluster=values.get("ClusterName", ""),
        version=values.get("SLURM_VERSION", ""),
        accounting="slurmdbd" in values.get("AccountingStorageType", ""),
        enforced=frozenset(
            word.strip() for word in values.get("AccountingStorageEnforce", "").split(",")
        ),
    )


def parse_nodes(text: str) -> dict[str, SlurmNode]:
    """`scontrol -o show node`, by name."""
    nodes = {}
    for line in map(sanitize_line, text.splitlines()):
        fields = fields_of(line)
        name = fields.get("NodeName", "")
        if not name:
            continue
        reason = _REASON.search(line)
        cpus, memory = _count(fields.get("CPUTot")) or 0, _count(fields.get("RealMemory")) or 0
        nodes[name] = SlurmNode(
            name,
            frozenset(
                {state.strip("*~#!%$@^-") for state in fields.get("State", "").split("+")} - {""}
            ),
            *_who_says(reason),
            gpus_by_type=count_gpus(fields.get("Gres", "")),
            cpus=cpus,
            usable_cpus=_count(fields.get("CPUEfctv")) or cpus,
            memory=memory,
            usable_memory=max(0, memory - (_count(fields.get("MemSpecLimit")) or 0)),
            features=_words(fields.get("AvailableFeatures", ""))
            | _words(fields.get("ActiveFeatures", "")),
            partitions=_words(fields.get("Partitions", "")),
            host=fields.get("NodeHostName", ""),
            text=_abridged(fields, SHOWN_OF_NODES) + (reason[0] if reason else ""),
        )
    return nodes


def parse_partitions(text: str) -> dict[str, SlurmPartition]:
    """`scontrol -o show partition`, by name."""
    partitions = {}
    for line in map(sanitize_line, text.splitlines()):
        fields = fields_of(line)
        name = fields.get("PartitionName", "")
        if not name:
            continue
        lists = [f"{rule}{kind}" for rule in ("Allow", "Deny") for kind in ("Accounts", "Qos")]
        rules = {key: fields.get(key, "ALL") for key in [*lists, "AllowGroups"]}
        partitions[name] = SlurmPartition(
            name=name,
            state=fields.get("State", ""),
            default=fields.get("Default") == "YES",
            root_only=fields.get("RootOnly") == "YES",
            max_nodes=_count(fields.get("MaxNodes")),
            min_nodes=_count(fields.get("MinNodes")) or 0,
            max_time=_seconds(fields.get("MaxTime", "")),
            qos=value_or_empty(fields.get("QoS", "")),
            rules={
                key: _words(names)
                for key, names in rules.items()
                if names not in ("ALL", "NONE", "")
            },
            text=_abridged(fields, SHOWN_OF_PARTITIONS),
        )
    return partitions


def parse_qos(text: str) -> dict[str, SlurmQos]:
    """`sacctmgr -n -P show qos format=QOS_FIELDS`, by name."""
    qos = {}
    for line, cells in rows(text, 6):
        name, flags, wall, *tres = cells
        if name:
            columns = dict(zip(("MaxTRES", "MaxTRESPU", "GrpTRES"), map(_tres, tres), strict=True))
            limits = AccountingLimits(f"QOS {name}", _seconds(wall), columns, line)
            qos[name] = SlurmQos(name, _words(flags), limits)
    return qos


def parse_associations(text: str, cluster: str) -> tuple[Association, ...]:
    """`sacctmgr -n -P show assoc format=ASSOCIATION_FIELDS`: those of this cluster."""
    associations = []
    for line, (owner, account, partition, qos, default, wall, most, group) in rows(text, 8):
        if owner.lower() == cluster.lower():
            columns = {"MaxTRES": _tres(most), "GrpTRES": _tres(group)}
            limits = AccountingLimits(f"account {account}", _seconds(wall), columns, line)
            associations.append(Association(account, partition, _words(qos), default, limits))
    return tuple(associations)


def parse_default_account(text: str) -> str:
    """`sacctmgr -n -P show user NAME format=DefaultAccount`."""
    return sanitize_line(next(iter(text.splitlines()), "")).strip("| ")


def parse_node_states(text: str) -> dict[str, str]:
    """`sinfo -h -N -o '%N %T'`, which lists a node once per partition."""
    lines = (line.partition(" ") for line in map(sanitize_line, text.splitlines()))
    return {name: state.strip() for name, _, state in lines if state}


def parse_node_partitions(text: str) -> dict[str, frozenset[str]]:
    """`sinfo -h -N -o '%N|%R'`: the partitions of each node, which has a line for each."""
    nodes: dict[str, set[str]] = {}
    for _, (name, partition) in rows(text, 2):
        if NODE_NAME.fullmatch(name):
            nodes.setdefault(name, set()).add(partition.strip())
    return {name: frozenset(partitions) for name, partitions in nodes.items()}


def names_own_limit(words: str) -> bool:
    """Whether Slurm refuses or holds a job because this user has as many as they may have: by
    sbatch's message, or by the reason of a pending job."""
    return bool(_OWN_LIMIT.search(words))


def fields_of(line: str) -> dict[str, str]:
    """The `Key=value` pairs of a line of `scontrol -o`; a value may contain spaces. If a key
    occurs twice the first one counts: free text comes last and may look like fields."""
    marks = list(_FIELD.finditer(line))
    ends = [mark.start() for mark in marks[1:]] + [len(line)]
    fields: dict[str, str] = {}
    for mark, end in zip(marks, ends, strict=False):
        fields.setdefault(mark[1], line[mark.end() : end].strip())
    return fields


def rows(text: str, cells: int) -> Iterator[tuple[str, list[str]]]:
    """The lines with this many cells separated by `|`, and their cells; the last cell may contain
    the separator."""
    for line in map(sanitize_line, text.splitlines()):
        row = line.split("|", cells - 1)
        if len(row) == cells:
            yield line, row


def value_or_empty(value: str) -> str:
    """The value, or an empty string for the words that Slurm prints if there is none."""
    return "" if value in ("(null)", "N/A", "None", "Unknown", "none", "None assigned") else value


def _abridged(fields: Mapping[str, str], shown: Iterable[str]) -> str:
    """The fields named in `shown`, as Slurm prints them."""
    return " ".join(f"{key}={fields[key]}" for key in shown if key in fields)


def _who_says(reason: re.Match[str] | None) -> tuple[str, str, str]:
    """The reason of a node's state, who set it, and when."""
    if reason is None:
        return "", "", ""
    return reason[1] or "", reason[2] or "", add_zone(reason[3] or "")


def parse_time(text: str) -> datetime | None:
    """A time that Slurm printed. It has no zone and is taken as local time."""
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").astimezone()
    except (ValueError, OverflowError, OSError):
        return None


def add_zone(text: str) -> str:
    """A time that Slurm printed, with the offset of its zone; any other text as it is."""
    time = parse_time(text)
    return text if time is None else time.isoformat()


def _words(text: str) -> frozenset[str]:
    return frozenset(word for word in text.split(",") if word and word != "(null)")


def _count(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() else None


def _seconds(text: str) -> float:
    try:
        return parse_time_limit(text) if text else inf
    except (ValueError, OverflowError):
        return inf


def count_gpus(gres: str) -> dict[str, int]:
    """The GPUs by type in `gpu:a100:2(S:0-1),gpu:1g.10gb:7,shard:8`; "" is an unnamed type."""
    gpus: dict[str, int] = {}
    for entry in _SOCKETS.sub("", gres).split(","):
        parts = entry.split(":")
        if parts[0] == "gpu":
            number = (_count(parts[-1]) or 0) if len(parts) > 1 else 1
            kind = parts[1] if len(parts) > 2 else ""
            gpus[kind] = gpus.get(kind, 0) + number
    return gpus


def _tres(text: str) -> dict[str, int]:
    pairs = (pair.partition("=") for pair in text.split(","))
    return {name: int(value) for name, _, value in pairs if value.isascii() and value.isdigit()}


def parse_topology(text: str) -> dict[str, tuple[str, ...]]:
    """`scontrol -o show topology`: each switch of a tree, or block, with the nodes below it."""
    lines = [fields_of(sanitize_line(line)) for line in text.splitlines()]
    named = [(line.get("SwitchName") or line.get("BlockName", ""), line) for line in lines]
    shown = {name: value_or_empty(line.get("Nodes", "")) for name, line in named if name}
    below = {name: expand_hostlist(nodes) for name, nodes in shown.items()}
    return {name: tuple(dict.fromkeys(nodes)) for name, nodes in below.items() if nodes}
