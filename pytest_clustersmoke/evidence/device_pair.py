"""How fast a GPU copies to another one of its node, as a rank wrote it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..text import sanitize_line
from .telemetry import parse_finite, parse_int, parse_rows, parse_text

MAX_PAIRS, MAX_LINK = 64, 40  # of a GPU; characters


@dataclass(frozen=True)
class DevicePair:
    """The local rank of the other GPU, what connects both (empty: unknown), and GB/s one way."""

    to: int
    link: str
    gb_per_s: float


def parse_pairs(value: Any) -> tuple[DevicePair, ...]:
    """From an event, which a job wrote: what is no figure counts as missing."""
    found = []
    for row in parse_rows(value)[:MAX_PAIRS]:
        to, speed = parse_int(row.get("to")), parse_finite(row.get("gb_per_s"))
        link = sanitize_line((parse_text(row.get("link")) or "")[:MAX_LINK])
        if to is not None and to >= 0 and speed is not None and speed > 0:
            found.append(DevicePair(to, link, speed))
    return tuple(found)
