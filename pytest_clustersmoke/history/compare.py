"""Two runs side by side: what differs, and by how much."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..references import show
from ..telemetry import plain
from . import changes
from .past import LEAST, WARN_SPREADS, WINDOW, Level, level
from .query import Measured, PastRun, PhaseRun, phase_runs, phases_of, setup_ids

if TYPE_CHECKING:
    from sqlite3 import Connection

NONE = "none"


@dataclass(frozen=True)
class Pair:
    """A metric in both runs; None where a run has it not. `told` is how far they must lie apart to
    be told, in the metric's unit."""

    metric: str
    unit: str
    first: float | None
    second: float | None
    told: float
    higher_is_better: bool

    @property
    def percent(self) -> float | None:
        """The difference in percent of the first."""
        if self.first is None or self.second is None or not self.first:
            return None
        share = (self.second - self.first) / abs(self.first) * 100
        return share if math.isfinite(share) else None

    @property
    def differs(self) -> bool:
        if self.first is None or self.second is None:
            return True
        if not (math.isfinite(self.first) and math.isfinite(self.second)):
            return str(self.first) != str(self.second)
        return self.first != self.second and abs(self.second - self.first) >= self.told

    def words(self) -> str:
        """`steps_per_s 9.500 -> 6.600 steps/s (-30.5 %), worse`."""
        first, second = (NONE if one is None else show(one) for one in (self.first, self.second))
        text = f"{self.metric} {first} -> {second} {self.unit}"
        if self.percent is None:
            return text
        better = (self.percent > 0) == self.higher_is_better
        return f"{text} ({self.percent:+.1f} %), {'better' if better else 'worse'}"


@dataclass(frozen=True)
class PhasePair:
    """A phase in both runs; None where a run has it not."""

    name: str
    first: PhaseRun | None
    second: PhaseRun | None
    criteria: dict[str, tuple[str, str]] = field(default_factory=dict)  # those that differ
    metrics: tuple[Pair, ...] = ()

    @property
    def outcomes(self) -> tuple[str, str]:
        first, second = (one.outcome if one else NONE for one in (self.first, self.second))
        return first, second

    def differences(self) -> list[str]:
        """What of outcome, criteria and metrics differs, in words."""
        words = []
        if self.outcomes[0] != self.outcomes[1]:
            words.append(f"{self.outcomes[0]} -> {self.outcomes[1]}")
        words += [f"{name} {old} -> {new}" for name, (old, new) in self.criteria.items()]
        return words + [pair.words() for pair in self.metrics if pair.differs]

    def surroundings(self) -> list[str]:
        """What else differs: versions, hardware, arguments."""
        if self.first is None or self.second is None:
            return []
        new = self.second
        return changes.setup(self.first, new.setup.hardware, new.setup.shape, new.versions)


@dataclass(frozen=True)
class Comparison:
    """Two runs, the first being what the second is measured against."""

    first: PastRun
    second: PastRun
    phases: tuple[PhasePair, ...]

    def differences(self) -> list[str]:
        """What differs of verdict, outcomes, criteria and metrics, in words."""
        words = []
        if self.first.verdict != self.second.verdict:
            words.append(f"verdict {self.first.verdict} -> {self.second.verdict}")
        return words + [
            f"{one.name}: {text}"
            for one in self.phases
            if one not in self._alone()
            for text in one.differences()
        ]

    def _alone(self) -> list[PhasePair]:
        """Phases that only one of the runs was asked for."""
        if self.first.selection == self.second.selection:
            return []
        return [one for one in self.phases if NONE in one.outcomes]

    def surroundings(self) -> list[str]:
        """What else differs, in words: of several phases each thing once."""
        words: dict[str, list[str]] = {}
        for one in self.phases:
            for text in one.surroundings():
                words.setdefault(text, []).append(one.name)
        told = [f"{text} ({changes.named(names)})" for text, names in words.items()]
        old, new = self.first.package_version, self.second.package_version
        if old != new:
            told.append(f"pytest-clustersmoke {old} -> {new}")
        for place, other in enumerate(("second", "first")):
            names = [one.name for one in self._alone() if one.outcomes[place] == NONE]
            if names:
                told.append(f"in the {other} run alone: {', '.join(names)}")
        return told + changes.nodes(*(self._nodes(second) for second in (False, True)))

    def _nodes(self, second: bool) -> set[str]:
        sides = [one.second if second else one.first for one in self.phases]
        return {node for one in sides if one is not None for node in one.nodes}

    def as_dict(self) -> dict[str, Any]:
        """As JSON; pairs are of the first and the second run."""
        return {
            "runs": [_run(self.first), _run(self.second)],
            "differ": bool(self.differences()),
            "differences": self.differences(),
            "also_different": self.surroundings(),
            "phases": [_phase(one) for one in self.phases],
        }


def compare(connection: Connection, first: PastRun, second: PastRun) -> Comparison:
    """Put two runs side by side. How far metrics must lie apart to be told follows from the good
    runs of the first one's setup, where there are enough: as far as for a warning, and at least
    5 %."""
    old, new = ({one.phase: one for one in phases_of(connection, run)} for run in (first, second))
    pairs = [
        _pair(connection, name, old.get(name), new.get(name))
        for name in dict.fromkeys([*old, *new])
    ]
    return Comparison(first, second, tuple(pairs))


def _pair(
    connection: Connection, name: str, old: PhaseRun | None, new: PhaseRun | None
) -> PhasePair:
    if old is None or new is None:
        return PhasePair(name, old, new)
    criteria = {
        one: (old.criteria.get(one, NONE), new.criteria.get(one, NONE))
        for one in dict.fromkeys([*old.criteria, *new.criteria])
        if old.criteria.get(one) != new.criteria.get(one)
    }
    past = phase_runs(
        connection,
        old.cluster,
        name,
        good=True,
        setups=setup_ids(connection, old.setup),
        limit=WINDOW,
    )
    return PhasePair(name, old, new, criteria, tuple(_metrics(old, new, past)))


def _metrics(old: PhaseRun, new: PhaseRun, past: list[PhaseRun]) -> Iterable[Pair]:
    for name in dict.fromkeys([*old.metrics, *new.metrics]):
        one = old.metrics.get(name) or new.metrics[name]
        here = level(value for run in past if (value := run.value(name, one.unit)) is not None)
        first, second = old.value(name, one.unit), new.value(name, one.unit)
        yield Pair(name, one.unit, first, second, _told(one, here), one.higher_is_better)


def _told(one: Measured, here: Level | None) -> float:
    least = LEAST * abs(one.value)
    return least if here is None else max(least, here.off(WARN_SPREADS))


def _run(run: PastRun) -> Mapping[str, Any]:
    return {name: value for name, value in vars(run).items() if name != "id"}


def _phase(pair: PhasePair) -> dict[str, Any]:
    sides = (pair.first, pair.second)
    return {
        "phase": pair.name,
        "outcome": list(pair.outcomes),
        "criteria": {name: list(results) for name, results in pair.criteria.items()},
        "versions": [one.versions if one else None for one in sides],
        "nodes": [list(one.nodes) if one else None for one in sides],
        "hardware": [one.setup.hardware if one else None for one in sides],
        "shape": [one.setup.shape if one else None for one in sides],
        "metrics": {one.metric: _metric(one) for one in pair.metrics},
    }


def _metric(pair: Pair) -> dict[str, Any]:
    return {
        "unit": pair.unit,
        "values": [plain(pair.first), plain(pair.second)],
        "percent": pair.percent,
        "told_from": plain(pair.told),
        "differs": pair.differs,
    }
