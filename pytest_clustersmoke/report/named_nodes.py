"""Which nodes the phases of a run name: a node or device that several name is one thing to look at,
not several failures. What names a node is decided where the ledger of nodes gets it from."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from ..evidence.finding import ISOLATION_FINDING
from ..evidence.node_naming import NamedNodeRecord, NamingRecord, PlacesRecord
from ..evidence.node_observation import (
    CHECKS,
    COMPUTES_WRONGLY,
    DAMAGE,
    SLOW,
    NodeObservation,
)
from ..evidence.run_record import FindingRecord, PhaseRecord, RunRecord
from ..text import FAILURE, plural, shorten
from .node_evidence import observe_nodes

MAX_NODES, MAX_NAMED, MAX_USUAL = 64, 4, 8
# Checks that a wrong profile fails on every node: a job of one node does not tell which is wrong.
OF_PROFILE = frozenset(
    {"gpu-model-differs", "gpus-missing", "interface-missing", "tmp-not-writable"}
)
UUIDS = ("GPU-", "MIG-")  # how the UUIDs of devices begin


def name_nodes(record: RunRecord) -> list[NamedNodeRecord]:
    """The nodes that a run's phases name, those of the most phases first; none of a run with staged
    faults or of a screen, which has a list of its own."""
    if not record.is_of_cluster:
        return []
    phases = {phase.phase: phase for phase in record.phases}
    named: dict[str, list[tuple[NamingRecord, set[str]]]] = {}
    for seen in observe_nodes(record):
        if seen.state == "bad":
            named.setdefault(seen.node, []).append(_name_node(seen, phases[seen.source]))
    made = [
        NamedNodeRecord(
            node=node,
            device=_find_device([gpus for _, gpus in some]),
            named=[naming for naming, _ in some],
        )
        for node, some in named.items()
    ]
    return sorted(made, key=lambda node: -len(node.phases))[:MAX_NODES]


def _name_node(seen: NodeObservation, phase: PhaseRecord) -> tuple[NamingRecord, set[str]]:
    """What named a node in a phase, and the GPUs of the ranks that it names there."""
    finding = next((one for one in phase.findings if _is_of(one, seen, phase)), None)
    _, _, cause = seen.reason.partition(":")
    shown = finding.evidence[0] if finding is not None and finding.evidence else None
    naming = NamingRecord(
        phase=seen.source,
        finding=seen.kind,
        cause=cause.strip(),
        is_check=seen.kind in CHECKS,
        file=shown.file if shown is not None else "",
        line=shown.line if shown is not None else 0,
    )
    return naming, _find_gpus(seen, finding, phase)


def _is_of(finding: FindingRecord, seen: NodeObservation, phase: PhaseRecord) -> bool:
    """Whether this finding is what was seen of the node."""
    return f"{finding.id}: {finding.cause}" == seen.reason and _names_node(
        finding, seen.node, phase
    )


def _names_node(finding: FindingRecord, node: str, phase: PhaseRecord) -> bool:
    """Whether a finding of this phase names the node, or its host."""
    hosts = {node, *(each.host for each in phase.nodes if each.node == node)}
    return not hosts.isdisjoint(finding.hosts)


def _find_gpus(
    seen: NodeObservation, finding: FindingRecord | None, phase: PhaseRecord
) -> set[str]:
    ranks: Collection[int] = finding.ranks if finding is not None else ()
    return {
        rank.gpu
        for rank in phase.ranks
        if rank.node == seen.node
        and (rank.rank in ranks or (finding is None and seen.kind == SLOW and rank.behind))
    }


def _find_device(gpus: list[set[str]]) -> str:
    """The UUID of the one GPU that every naming means; empty if there is none."""
    first = next(iter(gpus[0]), "")
    is_same = first.startswith(UUIDS) and all(some == {first} for some in gpus)
    return first if is_same else ""


def list_shared(record: RunRecord) -> list[NamedNodeRecord]:
    """The nodes that several phases of a run name."""
    return [node for node in record.named_nodes if len(node.phases) > 1]


def title_node(node: NamedNodeRecord) -> str:
    """`node42: named by 3 phases`, with the device if it is always the same one."""
    device = f", {node.device}" if node.device else ""
    return f"{node.node}{device}: named by {plural(len(node.phases), 'phase')}"


def describe_node(node: NamedNodeRecord) -> str:
    """The node, and what named it in which phases, on one line."""
    parts = _list_places((naming.finding, naming.phase) for naming in node.named)
    return f"{title_node(node)}: {'; '.join([*parts, *remark_on_node(node)])}"


def _list_places(seen: Iterable[tuple[str, str]]) -> Iterator[str]:
    """`rank-killed in a, b`, for each finding and the phases that have it."""
    by_finding: dict[str, dict[str, None]] = {}
    for finding, phase in seen:
        by_finding.setdefault(finding, {})[phase] = None
    for finding, phases in by_finding.items():
        yield f"{finding} in {shorten([*phases], MAX_NAMED)}"


def find_bad_nodes(record: RunRecord) -> dict[str, str]:
    """Each node that the run shows to be bad, with what shows it: tests on fewer nodes isolated it,
    a check of the node itself failed, or it was slow in several phases. A failed job alone shows
    nothing, nor does one slow rank: the program may be the cause."""
    if not record.is_of_cluster:
        return {}
    seen: dict[str, list[tuple[str, str]]] = {}
    phases = {phase.phase: phase for phase in record.phases if not (phase.fault or phase.known)}
    for phase in phases.values():
        for finding in phase.findings:
            if finding.id == ISOLATION_FINDING and finding.primary:
                for node in finding.hosts:  # of a link or a switch it has none
                    seen.setdefault(node, []).append((finding.id, phase.phase))
    for named in record.named_nodes:
        for naming in named.named:
            if naming.phase in phases and _has_failed(naming, named.node, phases[naming.phase]):
                seen.setdefault(named.node, []).append((naming.finding, naming.phase))
    return {
        node: "; ".join(_list_places(places))
        for node, places in seen.items()
        if len({*places}) > 1 or places[0][0] != SLOW
    }


def _has_failed(naming: NamingRecord, node: str, phase: PhaseRecord) -> bool:
    """Whether a check of the node itself failed, and the node, not the profile, is the cause. A
    warning about one node does not count where another failed the same check. For what a device did
    during the job a criterion fails, and the finding only warns."""
    red = [one for one in phase.criteria.values() if one.result == "failed"]
    if naming.finding == SLOW:
        return any("stragglers" in one.judged for one in red)
    if naming.finding in {*DAMAGE, COMPUTES_WRONGLY}:
        return bool(red)
    if not naming.is_check or (naming.finding in OF_PROFILE and len(phase.nodes) < 2):
        return False
    return any(
        finding.id == naming.finding
        and finding.severity == FAILURE
        and _names_node(finding, node, phase)
        for finding in phase.findings
    )


def title_bad_nodes(nodes: Mapping[str, str]) -> str:
    """`Bad node: node2 (isolated in wide)`; empty without one."""
    if not nodes:
        return ""
    listed = shorten([f"{node} ({why})" for node, why in nodes.items()], MAX_NAMED, "; ")
    return f"Bad {'node' if len(nodes) == 1 else 'nodes'}: {listed}"


def remark_on_node(node: NamedNodeRecord) -> Iterator[str]:
    """What else to know before blaming it: its past, and whether a program may be the cause."""
    if node.past_runs:
        yield f"named in {node.past_bad} of {plural(node.past_runs, 'earlier run')}"
    if not any(naming.is_check for naming in node.named):
        yield "no check of the node itself failed, so the programs may be the cause"


def describe_first(places: PlacesRecord | None) -> str:
    """The nodes on which a phase ran for the first time, in words; empty without one, or if the
    phase itself is new."""
    if places is None or not places.first:
        return ""
    since = "" if places.is_all else f" in {places.runs} runs"
    return f"ran on {shorten(places.first, MAX_NAMED)} for the first time{since}"


def describe_usual(places: PlacesRecord | None) -> str:
    """Where a phase ran in earlier runs: `node1, node2 in 18 of 20; node3 in 2 of 20`."""
    if places is None or not places.runs:
        return "not known" if places is None else "none"
    by_count: dict[int, list[str]] = {}
    for node, count in places.nodes.items():
        by_count.setdefault(count, []).append(node)
    parts = [
        f"{shorten(by_count[count], MAX_USUAL)} in {count} of {places.runs}"
        for count in sorted(by_count, reverse=True)
        if count
    ]
    return shorten(parts, MAX_NAMED, "; ")
