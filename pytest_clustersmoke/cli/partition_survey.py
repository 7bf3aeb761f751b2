"""What Slurm reports about a cluster, and the choice of partition and nodes for the phases."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import inf

from ..evidence.run_request import user_name
from ..jobs.slurm_client import SlurmClient, SlurmUnavailable, find_command, group_names
from ..jobs.slurm_records import SlurmConfig, SlurmNode, SlurmPartition
from ..text import Problem, UsageProblems, near, quote_names

ANSWER_S = 15.0  # for one command


class NoSlurm(Exception):
    """Slurm's commands are not `installed`, or Slurm does not answer; the text says which."""

    def __init__(self, why: str, installed: bool) -> None:
        super().__init__(why)
        self.installed = installed


@dataclass(frozen=True)
class ClusterSurvey:
    """What Slurm reports about itself and this user's accounts."""

    config: SlurmConfig
    partitions: Mapping[str, SlurmPartition]
    nodes: Mapping[str, SlurmNode]
    accounts: tuple[str, ...] = ()
    default_account: str = ""

    def nodes_of(self, partition: str) -> list[SlurmNode]:
        return [node for node in self.nodes.values() if partition in node.partitions]


@dataclass(frozen=True)
class NodeKind:
    """What each of the chosen nodes has at least. `gpu` is Slurm's type, empty if it names none;
    memory is in MiB."""

    gpu: str
    gpus: int
    cpus: int
    memory: int
    nodes: int
    hosts: frozenset[str]


@dataclass(frozen=True)
class PartitionChoice:
    """A partition and the kind of its nodes. `why` and `why_kind` say why each is a guess; they are
    empty if it is not. A job gets at most `max_nodes`; `slices` counts the GPU slices (MIG), which
    are left out."""

    partition: SlurmPartition
    kind: NodeKind
    max_nodes: int
    slices: int
    why: str
    why_kind: str


def survey_cluster(environ: Mapping[str, str]) -> ClusterSurvey:
    """Ask the Slurm that `environ` names. Raises NoSlurm."""
    if find_command("scontrol", environ) is None:
        raise NoSlurm("no `scontrol` on PATH", installed=False)
    client, user = SlurmClient(environ, ANSWER_S), user_name()
    accounts: set[str] = set()
    default = ""
    try:
        config, partitions, nodes = client.config(), client.partitions(), client.nodes()
    except SlurmUnavailable as error:
        raise NoSlurm(str(error), installed=True) from None
    if config.accounting and user:
        with suppress(SlurmUnavailable):  # without them the accounts are unknown
            accounts = {
                association.account for association in client.associations(user, config.cluster)
            } - {""}
            default = client.default_account(user)
    names = tuple(sorted(accounts))
    return ClusterSurvey(config, partitions, nodes, names, default if default in names else "")


def choose_partition(survey: ClusterSurvey, requested: str | None) -> PartitionChoice:
    """The requested partition, or the default one, or the one with the most GPUs. Raises
    UsageProblems if it does not exist or has no nodes."""
    partition, why = (
        _find_partition(survey, requested) if requested is not None else _choose_default(survey)
    )
    nodes = survey.nodes_of(partition.name)
    if not nodes:
        text = f"partition {partition.name} has no nodes"
        raise UsageProblems([Problem(text, "--partition", "a partition with nodes")])
    kind, why_kind = _most_common_kind(nodes)
    most = int(min(kind.nodes, partition.max_nodes or inf))
    slices = sum(node.gpus - sum(node.whole_gpus.values()) for node in nodes)
    return PartitionChoice(partition, kind, most, slices, why, why_kind)


def _find_partition(survey: ClusterSurvey, requested: str) -> tuple[SlurmPartition, str]:
    known = survey.partitions
    if requested not in known:
        listed = quote_names(known) or "none"
        hint = near(requested, known)
        problem = Problem(f"no partition `{requested}`", "--partition", f"one of {listed}", hint)
        raise UsageProblems([problem])
    return known[requested], ""


def _choose_default(survey: ClusterSurvey) -> tuple[SlurmPartition, str]:
    """The default partition if it has GPUs or no partition has any; otherwise the one with the most
    GPUs."""
    gpus = {
        name: sum(sum(node.whole_gpus.values()) for node in survey.nodes_of(name))
        for name, partition in survey.partitions.items()
        if survey.nodes_of(name) and _is_open(partition, survey)
    }
    if not gpus:
        text = "Slurm lists no partition that is up, has nodes and is open to this user"
        raise UsageProblems([Problem(text, todo="name one with --partition")])
    default = next((name for name in gpus if survey.partitions[name].default), None)
    if default is not None and (gpus[default] or not any(gpus.values())):
        return survey.partitions[default], ""
    best = max(gpus, key=lambda name: gpus[name])
    if len(gpus) == 1:
        return survey.partitions[best], ""
    first = (
        f"the default partition {default} has no GPUs"
        if default is not None
        else "Slurm has no default partition for this user"
    )
    return survey.partitions[
        best
    ], f"{first}; of the others, this one has the most GPUs ({gpus[best]})"


def _is_open(partition: SlurmPartition, survey: ClusterSurvey) -> bool:
    """Whether this user's jobs may run there, as far as Slurm shows."""
    groups, accounts = partition.rules.get("AllowGroups"), partition.rules.get("AllowAccounts")
    return (
        partition.state == "UP"
        and not partition.root_only
        and (groups is None or bool(groups & group_names()))
        and (accounts is None or not survey.accounts or bool(accounts & set(survey.accounts)))
    )


def _most_common_kind(nodes: Iterable[SlurmNode]) -> tuple[NodeKind, str]:
    """The GPUs that most nodes have; nodes with more of the same type are included."""
    groups: dict[tuple[str, int], list[SlurmNode]] = defaultdict(list)
    for node in nodes:
        types = node.whole_gpus
        groups[next(iter(types)) if len(types) == 1 else "", sum(types.values())].append(node)
    with_gpus = {key: group for key, group in groups.items() if key[1]} or groups
    chosen = max(with_gpus, key=lambda key: (len(with_gpus[key]), key[1]))
    gpu, gpus = chosen
    same = [n for (kind, count), ns in groups.items() if kind == gpu and count >= gpus for n in ns]
    kind = NodeKind(
        gpu,
        gpus,
        cpus=min(node.usable_cpus for node in same),
        memory=min(node.usable_memory for node in same),
        nodes=len(same),
        hosts=frozenset(node.host for node in same),
    )
    others = [
        f"{len(groups[key])} with {gpu_words(*key)}" for key in sorted(groups) if key != chosen
    ]
    if not others:
        return kind, ""
    return kind, (
        f"the partition's nodes differ: {len(groups[chosen])} have {gpu_words(gpu, gpus)}, "
        f"{', '.join(others)}; to keep jobs on the first kind, add a `constraint` under `slurm`"
    )


def gpu_words(gpu: str, gpus: int) -> str:
    """`4 x a100`, or `4 GPUs` if Slurm names no type."""
    return (f"{gpus} x {gpu}" if gpu else f"{gpus} GPUs") if gpus else "no GPU"
