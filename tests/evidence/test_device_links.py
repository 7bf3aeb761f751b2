"""What the kernel says of the PCIe link to a GPU (a fake sysfs: this machine has no GPU)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.evidence.device_links import PcieLink, describe_link, parse_link
from tests.fakes.sysfs import write_pci_way

FULL = ("32.0 GT/s PCIe", "16", "32.0 GT/s PCIe", "16")
IDLE = ("32.0 GT/s PCIe", "16", "2.5 GT/s PCIe", "16")


def describe(folder: Path, *way: tuple[str, str, str, str] | None, flags: str = "fpu sse2") -> Any:
    cpu_info = folder / "cpuinfo"
    cpu_info.write_text(f"model name\t: EPYC\nflags\t\t: {flags}\n" if flags else "CPU part : 1\n")
    return describe_link(write_pci_way(folder, *way), cpu_info)


def test_link_is_the_narrowest_part_of_the_way(tmp_path: Path) -> None:
    """A slot with eight lanes, behind a switch of the generation before."""
    switch = ("16.0 GT/s PCIe", "16", "16.0 GT/s PCIe", "16")
    slot = ("32.0 GT/s PCIe", "8", "32.0 GT/s PCIe", "8")
    assert describe(tmp_path, FULL, switch, None, slot, FULL) == {
        "gt_per_s": 16.0,
        "lanes": 8,
        "now_gt_per_s": 16.0,
        "now_lanes": 8,
    }


def test_link_that_idles_counts_by_what_it_allows(tmp_path: Path) -> None:
    """An idle link is slow on purpose."""
    link = parse_link(describe(tmp_path, IDLE, IDLE))
    assert link == PcieLink(32.0, 16, (2.5, 16))
    assert link.gb_per_s == pytest.approx(63.0, abs=0.02)


@pytest.mark.parametrize(
    ("text", "lanes", "gb_per_s"),
    [("8 GT/s", "16", 15.75), ("5.0 GT/s PCIe", "8", 4.0), ("64.0 GT/s PCIe", "16", 118.0)],
)
def test_bandwidth_follows_from_speed_and_lanes(
    text: str, lanes: str, gb_per_s: float, tmp_path: Path
) -> None:
    """In the words of old and new kernels."""
    link = parse_link(describe(tmp_path, (text, lanes, text, lanes)))
    assert link is not None and link.gb_per_s == pytest.approx(gb_per_s, abs=0.01)


@pytest.mark.parametrize(
    ("way", "flags", "words"),
    [
        ([FULL], "fpu hypervisor", "this is a virtual machine"),
        ([FULL], "", "does not say whether this is a virtual machine"),
        ([("Unknown", "0", "Unknown", "0")], "fpu", "what the link of 0000:15:00.0 allows"),
        ([("Unknown speed", "255", *FULL[2:]), FULL], "fpu", "does not say what the link"),
        ([FULL, None], "fpu", "does not say what the link"),
    ],
)
def test_link_that_cannot_be_seen_is_unknown(
    way: list[Any], flags: str, words: str, tmp_path: Path
) -> None:
    """In virtual machines, and where the kernel does not know; one part of the way is enough."""
    found = describe(tmp_path, *way, flags=flags)
    assert words in found["unknown"] and parse_link(found) is None


@pytest.mark.parametrize(
    "value",
    [None, 3, {"gt_per_s": 32.0}, {"gt_per_s": "fast", "lanes": 16}, {"gt_per_s": 31, "lanes": 16}],
)
def test_event_that_a_job_made_up_is_no_link(value: Any) -> None:
    """Its text is hostile."""
    assert parse_link(value) is None


def test_speed_now_may_be_unknown(tmp_path: Path) -> None:
    """What the ends allow is enough."""
    assert parse_link(describe(tmp_path, (*FULL[:2], "Unknown", "16"))) == PcieLink(32.0, 16)
