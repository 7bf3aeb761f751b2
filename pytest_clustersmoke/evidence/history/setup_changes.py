"""Describes what changed between two runs, briefly enough for the first screen."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from ...text import shorten
from ..fingerprint import SHAPE, VERSIONS
from .history_schema import Setup

MAX_NAMED = 4
MAX_VALUE = 40


class StoredSetup(Protocol):
    """A stored run of a phase: what it ran on."""

    @property
    def setup(self) -> Setup: ...
    @property
    def versions(self) -> Mapping[str, str]: ...


def describe_version_changes(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """`nccl 2.19.3 -> 2.21.5` for each version that differs; `unknown` for a missing one."""
    names = [*VERSIONS, *sorted((set(old) | set(new)) - set(VERSIONS))]
    return [
        f"{name} {old.get(name) or 'unknown'} -> {new.get(name) or 'unknown'}"
        for name in names
        if old.get(name) != new.get(name)
    ]


def describe_setup_changes(
    old: StoredSetup, hardware: str, shape: str, new: Mapping[str, str]
) -> list[str]:
    """Changes of versions, hardware and shape. A side whose ranks never started is not compared."""
    changes = describe_version_changes(old.versions, new) if old.versions and new else []
    if old.setup.hardware and hardware and old.setup.hardware != hardware:
        changes.append(f"hardware {old.setup.hardware} -> {hardware}")
    return changes + describe_shape_changes(old.setup.shape, shape)


def describe_shape_changes(old: str, new: str) -> list[str]:
    """The keys that differ between two shapes, which are JSON; the text, if one was cut."""
    if old == new:
        return []
    try:
        before, after = json.loads(old), json.loads(new)
        names = sorted(before.keys() | after.keys())
    except (ValueError, AttributeError):
        return [f"shape {_shorten_value(old)} -> {_shorten_value(new)}"]
    return [
        f"{name if name in SHAPE or name.startswith('args.') else f'args.{name}'} "
        f"{_shorten_value(before.get(name, 'unset'))} -> {_shorten_value(after.get(name, 'unset'))}"
        for name in names
        if before.get(name) != after.get(name)
    ]


def describe_node_changes(old: Iterable[str], new: Iterable[str]) -> list[str]:
    """`nodes: node4, not node1`."""
    before, after = set(old), set(new)
    added, gone = sorted(after - before), sorted(before - after)
    changes = ([list_names(added)] if added else []) + ([f"not {list_names(gone)}"] if gone else [])
    return [f"nodes: {', '.join(changes)}"] if changes else []


def list_names(names: Sequence[str]) -> str:
    """The first MAX_NAMED names, then how many are left out."""
    return shorten(names, MAX_NAMED)


def _shorten_value(value: object) -> str:
    text = str(value) or "unknown"
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]}..."
