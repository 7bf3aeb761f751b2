"""What Slurm prints of its partitions, nodes, QOS and associations -> plain records.

`scontrol -o` and `sacctmgr -P`, which Slurm 22.05 to today's all have; their `--json` differs
between versions. A value that is not of its known form counts as not told.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

from ..clean import line as clean
from ..cluster.sbatch import seconds

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
_HOSTS = re.compile(r"([^,\[]*)\[([^\]]*)\]([^,]*)|([^,\[]+)")


@dataclass(frozen=True)
class Node:
    """One node. Memory in MiB; `host` is the machine that its slurmd runs on."""

    name: str
    states: frozenset[str]
    reason: str
    by: str
    since: str
    gpus: int
    cpus: int
    memory: int
    features: frozenset[str]
    partitions: frozenset[str]
    host: str
    text: str

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
class Partition:
    """One partition; limits are None where there are none, times in seconds."""

    name: str
    state: str
    default: bool
    max_nodes: int | None
    min_nodes: int
    max_time: float
    qos: str
    rules: Mapping[str, frozenset[str]]  # AllowAccounts and its like, where they name anybody
    text: str


@dataclass(frozen=True)
class Limits:
    """Limits that a QOS or an association sets; `tres` by the column it stands in."""

    owner: str
    max_wall: float = inf
    tres: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    text: str = ""


@dataclass(frozen=True)
class Qos:
    name: str
    flags: frozenset[str]
    limits: Limits


@dataclass(frozen=True)
class Association:
    """What a user may use of an account; `partition` is empty where it holds for all."""

    account: str
    partition: str
    qos: frozenset[str]
    default_qos: str
    limits: Limits


def fields_of(line: str) -> dict[str, str]:
    """The `Key=value` pairs of a line of `scontrol -o`; a value may hold spaces. Of two of one key
    the first holds: free text stands last, and may look like fields itself."""
    marks = list(_FIELD.finditer(line))
    ends = [mark.start() for mark in marks[1:]] + [len(line)]
    told: dict[str, str] = {}
    for mark, end in zip(marks, ends, strict=False):
        told.setdefault(mark[1], line[mark.end() : end].strip())
    return told


def parse_nodes(text: str) -> dict[str, Node]:
    """`scontrol -o show node`, by name."""
    nodes = {}
    for line in map(clean, text.splitlines()):
        found = _REASON.search(line)
        told = fields_of(line)
        name = told.get("NodeName", "")
        if not name:
            continue
        states = {one.strip("*~#!%$@^-") for one in told.get("State", "").split("+")}
        nodes[name] = Node(
            name,
            frozenset(states - {""}),
            *((found[1] or "", found[2] or "", found[3] or "") if found else ("", "", "")),
            gpus=_gpus(told.get("Gres", "")),
            cpus=_count(told.get("CPUTot", "")) or 0,
            memory=_count(told.get("RealMemory", "")) or 0,
            features=_words(told.get("AvailableFeatures", ""))
            | _words(told.get("ActiveFeatures", "")),
            partitions=_words(told.get("Partitions", "")),
            host=told.get("NodeHostName", ""),
            text=_abridged(told, SHOWN_OF_NODES) + (found[0] if found else ""),
        )
    return nodes


def parse_partitions(text: str) -> dict[str, Partition]:
    """`scontrol -o show partition`, by name."""
    partitions = {}
    for line in map(clean, text.splitlines()):
        told = fields_of(line)
        name = told.get("PartitionName", "")
        if not name:
            continue
        kinds = [f"{how}{what}" for how in ("Allow", "Deny") for what in ("Accounts", "Qos")]
        named = {kind: told.get(kind, "ALL") for kind in [*kinds, "AllowGroups"]}
        qos = told.get("QoS", "")
        partitions[name] = Partition(
            name=name,
            state=told.get("State", ""),
            default=told.get("Default") == "YES",
            max_nodes=_count(told.get("MaxNodes", "")),
            min_nodes=_count(told.get("MinNodes", "")) or 0,
            max_time=_seconds(told.get("MaxTime", "")),
            qos="" if qos in ("N/A", "(null)") else qos,
            rules={
                kind: _words(names)
                for kind, names in named.items()
                if names not in ("ALL", "NONE", "")
            },
            text=_abridged(told, SHOWN_OF_PARTITIONS),
        )
    return partitions


def _abridged(told: Mapping[str, str], shown: Iterable[str]) -> str:
    """The fields that decide anything here, as Slurm prints them."""
    return " ".join(f"{key}={told[key]}" for key in shown if key in told)


def parse_config(text: str) -> dict[str, str]:
    """`scontrol show config`: a `Key = value` a line."""
    pairs = (line.partition(" = ") for line in text.splitlines())
    return {key.strip(): value.strip() for key, found, value in pairs if found}


def parse_qos(text: str) -> dict[str, Qos]:
    """`sacctmgr -n -P show qos format=QOS_FIELDS`, by name."""
    found = {}
    for line in map(clean, text.splitlines()):
        cells = line.split("|")
        if len(cells) == 6 and cells[0]:
            name, flags, wall, *tres = cells
            columns = dict(zip(("MaxTRES", "MaxTRESPU", "GrpTRES"), map(_tres, tres), strict=True))
            limits = Limits(f"QOS {name}", _seconds(wall), columns, line)
            found[name] = Qos(name, _words(flags), limits)
    return found


def parse_associations(text: str, cluster: str) -> tuple[Association, ...]:
    """`sacctmgr -n -P show assoc format=ASSOCIATION_FIELDS`: those of this cluster."""
    found = []
    for line in map(clean, text.splitlines()):
        cells = line.split("|")
        if len(cells) != 8 or cells[0].lower() != cluster.lower():
            continue
        _, account, partition, qos, default, wall, most, group = cells
        columns = {"MaxTRES": _tres(most), "GrpTRES": _tres(group)}
        limits = Limits(f"account {account}", _seconds(wall), columns, line)
        found.append(Association(account, partition, _words(qos), default, limits))
    return tuple(found)


def hosts(text: str) -> list[str]:
    """The names in a list such as `rack[0-1]n[00-03],login`."""
    names: list[str] = []
    for before, inside, after, plain in _HOSTS.findall(text):
        if plain:
            names.append(plain)
            continue
        for part in inside.split(","):
            first, _, last = part.partition("-")
            if not first.isdigit() or not (last or first).isdigit():
                continue
            for number in range(int(first), min(int(last or first), int(first) + 99_999) + 1):
                names += hosts(f"{before}{number:0{len(first)}d}{after}")
    return names


def _words(text: str) -> frozenset[str]:
    return frozenset(one for one in text.split(",") if one and one != "(null)")


def _count(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


def _seconds(text: str) -> float:
    try:
        return seconds(text) if text else inf
    except (ValueError, OverflowError):
        return inf


def _gpus(gres: str) -> int:
    """The GPUs in `gpu:a100:2(S:0-1),shard:8`, whatever their types."""
    entries = [one.split(":") for one in _SOCKETS.sub("", gres).split(",")]
    return sum(_count(one[-1]) or 0 if len(one) > 1 else 1 for one in entries if one[0] == "gpu")


def _tres(text: str) -> dict[str, int]:
    pairs = (one.partition("=") for one in text.split(","))
    return {name: int(value) for name, _, value in pairs if value.isascii() and value.isdigit()}
