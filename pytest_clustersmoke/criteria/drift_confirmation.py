"""Confirms a lasting loss by reruns of its phase in the same run (`history_check: confirm`).

A loss that is summed up over nights can also come from a few unlucky nights. The phase runs again,
in jobs of its own, and the loss counts if the median of these reruns shows at least half of it.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from ..config.metrics import METRICS, show
from ..evidence.fingerprint import fingerprint_of
from ..evidence.phase_result import PhaseResult
from ..evidence.run_directory import MAX_RERUNS
from ..evidence.run_record import DriftRecord, PastRecord
from ..text import plural

AGREEING = MAX_RERUNS // 2 + 1  # so many reruns decide where the median lies


def confirm_drift(
    result: PhaseResult,
    past: Mapping[str, PastRecord],
    run_again: Callable[[str, int], PhaseResult],
) -> None:
    """Run the phase again until every lasting loss in `past` is confirmed or not, and complete
    their records: a loss that is not confirmed becomes a warning. One that no rerun measured still
    fails. `run_again` takes the phase and the number of the rerun, and waits for its result."""
    drifts = {
        name: record["drift"]
        for name, record in past.items()
        if "drift" in record and record["drift"]["status"] == "fail"
        if not _is_beyond(name, result.metric(name).value, record["fail"])
    }
    hardware, number = fingerprint_of(result).hardware, 0
    while number < MAX_RERUNS and not all(_is_decided(name, drifts[name]) for name in drifts):
        number += 1
        rerun = run_again(result.name, number)
        is_comparable = rerun.outcome == "passed" and fingerprint_of(rerun).hardware == hardware
        for name, drift in drifts.items():
            value = rerun.metric(name).value if is_comparable else math.nan
            drift["reruns"] = [*drift.get("reruns", ()), *([value] if math.isfinite(value) else ())]
        shutil.rmtree(rerun.directory.output, ignore_errors=True)  # its checkpoint
    for name, drift in drifts.items():
        _complete_record(past[name], drift, result.metric(name).value, name, number)


def _is_decided(name: str, drift: DriftRecord) -> bool:
    shown = [_shows_loss(name, drift, value) for value in drift.get("reruns", ())]
    return max(shown.count(True), shown.count(False)) >= AGREEING


def _shows_loss(name: str, drift: DriftRecord, value: float) -> bool:
    """Whether the value shows at least half of the loss."""
    half = _half_way(drift)
    return value <= half if METRICS[name].higher_is_better else value >= half


def _half_way(drift: DriftRecord) -> float:
    """The value half-way between the accepted level and the median of the losing nights."""
    level = drift["level"]
    assert level is not None
    return (level + drift["median"]) / 2


def _complete_record(
    record: PastRecord, drift: DriftRecord, value: float, name: str, number: int
) -> None:
    """Add what the reruns showed to the record of a metric, and to its texts."""
    reruns = drift.get("reruns", [])
    ran = f"run again {plural(number, 'time')}"
    if not reruns:
        words = f"{ran} to confirm it: no rerun passed on the same hardware"
    else:
        confirms = _shows_loss(name, drift, median(reruns))
        if not confirms:
            drift["status"] = "not confirmed"
            record["status"] = "fail" if _is_beyond(name, value, record["fail"]) else "warn"
        words = (
            f"{'confirmed' if confirms else 'not confirmed'}: {ran}: {_list(reruns)}; half of the "
            f"loss is at {show(_half_way(drift))}"
        )
    drift["text"] += f"; {words}"
    record["comparison"] = f"{record.get('comparison', '')}; {words}"
    record["text"] += f"; {words}"


def _is_beyond(name: str, value: float, bound: float | None) -> bool:
    """Whether tonight's value alone is beyond the bound at which it fails."""
    if bound is None:
        return False
    return value <= bound if METRICS[name].higher_is_better else value >= bound


def _list(values: Sequence[float]) -> str:
    return ", ".join(map(show, values))
