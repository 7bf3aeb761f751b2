"""What one node and one rank wrote down; a metric beside its reference; the words of a check.

Every file read here was written by a job, so its content is hostile text: a value of the wrong kind
counts as missing, and what is missing is never a pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .telemetry import Events, number

# Outcomes of a job by which the cluster was not measured: it did not fail, and it did not pass.
NOT_MEASURED = {"never_ran", "preempted", "cancelled", "lost"}


@dataclass(frozen=True)
class NodeResult:
    """One node: its facts, and how its part of the job ended (empty where it never said).

    `scheduled` is the scheduler's name of a node that wrote nothing, where it is known.
    """

    node_rank: int
    facts: Mapping[str, Any]
    result: Mapping[str, Any]
    scheduled: str = ""

    @property
    def name(self) -> str:
        said = self.facts.get("node") or self.result.get("node") or self.scheduled
        return str(said or f"node {self.node_rank}")

    @property
    def host(self) -> str:
        return str(self.facts.get("host") or self.result.get("host") or "unknown")

    @property
    def ok(self) -> bool:
        return self.result.get("ok") is True

    @property
    def paused_s(self) -> float:
        """How long the job stood still here, with all its processes."""
        told = number(self.result.get("paused_s"))
        return told if told is not None and math.isfinite(told) else 0.0

    def version(self, name: str) -> str | None:
        """The version of a package, or of the GPUs' `driver`, on this node."""
        gpus, held = self.facts.get("gpus"), self.facts.get("packages")
        if name == "driver":
            held = gpus[0] if isinstance(gpus, list) and gpus else None
            name = "driver_version"
        value = held.get(name) if isinstance(held, dict) else None
        return None if value is None else str(value)


@dataclass(frozen=True)
class RankResult:
    """One rank: who it was, and the events it wrote."""

    rank: int
    events: Events

    @cached_property
    def start(self) -> dict[str, Any]:
        return self.events.last("start") or {}

    @property
    def done(self) -> bool:
        return self.events.last("done") is not None

    @property
    def node(self) -> str:
        return str(self.start.get("node", "unknown"))

    @property
    def host(self) -> str:
        return str(self.start.get("host", "unknown"))

    @property
    def local_rank(self) -> int | None:
        value = self.start.get("local_rank")
        return value if isinstance(value, int) else None

    def __str__(self) -> str:
        kind, _, index = str(self.start.get("device", "")).partition(":")
        gpu = f", GPU {index}" if kind == "cuda" and index.isdigit() else ""
        return f"rank {self.rank} ({self.node}{gpu})"

    def facts(self) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for record in self.events.named("fact"):
            values = record.get("values")
            merged |= values if isinstance(values, dict) else {}
        return merged

    def metrics(self) -> dict[str, float]:
        record = self.events.last("metrics") or {}
        values = record.get("values")
        pairs = values.items() if isinstance(values, dict) else ()
        return {name: value for name, raw in pairs if (value := number(raw)) is not None}
