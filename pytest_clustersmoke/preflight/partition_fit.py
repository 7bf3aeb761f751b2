"""A phase against what Slurm says of partitions and nodes -> findings, each with its numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from ..config.hostlist import expand_hostlist
from ..config.phase import Phase, Sourced
from ..config.profile import Profile
from ..config.sbatch_options import parse_time_limit
from ..evidence.finding import MAX_TEXT, Evidence, Finding
from ..jobs.slurm_records import Association, SlurmNode, SlurmPartition, SlurmQos
from ..text import near, plural, shorten

SIMPLE_CONSTRAINT = re.compile(r"[\w.-]+(&[\w.-]+)*")
MAX_NAMED = 20

# Puts a line of Slurm's into the phase's record, and says where it stands there.
Note = Callable[[str], Evidence]


@dataclass(frozen=True)
class Slurm:
    """What Slurm said of itself; None where it was not asked or did not answer."""

    partitions: Mapping[str, SlurmPartition] | None = None
    nodes: Mapping[str, SlurmNode] | None = None
    enforced: frozenset[str] = frozenset()
    qos: Mapping[str, SlurmQos] | None = None
    associations: tuple[Association, ...] | None = None
    groups: frozenset[str] = frozenset()


@dataclass(frozen=True)
class RequestedResources:
    """What a phase asks of a partition."""

    phase: Phase
    profile: Profile
    partition: SlurmPartition
    note: Note

    @property
    def nodes(self) -> int:
        return int(self.phase.nodes.value)

    @property
    def gpus(self) -> int:
        """GPUs a node; none where the cluster is asked for none."""
        none = self.profile.hardware.gpu == "none"
        return 0 if none else int(self.phase.gpus_per_node.value)

    @property
    def qos(self) -> str:
        return option(self.phase, "qos")

    @property
    def time(self) -> Sourced | None:
        """The shortest time limit that will do."""
        given = [key for key in ("time_min", "time") if option(self.phase, key)]
        return self.phase.slurm[given[0]] if given else None


def option(phase: Phase, name: str) -> str:
    """An sbatch option as text; empty where it is not given, or dropped."""
    one = phase.slurm.get(name)
    return "" if one is None or one.value is None or one.value is False else str(one.value)


def written(sourced: Sourced | None, name: str) -> tuple[Evidence, ...]:
    """The line of the setting, where somebody wrote one."""
    if sourced is None:
        return ()
    file, _, line = sourced.source.rpartition(":")
    text = f"{name}: {sourced.value}"[:MAX_TEXT]
    if not line.isdigit():  # --cluster-set
        return (Evidence(sourced.source, 1, text),)
    return (Evidence(file, int(line), text),)


def partition_of(
    phase: Phase, slurm: Slurm, note: Note
) -> tuple[list[SlurmPartition], list[Finding]]:
    """The partitions that a phase may run in, and what is wrong with their names."""
    known = slurm.partitions
    if not known:
        return [], []
    names = [one for one in option(phase, "partition").split(",") if one]
    if not names:
        return [one for one in known.values() if one.default], []
    unknown = [
        Finding(
            "partition-unknown",
            f"there is no partition `{name}`; this cluster has {listed(known)}",
            near(name, known) or "set `slurm.partition` in cluster.yaml to one of them",
            evidence=written(phase.slurm.get("partition"), "partition"),
        )
        for name in names
        if name not in known
    ]
    return [known[name] for name in names if name in known], unknown


def listed(names: Any) -> str:
    return shorten([f"`{name}`" for name in sorted(map(str, names))], MAX_NAMED) or "none"


def of_partition(asked: RequestedResources) -> Iterator[Finding]:
    """The partition's own state and limits."""
    one, phase = asked.partition, asked.phase
    where = written(phase.slurm.get("partition"), "partition")
    if one.state not in ("UP", ""):
        yield Finding(
            "partition-down",
            f"partition {one.name} is {one.state} and starts no jobs",
            "ask the administrators, or set `slurm.partition` to one that is up",
            evidence=(*where, asked.note(one.text)),
        )
    if one.max_nodes is not None and asked.nodes > one.max_nodes:
        yield Finding(
            "too-many-nodes",
            f"phase {phase.name} asks for {asked.nodes} nodes, but partition {one.name} allows a "
            f"job at most {one.max_nodes}",
            f"set `nodes` to at most {one.max_nodes}, or choose another partition",
            evidence=(*written(phase.nodes, "nodes"), asked.note(one.text)),
        )
    if asked.nodes < one.min_nodes:
        yield Finding(
            "submission-refused",
            f"phase {phase.name} asks for {plural(asked.nodes, 'node')}, but partition {one.name} "
            f"requires at least {one.min_nodes}",
            "ask for more nodes, or choose another partition",
            evidence=(*written(phase.nodes, "nodes"), asked.note(one.text)),
        )
    if asked.time is not None and parse_time_limit(asked.time.value) > one.max_time:
        yield Finding(
            "time-over-limit",
            f"phase {phase.name} asks for {span(parse_time_limit(asked.time.value))}, but "
            f"partition {one.name} allows at most {span(one.max_time)}",
            f"set `slurm.time` to at most {span(one.max_time)}, or choose another partition",
            evidence=(*written(asked.time, "time"), asked.note(one.text)),
        )


def span(length: float) -> str:
    """Seconds as Slurm writes a time limit."""
    if length == inf:
        return "no limit"
    minutes, secs = divmod(int(length), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return (f"{days}-" if days else "") + f"{hours:02d}:{minutes:02d}:{secs:02d}"


def of_nodes(asked: RequestedResources, nodes: Mapping[str, SlurmNode]) -> Iterator[Finding]:
    """Whether enough of the partition's nodes have what is asked for, and can be used today."""
    one, phase = asked.partition, asked.phase
    here = {n.name: n for n in nodes.values() if one.name in n.partitions}
    if not here:
        return  # nodes that come and go with the jobs are in no list
    if asked.nodes > len(here):
        yield Finding(
            "too-many-nodes",
            f"phase {phase.name} asks for {asked.nodes} nodes, but partition {one.name} has "
            f"{len(here)}",
            f"set `nodes` to at most {len(here)}, or choose another partition",
            evidence=(*written(phase.nodes, "nodes"), asked.note(one.text)),
        )
        return
    unfit = list(_capacity(asked, here)) + list(_named(asked, here, nodes))
    yield from unfit
    if not unfit:
        yield from unavailable(asked, nodes)


def _capacity(asked: RequestedResources, here: Mapping[str, SlurmNode]) -> Iterator[Finding]:
    """GPUs, CPUs and memory of a node, and features."""
    phase, partition = asked.phase, asked.partition.name
    cpus, memory = _number(option(phase, "cpus_per_task")), _mib(option(phase, "mem"))
    wants: list[tuple[str, str, int, Callable[[SlurmNode], int], Sourced | None, str]] = [
        ("too-many-gpus", "GPUs per node", asked.gpus, lambda n: n.gpus, phase.gpus_per_node, ""),
        *[
            ("submission-refused", what, most, has, phase.slurm.get(key), key)
            for what, most, has, key in (
                ("CPUs per node", cpus, _cpus, "cpus_per_task"),
                ("MiB of memory per node", memory, _memory, "mem"),
            )
        ],
    ]
    for identity, what, most, has, sourced, key in wants:
        enough = [node for node in here.values() if has(node) >= most]
        if len(enough) >= asked.nodes:
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
            identity,
            f"phase {phase.name} asks for {most} {what} on {plural(asked.nodes, 'node')}, but "
            f"{supply}",
            f"set `{setting}` to what the nodes have, or choose another partition",
            evidence=(*written(sourced, setting), asked.note(largest.text)),
        )
    yield from _constraint(asked, here)


def _constraint(asked: RequestedResources, here: Mapping[str, SlurmNode]) -> Iterator[Finding]:
    wanted = option(asked.phase, "constraint")
    if not SIMPLE_CONSTRAINT.fullmatch(wanted):
        return  # none, or an expression, which sbatch reads for itself
    features = set(wanted.split("&"))
    enough = [node for node in here.values() if features <= node.features]
    if len(enough) >= asked.nodes:
        return
    known = frozenset().union(*(node.features for node in here.values()))
    hints = [hint for one in sorted(features - known) if (hint := near(one, known))]
    yield Finding(
        "submission-refused",
        f"phase {asked.phase.name} asks for {plural(asked.nodes, 'node')} with the feature "
        f"{wanted}, but partition {asked.partition.name} has {len(enough)}; its "
        f"features are {listed(known)}",
        hints[0] if hints else "set `slurm.constraint` to features that its nodes have",
        evidence=written(asked.phase.slurm.get("constraint"), "constraint"),
    )


def _named(
    asked: RequestedResources, here: Mapping[str, SlurmNode], nodes: Mapping[str, SlurmNode]
) -> Iterator[Finding]:
    """Nodes that `nodelist` and `exclude` name, but which are not there."""
    for key in ("nodelist", "exclude"):
        named = expand_hostlist(option(asked.phase, key))
        known = here if key == "nodelist" else nodes
        strange = [one for one in named if one not in known]
        if strange:
            where = f"partition {asked.partition.name}" if key == "nodelist" else "this cluster"
            yield Finding(
                "submission-refused",
                f"`{key}` of phase {asked.phase.name} names {listed(strange)}, but {where} has no "
                "such node",
                near(strange[0], known) or f"set `slurm.{key}` to nodes that exist",
                evidence=written(asked.phase.slurm.get(key), key),
            )


def candidates(asked: RequestedResources, nodes: Mapping[str, SlurmNode]) -> list[SlurmNode]:
    """The partition's nodes on which this phase could run, whatever their state."""
    phase = asked.phase
    wanted, left_out = (set(expand_hostlist(option(phase, key))) for key in ("nodelist", "exclude"))
    constraint = option(phase, "constraint")
    simple = SIMPLE_CONSTRAINT.fullmatch(constraint)
    features = set(constraint.split("&")) if simple else set()
    cpus, memory = _number(option(phase, "cpus_per_task")), _mib(option(phase, "mem"))
    return [
        node
        for node in nodes.values()
        if asked.partition.name in node.partitions
        and (not wanted or node.name in wanted)
        and node.name not in left_out
        and features <= node.features
        and node.gpus >= asked.gpus
        and node.cpus >= cpus
        and node.memory >= memory
    ]


def unavailable(
    asked: RequestedResources, nodes: Mapping[str, SlurmNode], also_away: bool = False
) -> Iterator[Finding]:
    """Too few nodes take jobs: those that do not are named. `also_away` counts those that will take
    jobs again by themselves, too, as where Slurm says that the phase cannot run."""
    fit = candidates(asked, nodes)
    need = max(asked.nodes, len(set(expand_hostlist(option(asked.phase, "nodelist")))))
    bad = [node for node in fit if node.gone or (also_away and node.away)]
    left = len(fit) - len(bad)
    if not bad or left >= need:
        return
    yield Finding(
        "nodes-unavailable",
        f"phase {asked.phase.name} needs {plural(need, 'node')}, but of the "
        f"{plural(len(fit), 'node')} of partition {asked.partition.name} that could run it only "
        f"{left} {'takes' if left == 1 else 'take'} jobs: "
        + shorten([node.words for node in bad], MAX_NAMED, "; "),
        "have these nodes checked and resumed (scontrol update nodename=... state=resume)",
        evidence=(
            *written(asked.phase.nodes, "nodes"),
            *(asked.note(n.text) for n in bad[:MAX_NAMED]),
        ),
        hosts=tuple(node.name for node in bad),
    )


def _cpus(node: SlurmNode) -> int:
    return node.cpus


def _memory(node: SlurmNode) -> int:
    return node.memory


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0


def _mib(text: str) -> int:
    """A size as sbatch reads it, megabytes without a unit; 0 is all that a node has."""
    found = re.fullmatch(r"(\d+)([KMGT]?)B?", text.upper())
    if not found:
        return 0
    scale = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024 * 1024}[found[2]]
    return int(int(found[1]) * scale)
