"""The criterion: no metric is worse than in the good runs of the past.

It judges once: the judgement is kept with the phase's evidence, and the run's record takes it from
there, so that the criterion and the report cannot disagree, whatever other runs are stored between
the two.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping

from ..config.metrics import METRICS
from ..evidence.fingerprint import fingerprint_of
from ..evidence.history.history_database import HistoryUnusable
from ..evidence.history.outlier_judge import NOT_ENOUGH
from ..evidence.history.past_records import PastRecord
from ..evidence.metric import Unmeasured, fail
from ..evidence.phase_result import PhaseResult
from ..evidence.run_directory import PhaseDir, read_json, write_json
from ..text import sanitize_line
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
    who = fingerprint_of(result)
    try:
        found = past_of(
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
    with contextlib.suppress(OSError):  # a full disk: the record judges by itself
        write_json(result.directory.past, {"past": found})
    try:
        check_past(found)
    except AssertionError as error:
        if past.fails:
            raise
        raise Unmeasured(KIND, f"{error} (history_check: warn)") from None
    result.judged.add(KIND)


def check_past(past: Mapping[str, PastRecord]) -> None:
    """Fail, naming each metric that fails; a warning does not. Unmeasured if no metric has enough
    history on these versions."""
    __tracebackhide__ = True
    failed = [one["text"] for one in past.values() if one["status"] == "fail"]
    if failed:
        fail("; ".join(failed))
    if not any(map(_is_judged, past.values())):
        raise Unmeasured(KIND, _why(past))


def read_judgement(directory: PhaseDir) -> dict[str, PastRecord]:
    """The criterion's judgement of each metric; empty if it did not run, or if the file is not one
    that it wrote."""
    from pydantic import TypeAdapter, ValidationError

    from ..evidence.history.past_records import PastRecord

    raw = (read_json(directory.past) or {}).get("past")
    try:
        found = TypeAdapter(dict[str, PastRecord]).validate_python(raw)
    except ValidationError:
        return {}
    for one in found.values():
        one["text"] = sanitize_line(one["text"][:MAX_TEXT])
    return {name: one for name, one in found.items() if name in METRICS and _is_finite(one)}


def _is_judged(one: PastRecord) -> bool:
    return one["status"] != NOT_ENOUGH and not one.get("other_versions")


def _is_finite(one: PastRecord) -> bool:
    figures = (one["median"], one["mad"], one.get("spread"), one["warn"], one["fail"])
    return all(figure is None or math.isfinite(figure) for figure in figures)


def _why(past: Mapping[str, PastRecord]) -> str:
    """The warnings by runs on other versions; else the text of one metric, since all metrics of a
    job have the same past."""
    if not past:
        return "there are no metrics to compare"
    warned = [one["text"] for one in past.values() if one["status"] == "warn"]
    return "; ".join(warned) or min(past.values(), key=lambda one: one["runs"])["text"]
