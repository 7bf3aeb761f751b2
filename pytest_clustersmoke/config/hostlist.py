"""Expand Slurm's host lists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

# More than any cluster has. A list in a job's output could name more than memory can hold.
MAX_HOSTS = 100_000
# Slurm's own limit (HIGHEST_DIMENSIONS in its slurm.h).
MAX_RANGES = 5
# Text before a range, the range, and the rest, which may hold more ranges; or a plain name.
_PART = re.compile(r"([^,\[]*)\[([^\[\]]*)\]((?:[^,\[]|\[[^\[\]]*\])*)|([^,\[]+)")
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?", re.ASCII)


def read_host_option(text: str) -> str:
    """The node list that `nodelist` or `exclude` of sbatch gives: names with commas or spaces
    between them, or, if the text has a slash, those in the file of that path, without its comments
    (`#` to the end of a line, as Slurm's slurm_read_hostfile cuts them). Raises OSError if the file
    cannot be read, and ValueError if it holds no text."""
    listed = re.sub(r"(?<!\\)#.*", "", Path(text).read_text()) if "/" in text else text
    return re.sub(r"[\s,]+", ",", listed.strip())


def expand_hostlist(hosts: str) -> list[str]:
    """The names in a node list such as `rack[0-1]n[00-03,7],login`."""
    return list(islice(_names(hosts), MAX_HOSTS))


def _names(hosts: str) -> Iterator[str]:
    for before, ranges, after, plain in _PART.findall(hosts):
        if plain:
            yield plain
            continue
        if after.count("[") >= MAX_RANGES:
            continue
        tails = expand_hostlist(after) if after else [""]
        for number in _numbers(ranges) if tails else ():
            yield from (f"{before}{number}{tail}" for tail in tails)


def _numbers(ranges: str) -> Iterator[str]:
    """The numbers of `08-10,7`, padded as written."""
    for part in ranges.split(","):
        if match := _RANGE.fullmatch(part):
            first, last = match[1], match[2] or match[1]
            for number in range(int(first), int(last) + 1):
                yield f"{number:0{len(first)}d}"
