"""The least that a copy between host and GPU must reach, by the PCIe link that the node has.

It needs no peer and no past, so it holds on the first day. It is a floor and no target. One H100
whose link carries 63.0 GB/s reached 55.3, a share of 0.88; through the other socket of a node
copies take up to 1.8 times as long, which leaves 0.49; half of that is the floor. A link that
trained to a quarter of its lanes, or two generations down, falls below it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..config.metrics import show
from ..evidence.device_links import PcieLink, show_ends
from ..evidence.node_observation import DeviceFigure

SHARE = 0.25
COPIES = ("host_to_device_gb_per_s", "device_to_host_gb_per_s")


@dataclass(frozen=True)
class FloorMiss:
    """A copy that is slower than the floor of its link; `at`: its number in the figures."""

    figure: DeviceFigure
    link: PcieLink
    at: int

    def __str__(self) -> str:
        figure, link = self.figure, self.link
        words = (
            f"its {figure.name} is {show(figure.value)} {figure.unit}; its PCIe link ({link}) "
            f"carries {show(link.gb_per_s)} GB/s, of which at least {SHARE:.0%} was expected"
        )
        is_less = link.now is not None and link.now != (link.gt_per_s, link.lanes)
        return f"{words}; it ran at {show_ends(link.now)}" if is_less and link.now else words


def choose_link(link: PcieLink | None, model: str) -> PcieLink | None:
    """The link that a GPU of this model has to itself: a part of a GPU (MIG) has a part of it."""
    return None if "MIG" in model.upper().split() else link


def find_below_floor(
    figures: Sequence[DeviceFigure], links: Sequence[PcieLink | None]
) -> Iterator[FloorMiss]:
    """The copies below the floor, each figure with its link; None where it is unknown, or where
    another job may use it."""
    for number, (figure, link) in enumerate(zip(figures, links, strict=True)):
        if link is not None and figure.name in COPIES and figure.value < SHARE * link.gb_per_s:
            yield FloorMiss(figure, link, number)


def describe_floor(links: Sequence[PcieLink | None]) -> str:
    """The lowest floor; empty if there is none."""
    known = [link.gb_per_s for link in links if link is not None]
    return f"{show(SHARE * min(known))} GB/s" if known else ""
