"""Remarks about what is unusual in a job's transports, worst first.

Nothing is judged, since no expectation is known: a remark says what stands out, and where.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import attrgetter

from ..evidence.finding import Evidence, Finding
from ..evidence.nccl.nccl_log import Communicator
from ..text import NOTE, plural, ranges, shorten, span_list
from .job_transports import JobTransports, hosts_of
from .links import INTER, INTRA, Link

# Since NCCL 2.22 edges are connected, and logged, when a collective first needs them.
LAZY_FROM = (2, 22)
MNNVL = "P2P/MNNVL"
# A kind is rare if at most this share of the pairs of its side use it.
RARE_SHARE = 0.1
MAX_HOSTS = 8
# All of them fit into the text of a finding.
MAX_SPANS = 100
NOT_PLACED = (
    "an end has no line that is certainly its own, or lines may be of several communicators"
)

Remarks = Iterator[Finding]


def remarks(job: JobTransports) -> list[Finding]:
    return [remark for look in _LOOKS for remark in look(job)]


def list_examples(remark: Finding) -> list[str]:
    """The log lines that show a remark, or the reasons for it."""
    places = ((line.text, f"{line.file}:{line.line}") for line in remark.evidence)
    return [*(": ".join(filter(None, place)) for place in places), *remark.detail["reasons"]]


def _build_remark(
    text: str, lines: Iterable[Evidence] = (), reasons: Iterable[str] = ()
) -> Finding:
    """An observation. What to do about it is not known, since no expectation is."""
    return Finding(
        "transports-unusual",
        text,
        fix="",
        primary=False,
        evidence=tuple(lines),
        detail={"reasons": list(reasons)},
        severity=NOTE,
    )


def _init(job: JobTransports) -> Remarks:
    for communicator in job.log.communicators:
        stuck = [
            rank
            for rank, member in communicator.members.items()
            if member.started and not member.complete
        ]
        if stuck:
            yield _build_remark(
                f"communicator {communicator.index}: init started and did not complete on "
                f"{plural(len(stuck), 'rank')}: {shorten(ranges(stuck).split(', '), MAX_SPANS)}",
                reasons=[_name_rank(job, (communicator.index,), rank) for rank in stuck],
            )


def _no_edges(job: JobTransports) -> Remarks:
    if not (job.links or job.log.collnet):
        text = "no edges: the logs do not show which transports were used"
        yield _build_remark(text, reasons=_why_no_edges(job))


def _why_no_edges(job: JobTransports) -> Iterator[str]:
    log = job.log
    if not (log.communicators or log.networks or log.without_ib or log.nvls):
        if log.informed:
            yield (
                "the lines of NCCL INFO show no communicator and no edge: they may be an excerpt, "
                "or NCCL_DEBUG_SUBSYS leaves out INIT, P2P, SHM and NET"
            )
        elif log.warnings or log.versions:
            yield "NCCL logged no line of NCCL INFO; NCCL_DEBUG=INFO logs edges"
        else:
            yield "no NCCL output found: is this a rank's log, and was NCCL_DEBUG=INFO set?"
        return
    if not any(
        member.complete
        for communicator in log.communicators
        for member in communicator.members.values()
    ):
        yield (
            "no communicator completes its init: it may have failed, or the log may be cut, "
            "before anything was connected"
        )
    if log.communicators and all(communicator.ranks == 1 for communicator in log.communicators):
        yield "communicators of one rank have no edges"
        return
    versions = [tuple(map(int, version.split(".")[:2])) for version in log.versions]
    if not versions or max(versions) >= LAZY_FROM:
        yield (
            "since NCCL 2.22 edges are connected when a collective first needs them: did one "
            "run? (NCCL_RUNTIME_CONNECT=0 connects them during init)"
        )
    yield "NCCL_DEBUG_SUBSYS hides them if it leaves out INIT, P2P, SHM or NET"
    if log.nvls:
        yield "NVLS was connected; its connections are logged without peers"


def _net_inside(job: JobTransports) -> Remarks:
    links = [link for link in job.links if link.placement == INTRA and link.transport.net]
    yield from _remark_on_links(job, links, "NET inside a node", job.sides.get(INTRA, 0))


def _socket_beside(job: JobTransports) -> Remarks:
    nets = [link for link in job.links if link.transport.net]
    others = sorted({link.kind for link in nets} - {"NET/Socket"})
    if others:
        sockets = [link for link in nets if link.kind == "NET/Socket"]
        yield from _remark_on_links(
            job, sockets, f"NET/Socket alongside {', '.join(others)}", _count_pairs(nets)
        )


def _without_gpudirect(job: JobTransports) -> Remarks:
    by_net: dict[str, list[Link]] = defaultdict(list)
    for link in job.links:
        # Edges whose ends differ have their own remark.
        if link.transport.net and link.placement != INTRA and not link.asymmetric:
            by_net[link.transport.net].append(link)
    for net, links in sorted(by_net.items()):
        without = [link for link in links if not link.transport.gdrdma]
        if len(without) < len(links):
            text = f"NET/{net} without GPUDirect RDMA alongside NET/{net}/GDRDMA"
            yield from _remark_on_links(job, without, text, _count_pairs(links))


def _asymmetric(job: JobTransports) -> Remarks:
    links = [link for link in job.links if link.asymmetric]
    yield from _remark_on_links(
        job, links, "the two ends use different transports", _count_pairs(job.links)
    )


def _node_local_between(job: JobTransports) -> Remarks:
    between = [link for link in job.links if link.placement == INTER]
    links = [link for link in between if not link.transport.net and link.kind != MNNVL]
    text = "P2P or SHM between two host names (containers of one node? only MNNVL joins nodes)"
    yield from _remark_on_links(job, links, text, _count_pairs(between))


def _rare_inside(job: JobTransports) -> Remarks:
    """If P2P fails on a node, NCCL falls back to SHM, which is slow, but not an error."""
    pairs = {kind: count for (side, kind), count in job.pairs.items() if side == INTRA}
    total = job.sides.get(INTRA, 0)
    for kind, count in sorted(pairs.items()):
        if count <= RARE_SHARE * total and not kind.startswith("NET/"):
            links = [link for link in job.links if link.placement == INTRA and link.kind == kind]
            most = max(pairs, key=lambda other: pairs[other])
            yield from _remark_on_links(
                job, links, f"{kind} inside a node, where most are {most}", total
            )


def _networks(job: JobTransports) -> Remarks:
    if len(job.networks) > 1:
        networks = [f"{name}: {_listed(hosts_of(users))}" for name, users in job.networks.items()]
        yield _build_remark("processes chose different networks", reasons=networks)
    without = {process.host for process in job.log.without_ib}
    hosts = {node.host for placement in job.placements for node in placement.nodes.values()}
    if without and hosts - without:
        yield _build_remark(
            f"NET/IB found no device on {len(without)} of {len(hosts | without)} hosts: "
            f"{_listed(sorted(without))}"
        )


def _versions(job: JobTransports) -> Remarks:
    if len(job.log.versions) > 1:
        yield _build_remark(f"NCCL versions differ: {', '.join(job.log.versions)}")


def _unplaced(job: JobTransports) -> Remarks:
    unknown = [link for link in job.links if link.placement is None]
    if unknown:
        doubts = {why: None for placement in job.placements for why in placement.doubts}
        yield _build_remark(
            f"unknown whether inside a node or between nodes: {_count_pairs(unknown):,} of "
            f"{plural(_count_pairs(job.links), 'pair')}",
            reasons=doubts or [NOT_PLACED],
        )


def _ranks_without_lines(job: JobTransports) -> Remarks:
    by_text: dict[str, list[int]] = defaultdict(list)
    for communicator in job.log.communicators:
        spans = list(_find_ranks_without_lines(job, communicator))
        if spans:
            count = sum(last - first + 1 for first, last in spans)
            of = f" of {communicator.ranks:,}" if communicator.ranks else ""
            ranks = "rank" if count == 1 else "ranks"
            by_text[f"{ranks} {span_list(spans)} ({count:,}{of})"].append(communicator.index)
    if by_text:
        yield _build_remark(
            "some ranks have no line that is certainly their own; pass the logs of all nodes",
            reasons=[
                f"communicator {ranges(indexes)}: {text}" for text, indexes in by_text.items()
            ],
        )


def _find_ranks_without_lines(
    job: JobTransports, communicator: Communicator
) -> Iterator[tuple[int, int]]:
    """The ranks of a communicator without a line, as spans, since there may be millions."""
    placement = job.placements[communicator.index]
    placed = sorted({*placement.nodes, *placement.disputed, *communicator.members})
    if communicator.ranks is None:
        named = {rank for link in job.of(communicator) for rank in (link.source, link.destination)}
        yield from ((rank, rank) for rank in sorted(named.difference(placed)))
        return
    expected = 0
    for rank in [*placed, communicator.ranks]:
        if rank > expected:
            yield expected, rank - 1
        expected = max(expected, rank + 1)


def _torn(job: JobTransports) -> Remarks:
    if count := job.log.torn_count:
        yield _build_remark(
            f"{plural(count, 'line')} cut or torn; their edges are missing",
            [Evidence(*where, "") for where in job.log.torn],
        )


_LOOKS: tuple[Callable[[JobTransports], Remarks], ...] = (
    _init,
    _no_edges,
    _net_inside,
    _socket_beside,
    _without_gpudirect,
    _asymmetric,
    _node_local_between,
    _rare_inside,
    _networks,
    _versions,
    _unplaced,
    _ranks_without_lines,
    _torn,
)


def _remark_on_links(job: JobTransports, links: list[Link], text: str, of: int) -> Remarks:
    """A remark on links, if there are any: the number of pairs among `of`, and each link."""
    if links:
        lines = []
        for link in links:
            source = _name_rank(job, link.communicators, link.source)
            destination = _name_rank(job, link.communicators, link.destination)
            roles = f" ({' and '.join(link.roles)})" if link.asymmetric and link.roles else ""
            lines.append(Evidence(*link.where, f"{source} -> {destination}: {link.wording}{roles}"))
        yield _build_remark(f"{text}: {_count_pairs(links):,} of {plural(of, 'pair')}", lines)


def _name_rank(job: JobTransports, communicators: tuple[int, ...], rank: int) -> str:
    """`3 (k023, GPU 1)`, as far as known."""
    if len(communicators) != 1:
        return str(rank)
    (index,) = communicators
    node = job.placements[index].node(rank)
    member = job.log.communicators[index].members.get(rank)
    gpu = None
    if member is not None:
        gpu = member.cuda_device if member.nvml_device is None else member.nvml_device
    place = [node.host] if node else []
    place += [f"GPU {gpu}"] if gpu is not None else []
    return f"{rank} ({', '.join(place)})" if place else str(rank)


def _count_pairs(links: Iterable[Link]) -> int:
    """The number of pairs of ranks; links are sorted by pair."""
    return sum(1 for _ in groupby(links, key=attrgetter("pair")))


def _listed(names: list[str]) -> str:
    return shorten(names, MAX_HOSTS) or "unknown"
