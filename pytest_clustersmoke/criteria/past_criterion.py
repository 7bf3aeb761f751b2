"""The criterion: no metric is worse than in the good runs of the past.

It judges once: the judgement is kept with the phase's evidence, and the run's record takes it from
there, so that the criterion and the report cannot disagree, whatever other runs are stored between
the two.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from ..config.metrics import METRICS
from ..evidence.fingerprint import fingerprint_of
from ..evidence.history.history_database import HistoryUnusable
from ..evidence.history.outlier_judge import FAILING_UNITS, NOT_ENOUGH, is_too_noisy
from ..evidence.metric import Unmeasured, fail
from ..evidence.phase_result import PhaseResult
from ..evidence.run_directory import PhaseDir, read_json, write_json
from ..evidence.run_record import DriftRecord, PastRecord
from ..text import sanitize_line
from .drift_confirmation import confirm_drift
from .past_annotation import past_of

KIND = "history"
MAX_TEXT = 8000


def judge_past(result: PhaseResult) -> None:
    """Judge a phase. Raises AssertionError naming what fails, and Unmeasured if nothing can be
    judged or the profile only warns."""
    __tracebackhide__ = True
    past = result.past
    if past is None:
        raise Unmeasured(KIND, "there is no history to compare with")
    if result.directory.restarts:
        why = "the job was requeued, and what its last attempt measured is no whole run"
        raise Unmeasured(KIND, why)
    who = fingerprint_of(result)
    try:
        judged, missing = past_of(
            past.cluster,
            result.name,
            who.hardware,
            who.shape,
            who.versions,
            result.metrics(),
            past.report_dir,
            past.begun,
        )
    except HistoryUnusable as error:
        raise Unmeasured(KIND, str(error)) from None
    if past.run_again is not None:
        confirm_drift(result, judged, past.run_again)
    with contextlib.suppress(OSError):  # a full disk: the record is then judged again
        write_json(result.directory.past, {"past": judged})
    try:
        check_past(judged, missing)
    except AssertionError as error:
        if past.fails:
            result.judged.add(KIND)
            raise
        raise Unmeasured(KIND, f"{error} (history_check: warn)") from None
    result.judged.add(KIND)


def check_past(past: Mapping[str, PastRecord], missing: Sequence[str] = ()) -> None:
    """Fail, naming each metric that fails; a warning does not. Unmeasured if one that could fail
    has not enough history on these versions, or a too noisy one, or is `missing`, in words."""
    __tracebackhide__ = True
    failed = [record["text"] for record in past.values() if record["status"] == "fail"]
    if failed:
        fail("; ".join(failed))
    if not any(map(_is_judged, past.values())):
        raise Unmeasured(KIND, _why(past))
    blind = [past[name]["text"] for name in past if _is_blind(name, past[name])]
    if blind or missing:
        raise Unmeasured(KIND, "; ".join([*blind, *missing]))


def read_judgement(directory: PhaseDir) -> dict[str, PastRecord]:
    """The criterion's judgement of each metric; empty if it did not run, or if the file is not one
    that it wrote."""
    from pydantic import ValidationError

    written = read_json(directory.past)
    if written is None:
        return {}
    records: dict[str, PastRecord]
    try:
        records = _past_records().validate_python(written.get("past"))
    except ValidationError:
        return {}
    for record in records.values():
        record["text"] = sanitize_line(record["text"][:MAX_TEXT])
        if "drift" in record:
            record["drift"]["text"] = sanitize_line(record["drift"]["text"][:MAX_TEXT])
        if "comparison" in record:
            record["comparison"] = sanitize_line(record["comparison"][:MAX_TEXT])
    return {
        name: record for name, record in records.items() if name in METRICS and _is_finite(record)
    }


@cache
def _past_records() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(dict[str, PastRecord])


def _is_judged(record: PastRecord) -> bool:
    return record["status"] != NOT_ENOUGH and not record.get("other_versions")


def _is_blind(name: str, record: PastRecord) -> bool:
    """Whether a metric that could fail passes only because its past is too short or too noisy."""
    if not _is_judged(record):
        return METRICS[name].unit in FAILING_UNITS
    return record["fail"] is not None and is_too_noisy(record)


def _is_finite(record: PastRecord) -> bool:
    figures = (
        record["median"],
        record["mad"],
        record.get("spread"),
        record["warn"],
        record["fail"],
        *_drift_figures(record.get("drift")),
    )
    return all(figure is None or math.isfinite(figure) for figure in figures)


def _drift_figures(drift: DriftRecord | None) -> list[float | None]:
    return [] if drift is None else [drift["level"], drift.get("median"), *drift.get("reruns", ())]


def _why(past: Mapping[str, PastRecord]) -> str:
    """The warnings from runs on other versions; without any, the text of one metric, since all
    metrics of a job have the same past."""
    if not past:
        return "there are no metrics to compare"
    warned = [record["text"] for record in past.values() if record["status"] == "warn"]
    return "; ".join(warned) or min(past.values(), key=lambda record: record["runs"])["text"]
