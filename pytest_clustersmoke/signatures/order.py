"""All that was found in a job's logs -> findings, the first cause first."""

from __future__ import annotations

from collections.abc import Iterable

from ..findings import Evidence, Finding
from .place import Time
from .search import Line, Match, Search
from .unknown import WEIGHTS

UNKNOWN = "unknown"
UNKNOWN_FIX = (
    "read the log around that line; NCCL_DEBUG=INFO and TORCH_DISTRIBUTED_DEBUG=DETAIL make the "
    "next run say more"
)
Key = tuple[bool, Time, int, int]
NEVER: Time = (0, 0, 0, 0, 0.0)


def findings(search: Search) -> list[Finding]:
    """Causes before what follows from them; within each by time, else by file and line."""
    matches = search.matches
    exact = {
        one.signature.id
        for one in matches.values()
        if one.signature.primary and not one.signature.general
    }
    exact -= {name for name in exact if exact & set(matches[name].signature.follows)}
    clock = _Clock(line for one in matches.values() for line in one.lines)
    unknown = None if exact else _unknown(search)
    told = [unknown] if unknown else []
    for one in sorted(matches.values(), key=lambda one: clock.first(one.lines)):
        primary = one.signature.id in exact
        if one.signature.general:
            follows = set(one.signature.follows) & set(matches)
            primary = not exact and unknown is None and not follows
        told.append(_finding(one, primary))
    return sorted(told, key=lambda one: not one.primary)


def _finding(match: Match, primary: bool) -> Finding:
    said = ", ".join(f"{words} {value}" for words, value in match.names.items())
    return Finding(
        match.signature.id,
        match.signature.cause + (f" ({said})" if said else ""),
        match.signature.fix,
        primary,
        tuple(Evidence(line.file, line.number, line.text) for line in match.lines),
        tuple(match.hosts),
        tuple(sorted(match.ranks)),
        {"lines": match.count, "more": match.capped},
    )


def _unknown(search: Search) -> Finding | None:
    errors = search.unknown.errors
    if not errors:
        return None
    clock = _Clock(line for _, line, _, _ in errors)
    error, line, hosts, ranks = min(
        errors, key=lambda one: (WEIGHTS[one[0].kind], clock.first([one[1]]))
    )
    where = f" ({error.where})" if error.where else ""
    return Finding(
        UNKNOWN,
        f"unknown cause; the first error: {line.text}{where}",
        UNKNOWN_FIX,
        True,
        (Evidence(line.file, line.number, line.text),),
        tuple(hosts),
        tuple(ranks),
        {"lines": 1, "more": False},
    )


class _Clock:
    """When lines were written. A line without a time was written before those behind it in its
    file, so it takes the time of the next of them that has one."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self._times: dict[tuple[int, int], Time | None] = {}
        later: dict[int, Time] = {}
        for line in sorted(lines, key=lambda line: (line.source, -line.number)):
            if line.time is not None:
                later[line.source] = line.time
            self._times[line.source, line.number] = later.get(line.source)

    def first(self, lines: list[Line]) -> Key:
        return min(self._key(line) for line in lines)

    def _key(self, line: Line) -> Key:
        time = self._times[line.source, line.number]
        return time is None, time or NEVER, line.source, line.number
