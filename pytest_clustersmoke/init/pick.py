"""Which partition, and which of its nodes, the phases are for."""

from __future__ import annotations

import grp
import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from ..errors import Problem, UsageProblems, near
from ..preflight.records import Partition
from .ask import Answers, Machine

# Hosts that are named in a remark.
MAX_NAMES = 8


@dataclass(frozen=True)
class Kind:
    """The nodes of a partition that have these GPUs, or more of them: what one has at least."""

    gpu: str  # Slurm's type; empty where it names none
    gpus: int
    nodes: int
    cpus: int
    memory: int
    hosts: frozenset[str]


@dataclass(frozen=True)
class Picked:
    """A partition, the kind of its nodes, and what of the choice was a guess (`why`, empty where it
    was none); `remarks` are facts that a reader of the profile needs."""

    partition: Partition
    kind: Kind
    nodes_of_a_job: int
    why: str = ""
    why_kind: str = ""
    remarks: tuple[str, ...] = ()


def pick(answers: Answers, wanted: str | None) -> Picked:
    """The partition asked for, else the default one, else that with the most GPUs.

    Raises UsageProblems where there is none with nodes."""
    here = {name: _machines(answers, name) for name in answers.partitions}
    if wanted is not None:
        partition, why = _named(answers, wanted), ""
    else:
        partition, why = _best(answers, here)
    machines = here[partition.name]
    if not machines:
        raise UsageProblems(
            [Problem(f"partition {partition.name} has no nodes", "--partition", "one that has")]
        )
    kind, why_kind = _kind(machines)
    most = int(min(kind.nodes, partition.max_nodes or inf))
    return Picked(
        partition, kind, most, why, why_kind, tuple(_remarks(partition, machines, kind, most))
    )


def _machines(answers: Answers, partition: str) -> list[Machine]:
    return [one for one in answers.machines if partition in one.partitions]


def _named(answers: Answers, wanted: str) -> Partition:
    known = answers.partitions
    if wanted not in known:
        listed = ", ".join(f"`{name}`" for name in known) or "none"
        raise UsageProblems(
            [
                Problem(
                    f"no partition `{wanted}`",
                    "--partition",
                    f"one of {listed}",
                    near(wanted, known),
                )
            ]
        )
    return known[wanted]


def _best(answers: Answers, here: dict[str, list[Machine]]) -> tuple[Partition, str]:
    """The partition that jobs without one go to, where it has GPUs (or none has)."""
    usable = [one for one in answers.partitions.values() if here[one.name] and _mine(one, answers)]
    if not usable:
        raise UsageProblems(
            [
                Problem(
                    "Slurm names no partition that is up, has nodes and is open to this user",
                    todo="name one with --partition",
                )
            ]
        )
    gpus = {one.name: sum(node.gpus for node in here[one.name]) for one in usable}
    default = next((one for one in usable if one.default), None)
    if default is not None and (gpus[default.name] or not any(gpus.values())):
        return default, ""
    best = max(usable, key=lambda one: gpus[one.name])
    if len(usable) == 1:
        return best, ""
    if default is None:
        first = "Slurm has no default partition for this user"
    else:
        first = f"the default partition {default.name} has no GPUs"
    return best, f"{first}; of the others this one has the most ({gpus[best.name]})"


def _mine(partition: Partition, answers: Answers) -> bool:
    """Whether this user's jobs may run there, as far as it shows."""
    groups, accounts = partition.rules.get("AllowGroups"), partition.rules.get("AllowAccounts")
    return (
        partition.state == "UP"
        and partition.name not in answers.hidden
        and (groups is None or bool(groups & _groups()))
        and (accounts is None or not answers.accounts or bool(accounts & set(answers.accounts)))
    )


def _groups() -> set[str]:
    found = set()
    for number in {os.getgid(), *os.getgroups()}:
        try:
            found.add(grp.getgrgid(number).gr_name)
        except KeyError:
            continue
    return found


def _kind(machines: Iterable[Machine]) -> tuple[Kind, str]:
    """The GPUs that the most nodes have; others with more of the same type count with them."""
    groups: dict[tuple[str, int], list[Machine]] = defaultdict(list)
    for one in machines:
        groups[one.gpu, one.gpus].append(one)
    with_gpus = {key: nodes for key, nodes in groups.items() if key[1]} or dict(groups)
    (gpu, gpus), _ = max(with_gpus.items(), key=lambda item: (len(item[1]), item[0][1]))
    same = [n for (t, count), nodes in groups.items() if t == gpu and count >= gpus for n in nodes]
    kind = Kind(
        gpu=gpu,
        gpus=gpus,
        nodes=len(same),
        cpus=min(one.cpus for one in same),
        memory=min(one.memory for one in same),
        hosts=frozenset(one.host for one in same),
    )
    others = [
        f"{len(nodes)} with {words_of(t, count)}"
        for (t, count), nodes in sorted(groups.items())
        if (t, count) != (gpu, gpus)
    ]
    if not others:
        return kind, ""
    return kind, (
        f"the partition's nodes differ: {len(groups[gpu, gpus])} have {words_of(gpu, gpus)}, "
        f"{', '.join(others)}; where jobs must keep to the first, add a `constraint` under `slurm`"
    )


def words_of(gpu: str, gpus: int) -> str:
    """`4 x a100`; `4 GPUs` where Slurm names no type."""
    return (f"{gpus} x {gpu}" if gpu else f"{gpus} GPUs") if gpus else "no GPU"


def _remarks(partition: Partition, machines: list[Machine], kind: Kind, most: int) -> Iterable[str]:
    if most < kind.nodes:
        yield f"partition {partition.name} gives a job {most} of its {kind.nodes} nodes"
    out = [one.name for one in machines if not one.serves]
    if out:
        more = f" and {len(out) - MAX_NAMES} more" if len(out) > MAX_NAMES else ""
        yield (
            f"{len(out)} of its {len(machines)} nodes take no jobs now: "
            f"{', '.join(out[:MAX_NAMES])}{more}"
        )
    slices = sum(one.slices for one in machines)
    if slices:
        yield f"{slices} slices of GPUs (MIG) are left out: NCCL does not join them"
    if partition.state != "UP":
        yield f"partition {partition.name} is {partition.state}"
