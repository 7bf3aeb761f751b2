"""A job's transports as text for people: header, remarks, summary, edges, warnings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from operator import attrgetter

from ..evidence.finding import Finding
from ..evidence.nccl.nccl_log import Communicator, Warn
from ..text import name_ranks, plural, ranges, sanitize_line, shorten, shorten_lines
from .job_transports import JobTransports, hosts_of
from .links import INTER, INTRA, Link
from .subcommand import TextOutput
from .tables import table
from .transport_remarks import RARE_SHARE, list_examples, remarks

MAX_COMMUNICATORS = 8
MAX_NODES = 8
MAX_EXAMPLES = 4
MAX_WARNINGS = 20
MAX_NAMES = 8
ALL = " (--all)"
# Up to this many pairs are all shown; above that, only the rare ones.
FEW_PAIRS = 64
MAX_ROWS = 64
# More rows than this are not aligned, which would take longer than reading the logs.
MAX_TABLE = 1000
UNKNOWN = "unknown"
SIDES = {INTRA: "intra-node", INTER: "inter-node", None: UNKNOWN}
PURPOSES = {0: "collectives", 1: "send/recv"}
LOGGED_BY = {("send",): "sender", ("receive",): "receiver", ("receive", "send"): "both ends"}


def format_transports(
    job: JobTransports, out: TextOutput, everything: bool = False
) -> Iterator[str]:
    """All lines of the text: head, summary, edges and tail."""
    yield from format_head(job, out, everything)
    if job.links:
        yield ""
        yield from _summary(job)
        yield ""
        yield from _edges(job, out, everything)
    yield from format_tail(job, out, everything)


def format_head(job: JobTransports, out: TextOutput, everything: bool = False) -> Iterator[str]:
    """The header and the remarks."""
    log = job.log
    counts = [
        plural(len(log.communicators), "communicator"),
        plural(len(job.links), "edge"),
        f"{plural(len(job.files), 'file')} read",
    ]
    version = " and ".join(log.versions) or "(version unknown)"
    for line in out.wrap(sanitize_line(f"NCCL {version}: {', '.join(counts)}"), rest="  "):
        yield out.bold(line)
    yield from _communicators(job, out, everything)
    yield from out.wrap(sanitize_line(_networks(job)), rest="  ")
    yield from out.wrap(sanitize_line(_in_network(job)), rest="  ")
    all_remarks = remarks(job)
    if all_remarks:
        yield ""
        for remark in all_remarks:
            yield from _remark(remark, out, everything)


def format_tail(job: JobTransports, out: TextOutput, everything: bool = False) -> Iterator[str]:
    """NCCL's own warnings."""
    warnings = job.log.warnings
    if warnings:
        yield ""
        yield out.bold(f"{plural(len(warnings), 'NCCL warning')} (NCCL WARN):")
        most = None if everything else MAX_WARNINGS
        yield from _some(list(map(_warning, warnings)), most, "  ", "    ", out)


def _some(
    texts: Sequence[str], most: int | None, first: str, rest: str, out: TextOutput
) -> Iterator[str]:
    """The lines of the first texts, and how many more there are."""
    for text in shorten_lines(texts, most, ALL):
        yield from out.wrap(sanitize_line(text), first, rest)


# -- Header and warnings ---------------------------------------------------------------------------


def _communicators(job: JobTransports, out: TextOutput, everything: bool) -> Iterator[str]:
    communicators = job.log.communicators
    if len(communicators) > MAX_COMMUNICATORS and not everything:
        sizes = Counter(_size(job, communicator) for communicator in communicators).most_common()
        lines = [f"{plural(count, 'communicator')}: {size}" for size, count in sizes]
        yield from _some(lines, MAX_COMMUNICATORS, "", "  ", out)
        return
    for communicator in communicators:
        name = f"communicator {communicator.index}" + (
            f" (id {communicator.id})" if communicator.id else ""
        )
        yield from out.wrap(sanitize_line(f"{name}: {_size(job, communicator)}"), rest="  ")
        yield from _nodes(job, communicator, out, everything)


def _size(job: JobTransports, communicator: Communicator) -> str:
    """`16 ranks on 2 nodes, init complete`."""
    nodes = job.nodes(communicator)
    ranks = "ranks unknown" if communicator.ranks is None else plural(communicator.ranks, "rank")
    where = ", nodes unknown" if nodes is None else f" on {plural(nodes, 'node')}"
    done = sum(member.complete for member in communicator.members.values())
    if communicator.complete:
        init = "init complete"
    elif communicator.complete is False:
        init = f"init incomplete (complete on {done:,})"
    else:
        init = f"init complete on {done:,}, unknown on the others" if done else "init unknown"
    return f"{ranks}{where}, {init}"


def _nodes(
    job: JobTransports, communicator: Communicator, out: TextOutput, everything: bool
) -> Iterator[str]:
    crowds = job.placements[communicator.index].ranks_of
    twice = Counter(node.host for node in crowds)
    names = [f"{n.host} ({n.scope})" if twice[n.host] > 1 else n.host for n in crowds]
    most = len(names) if everything or len(names) <= MAX_NODES else MAX_NODES // 2
    width = max(map(len, names[:most]), default=0)
    lines = [
        f"{name.ljust(width)}  {name_ranks(ranks)}"
        for name, ranks in zip(names, crowds.values(), strict=True)
    ]
    yield from _some(lines, most, "  ", "      ", out)


def _networks(job: JobTransports) -> str:
    networks = []
    for name, processes in job.networks.items():
        hosts = len(hosts_of(processes))
        networks.append(f"{name} on {plural(hosts, 'host')}" if hosts else name)
    if not networks:
        return "network chosen: unknown"
    return f"network chosen: {', '.join(networks)} (only the edges show what carried data)"


def _in_network(job: JobTransports) -> str:
    with_nvls = sum(bool(communicator.nvls) for communicator in job.log.communicators)
    if 0 < with_nvls < len(job.log.communicators):
        nvls = f"connected in {plural(with_nvls, 'communicator')}"
    else:
        nvls = "connected" if with_nvls or job.log.nvls else "no connection logged"
    ranks = Counter(
        kind for kind, _ in {(connection.kind, connection.rank) for connection in job.log.collnet}
    )
    kinds = [f"{kind} by {plural(count, 'rank')}" for kind, count in sorted(ranks.items())]
    return f"NVLS: {nvls}; CollNet: {', '.join(kinds) or 'no connection logged'}"


def _remark(remark: Finding, out: TextOutput, everything: bool) -> Iterator[str]:
    yield from map(out.yellow, out.wrap(remark.cause, "! ", "  "))
    most = None if everything else MAX_EXAMPLES
    yield from _some(list_examples(remark), most, "    ", "      ", out)


def _warning(warn: Warn) -> str:
    host = f"{warn.process.host}: " if warn.process else ""
    source = " ".join(filter(None, [warn.source, warn.function and f"({warn.function})"]))
    times = f" ({warn.count:,} times)" if warn.count > 1 else ""
    return f"{warn.where}: {host}{warn.text}" + (f" [{source}]" if source else "") + times


# -- Tables ----------------------------------------------------------------------------------------


def _summary(job: JobTransports) -> list[str]:
    """A table with a row for each side and kind."""
    order, rows = list(SIDES), []
    for side, kind in sorted(job.pairs, key=lambda key: (order.index(key[0]), key[1])):
        links = [link for link in job.links if link.placement == side and link.kind == kind]
        used = sorted({number for link in links for number in link.connections})
        purpose = (
            ", ".join(PURPOSES.get(number, f"connection {number}") for number in used) or UNKNOWN
        )
        pairs = f"{job.pairs[side, kind]:,}"
        rows.append([SIDES[side], kind, pairs, purpose, _nic_counts(links)])
    return table(["side", "kind", "#pairs", "used for", "NICs (pairs)"], rows)


def _nic_counts(links: Sequence[Link]) -> str:
    """`mlx5_0 (254), mlx5_1 (254)`: each NIC with its number of pairs."""
    pairs: Counter[str] = Counter()
    for _, same in groupby(links, key=attrgetter("pair")):
        pairs.update({nic for link in same if link.transport.net for nic in link.nics or [UNKNOWN]})
    return shorten([f"{nic} ({count:,})" for nic, count in sorted(pairs.items())], MAX_NAMES)


def _edges(job: JobTransports, out: TextOutput, everything: bool) -> Iterator[str]:
    """All edges if they are few, otherwise the rare ones."""
    links: Sequence[Link] = job.links
    pairs = sum(1 for _ in groupby(links, key=attrgetter("pair")))
    rare = pairs > FEW_PAIRS and not everything
    if rare:
        links = [link for link in links if _is_rare(job, link)]
        title = "rare edges" if links else "no rare edges"
        yield from out.wrap(f"{title} (of {pairs:,} pairs; --all shows all):", rest="  ")
    shown = links[:MAX_ROWS] if rare else links
    titles = ["comm", "edge", "transport", "side", "NIC", "hosts", "channels", "logged by", "at"]
    first = 0 if len(job.log.communicators) > 1 else 1
    rows = chain([titles[first:]], (_row(link)[first:] for link in shown))
    if len(shown) > MAX_TABLE:
        yield from (sanitize_line("  ".join(cell or "-" for cell in row)) for row in rows)
    elif shown:
        yield from table(next(rows), rows)
    if len(shown) < len(links):
        yield f"... and {len(links) - len(shown):,} more{ALL}"


def _is_rare(job: JobTransports, link: Link) -> bool:
    """Whether few pairs of its side use this kind, or it is asymmetric, or is NET inside a node."""
    few = job.pairs[link.placement, link.kind] <= RARE_SHARE * job.sides[link.placement]
    return few or bool(link.asymmetric or (link.placement == INTRA and link.transport.net))


def _row(link: Link) -> list[str]:
    return [
        "|".join(map(str, link.communicators)),
        f"{link.source} -> {link.destination}" + " !" * bool(link.asymmetric),
        link.wording,
        SIDES[link.placement],
        _nics(link),
        _hosts(link),
        ranges(link.channels).replace(" ", "") or UNKNOWN,
        LOGGED_BY.get(link.roles, UNKNOWN),
        str(link.where),
    ]


def _nics(link: Link) -> str:
    if not link.transport.net:
        return ""
    ends = {"send": link.sender_nics, "receive": link.receiver_nics}
    names = [
        shorten(nics, MAX_NAMES) or UNKNOWN for role, nics in ends.items() if role in link.roles
    ]
    return " -> ".join(dict.fromkeys(names)) or shorten(link.nics, MAX_NAMES) or UNKNOWN


def _hosts(link: Link) -> str:
    source, destination = link.ends
    if source and destination and source != destination and source.host == destination.host:
        return f"{source.host} ({source.scope}) -> {destination.host} ({destination.scope})"
    return " -> ".join(dict.fromkeys(node.host if node else UNKNOWN for node in link.ends))
