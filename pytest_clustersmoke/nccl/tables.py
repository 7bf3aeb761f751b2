"""The tables of a job's edges: how many of which kind, and who talked over what."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from ..logs.paper import Column, Paper, clean
from .job import Job
from .links import INTER, INTRA, Link
from .remarks import RARE_SHARE, ranges

NOTHING, UNKNOWN = "-", "unknown"
SIDES = {INTRA: "intra-node", INTER: "inter-node", None: UNKNOWN}
PURPOSES = {0: "collectives", 1: "send/recv"}
# So many pairs are shown one by one; of more, the rare ones.
FEW_PAIRS = 64
MAX_ROWS = 64
MAX_NAMED = 4
NUMBERED = re.compile(r"(.*\D)(0|[1-9]\d{0,5})", re.DOTALL)


def summary(job: Job, paper: Paper) -> Iterator[str]:
    """A row for each side and kind."""
    order = list(SIDES)
    rows = []
    for side, kind in sorted(job.pairs, key=lambda key: (order.index(key[0]), key[1])):
        links = [one for one in job.links if one.placement == side and one.kind == kind]
        used = sorted({one for link in links for one in link.connections})
        purpose = ", ".join(PURPOSES.get(one, f"connection {one}") for one in used) or UNKNOWN
        count = f"{job.pairs[side, kind]:,}"
        rows.append([SIDES[side], clean(kind), count, purpose, clean(_nic_counts(links))])
    columns = [
        Column("side"),
        Column("kind"),
        Column("pairs", number=True),
        Column("used for", 1),
        Column("NICs (pairs)", 2),
    ]
    yield from paper.table(columns, rows)


def edges(job: Job, paper: Paper, everything: bool) -> Iterator[str]:
    """All edges where they are few, else the rare ones."""
    links: Sequence[Link] = job.links
    pairs = sum(1 for _ in groupby(links, key=attrgetter("pair")))
    if pairs > FEW_PAIRS and not everything:
        links = list(_rare(job))
        if not links:
            told = f"no kind is rare on its side (of {pairs:,} pairs; --all shows all)"
            yield from paper.wrap(told, rest="  ")
            return
        told = f"what is rare on its side (of {pairs:,} pairs; --all shows all):"
        yield from paper.wrap(told, rest="  ")
    rows = list(_rows(links))
    shown = rows if everything or pairs <= FEW_PAIRS else rows[:MAX_ROWS]
    several = len(job.log.communicators) > 1
    cells = [one.cells(several) for one in shown]
    yield from paper.table(*_without_empty(_columns(several), cells))
    if len(shown) < len(rows):
        yield f"... and {len(rows) - len(shown):,} more (--all)"


def _nic_counts(links: Sequence[Link]) -> str:
    """`mlx5_0-7 (254 each)`: the NICs, and the pairs of each; NOTHING where none is to be had."""
    if not links[0].transport.net:
        return NOTHING
    pairs: dict[str, int] = defaultdict(int)
    for _, same in groupby(links, key=attrgetter("pair")):
        for name in {name for link in same for name in link.nics or (UNKNOWN,)}:
            pairs[name] += 1
    by_count: dict[int, list[str]] = defaultdict(list)
    for name, count in sorted(pairs.items()):
        by_count[count].append(name)
    told = [
        f"{_numbered(names)} ({count:,}{' each' if len(names) > 1 else ''})"
        for count, names in sorted(by_count.items(), key=lambda one: one[1])
    ]
    more = f" and {len(told) - MAX_NAMED} more" if len(told) > MAX_NAMED else ""
    return ", ".join(told[:MAX_NAMED]) + more


def _numbered(names: Iterable[str]) -> str:
    """`mlx5_0-3, mlx5_6` as `mlx5_0-3,6`."""
    numbers: dict[str, list[int]] = defaultdict(list)
    plain = []
    for name in names:
        found = NUMBERED.fullmatch(name)
        if found:
            numbers[found.group(1)].append(int(found.group(2)))
        else:
            plain.append(name)
    told = [f"{stem}{ranges(sorted(ends)).replace(' ', '')}" for stem, ends in numbers.items()]
    return _named([*told, *plain])


def _rare(job: Job) -> Iterator[Link]:
    """Links of a kind that few pairs of their side have, asymmetric ones, and those of NET with
    both ends on one node."""
    for link in job.links:
        few = job.pairs[link.placement, link.kind] <= RARE_SHARE * job.sides[link.placement]
        if few or link.asymmetric or (link.placement == INTRA and link.transport.net):
            yield link


@dataclass
class _Row:
    """A link, with what the other end told in its own words: its NIC's number may differ."""

    link: Link
    other: list[Link]

    def tells(self, other: Link) -> bool:
        """Whether the other end's words are of the same connection."""
        shared = not set(self.link.channels).isdisjoint(other.channels)
        return shared and self.link.kind == other.kind

    def cells(self, several: bool) -> list[str]:
        link = self.link
        cells = [
            f"{link.source} -> {link.destination}" + " !" * bool(link.asymmetric),
            link.wording,
            SIDES[link.placement],
            self._nics(),
            _hosts(link),
            ranges(link.channels).replace(" ", "") or UNKNOWN,
            self._logged_by(),
            str(link.where),
        ]
        if several:
            cells.insert(0, _named(map(str, link.communicators), "|"))
        return [clean(cell) for cell in cells]

    def _nics(self) -> str:
        if not self.link.transport.net:
            return NOTHING
        sent = _named(self.link.sender_nics)
        received = _named(
            sorted({nic for link in (self.link, *self.other) for nic in link.receiver_nics})
        )
        if sent == received or not self.link.roles:
            return _named(self.link.nics)
        return f"{sent} -> {received}"

    def _logged_by(self) -> str:
        roles = {role for link in (self.link, *self.other) for role in link.roles}
        if len(roles) > 1:
            return "both ends"
        return {"send": "sender", "receive": "receiver"}.get("".join(roles), UNKNOWN)


def _rows(links: Iterable[Link]) -> Iterator[_Row]:
    """One row for what a sender told and what the receiver told of the same channels and kind."""
    for _, pair in groupby(links, key=attrgetter("pair")):
        same = list(pair)
        rows = [_Row(link, []) for link in same if link.roles != ("receive",)]
        for link in same:
            if link.roles == ("receive",):
                mates = [row for row in rows if row.tells(link)]
                for row in mates:
                    row.other.append(link)
                if not mates:
                    rows.append(_Row(link, []))
        yield from rows


def _columns(several: bool) -> list[Column]:
    columns = [
        Column("edge"),
        Column("transport"),
        Column("side", 8),
        Column("NIC", 6),
        Column("hosts", 5),
        Column("channels", 3),
        Column("logged by", 2),
        Column("at", 4),
    ]
    return [Column("comm", 7), *columns] if several else columns


def _without_empty(
    columns: Sequence[Column], rows: Sequence[Sequence[str]]
) -> tuple[list[Column], list[list[str]]]:
    """Leave out columns that have nothing in any row."""
    kept = [i for i in range(len(columns)) if any(row[i] != NOTHING for row in rows)]
    return [columns[i] for i in kept], [[row[i] for i in kept] for row in rows]


def _hosts(link: Link) -> str:
    source, destination = link.ends
    if source and destination and source != destination and source.host == destination.host:
        return f"{source.host} ({source.scope}) -> {destination.host} ({destination.scope})"
    told = [node.host if node else UNKNOWN for node in link.ends]
    if link.placement == INTRA or told == [UNKNOWN, UNKNOWN]:
        return told[0]
    return " -> ".join(told)


def _named(words: Iterable[str], between: str = ", ") -> str:
    told = list(words)
    more = f" +{len(told) - MAX_NAMED}" if len(told) > MAX_NAMED else ""
    return between.join(told[:MAX_NAMED]) + more or UNKNOWN
