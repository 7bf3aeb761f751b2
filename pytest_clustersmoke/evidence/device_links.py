"""How a GPU is linked: to the host by PCIe, and to the other GPUs of its node; and what network
cards of the node carry between two of its GPUs.

Of the PCIe link: what its ends allow, and how it runs.

The kernel shows both of each device on the way from the GPU to the processor (Linux,
Documentation/ABI/testing/sysfs-bus-pci). An idle link runs slowly on purpose, so what its ends
allow says what it should carry: the lowest speed and the fewest lanes on the way. A virtual machine
hides the way; there the link is unknown, and so it is where the kernel does not say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..text import sanitize_line
from .node_observation import DeviceFigure
from .telemetry import parse_finite, parse_int, parse_ints, parse_rows, parse_text

CPU_INFO = Path("/proc/cpuinfo")
HEAD_BYTES = 2**14  # of a file that has a block for each core
# Of what a lane transfers, by GT/s, the share that is data: 8b/10b, 128b/130b, and flits of 256
# bytes that carry 236 (PCI Express Base Specification 6.0, 4.2).
DATA_SHARE = {
    2.5: 0.8,
    5.0: 0.8,
    8.0: 128 / 130,
    16.0: 128 / 130,
    32.0: 128 / 130,
    64.0: 236 / 256,
}
LANES = (1, 2, 4, 8, 12, 16, 32)
Ends = tuple[float, int]  # GT/s, lanes


@dataclass(frozen=True)
class PcieLink:
    """What its ends allow, and how it ran, if that is known."""

    gt_per_s: float
    lanes: int
    now: Ends | None = None

    @property
    def gb_per_s(self) -> float:
        """One way, before the headers of packets."""
        return self.gt_per_s * DATA_SHARE[self.gt_per_s] * self.lanes / 8

    def __str__(self) -> str:
        return show_ends((self.gt_per_s, self.lanes))


def show_ends(ends: Ends) -> str:
    """`32 GT/s x16`."""
    return f"{ends[0]:g} GT/s x{ends[1]}"


def describe_link(device: Path, cpu_info: Path = CPU_INFO) -> dict[str, Any]:
    """What an event says of the link of a device in sysfs: what its ends allow and how it runs now,
    or why that is unknown."""
    if why := _find_veil(cpu_info):
        return {"unknown": why}
    way = list(_walk(device))
    most, now = (_find_narrowest(way, which) for which in ("max", "current"))
    if most is None:
        return {"unknown": f"the kernel does not say what the link of {device.name} allows"}
    fields = {"gt_per_s": most[0], "lanes": most[1]}
    return fields | ({"now_gt_per_s": now[0], "now_lanes": now[1]} if now else {})


def parse_link(value: Any) -> PcieLink | None:
    """From an event, which a job wrote; None if the link is unknown."""
    fields = value if isinstance(value, dict) else {}
    most, now = (
        _check_ends(parse_finite(fields.get(f"{when}gt_per_s")), parse_int(fields.get(lanes)))
        for when, lanes in (("", "lanes"), ("now_", "now_lanes"))
    )
    return None if most is None else PcieLink(*most, now)


def _find_veil(cpu_info: Path) -> str:
    """Why the way to the processor cannot be seen; empty if it can."""
    try:
        with cpu_info.open(errors="replace") as stream:
            lines = stream.read(HEAD_BYTES).splitlines()
    except OSError:
        lines = []
    flags = next((line.split() for line in lines if line.startswith("flags")), None)
    if flags is None:  # only x86 says it there
        return "the processor does not say whether this is a virtual machine"
    return "this is a virtual machine" if "hypervisor" in flags else ""


def _walk(device: Path) -> Iterator[Path]:
    """The device, and all bridges up to the processor, that have a link."""
    place = device.resolve()
    for step in (place, *place.parents):
        if step.name.startswith("pci"):  # the root: pci0000:15
            return
        if step == place or (step / "max_link_speed").exists():
            yield step


def _find_narrowest(way: list[Path], which: str) -> Ends | None:
    """The lowest speed and the fewest lanes on the way; None if any is unknown."""
    found = [
        _check_ends(_read_speed(step / f"{which}_link_speed"), _read_lanes(step, which))
        for step in way
    ]
    known = [ends for ends in found if ends is not None]
    if not known or len(known) < len(found):
        return None
    return min(speed for speed, _ in known), min(lanes for _, lanes in known)


def _check_ends(speed: float | None, lanes: int | None) -> Ends | None:
    return (speed, lanes) if speed in DATA_SHARE and lanes in LANES else None


def _read_speed(path: Path) -> float | None:
    """`32.0 GT/s PCIe`, of older kernels `8 GT/s`."""
    number, _, unit = _read_word(path).partition(" ")
    try:
        return float(number) if unit.startswith("GT/s") else None
    except ValueError:
        return None


def _read_lanes(step: Path, which: str) -> int | None:
    word = _read_word(step / f"{which}_link_width")
    return int(word) if word.isascii() and word.isdigit() and len(word) < 4 else None


def _read_word(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


# Between the GPUs of a node, as a rank wrote it.

PAIRS = "pairs of GPUs"  # where they could not be measured
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


# Through a network card, between two GPUs of the node, as a rank wrote it.

CARD_FIGURE = "nic_busbw_gb_per_s"
MAX_CARDS, MAX_CARD, MAX_WHY = 64, 60, 300  # of a node; characters
GUID = re.compile("[0-9a-f]{16}")


@dataclass(frozen=True)
class CardSpeed:
    """A port of a network card, as NCCL_IB_HCA names it; the GUID of the card (empty: unknown), its
    rate in the kernel's words, and GB/s of an all-reduce between two GPUs of these numbers; None
    with the reason why."""

    name: str
    guid: str
    rate: str
    gb_per_s: float | None
    why: str = ""
    gpus: tuple[int, ...] = ()

    def __str__(self) -> str:
        guid = f", GUID {self.guid}" if self.guid else ""
        return f"network card {self.name} ({self.rate}{guid})"

    def figure(self, node: str) -> DeviceFigure | None:
        """What the card reached, under its GUID, which it keeps in another slot or node; without
        one, under the name that its node gives it."""
        if self.gb_per_s is None:
            return None
        port = self.name.rpartition(":")[2]
        device = f"NIC-{self.guid}:{port}" if self.guid else f"{node}/{self.name}"
        return DeviceFigure(node, device, CARD_FIGURE, self.gb_per_s, "GB/s", True, model=self.rate)


def parse_cards(value: Any) -> tuple[CardSpeed, ...]:
    """From an event, which a job wrote: what is no figure counts as missing."""
    found = []
    for row in parse_rows(value)[:MAX_CARDS]:
        name, rate = (_cut(row.get(key), MAX_CARD) for key in ("name", "rate"))
        guid, speed = _cut(row.get("guid"), MAX_CARD), parse_finite(row.get("gb_per_s"))
        speed = speed if name and speed is not None and speed > 0 else None
        why = "" if speed is not None else _cut(row.get("why"), MAX_WHY) or "no figure"
        guid = guid if GUID.fullmatch(guid) and set(guid) != {"0"} else ""
        gpus = tuple(parse_ints(row.get("gpus")))[:2]
        found.append(CardSpeed(name, guid, rate, speed, why, gpus))
    return tuple(found)


def list_card_figures(node: str, cards: Iterable[CardSpeed]) -> list[DeviceFigure]:
    """The figures of a node's cards; those without one are left out."""
    made = (card.figure(node) for card in cards)
    return [figure for figure in made if figure is not None]


def _cut(value: Any, most: int) -> str:
    return sanitize_line((parse_text(value) or "")[:most])
