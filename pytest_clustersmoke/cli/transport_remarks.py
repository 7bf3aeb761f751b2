"""What is surprising in a job's transports, worst first.

No expectation is known here, so nothing is judged: a remark says what stands out, and where.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from ..evidence.nccl.nccl_log import Communicator
from ..text import plural, ranges, span_list
from .job_transports import JobTransports, hosts_of
from .links import INTER, INTRA, Link

# From NCCL 2.22 on edges are connected, and logged, when a collective first needs them.
LAZY_FROM = (2, 22)
MNNVL = "P2P/MNNVL"
# Of the pairs of a side, a kind of at most this share is rare.
RARE_SHARE = 0.1
MAX_HOSTS = 8
NOT_PLACED = "an end has no line that is surely its own, or lines may be of several communicators"


@dataclass(frozen=True)
class TransportRemark:
    """One thing that stands out; `examples` are lines that show it."""

    text: str
    examples: Sequence[str] = ()


Remarks = Iterator[TransportRemark]


def remarks(job: JobTransports) -> list[TransportRemark]:
    return [remark for look in _LOOKS for remark in look(job)]


def _init(job: JobTransports) -> Remarks:
    for one in job.log.communicators:
        stuck = [rank for rank, who in one.members.items() if who.started and not who.complete]
        if stuck:
            yield TransportRemark(
                f"init of communicator {one.index} began and did not complete on "
                f"{plural(len(stuck), 'rank')}: {ranges(stuck)}",
                [_name_rank(job, (one.index,), rank) for rank in stuck],
            )


def _no_edges(job: JobTransports) -> Remarks:
    if not (job.links or job.log.collnet):
        why = list(_why_no_edges(job))
        yield TransportRemark("no edges: the logs do not show who talked over what", why)


def _why_no_edges(job: JobTransports) -> Iterator[str]:
    log = job.log
    if not (log.communicators or log.networks or log.without_ib or log.nvls):
        if log.warnings or log.versions:
            yield "no line of NCCL INFO that counts is here; NCCL_DEBUG=INFO writes edges"
        else:
            yield "nothing of NCCL's is here: is this the log of a rank, and NCCL_DEBUG=INFO set?"
        return
    if not any(who.complete for one in log.communicators for who in one.members.values()):
        yield (
            "no init of a communicator completes here: it may have failed, or the log be cut, "
            "before anything was connected"
        )
    if log.communicators and all(one.ranks == 1 for one in log.communicators):
        yield "communicators of one rank connect nothing"
        return
    versions = [tuple(map(int, version.split(".")[:2])) for version in log.versions]
    if not versions or max(versions) >= LAZY_FROM:
        yield (
            "from NCCL 2.22 on edges are connected when a collective first needs them: did one "
            "run? (NCCL_RUNTIME_CONNECT=0 connects them in init)"
        )
    yield "NCCL_DEBUG_SUBSYS hides them if it leaves out INIT, P2P, SHM or NET"
    if log.nvls:
        yield "NVLS was connected, whose connections are logged without their peers"


def _net_inside(job: JobTransports) -> Remarks:
    found = [one for one in job.links if one.placement == INTRA and one.transport.net]
    yield from _of_links(job, found, "NET inside a node", job.sides.get(INTRA, 0))


def _socket_beside(job: JobTransports) -> Remarks:
    nets = [one for one in job.links if one.transport.net]
    others = sorted({one.kind for one in nets} - {"NET/Socket"})
    if others:
        found = [one for one in nets if one.kind == "NET/Socket"]
        yield from _of_links(job, found, f"NET/Socket beside {', '.join(others)}", _pairs(nets))


def _without_gpudirect(job: JobTransports) -> Remarks:
    by_net: dict[str, list[Link]] = defaultdict(list)
    for one in job.links:
        # Where the ends differ that is said of itself.
        if one.transport.net and one.placement != INTRA and not one.asymmetric:
            by_net[one.transport.net].append(one)
    for net, links in sorted(by_net.items()):
        without = [one for one in links if not one.transport.gdrdma]
        if len(without) < len(links):
            text = f"NET/{net} without GPUDirect RDMA beside NET/{net}/GDRDMA"
            yield from _of_links(job, without, text, _pairs(links))


def _asymmetric(job: JobTransports) -> Remarks:
    found = [one for one in job.links if one.asymmetric]
    yield from _of_links(job, found, "the two ends use different transports", _pairs(job.links))


def _node_local_between(job: JobTransports) -> Remarks:
    between = [one for one in job.links if one.placement == INTER]
    found = [one for one in between if not one.transport.net and one.kind != MNNVL]
    text = "P2P or SHM between two host names (containers of one node? only MNNVL joins nodes)"
    yield from _of_links(job, found, text, _pairs(between))


def _rare_inside(job: JobTransports) -> Remarks:
    """A node where P2P failed falls back to SHM, which is no error and slow."""
    pairs = {kind: count for (side, kind), count in job.pairs.items() if side == INTRA}
    total = job.sides.get(INTRA, 0)
    for kind, count in sorted(pairs.items()):
        if count <= RARE_SHARE * total and not kind.startswith("NET/"):
            links = [one for one in job.links if one.placement == INTRA and one.kind == kind]
            most = max(pairs, key=lambda other: pairs[other])
            yield from _of_links(job, links, f"{kind} inside a node, where most are {most}", total)


def _networks(job: JobTransports) -> Remarks:
    if len(job.networks) > 1:
        told = [f"{name}: {_listed(hosts_of(users))}" for name, users in job.networks.items()]
        yield TransportRemark("the networks chosen differ", told)
    without = {process.host for process in job.log.without_ib}
    hosts = {node.host for placement in job.placements for node in placement.nodes.values()}
    if without and hosts - without:
        yield TransportRemark(
            f"NET/IB found no device on {len(without)} of {len(hosts | without)} hosts: "
            f"{_listed(sorted(without))}"
        )


def _versions(job: JobTransports) -> Remarks:
    if len(job.log.versions) > 1:
        yield TransportRemark(f"NCCL's version differs: {', '.join(job.log.versions)}")


def _unplaced(job: JobTransports) -> Remarks:
    unknown = [one for one in job.links if one.placement is None]
    if unknown:
        doubts = {why: None for placement in job.placements for why in placement.doubts}
        yield TransportRemark(
            f"whether inside a node or between nodes is unknown of {_pairs(unknown):,} of "
            f"{plural(_pairs(job.links), 'pair')}",
            list(doubts) or [NOT_PLACED],
        )


def _silent(job: JobTransports) -> Remarks:
    told: dict[str, list[int]] = defaultdict(list)
    for one in job.log.communicators:
        spans = list(_silent_ranks(job, one))
        if spans:
            count = sum(last - first + 1 for first, last in spans)
            of = f" of {one.ranks:,}" if one.ranks else ""
            ranks = "rank" if count == 1 else "ranks"
            told[f"{ranks} {span_list(spans)} ({count:,}{of})"].append(one.index)
    if told:
        yield TransportRemark(
            "some ranks have no line here that is surely theirs; give the logs of all nodes",
            [f"communicator {ranges(whose)}: {text}" for text, whose in told.items()],
        )


def _silent_ranks(job: JobTransports, one: Communicator) -> Iterator[tuple[int, int]]:
    """The ranks of a communicator of which no line is here, as spans: there may be millions."""
    placement = job.placements[one.index]
    heard = sorted({*placement.nodes, *placement.disputed, *one.members})
    if one.ranks is None:
        named = {rank for link in job.of(one) for rank in (link.source, link.destination)}
        yield from ((rank, rank) for rank in sorted(named.difference(heard)))
        return
    expected = 0
    for rank in [*heard, one.ranks]:
        if rank > expected:
            yield expected, rank - 1
        expected = max(expected, rank + 1)


def _torn(job: JobTransports) -> Remarks:
    if count := job.log.torn_count:
        yield TransportRemark(
            f"{plural(count, 'line')} cut or torn; the edges on them are missing here",
            [str(where) for where in job.log.torn],
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
    _silent,
    _torn,
)


def _of_links(job: JobTransports, found: list[Link], text: str, of: int) -> Remarks:
    """A remark on links, none where there are none: how many pairs, of how many, and each."""
    if found:
        examples = []
        for one in found:
            source = _name_rank(job, one.communicators, one.source)
            destination = _name_rank(job, one.communicators, one.destination)
            roles = f" ({' and '.join(one.roles)})" if one.asymmetric and one.roles else ""
            examples.append(f"{source} -> {destination}: {one.wording}{roles}: {one.where}")
        yield TransportRemark(f"{text}: {_pairs(found):,} of {plural(of, 'pair')}", examples)


def _name_rank(job: JobTransports, communicators: tuple[int, ...], rank: int) -> str:
    """`3 (k023, GPU 1)`, as far as that is known."""
    if len(communicators) != 1:
        return str(rank)
    (index,) = communicators
    node = job.placements[index].node(rank)
    member = job.log.communicators[index].members.get(rank)
    gpu = None
    if member is not None:
        gpu = member.cuda_device if member.nvml_device is None else member.nvml_device
    told = [node.host] if node else []
    told += [f"GPU {gpu}"] if gpu is not None else []
    return f"{rank} ({', '.join(told)})" if told else str(rank)


def _pairs(links: Iterable[Link]) -> int:
    """The pairs of ranks of links in the job's order."""
    return sum(1 for _ in groupby(links, key=attrgetter("pair")))


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - MAX_HOSTS} more" if len(names) > MAX_HOSTS else ""
    return ", ".join(names[:MAX_HOSTS]) + more or "unknown"
