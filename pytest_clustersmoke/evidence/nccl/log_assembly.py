"""Assembles observations into a Log of frozen values, in a stable order."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from functools import lru_cache
from operator import attrgetter

from .attribution import Attribution
from .communicators import Communicators
from .grammar import FINAL
from .nccl_log import CollNet, Edge, Log, NcclProcess, Where, parse_transport
from .observations import LAST, WHOLE, EdgeKey, Group, Observations, iterate_edges

Groups = Mapping[tuple[int, int], Group]
Cut = dict[EdgeKey, Where]


def assemble(logged: Observations) -> Log:
    """Build the log from all observations."""
    seen = logged.edges or logged.quoted
    cut = _find_cut_edges(logged, seen)
    communicators = Communicators(logged)
    edges = list(_make_edges(logged, Attribution(logged, communicators), seen, cut))
    _sort(edges)
    ignored = sum(map(len, logged.quoted.values())) if logged.edges else 0
    return Log(
        versions=tuple(sorted(logged.versions)),
        edges=tuple(edges),
        # After the edges: an edge may show the process of a rank whose init was not logged.
        communicators=tuple(communicators.finished()),
        collnet=tuple(sorted(_make_collnet(logged), key=attrgetter("rank", "wording", "role"))),
        warnings=tuple(logged.warnings.values()),
        networks={process: tuple(names) for process, names in logged.networks.items()},
        without_ib=tuple(logged.without_ib),
        nvls=frozenset(logged.nvls),
        torn=(*logged.torn, *cut.values()),
        torn_count=logged.torn_count + len(cut) + ignored,
        informed=logged.informed,
    )


def _make_edges(
    logged: Observations, owners: Attribution, groups: Groups, cut: Cut
) -> Iterator[Edge]:
    shared: dict[tuple[int, int], tuple[NcclProcess | None, str | None]] = {}
    for key, seen in iterate_edges(groups):
        if key in cut:
            continue
        thread, source, destination, index = key
        variant = logged.variants[index]
        logger = shared.get((thread, index))
        if logger is None:
            process = logged.threads[thread].process if thread >= 0 else None
            logger = shared[thread, index] = process, _find_nic(logged, process, variant.wording)
        yield Edge(
            source=source,
            destination=destination,
            wording=variant.wording,
            channels=_list_channels(seen.channels),
            connection=variant.connection,
            role=variant.role,
            logger=logger[0],
            nic=logger[1],
            where=seen.where,
            communicators=owners.of(key),
        )


def _find_cut_edges(logged: Observations, groups: Groups) -> Cut:
    """The edges from incomplete lines (the last of a file, one that lost its newline) whose wording
    may be incomplete: `NET/IB/3` instead of `NET/IB/3/GDRDMA`.

    An incomplete line is trusted if a complete line has the same wording for the same pair, if
    nothing can be added to its wording, or if complete lines have its form (the wording without
    numbers) and none has a longer form. At the end of a file it is enough that none has a longer
    form: pasted text often ends without a newline, and a cut seldom falls between two words.
    """
    unsure = {key: edge for key, edge in iterate_edges(groups) if edge.ended < WHOLE}
    if not unsure:
        return {}
    wordings = [variant.wording for variant in logged.variants]
    pairs = {key[1:3] for key in unsure}
    whole = [key for key, edge in iterate_edges(groups) if edge.ended >= WHOLE]
    complete = sorted({wordings[index] for index in {key[3] for key in whole}})
    forms = sorted({_mask_numbers(wording) for wording in complete})
    confirmed = {(key[1:3], wordings[key[3]]) for key in whole if key[1:3] in pairs}
    return {
        key: edge.where
        for key, edge in unsure.items()
        if (key[1:3], wording := wordings[key[3]]) not in confirmed
        and FINAL.fullmatch(wording) is None
        and (
            (edge.ended < LAST and _mask_numbers(wording) not in forms)
            or _has_longer(wording, complete)
            or _has_longer(_mask_numbers(wording), forms)
        )
    }


def _mask_numbers(wording: str) -> str:
    return re.sub(r"\d+", "0", wording)


def _has_longer(words: str, others: list[str]) -> bool:
    """Whether one of the others, which are sorted, continues this wording."""
    after = bisect_right(others, words)
    return after < len(others) and others[after].startswith(words)


def _sort(edges: list[Edge]) -> None:
    """Sort by ranks, wording, connection, role and place. One key at a time, the last first: half a
    million tuples as keys would need more memory than the edges."""
    edges.sort(key=attrgetter("where"))
    edges.sort(key=lambda edge: edge.role or "")
    edges.sort(key=lambda edge: -1 if edge.connection is None else edge.connection)
    for name in ("wording", "destination", "source"):
        edges.sort(key=attrgetter(name))


def _make_collnet(logged: Observations) -> Iterator[CollNet]:
    for (process, rank, wording, role), seen in logged.collnet.items():
        yield CollNet(
            rank=rank,
            wording=wording,
            channels=_list_channels(seen.channels),
            role=role,
            logger=process,
            nic=_find_nic(logged, process, wording),
            where=seen.where,
        )


def _find_nic(logged: Observations, process: NcclProcess | None, wording: str) -> str | None:
    """The NIC's name in the logger's own list. The InfiniBand plugins (`IBext_v8`) print theirs
    under NET/IB, which then has no list of its own."""
    transport = parse_transport(wording)
    if transport.net is None or transport.device is None:
        return None
    for net in (transport.net, "IB") if transport.net.startswith("IB") else (transport.net,):
        names = logged.devices.get((process, net))
        if names is not None and names.get(transport.device):
            return names[transport.device]
    return None


@lru_cache(maxsize=4096)
def _list_channels(bits: int) -> tuple[int, ...]:
    return tuple(channel for channel in range(bits.bit_length()) if bits >> channel & 1)
