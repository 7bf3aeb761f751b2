"""What a run says about each of its nodes: good, bad or unknown in each phase.

A node is good in a phase that passed. It is bad where a finding names it, and only it: two
witnesses who differ accuse neither. Findings are of three kinds:

- definite: the node died, its GPU had uncorrectable memory errors, its link is down. Only our own
  checks and the scheduler say so; a log, which any program can write, does not;
- of a check, which looked at the node itself or compared it with the other nodes;
- of a failure of the job, which the program may have caused as well as the node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping
from dataclasses import replace

from ..config.hostlist import expand_hostlist
from ..evidence.node_observation import (
    BY_SCHEDULER,
    CHECKS,
    DAMAGE,
    DEFINITE,
    DRAINED,
    DRIVER,
    FLAP,
    GPU,
    HARMLESS,
    MISUSE,
    NODE_DOWN,
    SCREEN,
    SLOW,
    DeviceFigure,
    NodeObservation,
    NodeState,
)
from ..evidence.run_record import FactsRecord, FindingRecord, PhaseRecord, RunRecord
from ..evidence.screen_record import (
    FAILING,
    NO_ANSWER,
    NOT_SCREENED,
    PASSING,
    ScreenedNode,
    ScreenRecord,
)
from ..evidence.telemetry import parse_int, parse_rows, parse_text
from ..text import FAILURE, WARNING, name_ranks
from .redaction import UUID


def observe_nodes(record: RunRecord) -> list[NodeObservation]:
    """What each node did in each phase of a run, without the phases of staged faults."""
    facts = {node.node: node for node in record.nodes}
    observations = []
    for phase in record.phases:
        for made in () if phase.fault else _observe_phase(phase):
            boot_id, parts = _describe_parts(facts.get(made.node), record.hardware.gpus_per_node)
            observations.append(replace(made, boot_id=boot_id, parts=parts))
    return observations


def observe_screen(screen: ScreenRecord) -> list[NodeObservation]:
    """What a screen says of each node that it reached. One that gave no answer is bad where most
    others gave one: otherwise the profile's `setup`, say, is to blame."""
    silent = screen.of(NO_ANSWER)
    reached = [node for node in screen.nodes if node.state != NOT_SCREENED]
    states: dict[str, NodeState] = {
        PASSING: "good",
        FAILING: "bad",
        NO_ANSWER: "bad" if 2 * len(silent) < len(reached) else "unknown",
    }
    return [
        NodeObservation(
            node.node,
            SCREEN,
            states[node.state],
            node.reason,
            _is_damaged(node),
            node.boot_id,
            cleared=frozenset(node.cleared),
        )
        for node in reached
    ]


def _is_damaged(node: ScreenedNode) -> bool:
    """Whether what failed needs no second evidence."""
    return any(
        check.finding in DEFINITE | DAMAGE and check.severity == FAILURE
        for check in node.checks.values()
    )


def list_figures(record: RunRecord) -> Iterator[DeviceFigure]:
    """What devices reached in a run, without the phases of staged faults."""
    for phase in record.phases:
        if phase.fault or phase.peaks is None:
            continue
        for made in phase.peaks.figures:
            values = made.model_dump(exclude={"rank", "dense_share"})
            yield DeviceFigure(**values, phase=phase.phase)


def _observe_phase(phase: PhaseRecord) -> Iterator[NodeObservation]:
    """Every node of the phase, those that failed in its earlier jobs, and those that the scheduler
    names. A node may be named twice; the worst counts."""
    nodes = _name_nodes(phase)
    accused = {**_find_accused(phase, nodes)}
    state: NodeState = "good" if _is_good(phase) else "unknown"
    for node in dict.fromkeys(nodes.values()):
        if node not in accused:
            yield NodeObservation(node, phase.phase, state)
    flapping = {host for found in phase.findings if found.id == FLAP for host in found.hosts}
    for node, finding in accused.items():
        reason = f"{finding.id}: {finding.cause}"
        definite = _is_definite(finding, len(flapping))
        yield NodeObservation(node, phase.phase, "bad", reason, definite)
    for node, ranks in _find_slow(phase).items():
        if node in nodes:
            reason = f"{SLOW}: {name_ranks(ranks)} fell behind the others"
            yield NodeObservation(nodes[node], phase.phase, "bad", reason)
    drained = _list_hosts(phase, {DRAINED}) - _list_hosts(phase, BY_SCHEDULER)
    for attempt in phase.attempts[:-1]:
        # Where the scheduler named none, all of the job's nodes are listed.
        if len(attempt.failed_nodes) == 1 or len(attempt.failed_nodes) < len(attempt.nodes):
            reason = f"{NODE_DOWN}: it failed in job {attempt.job_id}: {attempt.reason}"
            for node in attempt.failed_nodes:
                if node not in drained:  # it was launched there twice
                    yield NodeObservation(node, phase.phase, "bad", reason)


def _list_hosts(phase: PhaseRecord, ids: Container[str]) -> set[str]:
    """The hosts that findings of these ids name."""
    return {host for found in phase.findings if found.id in ids for host in found.hosts}


def _is_good(phase: PhaseRecord) -> bool:
    results = {criterion.result for criterion in phase.criteria.values()}
    return phase.outcome == "passed" and not results & {"failed", "known"}


def _name_nodes(phase: PhaseRecord) -> dict[str, str]:
    """Names and hosts of the phase's nodes -> their names. A job writes its own names: one that the
    scheduler did not give it, or that only stands for an unknown node, is left out."""
    scheduled = set(expand_hostlist(phase.scheduler_nodes))
    nodes = [
        node
        for node in phase.nodes
        if " " not in node.node and (not scheduled or node.node in scheduled)
    ]
    hosts = Counter(node.host for node in nodes)
    by_host = {node.host: node.node for node in nodes if hosts[node.host] == 1}
    return {**by_host, **{node.node: node.node for node in nodes}}


def _find_accused(phase: PhaseRecord, nodes: Mapping[str, str]) -> dict[str, FindingRecord]:
    """Node -> the finding that accuses it, the gravest one. A check may fail on one node and only
    warn on another, so each node counts by its own finding."""
    by_id: dict[str, list[FindingRecord]] = {}
    for finding in phase.findings:
        if finding.severity in (FAILURE, WARNING) and not _is_harmless(finding):
            by_id.setdefault(finding.id, []).append(finding)
    graver = any(
        id in CHECKS and any(each.severity == FAILURE for each in found)
        for id, found in by_id.items()
    )
    accusations: list[tuple[str, FindingRecord]] = []
    for found in by_id.values():
        named: dict[str, FindingRecord] = {}
        for finding in sorted(found, key=_weigh, reverse=True):
            for host in finding.hosts:
                if host in nodes or finding.id in BY_SCHEDULER:
                    named.setdefault(nodes.get(host, host), finding)
        count = len(named)
        accusations += [
            (node, finding)
            for node, finding in named.items()
            if _accuses(finding, count, len({*nodes.values()}), graver)
        ]
    return dict(sorted(accusations, key=lambda made: _weigh(made[1])))


def _is_harmless(finding: FindingRecord) -> bool:
    return finding.id in HARMLESS or finding.detail.get("signature") == MISUSE


def _weigh(finding: FindingRecord) -> tuple[bool, bool, bool]:
    return _is_definite(finding), finding.id in CHECKS, finding.severity == FAILURE


def _accuses(finding: FindingRecord, named: int, nodes: int, graver: bool) -> bool:
    """Whether a finding is evidence against a node, of so many that findings of its id name."""
    if _is_definite(finding, named) or (named == 1 and finding.id in CHECKS):
        return True
    if finding.id in CHECKS:  # on half of the nodes it is their setting, or nobody knows whose
        return 2 * named < nodes
    # What a job's end says follows from what a check found, if that found anything.
    return named == 1 and finding.primary and finding.severity == FAILURE and not graver


def _is_definite(finding: FindingRecord, named: int = 1) -> bool:
    """`named`: the nodes of the phase that have it. Links that went down together may have done so
    with their switch."""
    if finding.id == FLAP and named > 1:
        return False
    return finding.id in DAMAGE or (finding.id in DEFINITE and finding.severity == FAILURE)


def _find_slow(phase: PhaseRecord) -> dict[str, list[int]]:
    """Node -> its ranks that fell behind; empty if that is half of the nodes or more."""
    slow: dict[str, list[int]] = {}
    for rank in phase.ranks:
        if rank.behind:
            slow.setdefault(rank.node, []).append(rank.rank)
    return slow if len(slow) == 1 or 2 * len(slow) < len(phase.nodes) else {}


def _describe_parts(node: FactsRecord | None, gpus_per_node: int) -> tuple[str, dict[str, str]]:
    """The boot id of a node, and its parts: the UUIDs of its GPUs, if it saw all of them (a job may
    get some of a node's GPUs, other ones each time), and their driver. A report that was completed
    later may have no UUIDs."""
    if node is None:
        return "", {}
    gpus = parse_rows(node.facts.get("gpus"))
    uuids = sorted(filter(None, (parse_text(gpu.get("uuid")) for gpu in gpus)))
    drivers = sorted({parse_text(gpu.get("driver_version")) or "" for gpu in gpus} - {""})
    there = max(1, gpus_per_node, parse_int(node.facts.get("gpus_on_bus")) or 0)
    parts = {GPU: ", ".join(uuids)} if len(uuids) >= there else {}
    parts |= {DRIVER: ", ".join(drivers)} if drivers else {}
    boot_id = parse_text(node.facts.get("boot_id")) or ""
    return "" if boot_id == UUID else boot_id, parts
