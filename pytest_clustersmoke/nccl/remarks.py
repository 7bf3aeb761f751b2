"""What is surprising in a job's transports, worst first.

No expectation is known here, so nothing is judged: a remark says what stands out, and where.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from .job import Job
from .links import INTER, INTRA, Link, count_pairs
from .model import Communicator
from .record import networks

# From NCCL 2.22 on edges are connected, and logged, when a collective first needs them.
LAZY_FROM = (2, 22)
MNNVL = "P2P/MNNVL"
# Of the pairs of a side, a kind of at most this share is rare.
RARE_SHARE = 0.1


@dataclass(frozen=True)
class Remark:
    """One thing that stands out; `examples` are lines that show it."""

    text: str
    examples: tuple[str, ...] = ()


def remarks(job: Job) -> list[Remark]:
    return [one for look in _LOOKS for one in look(job)]


def name_rank(job: Job, communicators: tuple[int, ...], rank: int) -> str:
    """`3 (k023, GPU 1)`, as far as that is known."""
    if len(communicators) != 1:
        return str(rank)
    index = communicators[0]
    node = job.placements[index].node(rank)
    member = job.log.communicators[index].members.get(rank)
    gpu = None
    if member is not None:
        gpu = member.cuda_device if member.nvml_device is None else member.nvml_device
    told = [node.host] if node else []
    told += [f"GPU {gpu}"] if gpu is not None else []
    return f"{rank} ({', '.join(told)})" if told else str(rank)


def ranges(numbers: Iterable[int]) -> str:
    """`0-7, 9` of sorted numbers."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return spans_text(spans)


def spans_text(spans: Iterable[Iterable[int]]) -> str:
    told = []
    for first, last in spans:
        told.append(str(first) if first == last else f"{first}-{last}")
    return ", ".join(told)


def many(count: int, one: str, several: str = "") -> str:
    """`1 pair`, `2 pairs`."""
    return f"{count:,} {one if count == 1 else several or one + 's'}"


# -- What to look at, worst first ------------------------------------------------------------------


def _init(job: Job) -> Iterator[Remark]:
    for one in job.log.communicators:
        if one.complete is not False:
            continue
        stuck = [rank for rank, who in one.members.items() if who.started and not who.complete]
        yield Remark(
            f"init of communicator {one.index} began and did not complete on "
            f"{many(len(stuck), 'rank')}: {ranges(stuck)}",
            tuple(name_rank(job, (one.index,), rank) for rank in stuck),
        )


def _no_edges(job: Job) -> Iterator[Remark]:
    if job.links or job.log.collnet:
        return
    yield Remark("no edges: the logs do not show who talked over what", tuple(_why_no_edges(job)))


def _why_no_edges(job: Job) -> Iterator[str]:
    log = job.log
    informed = log.communicators or log.networks or log.without_ib or log.nvls
    if not informed:
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


def _net_inside(job: Job) -> Iterator[Remark]:
    found = [one for one in job.links if one.placement == INTRA and one.transport.net]
    inside = many(job.sides.get(INTRA, 0), "pair")
    yield from _links(job, found, f"NET inside a node: {{}} of {inside}")


def _socket_beside(job: Job) -> Iterator[Remark]:
    found = [one for one in job.links if one.kind == "NET/Socket"]
    others = sorted({one.kind for one in job.links if one.transport.net} - {"NET/Socket"})
    if others:
        total = _pairs(one for one in job.links if one.transport.net)
        yield from _links(
            job, found, f"NET/Socket beside {', '.join(others)}: {{}} of {many(total, 'pair')}"
        )


def _without_gpudirect(job: Job) -> Iterator[Remark]:
    # Where the ends differ that is said of itself.
    found = [
        one
        for one in job.links
        if one.transport.net and one.placement != INTRA and not one.asymmetric
    ]
    for net in sorted({str(one.transport.net) for one in found if one.transport.gdrdma}):
        mine = [one for one in found if one.transport.net == net]
        without = [one for one in mine if not one.transport.gdrdma]
        text = f"NET/{net} without GPUDirect RDMA beside NET/{net}/GDRDMA: {{}} of "
        yield from _links(job, without, text + many(_pairs(mine), "pair"))


def _asymmetric(job: Job) -> Iterator[Remark]:
    found = [one for one in job.links if one.asymmetric]
    text = f"the two ends use different transports: {{}} of {many(_pairs(job.links), 'pair')}"
    yield from _links(job, found, text, roles=True)


def _node_local_between(job: Job) -> Iterator[Remark]:
    found = [
        one
        for one in job.links
        if one.placement == INTER and not one.transport.net and one.kind != MNNVL
    ]
    yield from _links(
        job,
        found,
        "P2P or SHM between two host names: {} (of P2P only MNNVL reaches another node; are these "
        "containers of one node?)",
    )


def _rare_inside(job: Job) -> Iterator[Remark]:
    """A node where P2P failed falls back to SHM, which is no error and slow."""
    pairs = {kind: count for (side, kind), count in job.pairs.items() if side == INTRA}
    total = job.sides.get(INTRA, 0)
    for kind, count in sorted(pairs.items()):
        links = [one for one in job.links if one.placement == INTRA and one.kind == kind]
        if count <= RARE_SHARE * total and not links[0].transport.net:
            most = max(pairs, key=lambda other: pairs[other])
            text = f"{kind} inside a node, where most are {most}: {{}} of {many(total, 'pair')}"
            yield from _links(job, links, text)


def _networks(job: Job) -> Iterator[Remark]:
    chosen = networks(job)
    if len(chosen) > 1:
        yield Remark(
            "the networks chosen differ",
            tuple(f"{one['network']}: {_hosts(one['hosts'])}" for one in chosen),
        )
    without = {process.host for process in job.log.without_ib}
    hosts = {node.host for placement in job.placements for node in placement.nodes.values()}
    if without and hosts - without:
        yield Remark(
            f"NET/IB found no device on {len(without)} of {len(hosts | without)} hosts: "
            f"{_hosts(sorted(without))}"
        )


def _versions(job: Job) -> Iterator[Remark]:
    if len(job.log.versions) > 1:
        yield Remark(f"NCCL's version differs: {', '.join(job.log.versions)}")


def _silent(job: Job) -> Iterator[Remark]:
    told: dict[str, list[int]] = defaultdict(list)
    for one in job.log.communicators:
        spans = list(silent_ranks(job, one))
        if spans:
            count = sum(last - first + 1 for first, last in spans)
            of = f" of {one.ranks:,}" if one.ranks else ""
            ranks = "rank" if count == 1 else "ranks"
            told[f"{ranks} {spans_text(spans)} ({count:,}{of})"].append(one.index)
    if told:
        yield Remark(
            "some ranks have no line here that is surely theirs; give the logs of all nodes",
            tuple(f"communicator {ranges(whose)}: {text}" for text, whose in told.items()),
        )


def silent_ranks(job: Job, one: Communicator) -> Iterator[tuple[int, int]]:
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


def _unplaced(job: Job) -> Iterator[Remark]:
    unknown = [one for one in job.links if one.placement is None]
    reasons = Counter(count_pairs(unknown, lambda one: one.why))
    if reasons:
        total = _pairs(job.links)
        yield Remark(
            f"whether inside a node or between nodes is unknown of {_pairs(unknown):,} of "
            f"{many(total, 'pair')}",
            tuple(f"{many(count, 'pair')}: {why}" for why, count in reasons.most_common()),
        )


def _torn(job: Job) -> Iterator[Remark]:
    count = job.log.torn_count
    if count:
        yield Remark(
            f"{many(count, 'line')} cut or torn; the edges on them are missing here",
            tuple(str(where) for where in job.log.torn),
        )


_LOOKS: tuple[Callable[[Job], Iterable[Remark]], ...] = (
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


def _pairs(links: Iterable[Link]) -> int:
    """The pairs of ranks of links in the job's order."""
    return sum(1 for _ in groupby(links, key=attrgetter("pair")))


def _links(job: Job, found: list[Link], text: str, roles: bool = False) -> Iterator[Remark]:
    """A remark on links, none where there are none; `{}` in the text is the number of pairs."""
    if not found:
        return
    lines = []
    for one in found:
        source = name_rank(job, one.communicators, one.source)
        destination = name_rank(job, one.communicators, one.destination)
        told = f" ({' and '.join(one.roles)})" if roles and one.roles else ""
        lines.append(f"{source} -> {destination}: {one.wording}{told}: {one.where}")
    yield Remark(text.replace("{}", f"{_pairs(found):,}"), tuple(lines))


def _hosts(names: list[str]) -> str:
    shown = ", ".join(names[:8])
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown or "unknown"
