"""Judges bandwidths that ranks measured: elements, times, equally fast ranks, dips at large sizes.

The judges take what a suite read from its own records; they fail, or raise Unmeasured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..evidence.metric import Unmeasured, fail
from ..evidence.phase_result import PhaseResult
from ..evidence.telemetry import parse_number
from ..text import format_bytes

# From this size on, bandwidth dominates latency: at 64 MiB even eight H100s at 480 GB/s take 0.25
# ms, ten times as long as for 8 bytes. Below it, NCCL switches algorithm (tree, ring, NVLS) and
# protocol (LL, LL128, Simple) by estimated times, and a drop there is not a fault: two healthy
# nodes fell from 32 to 19 GB/s between 32 and 64 MiB (aws-ofi-nccl issue 65).
LARGE_BYTES = 2**26
# More bytes only use the same links better: the bus bandwidth of a healthy cluster rises to a
# plateau and stays there within a few percent.
DIP = 0.05
# In a collective, all ranks wait for each other and end microseconds apart (one pass of its
# pipeline), while a large size takes milliseconds. A larger difference is the slow rank's fault.
SPREAD = 0.10
# Tolerance between recorded values and those computed from recorded times; all are 64-bit floats.
ROUNDING = 1e-6


def require_network(phase: PhaseResult) -> None:
    """Raise Unmeasured if the times say nothing about a network."""
    __tracebackhide__ = True
    if phase.backend != "nccl":
        raise Unmeasured(
            "bandwidth",
            f"the ranks talked over {phase.backend}, on shared CPU cores: the times measure the "
            "cores, not a network",
        )
    if phase.spec.get("backend") == "local" and phase.spec["nodes"] > 1:
        raise Unmeasured(
            "bandwidth", "the nodes are virtual: one machine's loopback is not a network"
        )


def check_elements(label: str, record: Mapping[str, Any], wanted: int) -> None:
    """Fail unless `wanted` elements were checked and none is wrong."""
    __tracebackhide__ = True
    checked, wrong, first = (record.get(key) for key in ("checked", "wrong", "first_wrong"))
    if type(checked) is not int or checked != wanted:
        fail(f"{label}: {checked!r} elements were checked, expected all {wanted}")
    if type(wrong) is not int or wrong < 0:
        fail(f"{label}: {wrong!r} elements were wrong; expected a count")
    if wrong:
        shown = first if isinstance(first, dict) else {}
        fail(
            f"{label}: {wrong} of {wanted} elements are wrong, the first is element "
            f"{shown.get('index')!r}: found {shown.get('found')!r}, "
            f"expected {shown.get('expected')!r}"
        )


def read_time(record: Mapping[str, Any], key: str, label: str) -> float:
    """A time in a record, in seconds; fails if it is not a positive number."""
    __tracebackhide__ = True
    value = parse_number(record.get(key))
    if value is None or not 0 < value < math.inf:
        fail(f"{key} of {label} is {record.get(key)!r}; expected a positive time")
    return value


def check_recorded(phase: PhaseResult, expected: Mapping[str, float]) -> None:
    """Each rank recorded these metrics; `expected` follows from the times of all ranks."""
    __tracebackhide__ = True
    for name, value in expected.items():
        for rank in phase.ranks:
            reported = rank.metrics().get(name, math.nan)
            if not math.isclose(reported, value, rel_tol=ROUNDING):
                fail(f"{rank} reports {reported} as {name}; its times give {value}")


def check_spread(label: str, seconds: Mapping[str, float]) -> None:
    """All ranks took the same time for a collective, within SPREAD; `seconds` is by rank."""
    __tracebackhide__ = True
    slow, fast = max(seconds, key=seconds.__getitem__), min(seconds, key=seconds.__getitem__)
    if seconds[slow] > seconds[fast] * (1 + SPREAD):
        fail(
            f"{label} took {seconds[slow] * 1e3:.3f} ms on {slow} and {seconds[fast] * 1e3:.3f} ms "
            f"on {fast}; expected within {SPREAD:.0%} of each other"
        )


def check_dips(name: str, speeds: Mapping[int, float]) -> None:
    """No size's bus bandwidth is more than DIP below a smaller one's; `speeds` are GB/s by bytes,
    from LARGE_BYTES on, the smallest size first."""
    __tracebackhide__ = True
    best = next(iter(speeds))
    for size, speed in speeds.items():
        if speed < speeds[best] * (1 - DIP):
            fail(
                f"the bus bandwidth of {name} falls from {speeds[best]:.2f} GB/s at "
                f"{format_bytes(best)} to {speed:.2f} GB/s at {format_bytes(size)}; "
                f"expected a fall of {DIP:.0%} at most"
            )
        best = max(best, size, key=speeds.__getitem__)
