"""A job's transports as text for people: what there is, what stands out, who talked over what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ..logs.paper import Paper, clean
from . import tables
from .job import Job
from .model import Communicator
from .record import networks
from .remarks import Remark, many, ranges, remarks

MAX_COMMUNICATORS = 8
MAX_NODES = 8
MAX_EXAMPLES = 4
MAX_WARNINGS = 20


def text(job: Job, paper: Paper, everything: bool = False) -> Iterator[str]:
    """Lines: header, remarks, summary, edges, warnings."""
    yield from head(job, paper, everything)
    if job.links:
        yield ""
        yield from tables.summary(job, paper)
        yield ""
        yield from tables.edges(job, paper, everything)
    yield from tail(job, paper, everything)


def head(job: Job, paper: Paper, everything: bool = False) -> Iterator[str]:
    """What there is, and what stands out."""
    log = job.log
    version = " and ".join(log.versions) or "(version unknown)"
    told = [
        many(len(log.communicators), "communicator"),
        many(len(job.links), "edge"),
        f"{many(len(job.files), 'file')} read",
    ]
    for line in paper.wrap(clean(f"NCCL {version}: {', '.join(told)}"), rest="  "):
        yield paper.bold(line)
    yield from _communicators(job, paper, everything)
    yield from paper.wrap(clean(_networks(job)), rest="  ")
    yield from paper.wrap(clean(_in_network(job)), rest="  ")
    found = remarks(job)
    if found:
        yield ""
        for one in found:
            yield from _remark(one, paper, everything)


def tail(job: Job, paper: Paper, everything: bool = False) -> Iterator[str]:
    """NCCL's own warnings."""
    warnings = job.log.warnings
    if not warnings:
        return
    yield ""
    yield paper.bold(f"{many(len(warnings), 'NCCL warning')} (NCCL WARN):")
    for warn in warnings if everything else warnings[:MAX_WARNINGS]:
        who = f"{warn.process.host}: " if warn.process else ""
        source = " ".join(filter(None, [warn.source, warn.function and f"({warn.function})"]))
        told = f"{warn.where}: {who}{warn.text}" + (f" [{source}]" if source else "")
        told += f" ({warn.count:,} times)" if warn.count > 1 else ""
        yield from paper.wrap(clean(told), "  ", "    ")
    if not everything and len(warnings) > MAX_WARNINGS:
        yield f"  ... and {len(warnings) - MAX_WARNINGS:,} more (--all)"


# -- Header ----------------------------------------------------------------------------------------


def _communicators(job: Job, paper: Paper, everything: bool) -> Iterator[str]:
    found = job.log.communicators
    if len(found) > MAX_COMMUNICATORS and not everything:
        crowds = Counter(_says(job, one) for one in found)
        for says, count in crowds.most_common(MAX_COMMUNICATORS):
            yield from paper.wrap(f"{many(count, 'communicator')}: {says}", rest="  ")
        if len(crowds) > MAX_COMMUNICATORS:
            yield f"... and {len(crowds) - MAX_COMMUNICATORS} more sizes (--all)"
        return
    for one in found:
        name = f"communicator {one.index}" + (f" (id {one.id})" if one.id else "")
        yield from paper.wrap(clean(f"{name}: {_says(job, one)}"), rest="  ")
        yield from _nodes(job, one, paper, everything)


def _says(job: Job, one: Communicator) -> str:
    """`16 ranks on 2 nodes, init complete`."""
    nodes = job.nodes(one)
    ranks = "ranks unknown" if one.ranks is None else many(one.ranks, "rank")
    where = ", nodes unknown" if nodes is None else f" on {many(nodes, 'node')}"
    done = sum(who.complete for who in one.members.values())
    if one.complete:
        init = "init complete"
    elif one.complete is False:
        init = f"init not complete (it is on {done:,})"
    elif done:
        init = f"init complete on {done:,}, unknown of the others"
    else:
        init = "init unknown"
    return f"{ranks}{where}, {init}"


def _nodes(job: Job, one: Communicator, paper: Paper, everything: bool) -> Iterator[str]:
    placement = job.placements[one.index]
    names = list(placement.ranks_of)
    twice = {host for host, count in Counter(node.host for node in names).items() if count > 1}
    shown = [
        (
            clean(node.host + (f" ({node.scope})" if node.host in twice else "")),
            f"{'rank' if len(ranks) == 1 else 'ranks'} {ranges(ranks)}",
        )
        for node, ranks in placement.ranks_of.items()
    ]
    most = len(shown) if everything or len(shown) <= MAX_NODES else MAX_NODES // 2
    width = max((len(name) for name, _ in shown[:most]), default=0)
    for name, ranks in shown[:most]:
        yield from paper.wrap(f"{name.ljust(width)}  {ranks}", "  ", "      ")
    if most < len(shown):
        yield f"  ... and {len(shown) - most:,} more nodes"


def _networks(job: Job) -> str:
    chosen = networks(job)
    if not chosen:
        return "network chosen: unknown"
    told = ", ".join(
        f"{one['network']} on {many(len(one['hosts']), 'host')}"
        if one["hosts"]
        else f"{one['network']}"
        for one in chosen
    )
    return f"network chosen: {told} (only the edges show what carried anything)"


def _in_network(job: Job) -> str:
    nvls = [one.index for one in job.log.communicators if one.nvls]
    if nvls and len(nvls) == len(job.log.communicators):
        told = "connected"
    elif nvls:
        told = f"connected in {many(len(nvls), 'communicator')}"
    else:
        told = "connected" if job.log.nvls else "no connection logged"
    kinds = Counter((one.kind, one.rank) for one in job.log.collnet)
    ranks = Counter(kind for kind, _ in kinds)
    collnet = ", ".join(f"{kind} by {many(count, 'rank')}" for kind, count in sorted(ranks.items()))
    return f"NVLS: {told}; CollNet: {collnet or 'no connection logged'}"


def _remark(one: Remark, paper: Paper, everything: bool) -> Iterator[str]:
    lines = paper.wrap(clean(one.text), "! ", "  ")
    yield from (paper.yellow(line) for line in lines)
    most = len(one.examples) if everything else MAX_EXAMPLES
    for example in one.examples[:most]:
        yield from paper.wrap(clean(example), "    ", "      ")
    if len(one.examples) > most:
        yield f"    ... and {len(one.examples) - most:,} more (--all)"
