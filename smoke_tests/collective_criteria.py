"""What must hold for the measurements of train_allreduce.py: results, sizes, times, bandwidths.

Each rank's `measured` events must cover every collective at every size that the phase's arguments
ask for, and bandwidths must follow from the times. Anything missing or of the wrong type fails.
"""

from __future__ import annotations

from collections import defaultdict
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

# All-to-all is left out: NCCL schedules its parts by size, and healthy H100s drop by 12 to 15 %
# above 512 MiB (nccl issue 2169).
SMOOTH = ("all_reduce", "all_gather", "reduce_scatter")


@dataclass(frozen=True)
class Measurement:
    """One collective at one size, and what each rank recorded of it, by the rank's text."""

    name: str
    asked_bytes: int
    size_bytes: int  # `asked_bytes` rounded down to equal shares
    records: Mapping[str, Mapping[str, Any]]

    def __str__(self) -> str:
        return f"{self.name} of {format_bytes(self.asked_bytes)}"

    def times(self, key: str) -> dict[str, float]:
        """Seconds by rank."""
        __tracebackhide__ = True
        return {
            rank: bandwidth.read_time(record, key, f"{self.name} on {rank}")
            for rank, record in self.records.items()
        }

    @property
    def seconds(self) -> float:
        """The slowest rank's time of a call, which all ranks record."""
        __tracebackhide__ = True
        agreed = self.times("seconds").values()
        low, high = min(agreed), max(agreed)
        if low != high:
            fail(
                f"all ranks should report the same time for {self}, but they report {low} s to "
                f"{high} s"
            )
        return low

    @property
    def busbw(self) -> float:
        """Bus bandwidth in GB/s."""
        __tracebackhide__ = True
        return bandwidths(self.name, self.size_bytes, self.seconds, len(self.records))[1]


@dataclass(frozen=True)
class Sweep:
    """What had to be measured, and what the ranks recorded of it."""

    phase: PhaseView

    @cached_property
    def left_out(self) -> dict[str, str]:
        """Collectives that this gloo lacks -> torch's error message. NCCL has them all."""
        __tracebackhide__ = True
        left_out, backend = self.phase.fact("left_out"), self.phase.backend
        expected = isinstance(left_out, dict) and "all_reduce" not in left_out
        if not expected or (left_out and backend != "gloo"):
            fail(
                f"{backend} ranks recorded {left_out!r} as the collectives left out; expected "
                "names with reasons, and only those that gloo lacks, with gloo"
            )
        return {str(name): str(why) for name, why in left_out.items()}

    @cached_property
    def asked(self) -> list[int]:
        """The sizes that the phase's arguments ask for, in bytes."""
        __tracebackhide__ = True
        args = self.phase.args
        try:
            return list_sizes(int(args["max_bytes"]), int(args["factor"]))
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            fail(f"max_bytes and factor in the phase's args give no sizes: {error!r}")

    @cached_property
    def sizes(self) -> list[int]:
        """Those of them that the ranks had memory for."""
        __tracebackhide__ = True
        room = self.phase.fact("max_bytes")
        fitting = [size for size in self.asked if type(room) is int and size <= room]
        if not fitting:
            fail(f"the ranks had room for {room!r} B, not even for the smallest size")
        return fitting

    @cached_property
    def measurements(self) -> list[Measurement]:
        """Every collective at every size that is not rounded down to zero."""
        __tracebackhide__ = True
        found: dict[tuple[str, int], dict[str, Mapping[str, Any]]] = defaultdict(dict)
        for rank in self.phase.ranks:
            for record in rank.measured("collective"):
                name, asked = record.get("collective"), record.get("asked_bytes")
                if isinstance(name, str) and type(asked) is int:
                    found[name, asked][str(rank)] = record
        measurements = [
            Measurement(name, asked, size_bytes, found[name, asked])
            for asked in self.sizes
            for name in PEAKS
            if name not in self.left_out
            if (size_bytes := round_size(name, asked, self.phase.world_size))
        ]
        for measurement in measurements:
            for rank in self.phase.ranks:
                if str(rank) not in measurement.records:
                    fail(f"{rank} did not measure {measurement}")
        return measurements


def check_results(phase: PhaseView) -> None:
    """Every element of every collective at every size was checked on every rank and is correct."""
    __tracebackhide__ = True
    for measurement in Sweep(phase).measurements:
        parts = phase.world_size if measurement.name == "reduce_scatter" else 1
        count = measurement.size_bytes // ELEMENT_BYTES // parts
        for rank, record in measurement.records.items():
            bandwidth.check_elements(f"{measurement} on {rank}", record, count)


def check_sizes(phase: PhaseView) -> None:
    """Every collective was timed at every size of the ladder; all ranks agree on its time, and no
    rank took longer."""
    __tracebackhide__ = True
    swept = Sweep(phase)
    for measurement in swept.measurements:
        agreed, own = measurement.seconds, measurement.times("own_seconds")
        slowest = max(own, key=own.__getitem__)
        if own[slowest] > agreed * (1 + bandwidth.ROUNDING):
            fail(
                f"{measurement} took {own[slowest]} s on {slowest}, more than the {agreed} s "
                "reported as the slowest rank's time"
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
    seconds = {(m.name, m.asked_bytes): m.seconds for m in Sweep(phase).measurements}
    bandwidth.check_recorded(phase, derive_metrics(seconds, phase.world_size))


def metric_names(phase: PhaseView) -> tuple[str, ...]:
    """The bandwidth metrics that were measured, or had to be because they have a reference: one of
    the phase's own sizes."""
    expected = {PEAKS["all_reduce"], *phase.metrics()}
    if not phase.resized:
        expected |= set(phase.references)
    return tuple(name for name in (*PEAKS.values(), *AT_SIZE.values()) if name in expected)


def select_large(phase: PhaseView, least: int, reason: str) -> list[Measurement]:
    """What was measured at sizes where bandwidth dominates, in a network; raises Unmeasured for
    `reason` if there are fewer than `least` such sizes."""
    __tracebackhide__ = True
    bandwidth.require_network(phase)
    large = [m for m in Sweep(phase).measurements if m.asked_bytes >= bandwidth.LARGE_BYTES]
    if len({m.asked_bytes for m in large}) < least:
        raise Unmeasured("bandwidth", f"{reason} of {format_bytes(bandwidth.LARGE_BYTES)} or more")
    return large


def check_spread(phase: PhaseView) -> None:
    """At large sizes all ranks take the same time for a collective."""
    __tracebackhide__ = True
    for measurement in select_large(phase, 1, "no size"):
        bandwidth.check_spread(str(measurement), measurement.times("own_seconds"))


def check_dips(phase: PhaseView) -> None:
    """From LARGE_BYTES on, the bus bandwidth does not fall as sizes grow."""
    __tracebackhide__ = True
    large = select_large(phase, 2, "fewer than two sizes")
    for name in SMOOTH:
        bandwidth.check_dips(name, {m.asked_bytes: m.busbw for m in large if m.name == name})
