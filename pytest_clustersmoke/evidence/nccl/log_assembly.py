"""What was seen -> the log as frozen values, in a stable order."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from functools import lru_cache
from operator import attrgetter

from .attribution import Attribution
from .communicators import Communicators
from .grammar import FINAL
from .nccl_log import CollNet, Edge, Log, NcclProcess, Where, transport
from .observations import LAST, WHOLE, EdgeKey, Group, Observations, each

Groups = Mapping[tuple[int, int], Group]
Cut = dict[EdgeKey, Where]


def assemble(logged: Observations) -> Log:
    """Put together what was seen."""
    seen = logged.edges or logged.quoted
    cut = _cut_short(logged, seen)
    communicators = Communicators(logged)
    edges = list(_edges(logged, Attribution(logged, communicators), seen, cut))
    _sort(edges)
    ignored = sum(map(len, logged.quoted.values())) if logged.edges else 0
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
        torn=(*logged.torn, *cut.values()),
        torn_count=logged.torn_count + len(cut) + ignored,
    )


def _edges(logged: Observations, owners: Attribution, groups: Groups, cut: Cut) -> Iterator[Edge]:
    shared: dict[tuple[int, int], tuple[NcclProcess | None, str | None]] = {}
    for key, one in each(groups):
        if key in cut:
            continue
        thread, source, destination, index = key
        variant = logged.variants[index]
        logger = shared.get((thread, index))
        if logger is None:
            process = logged.threads[thread].process if thread >= 0 else None
            logger = shared[thread, index] = process, _nic(logged, process, variant.wording)
        yield Edge(
            source=source,
            destination=destination,
            wording=variant.wording,
            channels=_channels(one.channels),
            connection=variant.connection,
            role=variant.role,
            logger=logger[0],
            nic=logger[1],
            where=one.where,
            communicators=owners.of(key),
        )


def _cut_short(logged: Observations, groups: Groups) -> Cut:
    """The edges whose lines did not end (the last of a file, one that lost its newline), and of
    whose wording something may be lost: `NET/IB/3`, where NCCL wrote `NET/IB/3/GDRDMA`.

    Believed is what a whole line says of the same pair; a wording to which nothing can be added;
    and one whose form (the words, whatever their numbers) whole lines have and none exceeds. At the
    end of a file it is enough that none exceeds it: pasted text often ends without a newline, and a
    cut seldom falls just between two words.
    """
    unsure = {key: one for key, one in each(groups) if one.ended < WHOLE}
    if not unsure:
        return {}
    wordings = [variant.wording for variant in logged.variants]
    pairs = {key[1:3] for key in unsure}
    whole = [key for key, one in each(groups) if one.ended >= WHOLE]
    said = sorted({wordings[index] for index in {key[3] for key in whole}})
    forms = sorted({_form(wording) for wording in said})
    confirmed = {(key[1:3], wordings[key[3]]) for key in whole if key[1:3] in pairs}
    return {
        key: one.where
        for key, one in unsure.items()
        if (key[1:3], wording := wordings[key[3]]) not in confirmed
        and FINAL.fullmatch(wording) is None
        and (
            (one.ended < LAST and _form(wording) not in forms)
            or _goes_on(wording, said)
            or _goes_on(_form(wording), forms)
        )
    }


def _form(wording: str) -> str:
    return re.sub(r"\d+", "0", wording)


def _goes_on(words: str, others: list[str]) -> bool:
    """Whether one of the others, which are sorted, begins with these words and has more."""
    after = bisect_right(others, words)
    return after < len(others) and others[after].startswith(words)


def _sort(edges: list[Edge]) -> None:
    """By ranks, wording, connection, role and place; the keys one by one, last first: a tuple for
    each of half a million edges would cost more memory than the edges."""
    edges.sort(key=attrgetter("where"))
    edges.sort(key=lambda edge: edge.role or "")
    edges.sort(key=lambda edge: -1 if edge.connection is None else edge.connection)
    for name in ("wording", "destination", "source"):
        edges.sort(key=attrgetter(name))


def _collnet(logged: Observations) -> Iterator[CollNet]:
    for (process, rank, wording, role), seen in logged.collnet.items():
        yield CollNet(
            rank=rank,
            wording=wording,
            channels=_channels(seen.channels),
            role=role,
            logger=process,
            nic=_nic(logged, process, wording),
            where=seen.where,
        )


def _nic(logged: Observations, process: NcclProcess | None, wording: str) -> str | None:
    """The NIC's name in the logger's own list of them. The InfiniBand plugins (`IBext_v8`) print
    theirs under NET/IB, which then lists none itself."""
    told = transport(wording)
    if told.net is None or told.device is None:
        return None
    for net in (told.net, "IB") if told.net.startswith("IB") else (told.net,):
        names = logged.devices.get((process, net))
        if names is not None and names.get(told.device):
            return names[told.device]
    return None


@lru_cache(maxsize=4096)
def _channels(bits: int) -> tuple[int, ...]:
    return tuple(channel for channel in range(bits.bit_length()) if bits >> channel & 1)
