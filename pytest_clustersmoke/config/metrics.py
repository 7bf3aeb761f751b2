"""Metrics of a phase: names, units, meanings, and the comparison of a value with its reference.

A value without a reference is reported as "no reference": it neither passes nor fails.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # pydantic is not loaded by a plain collection
    from .expectations import Reference


@dataclass(frozen=True)
class MetricKind:
    """A metric's unit, meaning, and whether a higher value is better."""

    unit: str
    higher_is_better: bool
    meaning: str


METRICS: dict[str, MetricKind] = {
    "steps_per_s": MetricKind("steps/s", True, "all steps over their wall time"),
    "steady_steps_per_s": MetricKind("steps/s", True, "steps after warm-up over their wall time"),
    "samples_per_s": MetricKind("samples/s", True, "steps_per_s x the global batch"),
    "tokens_per_s_per_rank": MetricKind(
        "tokens/s", True, "steps x micro batch x sequence length over wall time, padding included"
    ),
    "peak_memory_gib": MetricKind("GiB", False, "peak memory allocated on a device (RSS on CPU)"),
    "peak_memory_reserved_gib": MetricKind("GiB", False, "peak memory the allocator reserved"),
    "first_loss": MetricKind("1", False, "mean loss over all ranks at the first step"),
    "train_loss": MetricKind("1", False, "mean loss over all ranks and steps"),
    "final_loss": MetricKind("1", False, "mean loss over all ranks at the last step"),
    "step_time_p50_s": MetricKind("s", False, "median step time, slowest rank"),
    "step_time_p95_s": MetricKind("s", False, "95th percentile of step time, slowest rank"),
    "own_step_s": MetricKind(
        "s", False, "forward, backward and optimizer of a step without waiting, slowest rank"
    ),
    # Bandwidths as nccl-tests defines them, in 1e9 bytes per second; times are of the slowest rank.
    "busbw_gb_per_s": MetricKind(
        "GB/s", True, "bus bandwidth of all-reduce, the best of all sizes"
    ),
    "busbw_1mib_gb_per_s": MetricKind("GB/s", True, "bus bandwidth of all-reduce at 1 MiB"),
    "busbw_64mib_gb_per_s": MetricKind("GB/s", True, "bus bandwidth of all-reduce at 64 MiB"),
    "busbw_1gib_gb_per_s": MetricKind("GB/s", True, "bus bandwidth of all-reduce at 1 GiB"),
    "all_gather_busbw_gb_per_s": MetricKind(
        "GB/s", True, "bus bandwidth of all-gather, the best of all sizes"
    ),
    "reduce_scatter_busbw_gb_per_s": MetricKind(
        "GB/s", True, "bus bandwidth of reduce-scatter, the best of all sizes"
    ),
    "all_to_all_busbw_gb_per_s": MetricKind(
        "GB/s", True, "bus bandwidth of all-to-all, the best of all sizes"
    ),
    "latency_us": MetricKind("us", False, "time of an all-reduce of 8 bytes, slowest rank"),
    "pair_bandwidth_min_gb_per_s": MetricKind(
        "GB/s", True, "send and receive at once between two nodes, each way: the slowest pair"
    ),
}


class CurvePlace(NamedTuple):
    """Where a metric lies on the curve of a collective by message size."""

    collective: str
    figure: str  # busbw_gb_per_s, or seconds
    asked_bytes: int | None  # None: at the size with the highest bus bandwidth


CURVE_PLACES: dict[str, CurvePlace] = {
    "busbw_gb_per_s": CurvePlace("all_reduce", "busbw_gb_per_s", None),
    "busbw_1mib_gb_per_s": CurvePlace("all_reduce", "busbw_gb_per_s", 2**20),
    "busbw_64mib_gb_per_s": CurvePlace("all_reduce", "busbw_gb_per_s", 2**26),
    "busbw_1gib_gb_per_s": CurvePlace("all_reduce", "busbw_gb_per_s", 2**30),
    "all_gather_busbw_gb_per_s": CurvePlace("all_gather", "busbw_gb_per_s", None),
    "reduce_scatter_busbw_gb_per_s": CurvePlace("reduce_scatter", "busbw_gb_per_s", None),
    "all_to_all_busbw_gb_per_s": CurvePlace("all_to_all", "busbw_gb_per_s", None),
    "latency_us": CurvePlace("all_reduce", "seconds", 8),
}


# How the proof begins in `Phase.resized`; its name follows.
PROOF = "proof: "
# How it begins for a phase that stopped and went on shortly before its end; the number of steps of
# the last attempt follows.
STEPS_LEFT = "steps left: "


@dataclass(frozen=True)
class Comparison:
    """The result of comparing a value with its reference; `met` is None without a reference of the
    same sizes."""

    met: bool | None
    text: str


def is_within(value: float, low: float | None, high: float | None) -> bool:
    """Whether a value is a finite number within the bounds of a reference."""
    above = low is None or value >= low
    return math.isfinite(value) and above and (high is None or value <= high)


def compare(
    name: str, value: float, reference: Reference | None, resized: Sequence[str] = ()
) -> Comparison:
    """Compare a metric's value with the cluster's reference; a value that is not finite fails.

    A reference holds for the sizes that it was measured at, so it says nothing about a phase of
    which --cluster-set changed the `resized` ones, or the proof: watching for a twin run takes time
    and memory in every step.
    """
    unit = METRICS[name].unit if name in METRICS else "1"
    measured = f"{name} is {show(value)}" + ("" if unit == "1" else f" {unit}")
    if reference is not None and resized:
        return Comparison(None, f"{measured}; {_describe_resized(resized)}")
    if not math.isfinite(value):
        return Comparison(False, f"{measured}, which is not a finite number")
    if reference is None:
        return Comparison(None, f"{measured}; no reference")
    low, high = reference.low, reference.high
    against = describe_distance(value, reference.value, "the reference", unit)
    if low is not None and high is not None:
        bounds = f"{show(low)} to {show(high)}"
    elif low is not None:
        bounds = f"at least {show(low)}"
    else:
        bounds = f"at most {show(high)}" if high is not None else "any value"
    met = is_within(value, low, high)
    tail = f" (allowed: {bounds}; source: {reference.source or 'not given'})"
    return Comparison(met, f"{measured}: {against}{tail}")


def describe_distance(value: float, base: float, name: str, unit: str = "1") -> str:
    """`30.1 % below the median 9.501 steps/s`, where `name` is "the median"."""
    known = f"{name} {show(base)}" + ("" if unit == "1" else f" {unit}")
    if value == base:
        return known
    side = "below" if value < base else "above"
    far = abs(value - base)
    share = f"{far / abs(base) * 100:.1f} %" if base else show(far)
    return f"{share} {side} {known}"


def _describe_resized(resized: Sequence[str]) -> str:
    """Why the reference does not hold for a phase of which this was changed."""
    if left := [words for words in resized if words.startswith(STEPS_LEFT)]:
        return (
            f"the last attempt had only {left[0].removeprefix(STEPS_LEFT)} of the steps to do, and "
            "its start and the time of proofs weigh more in its figures"
        )
    if len(resized) == 1 and resized[0].startswith(PROOF):
        return (
            f"the phase trains under `{resized[0]}`, which --cluster-set asks for, and a step does "
            "other work then; reference of another proof"
        )
    return f"reference of other sizes (--cluster-set: {', '.join(resized)})"


def show(value: float | str) -> str:
    """A number for people: four significant digits, no exponent in the usual range.

    Records hold values that are not finite as text (`nan`), so text is accepted too.
    """
    value = float(value)
    if not math.isfinite(value):
        return str(value)
    if value and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.3e}"
    digits = max(0, 3 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:,.{min(digits, 6)}f}"
