"""What changed between two runs, in words short enough for the first screen."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from ..fingerprint import SHAPE, VERSIONS
from .history_query import PhaseRun

MAX_NAMED = 4
MAX_VALUE = 40


def version_changes(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """`nccl 2.19.3 -> 2.21.5` for each version that differs; `unknown` where a side has none."""
    names = [*VERSIONS, *sorted((set(old) | set(new)) - set(VERSIONS))]
    return [
        f"{name} {old.get(name) or 'unknown'} -> {new.get(name) or 'unknown'}"
        for name in names
        if old.get(name) != new.get(name)
    ]


def setup_changes(old: PhaseRun, hardware: str, shape: str, new: Mapping[str, str]) -> list[str]:
    """What differs of versions, hardware and shape. Ranks that never were say nothing of these."""
    words = version_changes(old.versions, new) if old.versions and new else []
    if old.setup.hardware and hardware and old.setup.hardware != hardware:
        words.append(f"hardware {old.setup.hardware} -> {hardware}")
    return words + shape_changes(old.setup.shape, shape)


def shape_changes(old: str, new: str) -> list[str]:
    """The keys that differ of two shapes, which are JSON; of one that was cut, the words."""
    if old == new:
        return []
    try:
        before, after = json.loads(old), json.loads(new)
        names = sorted(before.keys() | after.keys())
    except (ValueError, AttributeError):
        return [f"shape {_short(old)} -> {_short(new)}"]
    return [
        f"{name if name in SHAPE or name.startswith('args.') else f'args.{name}'} "
        f"{_short(before.get(name, 'unset'))} -> {_short(after.get(name, 'unset'))}"
        for name in names
        if before.get(name) != after.get(name)
    ]


def node_changes(old: Iterable[str], new: Iterable[str]) -> list[str]:
    """`nodes: node4, not node1`."""
    before, after = set(old), set(new)
    come, gone = sorted(after - before), sorted(before - after)
    words = ([named(come)] if come else []) + ([f"not {named(gone)}"] if gone else [])
    return [f"nodes: {', '.join(words)}"] if words else []


def named(names: Sequence[str]) -> str:
    """Some names, and how many more."""
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def _short(value: object) -> str:
    words = str(value) or "unknown"
    return words if len(words) <= MAX_VALUE else f"{words[:MAX_VALUE]}..."
