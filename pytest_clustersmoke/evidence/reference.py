"""A metric's value beside the cluster's reference.

A value without a reference is "no reference": neither a pass nor a failure of the comparison.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..config.metrics import METRICS

if TYPE_CHECKING:  # pydantic is not loaded by a plain collection
    from ..config.profile import Reference


@dataclass(frozen=True)
class Comparison:
    """A value beside its reference. `met` is None where there is none."""

    met: bool | None
    text: str


def compare(name: str, value: float, reference: Reference | None) -> Comparison:
    """Compare a metric's value with the cluster's reference; a value that is not finite fails."""
    unit = METRICS[name].unit if name in METRICS else ""
    said = f"{name} is {show(value)} {unit}".rstrip()
    if not math.isfinite(value):
        return Comparison(False, f"{said}, which is no number")
    if reference is None:
        return Comparison(None, f"{said}; no reference")
    low, high = reference.low, reference.high
    off = f"{(value / reference.value - 1) * 100:+.1f} %" if reference.value else "not comparable"
    against = f"{off} against the reference {show(reference.value)} {unit}".rstrip()
    if low is not None and high is not None:
        bounds = f"{show(low)} to {show(high)}"
    elif low is not None:
        bounds = f"at least {show(low)}"
    else:
        bounds = f"at most {show(high)}" if high is not None else "any value"
    met = (low is None or value >= low) and (high is None or value <= high)
    tail = f" (allowed: {bounds}; source: {reference.source or 'not given'})"
    return Comparison(met, f"{said}: {against}{tail}")


def show(value: float | str) -> str:
    """A number as people read it: four significant digits, no exponent in the usual range. One that
    is not finite may come by its name, as in the record."""
    value = float(value)
    if not math.isfinite(value):
        return str(value)
    if value and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.3e}"
    digits = max(0, 3 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:,.{min(digits, 6)}f}"
