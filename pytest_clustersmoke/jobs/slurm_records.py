"""Slurm's words -> typed records: no other file parses what a command of Slurm printed.

The forms are those of `scontrol -o`, `sacctmgr -P`, `sinfo -o`, `squeue -o` and `sacct -P`, which
Slurm 22.05 to today's all have; their `--json` differs between versions. A value that is not of its
known form counts as not given.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf

from ..config.sbatch_options import parse_time_limit
from ..text import sanitize_line

# States and flags (man sinfo, NODE STATE CODES) that keep jobs from a node until somebody acts.
GONE = frozenset(
    {"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "ERROR", "INVALID_REG"}
)
# Those that end by themselves, or when others have done with the node.
REBOOTS = frozenset({"REBOOT", "REBOOT_ISSUED", "REBOOT_REQUESTED"})  # drained until it is back
# Drained until it has been switched off (scontrol's POWER_DOWN_ASAP), then ready to be woken.
DRAINS = frozenset({"DRAIN", "DRAINED", "DRAINING"})
SWITCHED = frozenset({"POWER_DOWN", "POWER_DRAIN", "POWERING_DOWN"})
AWAY = REBOOTS | SWITCHED | {"NOT_RESPONDING", "MAINT", "MAINTENANCE", "RESERVED", "UNKNOWN"}
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

_FIELD = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z_]*)=")
_REASON = re.compile(r" Reason=(.*?)(?: \[([^\s@\]]+)@([0-9T:-]+)\]|$)")
_SOCKETS = re.compile(r"\([^)]*\)")
# A slice of a GPU (MIG), as gres names its types: `1g.10gb`, `a100_1g.5gb`.
_SLICE = re.compile(r"\d+g\.\d+gb")


@dataclass(frozen=True)
class SlurmConfig:
    """What the controller says of the cluster. `enforced` is what accounting insists on."""

    cluster: str
    version: str
    accounting: bool
    enforced: frozenset[str]


@dataclass(frozen=True)
class SlurmNode:
    """One node. Memory in MiB; `host` is the machine that its slurmd runs on; `gpus_by_type` counts
    GPUs and slices of them; `usable` leaves out what Slurm keeps for the system."""

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
        """All of gres/gpu, whatever their types."""
        return sum(self.gpus_by_type.values())

    @property
    def whole_gpus(self) -> dict[str, int]:
        """Those that are no slices, by type."""
        return {k: n for k, n in self.gpus_by_type.items() if n and not _SLICE.search(k)}

    @property
    def gone(self) -> bool:
        back = REBOOTS | (frozenset() if self.states & (GONE - DRAINS) else SWITCHED)
        return bool(self.states & GONE) and not self.states & back

    @property
    def away(self) -> bool:
        """Whether it takes no job now, but will by itself."""
        return bool(self.states & AWAY) and not self.gone

    @property
    def words(self) -> str:
        """Why it takes no jobs, in Slurm's words: state, reason, who said so and when."""
        state = "+".join(sorted(self.states)).lower()
        said = [one for one in (self.reason, " ".join(filter(None, (self.by, self.since)))) if one]
        return f"{self.name} is {state}" + (f" ({'; '.join(said)})" if said else "")


@dataclass(frozen=True)
class SlurmPartition:
    """One partition; limits are None where there are none, times in seconds."""

    name: str
    state: str
    default: bool
    root_only: bool
    max_nodes: int | None
    min_nodes: int
    max_time: float
    qos: str
    rules: Mapping[str, frozenset[str]]  # AllowAccounts and its like, where they name anybody
    text: str


@dataclass(frozen=True)
class AccountingLimits:
    """Limits that a QOS or an association sets; `tres` by the column it stands in."""

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
    """What a user may use of an account; `partition` is empty where it holds for all."""

    account: str
    partition: str
    qos: frozenset[str]
    default_qos: str
    limits: AccountingLimits


def parse_config(text: str) -> SlurmConfig:
    """`scontrol show config`: a `Key = value` a line."""
    pairs = (line.partition(" = ") for line in text.splitlines())
    told = {key.strip(): sanitize_line(value.strip()) for key, found, value in pairs if found}
    return SlurmConfig(
        cluster=told.get("ClusterName", ""),
        version=told.get("SLURM_VERSION", ""),
        accounting="slurmdbd" in told.get("AccountingStorageType", ""),
        enforced=frozenset(
            one.strip() for one in told.get("AccountingStorageEnforce", "").split(",")
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
        found = _REASON.search(line)
        cpus, memory = _count(fields.get("CPUTot")) or 0, _count(fields.get("RealMemory")) or 0
        nodes[name] = SlurmNode(
            name,
            frozenset(
                {one.strip("*~#!%$@^-") for one in fields.get("State", "").split("+")} - {""}
            ),
            *((found[1] or "", found[2] or "", found[3] or "") if found else ("", "", "")),
            gpus_by_type=_gpus(fields.get("Gres", "")),
            cpus=cpus,
            usable_cpus=_count(fields.get("CPUEfctv")) or cpus,
            memory=memory,
            usable_memory=max(0, memory - (_count(fields.get("MemSpecLimit")) or 0)),
            features=_words(fields.get("AvailableFeatures", ""))
            | _words(fields.get("ActiveFeatures", "")),
            partitions=_words(fields.get("Partitions", "")),
            host=fields.get("NodeHostName", ""),
            text=_abridged(fields, SHOWN_OF_NODES) + (found[0] if found else ""),
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
        kinds = [f"{how}{what}" for how in ("Allow", "Deny") for what in ("Accounts", "Qos")]
        named = {kind: fields.get(kind, "ALL") for kind in [*kinds, "AllowGroups"]}
        partitions[name] = SlurmPartition(
            name=name,
            state=fields.get("State", ""),
            default=fields.get("Default") == "YES",
            root_only=fields.get("RootOnly") == "YES",
            max_nodes=_count(fields.get("MaxNodes")),
            min_nodes=_count(fields.get("MinNodes")) or 0,
            max_time=_seconds(fields.get("MaxTime", "")),
            qos=given(fields.get("QoS", "")),
            rules={
                kind: _words(names)
                for kind, names in named.items()
                if names not in ("ALL", "NONE", "")
            },
            text=_abridged(fields, SHOWN_OF_PARTITIONS),
        )
    return partitions


def parse_qos(text: str) -> dict[str, SlurmQos]:
    """`sacctmgr -n -P show qos format=QOS_FIELDS`, by name."""
    found = {}
    for line, cells in rows(text, 6):
        name, flags, wall, *tres = cells
        if name:
            columns = dict(zip(("MaxTRES", "MaxTRESPU", "GrpTRES"), map(_tres, tres), strict=True))
            limits = AccountingLimits(f"QOS {name}", _seconds(wall), columns, line)
            found[name] = SlurmQos(name, _words(flags), limits)
    return found


def parse_associations(text: str, cluster: str) -> tuple[Association, ...]:
    """`sacctmgr -n -P show assoc format=ASSOCIATION_FIELDS`: those of this cluster."""
    found = []
    for line, (where, account, partition, qos, default, wall, most, group) in rows(text, 8):
        if where.lower() == cluster.lower():
            columns = {"MaxTRES": _tres(most), "GrpTRES": _tres(group)}
            limits = AccountingLimits(f"account {account}", _seconds(wall), columns, line)
            found.append(Association(account, partition, _words(qos), default, limits))
    return tuple(found)


def parse_default_account(text: str) -> str:
    """`sacctmgr -n -P show user NAME format=DefaultAccount`."""
    return sanitize_line(next(iter(text.splitlines()), "")).strip("| ")


def parse_node_states(text: str) -> Iterator[tuple[str, str]]:
    """Each node and its state, from `sinfo -h -N -o '%N %T'`."""
    for line in text.splitlines():
        name, _, state = line.partition(" ")
        if state:
            yield name, state.strip()


def fields_of(line: str) -> dict[str, str]:
    """The `Key=value` pairs of a line of `scontrol -o`; a value may hold spaces. Of two of one key
    the first holds: free text stands last, and may look like fields itself."""
    marks = list(_FIELD.finditer(line))
    ends = [mark.start() for mark in marks[1:]] + [len(line)]
    fields: dict[str, str] = {}
    for mark, end in zip(marks, ends, strict=False):
        fields.setdefault(mark[1], line[mark.end() : end].strip())
    return fields


def rows(text: str, cells: int) -> Iterator[tuple[str, list[str]]]:
    """The lines that have so many cells between `|`, with their cells. What stands in the last one
    may hold the separator, too."""
    for line in map(sanitize_line, text.splitlines()):
        found = line.split("|", cells - 1)
        if len(found) == cells:
            yield line, found


def given(value: str) -> str:
    """A value, empty where Slurm writes that there is none."""
    return "" if value in ("(null)", "N/A", "None", "Unknown", "none", "None assigned") else value


def _abridged(fields: Mapping[str, str], shown: Iterable[str]) -> str:
    """The fields that decide anything here, as Slurm prints them."""
    return " ".join(f"{key}={fields[key]}" for key in shown if key in fields)


def _words(text: str) -> frozenset[str]:
    return frozenset(one for one in text.split(",") if one and one != "(null)")


def _count(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() else None


def _seconds(text: str) -> float:
    try:
        return parse_time_limit(text) if text else inf
    except (ValueError, OverflowError):
        return inf


def _gpus(gres: str) -> dict[str, int]:
    """The GPUs by type in `gpu:a100:2(S:0-1),gpu:1g.10gb:7,shard:8`; "" where none is named."""
    found: dict[str, int] = {}
    for entry in _SOCKETS.sub("", gres).split(","):
        words = entry.split(":")
        if words[0] == "gpu":
            number = (_count(words[-1]) or 0) if len(words) > 1 else 1
            kind = words[1] if len(words) > 2 else ""
            found[kind] = found.get(kind, 0) + number
    return found


def _tres(text: str) -> dict[str, int]:
    pairs = (one.partition("=") for one in text.split(","))
    return {name: int(value) for name, _, value in pairs if value.isascii() and value.isdigit()}
