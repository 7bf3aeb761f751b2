"""What must hold for the measurements of train_allreduce.py: results, sizes, times, bandwidths.

Each rank's `measured` events must cover every collective at every size that the phase's arguments
ask for, and bandwidths must follow from the times. Anything missing or of the wrong type fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from collective_sizes import (
    AT_SIZE,
    ELEMENT_BYTES,
    PEAKS,
    bandwidths,
    derive_metrics,
    list_sizes,
    round_size,
)
from pytest_clustersmoke.criteria import PhaseView, Unmeasured, bandwidth, fail, format_bytes

LARGE = format_bytes(bandwidth.LARGE_BYTES)
# All-to-all is left out: NCCL schedules its parts by size, and healthy H100s drop by 12 to 15 %
# above 512 MiB (nccl issue 2169).
SMOOTH = ("all_reduce", "all_gather", "reduce_scatter")


@dataclass(frozen=True)
class Sweep:
    """What had to be measured, and what each rank recorded."""

    phase: PhaseView

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
        __tracebackhide__ = True
        most, factor = self.phase.args.get("max_bytes"), self.phase.args.get("factor")
        if type(most) is not int or type(factor) is not int:
            fail(
                f"max_bytes is {most!r} and factor {factor!r} in the phase's args; expected counts"
            )
        try:
            return list_sizes(most, factor)
        except ValueError as error:
            fail(str(error))

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
        """Every collective at every size that is not rounded down to zero."""
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
        return round_size(name, size, self.phase.world_size)

    def of(self, rank: Any, name: str, size: int) -> Mapping[str, Any]:
        __tracebackhide__ = True
        record = self.records.get((rank.rank, name, size))
        if record is None:
            fail(f"{rank} did not measure {name} of {format_bytes(size)}")
        return record

    def own_seconds(self, name: str, size: int) -> dict[int, float]:
        """Rank -> its own time of a call."""
        __tracebackhide__ = True
        return self._times("own_seconds", name, size)

    def seconds(self, name: str, size: int) -> float:
        """The slowest rank's time of a call, which all ranks record."""
        __tracebackhide__ = True
        agreed = self._times("seconds", name, size).values()
        low, high = min(agreed), max(agreed)
        if low != high:
            fail(
                f"all ranks should report the same time for {name} of {format_bytes(size)}, but "
                f"they report {low} s to {high} s"
            )
        return low

    def _times(self, key: str, name: str, size: int) -> dict[int, float]:
        __tracebackhide__ = True
        times = {}
        for rank in self.phase.ranks:
            record = self.of(rank, name, size)
            times[rank.rank] = bandwidth.read_time(record, key, f"{name} on {rank}")
        return times

    def busbw(self, name: str, size: int) -> float:
        """Bus bandwidth in GB/s."""
        __tracebackhide__ = True
        seconds, ranks = self.seconds(name, size), self.phase.world_size
        return bandwidths(name, self.size_bytes(name, size), seconds, ranks)[1]


def check_results(phase: PhaseView) -> None:
    """Every element of every collective at every size was checked on every rank and is correct."""
    __tracebackhide__ = True
    swept = Sweep(phase)
    for name, size in swept.items:
        parts = phase.world_size if name == "reduce_scatter" else 1
        count = swept.size_bytes(name, size) // ELEMENT_BYTES // parts
        for rank in phase.ranks:
            label = f"{name} of {format_bytes(size)} on {rank}"
            bandwidth.check_elements(label, swept.of(rank, name, size), count)


def check_sizes(phase: PhaseView) -> None:
    """Every collective was timed at every size of the ladder; all ranks agree on its time, and no
    rank took longer."""
    __tracebackhide__ = True
    swept = Sweep(phase)
    for name, size in swept.items:
        agreed, own = swept.seconds(name, size), swept.own_seconds(name, size)
        slowest = max(own, key=lambda rank: own[rank])
        if own[slowest] > agreed * (1 + bandwidth.ROUNDING):
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


def check_metrics_follow(phase: PhaseView) -> None:
    """The metrics that each rank recorded follow from the times it recorded."""
    __tracebackhide__ = True
    swept = Sweep(phase)
    seconds = {(name, size): swept.seconds(name, size) for name, size in swept.items}
    bandwidth.check_recorded(phase, derive_metrics(seconds, phase.world_size))


def metric_names(phase: PhaseView) -> tuple[str, ...]:
    """The bandwidth metrics that were measured, or had to be because they have a reference: one of
    the phase's own sizes."""
    names = (*PEAKS.values(), *AT_SIZE.values())
    measured = phase.metrics()
    expected = () if phase.resized else phase.references
    return tuple(
        name
        for name in names
        if name == names[0] or name in measured or name in expected
    )  # fmt: skip


def check_spread(phase: PhaseView) -> None:
    """At large sizes all ranks take the same time for a collective."""
    __tracebackhide__ = True
    bandwidth.require_network(phase)
    swept = Sweep(phase)
    large = [(name, size) for name, size in swept.items if size >= bandwidth.LARGE_BYTES]
    if not large:
        raise Unmeasured("bandwidth", f"no size of {LARGE} or more")
    for name, size in large:
        own = {str(phase.ranks[rank]): s for rank, s in swept.own_seconds(name, size).items()}
        bandwidth.check_spread(f"{name} of {format_bytes(size)}", own)


def check_dips(phase: PhaseView) -> None:
    """From LARGE_BYTES on, the bus bandwidth does not fall as sizes grow."""
    __tracebackhide__ = True
    bandwidth.require_network(phase)
    swept = Sweep(phase)
    large = [size for size in swept.sizes if size >= bandwidth.LARGE_BYTES]
    if len(large) < 2:
        raise Unmeasured("bandwidth", f"fewer than two sizes of {LARGE} or more")
    for name in SMOOTH:
        bandwidth.check_dips(name, {size: swept.busbw(name, size) for size in large})
