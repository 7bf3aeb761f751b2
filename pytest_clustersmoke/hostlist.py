"""Slurm's lists of nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

# More than any cluster has; a list that a job wrote may name more than there is memory for.
MOST = 100_000


def expand(hosts: str) -> list[str]:
    """The names in a node list such as `gpu[0-2,7],login`."""
    return list(islice(_names(hosts), MOST))


def _names(hosts: str) -> Iterator[str]:
    for prefix, ranges, suffix in re.findall(r"([^,\[]+)(?:\[([^\]]*)\])?([^,\[]*)", hosts):
        if not ranges:
            yield prefix + suffix
            continue
        for part in ranges.split(","):
            first, _, last = part.partition("-")
            if not first.isdecimal() or not (last or first).isdecimal():
                continue
            for number in range(int(first), int(last or first) + 1):
                yield f"{prefix}{number:0{len(first)}d}{suffix}"
