"""Judges what the GPUs of a node counted during a phase."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ...evidence.finding import Finding
from ...evidence.telemetry import parse_int, parse_rows
from ...evidence.variable_names import show_value
from ...text import FAILURE, WARNING, format_bytes
from ..gpu_counters import subtract_counters
from .node_values import Node

# Counters of damage, and what happened in words.
DAMAGE = {
    "ecc_uncorrected": "uncorrectable memory errors",
    "remapped_uncorrected": "rows of its memory replaced after such an error",
}
# A counter, the finding about it, the least of it, and what it counts.
WEAR = (
    ("retired_pages", "gpu-memory-wear", 1, "pages of its memory retired"),
    (
        "remapped_corrected",
        "gpu-memory-wear",
        1,
        "rows of its memory replaced after correctable errors",
    ),
    ("pcie_replays", "gpu-link-errors", 100, "repeated packets on its PCIe link"),
    ("nvlink_recoveries", "gpu-link-errors", 1, "recoveries of its NVLinks"),
    ("nvlink_replays", "gpu-link-errors", 100, "repeated packets on its NVLinks"),
    ("nvlink_crc_errors", "gpu-link-errors", 1000, "packets with errors on its NVLinks"),
)
HELD_DOWN = {
    "thermal_ns": "by its temperature",
    "board_limit_ns": "by its board's limit",
    "reliability_ns": "by its voltage",
}
LEAST_HELD_NS = 10**9
# NVLinks are silent that carried less than this share of what those of the other GPUs of the job on
# the node carried, if that was so much, and there are so many others.
SILENT, LEAST_BYTES, LEAST_OTHERS = 0.05, 64 * 2**20, 2
# Bits of NVML's clock event reasons that a healthy GPU under load does not show.
HARDWARE_SLOWDOWN, HW_THERMAL, POWER_BRAKE = 0x8, 0x40, 0x80
FIX = "look for its Xid in the kernel log, and take the node out of service if it happens again"
RESEAT = "reseat the card, or have its slot and riser checked"
PEER = (
    "look at nvidia-smi topo -m and nvidia-smi nvlink -s, and in NCCL's log for why it went around"
)
COOLING = "check the node's cooling, its power supplies and the GPU's power cap (nvidia-smi -q)"


def check_gpu_deltas(node: Node, readings: Any, ours: Collection[str]) -> Iterator[Finding]:
    """All findings about the GPUs of a node, by its two readings. Those besides `ours`, the UUIDs
    of the job's GPUs, are no damage to the job."""
    pair = readings if isinstance(readings, dict) else {}
    first, last = (_by_uuid(pair.get(when)) for when in ("before", "after"))
    for uuid, after in last.items():
        before = first.get(uuid, {})
        counted = subtract_counters(before, after)
        for words in _damage(counted, before, after):
            if uuid in ours:
                yield _find(node, "gpu-errors-during-job", uuid, words, FIX, FAILURE)
            else:
                foreign = "; it is not known to be one of the job's GPUs"
                yield _find(node, "gpu-memory-wear", uuid, words, FIX, WARNING, foreign)
        yield from _wear(node, uuid, counted)
        yield from _held_down(node, uuid, counted, after)
    yield from _silent_links(node, first, last, ours)


def _silent_links(
    node: Node,
    first: Mapping[str, Mapping[str, Any]],
    last: Mapping[str, Mapping[str, Any]],
    ours: Collection[str],
) -> Iterator[Finding]:
    """The job's GPUs whose NVLinks carried nearly nothing while those of the others did."""
    name = "nvlink_bytes"
    counts = {
        uuid: subtract_counters(first.get(uuid, {}), after).get(name)
        for uuid, after in last.items()
        if uuid in ours
    }
    carried = {uuid: count for uuid, count in counts.items() if count is not None}
    for uuid, count in carried.items():
        others = [more for other, more in carried.items() if other != uuid]
        usual = statistics.median(others) if len(others) >= LEAST_OTHERS else 0
        if usual >= LEAST_BYTES and count < SILENT * usual:
            words = f"{format_bytes(count)} on its NVLinks, and the job's other GPUs there "
            words += f"{format_bytes(usual)} each"
            yield _find(node, "nvlink-silent", uuid, words, PEER, WARNING)


def _by_uuid(reading: Any) -> dict[str, dict[str, Any]]:
    gpus = parse_rows(reading.get("gpus")) if isinstance(reading, dict) else []
    return {str(gpu["uuid"]): gpu for gpu in gpus if isinstance(gpu.get("uuid"), str)}


def _damage(
    counted: Mapping[str, int], before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[str]:
    for name, words in DAMAGE.items():
        if count := counted.get(name):
            yield f"{count:,} {words}"
    if after.get("remap_failed") == 1 and before.get("remap_failed") == 0:
        yield "a bad row of its memory that could not be replaced"


def _wear(node: Node, uuid: str, counted: Mapping[str, int]) -> Iterator[Finding]:
    for name, identity, least, words in WEAR:
        if (count := counted.get(name, 0)) >= least:
            yield _find(node, identity, uuid, f"{count:,} {words}", FIX, WARNING)


def _held_down(
    node: Node, uuid: str, counted: Mapping[str, int], after: Mapping[str, Any]
) -> Iterator[Finding]:
    for name, words in HELD_DOWN.items():
        if (held := counted.get(name, 0)) >= LEAST_HELD_NS:
            text = f"clocks held down {words} for {held / 1e9:.1f} s"
            yield _find(node, "gpu-clocks-held-down", uuid, text, COOLING, WARNING)
    reasons = parse_int(after.get("clock_event_reasons")) or 0
    if reasons & (HARDWARE_SLOWDOWN | HW_THERMAL | POWER_BRAKE):
        text = f"clocks slowed down by the hardware at the job's end (reasons {reasons:#x})"
        yield _find(node, "gpu-clocks-held-down", uuid, text, COOLING, WARNING)
    width, most = (parse_int(after.get(name)) for name in ("pcie_width", "pcie_max_width"))
    if width and most and width < most:
        text = f"{width} of the {most} lanes of its PCIe link in use"
        yield _find(node, "pcie-link-narrow", uuid, text, RESEAT, WARNING)


def _find(
    node: Node,
    identity: str,
    uuid: str,
    words: str,
    fix: str,
    severity: str,
    remark: str = "",
) -> Finding:
    cause = f"{show_value(uuid)} had {words} during the job{remark}"
    return node.build_finding(identity, cause, fix, "gpus", severity, uuid=uuid)
