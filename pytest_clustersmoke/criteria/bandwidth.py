"""Judges what the ranks of an all-reduce phase measured: results, sizes, times, bandwidths.

Each rank's `measured` events must cover every collective at every size that the phase's arguments
ask for, and bandwidths must follow from the times by nccl-tests' definitions (doc/PERFORMANCE.md
there). Anything missing or of the wrong type fails.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..evidence.job_results import RankResult
from ..evidence.metric import Unmeasured, fail
from ..evidence.phase_result import PhaseResult
from ..evidence.telemetry import parse_number
from ..text import format_bytes

SMALLEST_BYTES = 8
ELEMENT_BYTES = 4  # float32
# In all collectives but all-reduce, each rank has the same share: a multiple of this many bytes.
SHARE_BYTES = 16
# The metric of each collective: its best bus bandwidth over all sizes.
PEAKS = {
    "all_reduce": "busbw_gb_per_s",
    "all_gather": "all_gather_busbw_gb_per_s",
    "reduce_scatter": "reduce_scatter_busbw_gb_per_s",
    "all_to_all": "all_to_all_busbw_gb_per_s",
}
# All-reduce has its own metric at these sizes, if its ladder includes them.
NAMED_SIZES = {
    "busbw_1mib_gb_per_s": 2**20,
    "busbw_64mib_gb_per_s": 2**26,
    "busbw_1gib_gb_per_s": 2**30,
}
# From this size on, bandwidth dominates latency: at 64 MiB even eight H100s at 480 GB/s take 0.25
# ms, ten times as long as for 8 bytes. Below it, NCCL switches algorithm (tree, ring, NVLS) and
# protocol (LL, LL128, Simple) by estimated times, and a drop there is not a fault: two healthy
# nodes fell from 32 to 19 GB/s between 32 and 64 MiB (aws-ofi-nccl issue 65).
LARGE_BYTES = 2**26
# More bytes only use the same links better: the bus bandwidth of a healthy cluster rises to a
# plateau and stays there within a few percent.
DIP = 0.05
# All-to-all is left out: NCCL schedules its parts by size, and healthy H100s drop by 12 to 15 %
# above 512 MiB (nccl issue 2169).
SMOOTH = ("all_reduce", "all_gather", "reduce_scatter")
# In a collective, all ranks wait for each other and end microseconds apart (one pass of its
# pipeline), while a large size takes milliseconds. A larger difference is the slow rank's fault.
SPREAD = 0.10
# Tolerance between recorded values and those computed from recorded times; all are 64-bit floats.
ROUNDING = 1e-6


@dataclass(frozen=True)
class Sweep:
    """What had to be measured, and what each rank recorded."""

    phase: PhaseResult

    @cached_property
    def left_out(self) -> dict[str, str]:
        """Collectives that this gloo lacks -> torch's error message. NCCL has them all."""
        left_out = self.phase.fact("left_out")
        if not isinstance(left_out, dict):
            fail(
                f"the ranks recorded the left-out collectives as {left_out!r}; expected names with "
                "reasons"
            )
        if left_out and (self.phase.backend != "gloo" or "all_reduce" in left_out):
            fail(
                f"{self.phase.backend} ranks left out {left_out}; expected only collectives that "
                "gloo lacks, and only with gloo"
            )
        return {str(name): str(why) for name, why in left_out.items()}

    @cached_property
    def asked(self) -> list[int]:
        """The sizes that the phase's arguments ask for, in bytes: 8, each `factor` times the one
        before, up to `max_bytes`."""
        most, factor = self.phase.args.get("max_bytes"), self.phase.args.get("factor")
        if type(most) is not int or type(factor) is not int or most < SMALLEST_BYTES or factor < 2:
            fail(
                f"max_bytes is {most!r} and factor {factor!r} in the phase's args; expected at "
                f"least {SMALLEST_BYTES} and at least 2"
            )
        sizes = [SMALLEST_BYTES]
        while sizes[-1] * factor <= most:
            sizes.append(sizes[-1] * factor)
        return sizes

    @cached_property
    def sizes(self) -> list[int]:
        """The sizes of the ladder that the ranks had memory for."""
        room = self.phase.fact("max_bytes")
        fitting = [size for size in self.asked if type(room) is int and size <= room]
        if not fitting:
            fail(f"the ranks had room for {room!r} B, not even for the smallest size")
        return fitting

    @cached_property
    def items(self) -> list[tuple[str, int]]:
        """Each collective to judge, with each size (bytes, before rounding). Sizes that would be
        rounded down to zero are left out."""
        return [
            (name, size)
            for size in self.sizes
            for name in PEAKS
            if name not in self.left_out and self.size_bytes(name, size)
        ]

    @cached_property
    def records(self) -> dict[tuple[int, object, object], Mapping[str, Any]]:
        """(rank, collective, size asked for) -> what the rank recorded."""
        return {
            (rank.rank, record.get("collective"), record.get("asked_bytes")): record
            for rank in self.phase.ranks
            for record in rank.measured("collective")
            if isinstance(record.get("collective"), str) and type(record.get("asked_bytes")) is int
        }

    def size_bytes(self, name: str, size: int) -> int:
        """The size measured for `size`, which is rounded down to equal shares."""
        unit = ELEMENT_BYTES if name == "all_reduce" else SHARE_BYTES * self.phase.world_size
        return size // unit * unit

    def of(self, rank: RankResult, name: str, size: int) -> Mapping[str, Any]:
        __tracebackhide__ = True
        record = self.records.get((rank.rank, name, size))
        if record is None:
            fail(f"{rank} did not measure {name} of {format_bytes(size)}")
        return record

    def own_seconds(self, name: str, size: int) -> dict[int, float]:
        """Rank -> its own time of a call."""
        __tracebackhide__ = True
        return {
            rank.rank: time_of(self.of(rank, name, size), "own_seconds", f"{name} on {rank}")
            for rank in self.phase.ranks
        }

    def seconds(self, name: str, size: int) -> float:
        """The slowest rank's time of a call, which all ranks record."""
        __tracebackhide__ = True
        agreed = {
            rank.rank: time_of(self.of(rank, name, size), "seconds", f"{name} on {rank}")
            for rank in self.phase.ranks
        }
        low, high = min(agreed.values()), max(agreed.values())
        if low != high:
            fail(
                f"all ranks should report the same time for {name} of {format_bytes(size)}, but "
                f"they report {low} s to {high} s"
            )
        return low

    def busbw(self, name: str, size: int) -> float:
        """Bus bandwidth in GB/s: S/t, times 2(n-1)/n for all-reduce and (n-1)/n for the others."""
        __tracebackhide__ = True
        ranks, passes = self.phase.world_size, 2 if name == "all_reduce" else 1
        algbw = self.size_bytes(name, size) / self.seconds(name, size) / 1e9
        return algbw * passes * (ranks - 1) / ranks

    def metrics(self) -> dict[str, float]:
        """The metrics of collectives, computed from the recorded times."""
        __tracebackhide__ = True
        values: dict[str, float] = {}
        for name, size in self.items:
            peak = PEAKS[name]
            values[peak] = max(values.get(peak, 0.0), self.busbw(name, size))
        for metric, size in NAMED_SIZES.items():
            if size in self.sizes:
                values[metric] = self.busbw("all_reduce", size)
        values["latency_us"] = self.seconds("all_reduce", SMALLEST_BYTES) * 1e6
        return values


def check_results(phase: PhaseResult) -> None:
    """Every element of every collective at every size was checked on every rank and is correct."""
    __tracebackhide__ = True
    swept = Sweep(phase)
    for name, size in swept.items:
        parts = phase.world_size if name == "reduce_scatter" else 1
        count = swept.size_bytes(name, size) // ELEMENT_BYTES // parts
        for rank in phase.ranks:
            label = f"{name} of {format_bytes(size)} on {rank}"
            check_elements(label, swept.of(rank, name, size), count)


def check_sizes(phase: PhaseResult) -> None:
    """Every collective was timed at every size of the ladder; all ranks agree on its time, and no
    rank took longer."""
    __tracebackhide__ = True
    swept = Sweep(phase)
    for name, size in swept.items:
        agreed, own = swept.seconds(name, size), swept.own_seconds(name, size)
        slowest = max(own, key=lambda rank: own[rank])
        if own[slowest] > agreed * (1 + ROUNDING):
            fail(
                f"{name} of {format_bytes(size)} took {own[slowest]} s on {phase.ranks[slowest]}, "
                f"more than the {agreed} s reported as the slowest rank's time"
            )
    if swept.sizes != swept.asked:
        raise Unmeasured(
            "sizes",
            f"sizes above {format_bytes(swept.sizes[-1])}: the rank with the least free memory "
            f"had {phase.fact('free_bytes')} B",
        )
    for name, why in swept.left_out.items():
        raise Unmeasured("collectives", f"this gloo has no {name}: {why}")


def check_metrics_follow(phase: PhaseResult) -> None:
    """The metrics that each rank recorded follow from the times it recorded."""
    __tracebackhide__ = True
    for name, value in Sweep(phase).metrics().items():
        for rank in phase.ranks:
            reported = rank.metrics().get(name, math.nan)
            if not math.isclose(reported, value, rel_tol=ROUNDING):
                fail(f"{rank} reports {reported} as {name}; its times give {value}")


def metric_names(phase: PhaseResult) -> tuple[str, ...]:
    """The bandwidth metrics that were measured, or had to be because they have a reference: one of
    the phase's own sizes."""
    names = (*PEAKS.values(), *NAMED_SIZES)
    measured = phase.metrics()
    expected = () if phase.resized else phase.references
    return tuple(
        name
        for name in names
        if name == names[0] or name in measured or name in expected
    )  # fmt: skip


def check_spread(phase: PhaseResult) -> None:
    """At large sizes all ranks take the same time for a collective, within SPREAD."""
    __tracebackhide__ = True
    require_network(phase)
    swept = Sweep(phase)
    large = [(name, size) for name, size in swept.items if size >= LARGE_BYTES]
    if not large:
        raise Unmeasured("bandwidth", f"no size of {format_bytes(LARGE_BYTES)} or more")
    for name, size in large:
        own = swept.own_seconds(name, size)
        slow, fast = max(own, key=lambda rank: own[rank]), min(own, key=lambda rank: own[rank])
        if own[slow] > own[fast] * (1 + SPREAD):
            fail(
                f"{name} of {format_bytes(size)} took {own[slow] * 1e3:.3f} ms on "
                f"{phase.ranks[slow]} and {own[fast] * 1e3:.3f} ms on {phase.ranks[fast]}; "
                f"expected within {SPREAD:.0%} of each other"
            )


def check_dips(phase: PhaseResult) -> None:
    """From LARGE_BYTES on, no size's bus bandwidth is more than DIP below a smaller size's."""
    __tracebackhide__ = True
    require_network(phase)
    swept = Sweep(phase)
    large = [size for size in swept.sizes if size >= LARGE_BYTES]
    if len(large) < 2:
        raise Unmeasured(
            "bandwidth", f"fewer than two sizes of {format_bytes(LARGE_BYTES)} or more"
        )
    for name in SMOOTH:
        speeds = {size: swept.busbw(name, size) for size in large}
        best = large[0]
        for size, speed in speeds.items():
            if speed < speeds[best] * (1 - DIP):
                fail(
                    f"the bus bandwidth of {name} falls from {speeds[best]:.2f} GB/s at "
                    f"{format_bytes(best)} to {speed:.2f} GB/s at {format_bytes(size)}; "
                    f"expected a fall of {DIP:.0%} at most"
                )
            best = max(best, size, key=speeds.__getitem__)


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


def time_of(record: Mapping[str, Any], key: str, label: str) -> float:
    __tracebackhide__ = True
    value = parse_number(record.get(key))
    if value is None or not 0 < value < math.inf:
        fail(f"{key} of {label} is {record.get(key)!r}; expected a positive time")
    return value
