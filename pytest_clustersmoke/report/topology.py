"""The topology in the record: each link between ranks, and the links of two nodes together."""

from __future__ import annotations

from collections import Counter

from ..criteria.node_pairs import Pairs
from ..criteria.transport_sides import Connection, Transports
from ..evidence.metric import Unmeasured
from ..evidence.phase_result import PhaseResult
from ..evidence.run_record import GroupRecord, LinkRecord, TopologyRecord
from ..text import plural

# If every rank is connected to every other, links grow with the square of ranks.
MAX_LINKS = 2000
MAX_NICS = 4

Nodes = tuple[int, int]


def build_topology(result: PhaseResult) -> TopologyRecord | None:
    """The links of a phase; None if its ranks never reported a backend."""
    if not result.backends:
        return None
    backend = ", ".join(sorted(result.backends))
    speeds = _speeds(result)
    if backend == "nccl":
        return _of_nccl(result, speeds)
    measured = [_group(nodes, backend, 0, 0, speed) for nodes, speed in sorted(speeds.items())]
    note = f"the ranks used {backend}, which does not log its connections"
    return TopologyRecord(backend=backend, note=note, links=[], groups=measured)


def _of_nccl(result: PhaseResult, speeds: dict[Nodes, float]) -> TopologyRecord:
    transports = Transports(result)
    judged = [
        (pair, reason, side.inside)
        for side in (transports.intra_node, transports.inter_node)
        for pair, reason in side.judged()
    ]
    counts: Counter[tuple[Nodes, str]] = Counter()
    unexpected: Counter[tuple[Nodes, str]] = Counter()
    for pair, reason, _ in judged:
        lower, upper = sorted(transports.nodes[rank] for rank in (pair.source, pair.destination))
        group = (lower, upper), pair.links[0].transport.kind
        counts[group] += 1
        unexpected[group] += bool(reason)
    judged.sort(key=lambda entry: (not entry[1], entry[0].source, entry[0].destination))
    notes = list(transports.unreadable)
    if lost := len(transports.placed.unplaced):
        notes.append(f"{plural(lost, 'connection')} between unknown ranks")
    if not judged:
        notes.append("NCCL's logs show no connection")
    if len(judged) > MAX_LINKS:
        notes.append(f"{MAX_LINKS} of {len(judged)} connections are listed")
    groups = [
        _group(nodes, kind, count, unexpected[nodes, kind], speeds.get(nodes))
        for (nodes, kind), count in sorted(counts.items())
    ]
    links = [_link(pair, reason, inside) for pair, reason, inside in judged[:MAX_LINKS]]
    return TopologyRecord(backend="nccl", note="; ".join(notes), links=links, groups=groups)


def _link(pair: Connection, reason: str, inside: bool) -> LinkRecord:
    first = pair.links[0]
    return LinkRecord(
        source=pair.source,
        destination=pair.destination,
        inside=inside,
        transport=pair.wording,
        kind=first.transport.kind,
        nics=sorted({link.edge.nic for link in pair.links if link.edge.nic})[:MAX_NICS],
        channels=len(first.edge.channels),
        unexpected=reason,
        where=str(first.where),
    )


def _group(
    nodes: Nodes, kind: str, links: int, unexpected: int, speed: float | None
) -> GroupRecord:
    return GroupRecord(
        nodes=nodes, kind=kind, links=links, unexpected=unexpected, bandwidth_gb_per_s=speed
    )


def _speeds(result: PhaseResult) -> dict[Nodes, float]:
    """Pair of nodes -> GB/s each way, if the phase measured pairs and the figures are valid."""
    if not any(rank.measured("pair") for rank in result.ranks):
        return {}
    try:
        return {(min(pair), max(pair)): speed for pair, speed in Pairs(result).speeds.items()}
    except (AssertionError, Unmeasured):
        return {}  # the criteria of the phase report what is wrong
