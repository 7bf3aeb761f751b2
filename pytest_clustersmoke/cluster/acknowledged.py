"""What the keys of an entry of `known` mean together: what their kinds alone do not show.

An acknowledgement stands for somebody's word, so it must be exact and short-lived: one that would
answer for everything, for a phase that does not run here, or for longer than LONGEST_DAYS is
refused. One that has expired is no mistake: it counts for nothing, and a run says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from fnmatch import fnmatchcase
from typing import Any

from pytest_clustersmoke.cluster.checks import Fault
from pytest_clustersmoke.cluster.fields import day_of
from pytest_clustersmoke.errors import near
from pytest_clustersmoke.hostlist import MOST, expand

# A quarter: whoever answers for a failure looks at it again at least so often.
LONGEST_DAYS = 90
# A name with numbers in one pair of brackets, with wildcards only behind it; or a name alone.
_RANGE = r"\d{1,9}(?:-\d{1,9})?"
_HOST = rf"(?:[^,\[\]\s*?]+\[{_RANGE}(?:,{_RANGE})*\][^,\[\]\s]*|[^,\[\]\s]+)"
HOST_LIST = re.compile(rf"{_HOST}(?:,{_HOST})*")
# A criterion's own name; its parameters may stand in brackets.
ONE_NAME = re.compile(r"\w+(?:\[[^*?\[\]]*\])?")
_TARGETS = ("node", "phase", "criterion")


def check(profile: Mapping[str, Any]) -> Iterator[Fault]:
    """Every fault of the entries that can be seen; values of the wrong kind are left to the
    schema."""
    entries, phases = profile.get("known"), profile.get("phases")
    listed = list(phases) if isinstance(phases, Mapping) else []
    for index, entry in enumerate(entries if isinstance(entries, tuple) else ()):
        if isinstance(entry, Mapping):
            yield from _entry(("known", index), entry, listed)


def _entry(
    route: tuple[str | int, ...], entry: Mapping[str, Any], phases: list[str]
) -> Iterator[Fault]:
    given = [key for key in _TARGETS if entry.get(key) is not None]
    if given not in (["node"], ["phase", "criterion"]):
        has = " and ".join(f"`{key}`" for key in given) or "neither `node` nor `phase`"
        yield Fault(
            (*route, given[0]) if given else route,
            f"{'{at}' if given else f'{{at}}[{route[-1]}]'} has {has}",
            "either `node`, or `phase` with `criterion`",
        )
        return
    globs = {key: entry[key] for key in given if isinstance(entry[key], str)}
    if "node" in globs and not _is_host_list(globs["node"]):
        yield Fault(
            (*route, "node"),
            f"`node: {globs['node']}` in {{at}} is no list of nodes",
            "names as Slurm writes them (`gpu[10-12,20],login1`), with `*` and `?` as wildcards; "
            "`[` opens a range of numbers",
        )
    elif len(globs) == len(given) and _is_everything(globs, phases):
        yield Fault(
            (*route, given[0]),
            f"{' and '.join(f'`{key}: {glob}`' for key, glob in globs.items())} in {{at}} answers "
            "for every failure",
            "the names of what is known to fail",
        )
    phase = globs.get("phase")
    if phase is not None and phases and not any(fnmatchcase(name, phase) for name in phases):
        yield Fault(
            (*route, "phase"),
            f"`{phase}` in {{at}} matches no phase that is listed under `phases`",
            f"one of {', '.join(f'`{name}`' for name in phases)}",
            near(phase, phases),
        )
    yield from _day(route, entry.get("until"))


def _is_host_list(text: str) -> bool:
    """Whether the whole text is a list that expand() reads, and no range of it is empty."""
    if HOST_LIST.fullmatch(text) is None:
        return False
    ranges = [one for group in re.findall(r"\[([^]]*)\]", text) for one in group.split(",")]
    ends = [one.partition("-")[::2] for one in ranges]
    forward = all(int(first) <= int(last or first) for first, last in ends)
    return forward and len(expand(text)) < MOST


def _is_everything(globs: Mapping[str, str], phases: list[str]) -> bool:
    """Whether an entry answers for whatever fails: any node, or any phase's job or criteria."""
    if "node" in globs:
        names = expand(globs["node"])
        return any(not re.search(r"\w", name.partition(".")[0]) for name in names)
    phase, criterion = globs["phase"], globs["criterion"]
    every = set(phase) <= set("*?") or (
        re.search(r"[*?\[]", phase) and all(fnmatchcase(name, phase) for name in phases)
    )
    return bool(every) and (criterion == "job" or ONE_NAME.fullmatch(criterion) is None)


def _day(route: tuple[str | int, ...], value: Any) -> Iterator[Fault]:
    day, last = day_of(value), date.today() + timedelta(days=LONGEST_DAYS)
    if day is not None and day > last:
        yield Fault(
            (*route, "until"),
            f"{{at}}.until is `{value}`, more than {LONGEST_DAYS} days ahead",
            f"a day up to {last.isoformat()}",
            "an acknowledgement is to be looked at again and renewed",
        )
