"""A phase against what its user may use: accounts, QOS, groups, and the limits that they set."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import inf

from ..config.sbatch_options import parse_time_limit
from ..evidence.finding import Finding
from ..jobs.slurm_records import AccountingLimits, Association, SlurmQos
from ..text import near
from .partition_fit import RequestedResources, Slurm, listed, option, span, written

# A QOS may lift its partition's limits (man sacctmgr, QOS flags), by finding and partition limit.
LIFTS = {
    "time-over-limit": "PartitionTimeLimit",
    "too-many-nodes": "PartitionMaxNodes",
    "submission-refused": "PartitionMinNodes",
}
COLUMNS = {
    "MaxTRES": "a job",
    "MaxTRESPU": "a user",
    "GrpTRES": "all its jobs together",
}
NODES, GPUS = "node", "gres/gpu"


def lifted(finding: Finding, asked: RequestedResources, slurm: Slurm) -> bool:
    """Whether the phase's QOS lifts the partition's limit that the finding is about."""
    qos = _qos(asked, slurm)
    return qos is not None and LIFTS.get(finding.id, "-") in qos.flags


def of_rights(asked: RequestedResources, slurm: Slurm, said: Collection[str]) -> Iterator[Finding]:
    """Account, QOS and group of a job that sbatch refuses. `said`: the causes that its words name.

    Of some rules not all is seen from here (accounts below others, operators, groups of the
    controller's own): by those something is found only where sbatch names the same.
    """
    yield from _account(asked, slurm, said)
    yield from _qos_name(asked, slurm, said)
    groups = asked.partition.rules.get("AllowGroups")
    refused = "submission-refused" in said
    if refused and groups is not None and slurm.groups and not slurm.groups & groups:
        yield Finding(
            "submission-refused",
            f"partition {asked.partition.name} allows only the groups {listed(groups)}, but this "
            f"user is in {listed(slurm.groups)}",
            "choose another partition, or ask to be added to one of these groups",
            evidence=(
                *written(asked.phase.slurm.get("partition"), "partition"),
                asked.note(asked.partition.text),
            ),
        )


def _account(asked: RequestedResources, slurm: Slurm, said: Collection[str]) -> Iterator[Finding]:
    name, where = option(asked.phase, "account"), asked.phase.slurm.get("account")
    mine = slurm.associations
    if mine is not None and "associations" in slurm.enforced:
        accounts = {one.account for one in mine}
        partitions = {one.partition for one in mine if one.account == name}
        elsewhere = partitions and not partitions & {"", asked.partition.name}
        if not mine or (name and name not in accounts) or (name and elsewhere):
            what = f"asks for account `{name}`" if name else "needs an account"
            why = (
                f"this user may use it only in {listed(partitions)}"
                if elsewhere
                else f"this user's accounts are {listed(accounts)}"
            )
            yield Finding(
                "account-refused",
                f"phase {asked.phase.name} {what} in partition {asked.partition.name}, but {why}",
                near(name, accounts) or "set `slurm.account` in cluster.yaml to one of them",
                evidence=(*written(where, "account"), *(asked.note(o.limits.text) for o in mine)),
            )
            return
    if "account-refused" in said:
        yield from _by_rule(asked, "account", name)


def _qos_name(asked: RequestedResources, slurm: Slurm, said: Collection[str]) -> Iterator[Finding]:
    name, where = asked.qos, asked.phase.slurm.get("qos")
    if name and slurm.qos is not None and name not in slurm.qos:
        yield Finding(
            "qos-refused",
            f"there is no QOS `{name}`; this cluster has {listed(slurm.qos)}",
            near(name, slurm.qos) or "set `slurm.qos` in cluster.yaml to one of them",
            evidence=written(where, "qos"),
        )
        return
    if "qos-refused" not in said:
        return
    one = _association(asked, slurm)
    changes = one is not None and any(word[0] in "+-" for word in one.qos)
    if name and one is not None and "qos" in slurm.enforced and not changes and name not in one.qos:
        yield Finding(
            "qos-refused",
            f"this user may not use QOS `{name}` under account {one.account}; allowed there: "
            f"{listed(one.qos)}",
            near(name, one.qos) or "set `slurm.qos` in cluster.yaml to one of them",
            evidence=(*written(where, "qos"), asked.note(one.limits.text)),
        )
        return
    yield from _by_rule(asked, "qos", name)


def _by_rule(asked: RequestedResources, key: str, name: str) -> Iterator[Finding]:
    """The partition's own lists of accounts and QOS; where it allows some, none are denied."""
    kind = {"account": "Accounts", "qos": "Qos"}[key]
    allowed = asked.partition.rules.get(f"Allow{kind}")
    denied = asked.partition.rules.get(f"Deny{kind}", frozenset())
    word = {"account": "account", "qos": "QOS"}[key]
    if not name or (name in allowed if allowed is not None else name not in denied):
        return
    rule = f"allows only {listed(allowed)}" if allowed is not None else "denies it"
    yield Finding(
        f"{key}-refused",
        f"phase {asked.phase.name} asks for {word} `{name}`, but partition "
        f"{asked.partition.name} {rule}",
        f"set `slurm.{key}` in cluster.yaml to one that it allows, or choose another partition",
        evidence=(*written(asked.phase.slurm.get(key), key), asked.note(asked.partition.text)),
    )


def of_limits(asked: RequestedResources, slurm: Slurm) -> Iterator[Finding]:
    """Limits of QOS and association, where they are enforced. Of several the first holds: that of
    the partition's QOS, of the job's QOS, of the association (Resource Limits, "Hierarchy")."""
    if not slurm.enforced & {"limits", "safe"}:
        return
    levels = _levels(asked, slurm)
    wall = next((one for one in levels if one.max_wall < inf), None)
    if wall and asked.time is not None and parse_time_limit(asked.time.value) > wall.max_wall:
        yield Finding(
            "time-over-limit",
            f"phase {asked.phase.name} asks for {span(parse_time_limit(asked.time.value))}, but "
            f"{wall.owner} allows a job at most {span(wall.max_wall)}",
            f"set `slurm.time` to at most {span(wall.max_wall)}, or choose another QOS",
            evidence=(*written(asked.time, "time"), asked.note(wall.text)),
        )
    for column, whose in COLUMNS.items():
        yield from _tres(asked, levels, column, whose)


def _tres(
    asked: RequestedResources, levels: list[AccountingLimits], column: str, whose: str
) -> Iterator[Finding]:
    counts = (
        (NODES, "too-many-nodes", "nodes", asked.nodes, asked.phase.nodes, "nodes"),
        (
            GPUS,
            "too-many-gpus",
            "GPUs",
            asked.nodes * asked.gpus,
            asked.phase.gpus_per_node,
            "gpus_per_node",
        ),
    )
    for kind, identity, what, asks, sourced, key in counts:
        first = next((one for one in levels if kind in one.tres.get(column, {})), None)
        most = first.tres[column][kind] if first else inf
        if first and asks > most:
            yield Finding(
                identity,
                f"phase {asked.phase.name} asks for {asks} {what}, but {first.owner} allows "
                f"{whose} at most {most} ({column})",
                f"ask for fewer {what}, or choose another QOS or account",
                evidence=(*written(sourced, key), asked.note(first.text)),
            )


def _levels(asked: RequestedResources, slurm: Slurm) -> list[AccountingLimits]:
    known = slurm.qos or {}
    partitions, jobs = known.get(asked.partition.qos), _qos(asked, slurm)
    order: list[SlurmQos | None] = [partitions, jobs]
    if jobs is not None and "OverPartQOS" in jobs.flags:
        order.reverse()
    one = _association(asked, slurm)
    found = [qos.limits for qos in order if qos is not None]
    return [*found, one.limits] if one is not None else found


def _qos(asked: RequestedResources, slurm: Slurm) -> SlurmQos | None:
    """The QOS that the job would have: the one it names, else its association's default."""
    one = _association(asked, slurm)
    name = asked.qos or (one.default_qos if one is not None else "")
    return (slurm.qos or {}).get(name)


def _association(asked: RequestedResources, slurm: Slurm) -> Association | None:
    """The association that the job would have, where it can only be one."""
    name, mine = option(asked.phase, "account"), slurm.associations or ()
    fit = [one for one in mine if not name or one.account == name]
    exact = [one for one in fit if one.partition == asked.partition.name]
    general = [one for one in fit if not one.partition]
    found = exact or general
    return found[0] if len(found) == 1 else None
