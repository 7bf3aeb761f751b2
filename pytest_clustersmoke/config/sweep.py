"""Sweeps: a phase that lists several values for some of its arguments is one phase for each
combination of them, a point, with a name of its own."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

MOST_POINTS = 100
LONGEST_LABEL = 100  # of a directory's name, which has 255 characters at most
ARGUMENT, ARGUMENT_FORM = (
    r"[A-Za-z][A-Za-z0-9_]*",
    "letters, digits and `_`, starting with a letter",
)
# Names and values are part of the names of directories, Slurm's jobs and tests. Only a number has a
# dot: a rerun of a phase has its name, a dot and a word.
_TEXT = re.compile(r"[A-Za-z0-9_+-]+", re.ASCII)

Sweep = Mapping[str, Sequence[Any]]
Point = Mapping[str, Any]


def list_points(sweep: Sweep) -> list[Point]:
    """Every combination of the values, in the order in which they are written; none without a
    sweep."""
    if not sweep:
        return []
    return [dict(zip(sweep, values, strict=True)) for values in product(*sweep.values())]


def label(point: Point) -> str:
    """`learning_rate-0.0003-steps-20`: only characters that `-k` and node ids of pytest allow."""
    return "-".join(f"{name}-{value}" for name, value in point.items())


def find_mistake(sweep: object) -> tuple[str, str] | None:
    """What is wrong with a sweep, as the end of a sentence about it, and what was expected; None if
    nothing is."""
    if not isinstance(sweep, Mapping):
        return "is not a mapping", "argument: [value, value]"
    for name, values in sweep.items():
        if not isinstance(name, str) or not re.fullmatch(ARGUMENT, name):
            return f"has an argument named {name!r}", ARGUMENT_FORM
        if not isinstance(values, list | tuple) or not values:
            return f"has no list of values for {name!r}", "argument: [value, value]"
        for value in values:
            if not _can_be_named(value):
                expected = "a finite number, true, false, or text of letters, digits and `_+-`"
                return f"has {name}={value!r}", f"{expected}: a name is made from it"
        twice = [text for text, count in Counter(map(str, values)).items() if count > 1]
        if twice:
            return f"has {name}={twice[0]} twice", "each value once"
    points = prod(map(len, sweep.values()))
    if points > MOST_POINTS:
        return f"has {points:,} points", f"at most {MOST_POINTS}"
    labels = [label(point) for point in list_points(sweep)]
    if len(set(labels)) < len(labels):
        twice = [text for text, count in Counter(labels).items() if count > 1]
        return f"has two points named `{twice[0]}`", "values that make different names"
    longest = max(labels, key=len, default="")
    if len(longest) > LONGEST_LABEL:
        expected = f"names and values of at most {LONGEST_LABEL} characters together"
        return f"makes the name `{longest}`, which is too long", expected
    return None


def _can_be_named(value: object) -> bool:
    if isinstance(value, str):
        return _TEXT.fullmatch(value) is not None
    return isinstance(value, int | float) and math.isfinite(value)
