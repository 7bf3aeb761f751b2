"""The results of one node and of one rank.

Every file read here was written by a job, so its content is hostile text: a value of the wrong type
counts as missing, and a missing value is never a pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .telemetry import Events, parse_number

# Outcomes in which the cluster was not measured: it neither failed nor passed.
NOT_MEASURED = {"never_ran", "preempted", "cancelled", "lost"}


@dataclass(frozen=True)
class NodeResult:
    """One node: its facts, and how its part of the job ended (empty if it reported nothing).

    `scheduled` is the scheduler's name of a node that wrote nothing, if known.
    """

    node_rank: int
    facts: Mapping[str, Any]
    result: Mapping[str, Any]
    scheduled: str = ""

    @property
    def name(self) -> str:
        name = self.facts.get("node") or self.result.get("node") or self.scheduled
        return str(name or f"node {self.node_rank}")

    @property
    def host(self) -> str:
        return str(self.facts.get("host") or self.result.get("host") or "unknown")

    @property
    def ok(self) -> bool:
        return self.result.get("ok") is True

    @property
    def paused_s(self) -> float:
        """How long the job was suspended on this node."""
        seconds = parse_number(self.result.get("paused_s"))
        return seconds if seconds is not None and math.isfinite(seconds) else 0.0

    def version(self, name: str) -> str | None:
        """The version of a package, or of the GPUs' `driver`, on this node."""
        gpus, versions = self.facts.get("gpus"), self.facts.get("packages")
        if name == "driver":
            versions = gpus[0] if isinstance(gpus, list) and gpus else None
            name = "driver_version"
        value = versions.get(name) if isinstance(versions, dict) else None
        return None if value is None else str(value)


@dataclass(frozen=True)
class RankResult:
    """One rank and the events it wrote."""

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
        return {name: value for name, raw in pairs if (value := parse_number(raw)) is not None}
