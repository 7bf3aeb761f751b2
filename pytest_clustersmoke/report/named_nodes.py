"""Which nodes the phases of a run name: a node or device that several name is one thing to look at,
not several failures. What names a node is decided where the ledger of nodes gets it from."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ..evidence.node_naming import NamedNodeRecord, NamingRecord, PlacesRecord
from ..evidence.node_observation import CHECKS, SLOW, NodeObservation
from ..evidence.run_record import FindingRecord, PhaseRecord, RunRecord
from ..text import plural, shorten
from .node_evidence import observe_nodes

MAX_NODES, MAX_NAMED, MAX_USUAL = 64, 4, 8
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
    names = {seen.node, *(node.host for node in phase.nodes if node.node == seen.node)}
    return f"{finding.id}: {finding.cause}" == seen.reason and bool(names & {*finding.hosts})


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
    by_finding: dict[str, dict[str, None]] = {}
    for naming in node.named:
        by_finding.setdefault(naming.finding, {})[naming.phase] = None
    parts = [f"{name} in {shorten([*phases], MAX_NAMED)}" for name, phases in by_finding.items()]
    return f"{title_node(node)}: {'; '.join([*parts, *remark_on_node(node)])}"


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
