"""Slurm's lists of nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

# More than any cluster has; a list that a job wrote may name more than there is memory for.
MOST = 100_000
# Slurm's own limit (HIGHEST_DIMENSIONS in its slurm.h).
MOST_RANGES = 5
# What stands before a range, the range, and what follows, in which there may be more ranges; or a
# plain name.
_PART = re.compile(r"([^,\[]*)\[([^\[\]]*)\]((?:[^,\[]|\[[^\[\]]*\])*)|([^,\[]+)")
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?", re.ASCII)


def expand_hostlist(hosts: str) -> list[str]:
    """The names in a node list such as `rack[0-1]n[00-03,7],login`."""
    return list(islice(_names(hosts), MOST))


def _names(hosts: str) -> Iterator[str]:
    for before, ranges, after, plain in _PART.findall(hosts):
        if plain:
            yield plain
            continue
        if after.count("[") >= MOST_RANGES:
            continue
        tails = expand_hostlist(after) if after else [""]
        for number in _numbers(ranges) if tails else ():
            yield from (f"{before}{number}{tail}" for tail in tails)


def _numbers(ranges: str) -> Iterator[str]:
    """The numbers of `08-10,7`, as wide as they are written."""
    for part in ranges.split(","):
        if found := _RANGE.fullmatch(part):
            first, last = found[1], found[2] or found[1]
            for number in range(int(first), int(last) + 1):
                yield f"{number:0{len(first)}d}"
