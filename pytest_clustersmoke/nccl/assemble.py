"""What was seen -> the log as frozen values, in a stable order."""

from __future__ import annotations

from collections.abc import Iterator

from .communicators import Communicators
from .evidence import Logged, Seen
from .model import CollNet, Edge, Log, Process, Where, transport


def assemble(logged: Logged) -> Log:
    """Put together what was seen. Edges of lines that may have been cut are left out where a whole
    line says more."""
    quoted = {} if logged.edges else logged.quoted
    communicators = Communicators(logged)
    edges = sorted(_edges(logged, communicators, quoted), key=_order)
    return Log(
        versions=tuple(sorted(logged.versions)),
        edges=tuple(edges),
        # After the edges: an edge may show who a rank is whose init was not logged.
        communicators=tuple(communicators.finished()),
        collnet=tuple(sorted(_collnet(logged), key=lambda one: (one.rank, one.wording, one.role))),
        warnings=tuple(logged.warnings.values()),
        networks={process: tuple(names) for process, names in logged.networks.items()},
        without_ib=tuple(logged.without_ib),
        nvls=frozenset(logged.nvls),
        torn=tuple(logged.torn),
        torn_count=logged.torn_count + (len(logged.quoted) if logged.edges else 0),
    )


def _edges(
    logged: Logged, communicators: Communicators, quoted: dict[tuple[int, int, int, int], Seen]
) -> Iterator[Edge]:
    cut = {key for key, seen in logged.edges.items() if not seen.whole}
    longer = _longer_wordings(logged, cut)
    for key, seen in (quoted or logged.edges).items():
        thread, source, destination, index = key
        variant = logged.variants[index]
        if key in cut and any(
            more.startswith(variant.wording) for more in longer.get((source, destination), ())
        ):
            continue
        process = logged.threads[thread].process if thread >= 0 else None
        yield Edge(
            source=source,
            destination=destination,
            wording=variant.wording,
            channels=_channels(seen.channels),
            connection=variant.connection,
            role=variant.role,
            logger=process,
            nic=_nic(logged, process, variant.wording),
            where=Where(seen.file, seen.line),
            communicators=communicators.owners(thread, source, destination, variant),
        )


def _longer_wordings(
    logged: Logged, cut: set[tuple[int, int, int, int]]
) -> dict[tuple[int, int], list[str]]:
    """Pair -> the wordings of its whole lines that go beyond those of the lines that were cut."""
    pairs = {(source, destination) for _, source, destination, _ in cut}
    found: dict[tuple[int, int], list[str]] = {pair: [] for pair in pairs}
    for key in logged.edges:
        _, source, destination, index = key
        if (source, destination) in pairs and key not in cut:
            found[source, destination].append(logged.variants[index].wording)
    mine = {pair: [logged.variants[k[3]].wording for k in cut if k[1:3] == pair] for pair in pairs}
    return {
        pair: [one for one in wordings if one not in mine[pair]] for pair, wordings in found.items()
    }


def _collnet(logged: Logged) -> Iterator[CollNet]:
    for (process, rank, wording, role), seen in logged.collnet.items():
        yield CollNet(
            rank=rank,
            wording=wording,
            channels=_channels(seen.channels),
            role=role,
            logger=process,
            nic=_nic(logged, process, wording),
            where=Where(seen.file, seen.line),
        )


def _nic(logged: Logged, process: Process | None, wording: str) -> str | None:
    """The NIC's name in the logger's own list of them; a list without owner counts for all."""
    told = transport(wording)
    if told.net is None or told.device is None:
        return None
    for owner in (process, None):
        names = logged.devices.get((owner, told.net))
        if names is not None and told.device in names:
            return names[told.device]
    return None


def _channels(bits: int) -> tuple[int, ...]:
    return tuple(channel for channel in range(bits.bit_length()) if bits >> channel & 1)


def _order(edge: Edge) -> tuple[int, int, str, int, str, Where]:
    connection = -1 if edge.connection is None else edge.connection
    return (
        edge.source,
        edge.destination,
        edge.wording,
        connection,
        edge.role or "",
        edge.where,
    )
