"""What the devices of a screened node reached, as its job wrote it. The node itself imports none of
this: it has a tenth of a second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..text import sanitize_line
from .device_links import CardSpeed, DevicePair, PcieLink, parse_cards, parse_link, parse_pairs
from .node_observation import DeviceFigure
from .screen_files import MAX_NAME, ScreenFiles, parse_words
from .telemetry import parse_finite, parse_int, parse_rows, parse_text
from .whole_files import MAX_NODE_BYTES, read_json

MAX_FIGURES, MAX_DEVICES = 256, 64


@dataclass(frozen=True)
class MeasuredDevice:
    """A device that a node measured: what `figures` name it, what it is, and how often it
    multiplied two matrices whose product is known."""

    identity: str
    model: str
    local_rank: int | None
    on_gpu: bool
    versions: tuple[str, str]  # of torch and CUDA
    precision: str
    calls: int
    wrong: int
    answer: int | None  # the sum of the bits of most products
    not_measured: Mapping[str, str]
    near: bool = False  # the host's memory of copies was taken next to it
    link: PcieLink | None = None  # between the host and it
    pairs: tuple[DevicePair, ...] = ()  # copies to the other GPUs of the node
    cards: tuple[CardSpeed, ...] = ()  # of the node, each alone between two of its GPUs
    cpu: str = ""  # the model of the node's CPU


@dataclass(frozen=True)
class NodeMeasurement:
    """What a node's devices reached. `status` is that of a measurement which ended without."""

    figures: tuple[DeviceFigure, ...] = ()
    devices: tuple[MeasuredDevice, ...] = ()
    status: int | None = None

    @property
    def cards(self) -> tuple[CardSpeed, ...]:
        """What its network cards carried."""
        return tuple(card for device in self.devices for card in device.cards)


def read_measurement(files: ScreenFiles, node: str) -> NodeMeasurement:
    """What a node's job wrote of its devices; empty if it wrote nothing. A row without a figure
    counts as missing."""
    value = read_json(files.figures(node), MAX_NODE_BYTES) or {}
    devices = tuple(_parse_device(row) for row in parse_rows(value.get("devices"))[:MAX_DEVICES])
    models = {device.identity: device.model for device in devices}
    models[""] = devices[0].cpu if devices else ""
    rows = parse_rows(value.get("figures"))[:MAX_FIGURES]
    found = (_parse_figure(node, row) for row in rows)
    return NodeMeasurement(
        tuple(replace(each, model=models.get(each.device, "")) for each in found if each),
        devices,
        parse_int(value.get("status")),
    )


def _parse_figure(node: str, row: Mapping[str, Any]) -> DeviceFigure | None:
    value, name = parse_finite(row.get("value")), parse_text(row.get("name"))
    if value is None or value <= 0 or not name:
        return None
    texts = (parse_text(row.get("device")) or "", name, parse_text(row.get("unit")) or "")
    device, name, unit = (sanitize_line(text)[:MAX_NAME] for text in texts)
    higher = row.get("higher_is_better") is not False
    return DeviceFigure(node, device, name, value, unit, higher)


def _parse_device(row: Mapping[str, Any]) -> MeasuredDevice:
    names = ("identity", "device_name", "device", "torch", "cuda", "precision", "cpu")
    texts = (sanitize_line(parse_text(row.get(name)) or "")[:MAX_NAME] for name in names)
    identity, model, device, torch, cuda, precision, cpu = texts
    return MeasuredDevice(
        identity,
        model,
        parse_int(row.get("local_rank")),
        device.startswith("cuda"),
        (torch, cuda),
        precision,
        max(0, parse_int(row.get("calls")) or 0),
        max(0, parse_int(row.get("wrong")) or 0),
        parse_int(row.get("answer")),
        parse_words(row.get("not_measured")),
        row.get("near_device") is True,
        parse_link(row.get("pcie_link")),
        parse_pairs(row.get("pairs")),
        parse_cards(row.get("cards")),
        cpu,
    )
