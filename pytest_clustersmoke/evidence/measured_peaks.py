"""What the ranks of a phase measured of their devices before they trained.

The events were written by a job: a figure that is not a positive number counts as missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..text import sanitize_line
from .device_links import CardSpeed, DevicePair, PcieLink, parse_cards, parse_link, parse_pairs
from .job_results import RankResult
from .node_observation import DeviceFigure
from .phase_result import PhaseResult
from .telemetry import parse_finite, parse_int, parse_rows, parse_text

MAX_FIGURES, MAX_TEXT = 64, 100  # of a rank
ONCE = ("once", "always")
MEASURED_IN = "peaks in "


@dataclass(frozen=True)
class RankPeaks:
    """The `peaks` event of a rank: its figures, and how often the device multiplied two matrices
    whose product is known. `measured_in`: the phase that measured this device before."""

    rank: RankResult
    figures: tuple[DeviceFigure, ...]
    calls: int
    wrong: int
    answer: int | None  # the sum of the bits of most products
    precision: str
    measured_in: str
    seconds: float | None
    not_measured: dict[str, str] = field(default_factory=dict)
    cpu: str = ""  # the model of the node's CPU
    near_device: bool = False  # the host's memory of copies was taken next to the device
    link: PcieLink | None = None  # between the host and the device
    pairs: tuple[DevicePair, ...] = ()  # copies to the other GPUs of the node
    cards: tuple[CardSpeed, ...] = ()  # of the node, each alone between two of its GPUs

    @property
    def device(self) -> str:
        """What its event names the device; empty if it measured none."""
        return next((figure.device for figure in self.figures if figure.device), "")


def read_rank_peaks(rank: RankResult) -> RankPeaks | None:
    """None if the rank wrote no event, since it did not get so far, or nobody asked it."""
    event = rank.events.last("peaks")
    if event is None:
        return None
    reasons = event.get("not_measured")
    return RankPeaks(
        rank,
        tuple(_read_figures(rank, event)),
        max(0, parse_int(event.get("calls")) or 0),
        max(0, parse_int(event.get("wrong")) or 0),
        parse_int(event.get("answer")),
        parse_text(event.get("precision")) or "",
        parse_text(event.get("measured_in")) or "",
        parse_finite(event.get("seconds")),
        {
            str(name): why
            for name, why in (reasons.items() if isinstance(reasons, dict) else ())
            if isinstance(why, str)
        },
        sanitize_line((parse_text(event.get("cpu")) or "")[:MAX_TEXT]),
        event.get("near_device") is True,
        parse_link(event.get("pcie_link")),
        parse_pairs(event.get("pairs")),
        parse_cards(event.get("cards")),
    )


def _read_figures(rank: RankResult, event: dict[str, Any]) -> list[DeviceFigure]:
    figures = []
    models = (rank.device_name, parse_text(event.get("cpu")))
    of_device, of_node = (sanitize_line((model or "")[:MAX_TEXT]) for model in models)
    for record in parse_rows(event.get("figures"))[:MAX_FIGURES]:
        texts = [parse_text(record.get(key)) for key in ("device", "name", "unit")]
        device, name, unit = (sanitize_line((text or "")[:MAX_TEXT]) for text in texts)
        value = parse_finite(record.get("value"))
        if None not in texts and value is not None and value >= 0:
            higher = record.get("higher_is_better") is True
            model = of_device if device else of_node
            figures.append(DeviceFigure(rank.node, device, name, value, unit, higher, model=model))
    return figures


def measured_in(phase: str) -> str:
    """What a phase has judged whose devices another phase of the run measured. Kinds are joined
    with commas."""
    return MEASURED_IN + phase.replace(",", ";")


def first_attempt(result: PhaseResult) -> PhaseResult:
    """The attempt of a phase whose ranks measure their devices."""
    return (*result.earlier, result)[0]


def read_peaks(ranks: Sequence[RankResult]) -> list[RankPeaks]:
    """What the ranks measured; those that measured nothing are left out."""
    found = (read_rank_peaks(rank) for rank in ranks)
    return [peaks for peaks in found if peaks is not None]
