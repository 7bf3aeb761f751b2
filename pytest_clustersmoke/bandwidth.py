"""What the ranks of an all-reduce phase measured, judged: results, sizes, times, bandwidths.

Times and counts are taken from each rank's events `measured`; sizes and bandwidths are worked out
here anew, by the definitions in `sweep.py`. What is missing or of the wrong kind fails.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from . import sweep
from .evidence import RankResult, Unmeasured, fail
from .telemetry import number

if TYPE_CHECKING:
    from .result import PhaseResult

# From here on bandwidth decides and not latency: at 64 MiB even eight H100 at 480 GB/s take 0.25
# ms, ten times what 8 bytes take them. Below, NCCL changes algorithm (tree, ring, NVLS) and
# protocol (LL, LL128, Simple) by an estimate of their times, and a step down there is no fault:
# two sound nodes fell from 32 to 19 GB/s between 32 and 64 MiB (aws-ofi-nccl issue 65).
LARGE_BYTES = 2**26
# With more bytes the same links are only better used: the bus bandwidth of a healthy cluster rises
# to a plateau and stays there within a few percent.
DIP = 0.05
# All-to-all is left out: NCCL schedules its parts by their size, and sound H100s fall by 12 to 15 %
# above 512 MiB (nccl issue 2169).
SMOOTH = ("all_reduce", "all_gather", "reduce_scatter")
# Of one collective all ranks wait for each other, and end within one pass of its pipeline: us where
# a large size takes ms. A rank's own time that is off by this has a cause on that rank.
SPREAD = 0.10
# Of what is written and what follows from the recorded times; both are 64-bit floats.
ROUNDING = 1e-6


@dataclass(frozen=True)
class Sweep:
    """What had to be measured, and what each rank wrote of it."""

    phase: PhaseResult

    @cached_property
    def left_out(self) -> dict[str, str]:
        """Collectives that this gloo has not -> torch's words. NCCL has them all."""
        told = self.phase.fact("left_out")
        if not isinstance(told, dict):
            fail(f"the ranks said {told!r} of the collectives left out; expected names and reasons")
        if told and (self.phase.backend != "gloo" or "all_reduce" in told):
            fail(f"{self.phase.backend} has every collective, and these were left out: {told}")
        return {str(name): str(why) for name, why in told.items()}

    @cached_property
    def asked(self) -> list[int]:
        """The ladder that the phase's arguments ask for, in bytes."""
        most, factor = self.phase.args.get("max_bytes"), self.phase.args.get("factor")
        if type(most) is not int or type(factor) is not int:
            fail(f"max_bytes is {most!r} and factor {factor!r} in the phase's args; expected ints")
        try:
            return sweep.ladder(most, factor)
        except ValueError as error:
            fail(str(error))

    @cached_property
    def sizes(self) -> list[int]:
        """As much of the ladder as the ranks had memory for."""
        room = self.phase.fact("max_bytes")
        fitting = [size for size in self.asked if type(room) is int and size <= room]
        if not fitting:
            fail(f"the ranks had room for {room!r} B, not even for the smallest size")
        return fitting

    @cached_property
    def items(self) -> list[tuple[str, int]]:
        """Every collective at every size that nccl-tests does not round to nothing."""
        return [
            (name, size)
            for size in self.sizes
            for name in sweep.COLLECTIVES
            if name not in self.left_out and self.count(name, size)
        ]

    @cached_property
    def records(self) -> dict[tuple[int, object, object], Mapping[str, Any]]:
        """(rank, collective, size asked for) -> what the rank wrote."""
        return {
            (rank.rank, record.get("collective"), record.get("asked_bytes")): record
            for rank in self.phase.ranks
            for record in rank.events.named("measured")
            if record.get("what") == "collective"
            and isinstance(record.get("collective"), str)
            and type(record.get("asked_bytes")) is int
        }

    def count(self, name: str, size: int) -> int:
        return sweep.elements(name, size, self.phase.world_size)

    def of(self, rank: RankResult, name: str, size: int) -> Mapping[str, Any]:
        __tracebackhide__ = True
        record = self.records.get((rank.rank, name, size))
        if record is None:
            fail(f"{rank} measured no {name} of {sweep.show_bytes(size)}")
        return record

    def own_seconds(self, name: str, size: int) -> dict[int, float]:
        """rank -> its own time of a call."""
        __tracebackhide__ = True
        return {
            rank.rank: time_of(self.of(rank, name, size), "own_seconds", f"{name} on {rank}")
            for rank in self.phase.ranks
        }

    def seconds(self, name: str, size: int) -> float:
        """The slowest rank's time of a call, on which all ranks agree."""
        __tracebackhide__ = True
        said = {
            rank.rank: time_of(self.of(rank, name, size), "seconds", f"{name} on {rank}")
            for rank in self.phase.ranks
        }
        low, high = min(said.values()), max(said.values())
        if low != high:
            fail(
                f"ranks differ in the time agreed for {name} of {sweep.show_bytes(size)}: "
                f"{low} s to {high} s"
            )
        return low

    def busbw(self, name: str, size: int) -> float:
        """Bus bandwidth in GB/s."""
        __tracebackhide__ = True
        size_bytes = self.count(name, size) * sweep.ELEMENT_BYTES
        return sweep.bandwidths(
            name, size_bytes, self.seconds(name, size), self.phase.world_size
        )[1]  # fmt: skip

    def metrics(self) -> dict[str, float]:
        """The metrics of collectives, as they follow from the recorded times."""
        __tracebackhide__ = True
        values: dict[str, float] = {}
        for name, size in self.items:
            peak = sweep.PEAKS[name]
            values[peak] = max(values.get(peak, 0.0), self.busbw(name, size))
        for metric, size in sweep.NAMED_SIZES.items():
            if size in self.sizes:
                values[metric] = self.busbw("all_reduce", size)
        values["latency_us"] = self.seconds("all_reduce", sweep.SMALLEST_BYTES) * 1e6
        return values


def check_results(phase: PhaseResult) -> None:
    """Every element of every collective at every size was checked on every rank, and is right."""
    __tracebackhide__ = True
    swept = Sweep(phase)
    for name, size in swept.items:
        count = sweep.received(name, swept.count(name, size), phase.world_size)
        for rank in phase.ranks:
            what = f"{name} of {sweep.show_bytes(size)} on {rank}"
            check_elements(what, swept.of(rank, name, size), count)


def check_sizes(phase: PhaseResult) -> None:
    """Every collective was timed at every size of the ladder; all ranks agree on its time, and no
    rank's own is above it."""
    __tracebackhide__ = True
    swept = Sweep(phase)
    for name, size in swept.items:
        agreed, own = swept.seconds(name, size), swept.own_seconds(name, size)
        slowest = max(own, key=lambda rank: own[rank])
        if own[slowest] > agreed * (1 + ROUNDING):
            fail(
                f"{name} of {sweep.show_bytes(size)} took {phase.ranks[slowest]} {own[slowest]} s, "
                f"more than the {agreed} s that are said to be the slowest rank's"
            )
    if swept.sizes != swept.asked:
        raise Unmeasured(
            "sizes",
            f"sizes above {sweep.show_bytes(swept.sizes[-1])}: the rank with the least free memory "
            f"had {phase.fact('free_bytes')} B",
        )
    for name, why in swept.left_out.items():
        raise Unmeasured("collectives", f"this gloo has no {name}: {why}")


def check_metrics_follow(phase: PhaseResult) -> None:
    """The metrics each rank wrote are those that follow from the times it recorded."""
    __tracebackhide__ = True
    for name, value in Sweep(phase).metrics().items():
        for rank in phase.ranks:
            said = rank.metrics().get(name, math.nan)
            if not math.isclose(said, value, rel_tol=ROUNDING):
                fail(f"{rank} says {name} is {said}; its times make it {value}")


def metric_names(phase: PhaseResult) -> tuple[str, ...]:
    """The metrics of bandwidth that were measured, or that have a reference and so had to be."""
    names = (*sweep.PEAKS.values(), *sweep.NAMED_SIZES)
    measured = phase.metrics()
    return tuple(
        name
        for name in names
        if name == names[0] or name in measured or name in phase.references
    )  # fmt: skip


def check_spread(phase: PhaseResult) -> None:
    """At large sizes every rank takes the same time for a collective, but for SPREAD."""
    __tracebackhide__ = True
    network(phase)
    swept = Sweep(phase)
    large = [(name, size) for name, size in swept.items if size >= LARGE_BYTES]
    if not large:
        raise Unmeasured("bandwidth", f"no size of {sweep.show_bytes(LARGE_BYTES)} or more")
    for name, size in large:
        own = swept.own_seconds(name, size)
        slow, fast = max(own, key=lambda rank: own[rank]), min(own, key=lambda rank: own[rank])
        if own[slow] > own[fast] * (1 + SPREAD):
            fail(
                f"{name} of {sweep.show_bytes(size)} took {phase.ranks[slow]} "
                f"{own[slow] * 1e3:.3f} ms and {phase.ranks[fast]} {own[fast] * 1e3:.3f} ms; "
                f"expected within {SPREAD:.0%} of each other"
            )


def check_dips(phase: PhaseResult) -> None:
    """From LARGE_BYTES on, no size's bus bandwidth is below that of a smaller one by DIP."""
    __tracebackhide__ = True
    network(phase)
    swept = Sweep(phase)
    large = [size for size in swept.sizes if size >= LARGE_BYTES]
    if len(large) < 2:
        raise Unmeasured(
            "bandwidth", f"fewer than two sizes from {sweep.show_bytes(LARGE_BYTES)} on"
        )
    for name in SMOOTH:
        speeds = {size: swept.busbw(name, size) for size in large}
        best = large[0]
        for size, speed in speeds.items():
            if speed < speeds[best] * (1 - DIP):
                fail(
                    f"the bus bandwidth of {name} falls from {speeds[best]:.2f} GB/s at "
                    f"{sweep.show_bytes(best)} to {speed:.2f} GB/s at {sweep.show_bytes(size)}; "
                    f"expected a fall of {DIP:.0%} at most"
                )
            best = max(best, size, key=lambda one: speeds[one])


def network(phase: PhaseResult) -> None:
    """Raise Unmeasured where the times say nothing of a network."""
    __tracebackhide__ = True
    if phase.backend != "nccl":
        raise Unmeasured(
            "bandwidth",
            f"the ranks talked over {phase.backend}, on CPU cores that they share: its times are "
            "those of the cores, not of a network",
        )
    if phase.spec.get("backend") == "local" and phase.spec["nodes"] > 1:
        raise Unmeasured("bandwidth", "the nodes are virtual: one machine's loopback is no network")


def check_elements(what: str, record: Mapping[str, Any], wanted: int) -> None:
    """`wanted` elements were checked, and none is wrong."""
    __tracebackhide__ = True
    checked, wrong, first = (record.get(key) for key in ("checked", "wrong", "first_wrong"))
    if type(checked) is not int or checked != wanted:
        fail(f"{what}: {checked!r} elements were checked, expected all {wanted}")
    if type(wrong) is not int or wrong < 0:
        fail(f"{what}: {wrong!r} elements were wrong; expected a count")
    if wrong:
        told = first if isinstance(first, dict) else {}
        fail(
            f"{what}: {wrong} of {wanted} elements are wrong, the first is element "
            f"{told.get('index')!r}: found {told.get('found')!r}, expected {told.get('expected')!r}"
        )


def time_of(record: Mapping[str, Any], key: str, what: str) -> float:
    __tracebackhide__ = True
    value = number(record.get(key))
    if value is None or not 0 < value < math.inf:
        fail(f"{key} of {what} is {record.get(key)!r}; expected a time")
    return value
