"""Compare a phase with the user's rights: accounts, QOS, groups, and their limits."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import inf

from ..evidence.finding import Finding
from ..jobs.slurm_records import AccountingLimits, Association, SlurmQos
from ..text import near
from .partition_fit import (
    RequestedResources,
    Slurm,
    format_time,
    name_some,
    sbatch_option,
    setting_evidence,
)

# Finding -> the QOS flag that lifts the partition's limit (man sacctmgr, QOS flags).
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


def is_lifted(finding: Finding, request: RequestedResources, slurm: Slurm, starts: bool) -> bool:
    """Whether the phase's QOS lifts the partition limit that the finding reports. An unknown one
    may, if Slurm would start the phase (`starts`)."""
    if finding.id not in LIFTS:
        return False
    qos = _find_qos(request, slurm)
    if qos is None:
        return starts and _has_unknown_qos(request, slurm)
    return LIFTS[finding.id] in qos.flags


def _has_unknown_qos(request: RequestedResources, slurm: Slurm) -> bool:
    """Whether limits are enforced, and nobody could be asked about the QOS that the phase names."""
    return bool(request.qos) and slurm.qos is None and bool(slurm.enforced & {"limits", "safe"})


def check_rights(
    request: RequestedResources, slurm: Slurm, causes: Collection[str]
) -> Iterator[Finding]:
    """Explain a refusal of sbatch by account, QOS or group. `causes`: those that sbatch names.

    Some rules are only partly visible from here (parent accounts, operators, groups known only to
    the controller): they give a finding only if sbatch names the same cause.
    """
    yield from _check_account(request, slurm, causes)
    yield from _check_qos(request, slurm, causes)
    groups = request.partition.rules.get("AllowGroups")
    refused = "submission-refused" in causes
    if refused and groups is not None and slurm.groups and not slurm.groups & groups:
        yield Finding(
            "submission-refused",
            f"partition {request.partition.name} allows only the groups {name_some(groups)}, but "
            f"this user is in {name_some(slurm.groups)}",
            "choose another partition, or ask to be added to one of these groups",
            evidence=(
                *setting_evidence(request.phase.slurm.get("partition"), "partition"),
                request.note(request.partition.text),
            ),
        )


def _check_account(
    request: RequestedResources, slurm: Slurm, causes: Collection[str]
) -> Iterator[Finding]:
    name, where = sbatch_option(request.phase, "account"), request.phase.slurm.get("account")
    mine = slurm.associations
    if mine is not None and "associations" in slurm.enforced:
        accounts = {association.account for association in mine}
        partitions = {association.partition for association in mine if association.account == name}
        elsewhere = partitions and not partitions & {"", request.partition.name}
        if not mine or (name and name not in accounts) or (name and elsewhere):
            wish = f"asks for account `{name}`" if name else "needs an account"
            why = (
                f"this user may use it only in {name_some(partitions)}"
                if elsewhere
                else f"this user's accounts are {name_some(accounts)}"
                if accounts
                else "this user has none"
            )
            yield Finding(
                "account-refused",
                f"phase {request.phase.name} {wish} in partition {request.partition.name}, but "
                f"{why}",
                near(name, accounts) or "set `slurm.account` in cluster.yaml to one of them",
                evidence=(
                    *setting_evidence(where, "account"),
                    *(request.note(association.limits.text) for association in mine),
                ),
            )
            return
    if "account-refused" in causes:
        yield from _check_partition_rule(request, "account", name)


def _check_qos(
    request: RequestedResources, slurm: Slurm, causes: Collection[str]
) -> Iterator[Finding]:
    name, where = request.qos, request.phase.slurm.get("qos")
    if name and slurm.qos is not None and name not in slurm.qos:
        yield Finding(
            "qos-refused",
            f"there is no QOS `{name}`; this cluster has {name_some(slurm.qos)}",
            near(name, slurm.qos) or "set `slurm.qos` in cluster.yaml to one of them",
            evidence=setting_evidence(where, "qos"),
        )
        return
    if "qos-refused" not in causes:
        return
    association = _find_association(request, slurm)
    changes = association is not None and any(word[0] in "+-" for word in association.qos)
    if (
        name
        and association is not None
        and "qos" in slurm.enforced
        and not changes
        and name not in association.qos
    ):
        yield Finding(
            "qos-refused",
            f"this user may not use QOS `{name}` under account {association.account}; allowed "
            f"there: {name_some(association.qos)}",
            near(name, association.qos) or "set `slurm.qos` in cluster.yaml to one of them",
            evidence=(*setting_evidence(where, "qos"), request.note(association.limits.text)),
        )
        return
    yield from _check_partition_rule(request, "qos", name)


def _check_partition_rule(request: RequestedResources, key: str, name: str) -> Iterator[Finding]:
    """Check the partition's lists of accounts and QOS; Slurm ignores Deny if Allow is set."""
    kind = {"account": "Accounts", "qos": "Qos"}[key]
    allowed = request.partition.rules.get(f"Allow{kind}")
    denied = request.partition.rules.get(f"Deny{kind}", frozenset())
    word = {"account": "account", "qos": "QOS"}[key]
    if not name or (name in allowed if allowed is not None else name not in denied):
        return
    rule = f"allows only {name_some(allowed)}" if allowed is not None else "denies it"
    yield Finding(
        f"{key}-refused",
        f"phase {request.phase.name} asks for {word} `{name}`, but partition "
        f"{request.partition.name} {rule}",
        f"set `slurm.{key}` in cluster.yaml to one that it allows, or choose another partition",
        evidence=(
            *setting_evidence(request.phase.slurm.get(key), key),
            request.note(request.partition.text),
        ),
    )


def check_limits(request: RequestedResources, slurm: Slurm, starts: bool) -> Iterator[Finding]:
    """Check the limits of QOS and association, if Slurm enforces them.

    The first limit of the partition's QOS, the job's QOS and the association applies (Resource
    Limits, "Hierarchy"). Those of the association do not count where nobody could be asked about
    the QOS, which comes before, and Slurm would start the phase (`starts`).
    """
    if not slurm.enforced & {"limits", "safe"}:
        return
    levels = _limit_levels(request, slurm, starts)
    wall = next((level for level in levels if level.max_wall < inf), None)
    if wall and request.time_s is not None and request.time_s > wall.max_wall:
        yield Finding(
            "time-over-limit",
            f"phase {request.phase.name} asks for {format_time(request.time_s)}, but {wall.owner} "
            f"allows a job at most {format_time(wall.max_wall)}",
            f"{request.time_fix} at most {format_time(wall.max_wall)}, or choose another QOS",
            evidence=(*setting_evidence(*request.time_setting), request.note(wall.text)),
        )
    for column, whose in COLUMNS.items():
        yield from _check_tres(request, levels, column, whose)


def _check_tres(
    request: RequestedResources, levels: list[AccountingLimits], column: str, whose: str
) -> Iterator[Finding]:
    counts = (
        (NODES, "too-many-nodes", "nodes", request.nodes, request.phase.nodes, "nodes"),
        (
            GPUS,
            "too-many-gpus",
            "GPUs",
            request.nodes * request.gpus,
            request.phase.gpus_per_node,
            "gpus_per_node",
        ),
    )
    for kind, finding_id, unit, asks, sourced, key in counts:
        first = next((level for level in levels if kind in level.tres.get(column, {})), None)
        most = first.tres[column][kind] if first else inf
        if first and asks > most:
            yield Finding(
                finding_id,
                f"phase {request.phase.name} asks for {asks} {unit}, but {first.owner} allows "
                f"{whose} at most {most} ({column})",
                f"ask for fewer {unit}, or choose another QOS or account",
                evidence=(*setting_evidence(sourced, key), request.note(first.text)),
            )


def _limit_levels(
    request: RequestedResources, slurm: Slurm, starts: bool
) -> list[AccountingLimits]:
    known = slurm.qos or {}
    partitions, jobs = known.get(request.partition.qos), _find_qos(request, slurm)
    order: list[SlurmQos | None] = [partitions, jobs]
    if jobs is not None and "OverPartQOS" in jobs.flags:
        order.reverse()
    association = _find_association(request, slurm)
    levels = [qos.limits for qos in order if qos is not None]
    if association is None or (starts and _has_unknown_qos(request, slurm)):
        return levels
    return [*levels, association.limits]


def _find_qos(request: RequestedResources, slurm: Slurm) -> SlurmQos | None:
    """The job's QOS: the one it names, or else its association's default."""
    association = _find_association(request, slurm)
    name = request.qos or (association.default_qos if association is not None else "")
    return (slurm.qos or {}).get(name)


def _find_association(request: RequestedResources, slurm: Slurm) -> Association | None:
    """The job's association, if only one is possible."""
    name, mine = sbatch_option(request.phase, "account"), slurm.associations or ()
    matching = [association for association in mine if not name or association.account == name]
    exact = [
        association for association in matching if association.partition == request.partition.name
    ]
    general = [association for association in matching if not association.partition]
    candidates = exact or general
    return candidates[0] if len(candidates) == 1 else None
