"""The criterion: nothing is worse than the good runs of the past."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..evidence import Unmeasured, fail

if TYPE_CHECKING:
    from ..report.model import PastRecord

NOT_ENOUGH = "not enough history"
KIND = "history"


def check(past: Mapping[str, PastRecord]) -> None:
    """Fail naming each metric that fails; a warning does not. Where there is not enough history for
    any metric, this is unmeasured."""
    __tracebackhide__ = True
    failed = [one["text"] for one in past.values() if one["status"] == "fail"]
    if failed:
        fail("; ".join(failed))
    judged = [one for one in past.values() if one["status"] != NOT_ENOUGH]
    if not judged:
        raise Unmeasured(KIND, _why(past))


def _why(past: Mapping[str, PastRecord]) -> str:
    """Metrics of one job have the same past, so that of one says it."""
    if not past:
        return "there are no metrics to compare"
    return min(past.values(), key=lambda one: one["runs"])["text"]
