"""What changed between runs, in words short enough for the first screen."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..identity import SHAPE, VERSIONS

if TYPE_CHECKING:
    from .query import PhaseRun

MAX_NAMED = 4
MAX_VALUE = 40


def versions(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """`nccl 2.19.3 -> 2.21.5` for each version that differs; `unknown` where a side has none."""
    names = [*VERSIONS, *sorted((set(old) | set(new)) - set(VERSIONS))]
    return [
        f"{name} {old.get(name) or 'unknown'} -> {new.get(name) or 'unknown'}"
        for name in names
        if old.get(name) != new.get(name)
    ]


def setup(old: PhaseRun, hardware: str, shape: str, new: Mapping[str, str]) -> list[str]:
    """What differs of versions, hardware and shape. Ranks that never were say nothing of these."""
    words = versions(old.versions, new) if old.versions and new else []
    if old.setup.hardware and hardware and old.setup.hardware != hardware:
        words.append(f"hardware {old.setup.hardware} -> {hardware}")
    if old.setup.shape != shape:
        words += shapes(old.setup.shape, shape)
    return words


def shapes(old: str, new: str) -> list[str]:
    """What differs of two shapes: of their JSON the keys, of other words all."""
    before, after = _object(old), _object(new)
    if before is None or after is None:
        return [f"shape {_short(old)} -> {_short(new)}"]
    return [
        f"{_of_shape(name)} "
        f"{_short(before.get(name, 'unset'))} -> {_short(after.get(name, 'unset'))}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def nodes(old: Iterable[str], new: Iterable[str]) -> list[str]:
    """`nodes: node4, not node1`."""
    before, after = set(old), set(new)
    come, gone = sorted(after - before), sorted(before - after)
    words = ([named(come)] if come else []) + ([f"not {named(gone)}"] if gone else [])
    return [f"nodes: {', '.join(words)}"] if words else []


def named(names: Sequence[str]) -> str:
    """Some names, and how many more."""
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def _of_shape(name: str) -> str:
    return name if name in SHAPE or name.startswith("args.") else f"args.{name}"


def _object(shape: str) -> dict[str, object] | None:
    try:
        value = json.loads(shape)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _short(value: object) -> str:
    words = str(value) or "unknown"
    return words if len(words) <= MAX_VALUE else f"{words[:MAX_VALUE]}..."
