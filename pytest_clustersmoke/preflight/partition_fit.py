"""Compare a phase with Slurm's partitions and nodes; each finding has its numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from ..config.hostlist import expand_hostlist, read_host_option
from ..config.phase import Phase, Sourced
from ..config.profile import Profile
from ..config.sbatch_options import parse_time_limit
from ..evidence.finding import MAX_TEXT, Evidence, Finding
from ..jobs.batch_script import limit_minutes
from ..jobs.node_constraint import NodeConstraint
from ..jobs.slurm_records import (
    AWAY,
    RESERVED,
    Association,
    SlurmNode,
    SlurmPartition,
    SlurmQos,
)
from ..text import near, plural, shorten

MAX_NAMED = 20

# Adds a line of Slurm's output to the phase's record and returns its place there.
Note = Callable[[str], Evidence]


@dataclass(frozen=True)
class Slurm:
    """Slurm's answers about itself; None where it was not asked or did not answer."""

    partitions: Mapping[str, SlurmPartition] | None = None
    nodes: Mapping[str, SlurmNode] | None = None
    enforced: frozenset[str] = frozenset()
    qos: Mapping[str, SlurmQos] | None = None
    associations: tuple[Association, ...] | None = None
    groups: frozenset[str] = frozenset()

    @property
    def has_just_started(self) -> bool:
        """Whether slurmctld does not know its nodes yet, so that it may refuse any job for now."""
        return any(node.unknown for node in (self.nodes or {}).values())


@dataclass(frozen=True)
class RequestedResources:
    """A phase that asks for a partition's resources."""

    phase: Phase
    profile: Profile
    partition: SlurmPartition
    note: Note

    @property
    def nodes(self) -> int:
        return int(self.phase.nodes.value)

    @property
    def gpus(self) -> int:
        """GPUs per node; 0 if the profile requests none."""
        none = self.profile.hardware.gpu == "none"
        return 0 if none else int(self.phase.gpus_per_node.value)

    @property
    def qos(self) -> str:
        return sbatch_option(self.phase, "qos")

    @property
    def time_s(self) -> float | None:
        """The shortest time limit that the phase accepts; None: the partition's default."""
        setting, key = self.time_setting
        if key == "timeout_s":
            minutes = limit_minutes(self.phase, self.profile)
            return None if minutes is None else 60.0 * minutes
        return parse_time_limit(setting.value)

    @property
    def time_setting(self) -> tuple[Sourced, str]:
        """The setting that the limit follows from, and its key."""
        keys = [key for key in ("time_min", "time") if sbatch_option(self.phase, key)]
        return (self.phase.slurm[keys[0]], "time") if keys else (self.phase.timeout_s, "timeout_s")

    @property
    def time_fix(self) -> str:
        """How to ask for less time; a limit follows this."""
        is_own = self.time_setting[1] == "time"
        return "set `slurm.time` to" if is_own else "lower `timeout_s`, so that the job asks for"

    def hosts(self, option: str) -> list[str]:
        """The nodes that `nodelist` or `exclude` names. Raises OSError or ValueError if that is a
        file that cannot be read."""
        return expand_hostlist(read_host_option(sbatch_option(self.phase, option)))

    def known_hosts(self, option: str) -> set[str]:
        """The same; none if they cannot be read, which is a finding of its own."""
        try:
            return set(self.hosts(option))
        except (OSError, ValueError):
            return set()

    @property
    def takes_reserved(self) -> bool:
        """Whether it asks for the cores that Slurm keeps for the system."""
        return any(sbatch_option(self.phase, key) for key in ("core_spec", "thread_spec"))

    def cpus_of(self, node: SlurmNode) -> int:
        return node.cpus if self.takes_reserved else node.usable_cpus

    def memory_of(self, node: SlurmNode) -> int:
        return node.memory if self.takes_reserved else node.usable_memory


def sbatch_option(phase: Phase, name: str) -> str:
    """An sbatch option as text; empty if it is missing or dropped."""
    sourced = phase.slurm.get(name)
    if sourced is None or sourced.value is None or sourced.value is False:
        return ""
    return str(sourced.value)


def setting_evidence(sourced: Sourced | None, name: str) -> tuple[Evidence, ...]:
    """The line of a setting, as evidence; empty if it is not set."""
    if sourced is None:
        return ()
    file, _, line = sourced.source.rpartition(":")
    text = f"{name}: {sourced.value}"[:MAX_TEXT]
    if not line.isdigit():  # --cluster-set
        return (Evidence(sourced.source, 1, text),)
    return (Evidence(file, int(line), text),)


def find_partitions(
    phase: Phase, slurm: Slurm, note: Note
) -> tuple[list[SlurmPartition], list[Finding]]:
    """The partitions in which a phase may run, and a finding for each unknown name."""
    known = slurm.partitions
    if not known:
        return [], []
    names = [name for name in sbatch_option(phase, "partition").split(",") if name]
    if not names:
        return [partition for partition in known.values() if partition.default], []
    unknown = [
        Finding(
            "partition-unknown",
            f"there is no partition `{name}`; this cluster has {name_some(known)}",
            near(name, known) or "set `slurm.partition` in cluster.yaml to one of them",
            evidence=setting_evidence(phase.slurm.get("partition"), "partition"),
        )
        for name in names
        if name not in known
    ]
    return [known[name] for name in names if name in known], unknown


def name_some(names: Any) -> str:
    """Sorted names in backquotes; a long list is cut."""
    return shorten([f"`{name}`" for name in sorted(map(str, names))], MAX_NAMED) or "none"


def check_partition(request: RequestedResources) -> Iterator[Finding]:
    """Check the partition's own state and limits."""
    partition, phase = request.partition, request.phase
    where = setting_evidence(phase.slurm.get("partition"), "partition")
    if partition.state not in ("UP", ""):
        yield Finding(
            "partition-down",
            f"partition {partition.name} is {partition.state} and starts no jobs",
            "ask the administrators, or set `slurm.partition` to one that is up",
            evidence=(*where, request.note(partition.text)),
        )
    if partition.max_nodes is not None and request.nodes > partition.max_nodes:
        yield Finding(
            "too-many-nodes",
            f"phase {phase.name} asks for {request.nodes} nodes, but partition {partition.name} "
            f"allows a job at most {partition.max_nodes}",
            f"set `nodes` to at most {partition.max_nodes}, or choose another partition",
            evidence=(*setting_evidence(phase.nodes, "nodes"), request.note(partition.text)),
        )
    if request.nodes < partition.min_nodes:
        yield Finding(
            "submission-refused",
            f"phase {phase.name} asks for {plural(request.nodes, 'node')}, but partition "
            f"{partition.name} requires at least {partition.min_nodes}",
            "ask for more nodes, or choose another partition",
            evidence=(*setting_evidence(phase.nodes, "nodes"), request.note(partition.text)),
        )
    if request.time_s is not None and request.time_s > partition.max_time:
        yield Finding(
            "time-over-limit",
            f"phase {phase.name} asks for {format_time(request.time_s)}, but "
            f"partition {partition.name} allows at most {format_time(partition.max_time)}",
            f"{request.time_fix} at most {format_time(partition.max_time)}, or choose another "
            "partition",
            evidence=(*setting_evidence(*request.time_setting), request.note(partition.text)),
        )


def format_time(length: float) -> str:
    """Seconds in the form of Slurm's time limits."""
    if length == inf:
        return "no limit"
    minutes, secs = divmod(int(length), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return (f"{days}-" if days else "") + f"{hours:02d}:{minutes:02d}:{secs:02d}"


def check_nodes(request: RequestedResources, nodes: Mapping[str, SlurmNode]) -> Iterator[Finding]:
    """Check that enough nodes of the partition have the resources and take jobs."""
    partition, phase = request.partition, request.phase
    here = {node.name: node for node in nodes.values() if partition.name in node.partitions}
    if not here:
        return  # dynamic nodes, which come and go with jobs, are not listed
    if request.nodes > len(here):
        yield Finding(
            "too-many-nodes",
            f"phase {phase.name} asks for {request.nodes} nodes, but partition {partition.name} "
            f"has {len(here)}",
            f"set `nodes` to at most {len(here)}, or choose another partition",
            evidence=(*setting_evidence(phase.nodes, "nodes"), request.note(partition.text)),
        )
        return
    unfit = list(_check_capacity(request, here)) + list(_check_named_nodes(request, here, nodes))
    yield from unfit
    if not unfit:
        yield from check_availability(request, nodes)


def _check_capacity(
    request: RequestedResources, here: Mapping[str, SlurmNode]
) -> Iterator[Finding]:
    """Check GPUs, CPUs, memory and features of the nodes."""
    phase, partition = request.phase, request.partition.name
    cpus, memory = (
        _parse_count(sbatch_option(phase, "cpus_per_task")),
        _parse_mib(sbatch_option(phase, "mem")),
    )
    wants: list[tuple[str, str, int, Callable[[SlurmNode], int], Sourced | None, str]] = [
        ("too-many-gpus", "GPUs per node", request.gpus, lambda n: n.gpus, phase.gpus_per_node, ""),
        *[
            ("submission-refused", unit, most, has, phase.slurm.get(key), key)
            for unit, most, has, key in (
                ("CPUs per node", cpus, request.cpus_of, "cpus_per_task"),
                ("MiB of memory per node", memory, request.memory_of, "mem"),
            )
        ],
    ]
    for finding_id, unit, most, has, sourced, key in wants:
        enough = [node for node in here.values() if has(node) >= most]
        if len(enough) >= request.nodes:
            continue
        largest = max(here.values(), key=has)
        nodes = plural(len(here), "node")
        supply = (
            f"only {len(enough)} of the {nodes} of partition {partition} "
            f"{'has' if len(enough) == 1 else 'have'} as many"
            if enough
            else f"no node of partition {partition} has more than {has(largest)}"
        )
        setting = key or "gpus_per_node"
        yield Finding(
            finding_id,
            f"phase {phase.name} asks for {most} {unit} on {plural(request.nodes, 'node')}, but "
            f"{supply}",
            f"set `{setting}` to what the nodes have, or choose another partition",
            evidence=(*setting_evidence(sourced, setting), request.note(largest.text)),
        )
    yield from _check_constraint(request, here)


def _check_constraint(
    request: RequestedResources, here: Mapping[str, SlurmNode]
) -> Iterator[Finding]:
    constraint = NodeConstraint.parse(sbatch_option(request.phase, "constraint"))
    enough = [node for node in here.values() if constraint.allows(node.features)]
    if not constraint.names or len(enough) >= request.nodes:
        return
    known = frozenset().union(*(node.features for node in here.values()))
    hints = [hint for name in sorted(constraint.names - known) if (hint := near(name, known))]
    yield Finding(
        "submission-refused",
        f"phase {request.phase.name} asks for {plural(request.nodes, 'node')} with the feature "
        f"{constraint.text}, but partition {request.partition.name} has {len(enough)}; its "
        f"features are {name_some(known)}",
        hints[0] if hints else "set `slurm.constraint` to features that its nodes have",
        evidence=setting_evidence(request.phase.slurm.get("constraint"), "constraint"),
    )


def _check_named_nodes(
    request: RequestedResources, here: Mapping[str, SlurmNode], nodes: Mapping[str, SlurmNode]
) -> Iterator[Finding]:
    """Find nodes that `nodelist` and `exclude` name but that do not exist."""
    for key in ("nodelist", "exclude"):
        try:
            named = request.hosts(key)
        except (OSError, ValueError) as error:
            yield Finding(
                "submission-refused",
                f"`{key}` of phase {request.phase.name} names a file that cannot be read: {error}",
                f"set `slurm.{key}` to names of nodes, or to a file of them",
                evidence=setting_evidence(request.phase.slurm.get(key), key),
            )
            continue
        known = here if key == "nodelist" else nodes
        unknown = [name for name in named if name not in known]
        if unknown:
            where = f"partition {request.partition.name}" if key == "nodelist" else "this cluster"
            yield Finding(
                "submission-refused",
                f"`{key}` of phase {request.phase.name} names {name_some(unknown)}, but {where} "
                "has no such node",
                near(unknown[0], known) or f"set `slurm.{key}` to nodes that exist",
                evidence=setting_evidence(request.phase.slurm.get(key), key),
            )


def find_candidates(request: RequestedResources, nodes: Mapping[str, SlurmNode]) -> list[SlurmNode]:
    """Nodes of the partition on which this phase could run, whatever their state."""
    phase = request.phase
    named, left_out = (request.known_hosts(key) for key in ("nodelist", "exclude"))
    constraint = NodeConstraint.parse(sbatch_option(phase, "constraint"))
    cpus, memory = (
        _parse_count(sbatch_option(phase, "cpus_per_task")),
        _parse_mib(sbatch_option(phase, "mem")),
    )
    return [
        node
        for node in nodes.values()
        if request.partition.name in node.partitions
        and (not named or node.name in named)
        and node.name not in left_out
        and constraint.allows(node.features)
        and node.gpus >= request.gpus
        and request.cpus_of(node) >= cpus
        and request.memory_of(node) >= memory
    ]


def check_availability(
    request: RequestedResources, nodes: Mapping[str, SlurmNode], also_away: bool = False
) -> Iterator[Finding]:
    """Report that too few nodes take jobs, and name those that do not.

    `also_away` also counts nodes that will come back by themselves; it is used where Slurm says
    that the phase cannot run. Nodes of a reservation are not away for a job that names one.
    """
    fit = find_candidates(request, nodes)
    need = max(request.nodes, len(request.known_hosts("nodelist")))
    ours = RESERVED if sbatch_option(request.phase, "reservation") else frozenset()
    bad = [
        node
        for node in fit
        if node.gone or (also_away and node.away and not node.states & AWAY <= ours)
    ]
    available = len(fit) - len(bad)
    if not bad or available >= need:
        return
    yield Finding(
        "nodes-unavailable",
        f"phase {request.phase.name} needs {plural(need, 'node')}, but only {available} of "
        f"the {plural(len(fit), 'node')} of partition {request.partition.name} that could run it "
        f"{'takes' if available == 1 else 'take'} jobs: "
        + shorten([node.description for node in bad], MAX_NAMED, "; "),
        "have these nodes checked and resumed (scontrol update nodename=... state=resume)",
        evidence=(
            *setting_evidence(request.phase.nodes, "nodes"),
            *(request.note(n.text) for n in bad[:MAX_NAMED]),
        ),
        hosts=tuple(node.name for node in bad),
    )


def _parse_count(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0


def _parse_mib(text: str) -> int:
    """A size as sbatch reads it, megabytes without a unit; 0 means all memory of a node."""
    match = re.fullmatch(r"(\d+)([KMGT]?)B?", text.upper())
    if not match:
        return 0
    scale = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024 * 1024}[match[2]]
    return int(int(match[1]) * scale)
