"""Counts pytest's reports for the verdict; each report is marked where it is made: phase_views.py.

Under xdist a worker marks a report and the controller counts it, so marks are plain strings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from ..config.marker import JOB
from ..config.phase import Phase
from ..evidence.metric import BETWEEN, INSIDE
from ..evidence.run_counts import CriterionRecord, KnownRecord, RunTally
from ..text import sanitize_line, sanitize_lines
from .selection import criterion_of, describe_selection, is_whole

MARKS = "clustersmoke"  # an attribute of reports
CRASHED = "???"  # xdist's `when` for a test whose worker died
MAX_CHARACTERS = 4000


def marks_of(report: pytest.TestReport) -> dict[str, str]:
    """The marks that `mark_report` set; none on a report of any other test."""
    return getattr(report, MARKS, {})


def count_selection(
    tally: RunTally,
    config: pytest.Config,
    chosen: Iterable[Phase],
    phases_of_cluster: list[str],
    defined: Mapping[str, Iterable[str]],
    selected: Mapping[str, Iterable[str]],
) -> None:
    """Count what was selected of the cluster's phases, and how they were changed, since a verdict
    must name it. Criteria are by phase: all `defined` ones, and those `selected`."""
    for phase in chosen:
        counts = tally.phase(phase.name).counts
        counts.sides = _list_sides(phase)
        if phase.proof.value == "twin":
            counts.require = ["twin"]
        if phase.name in defined:
            counts.defined = sorted({*defined[phase.name]})
            counts.selected = sorted(selected.get(phase.name, ()))
    tally.phases_of_cluster = phases_of_cluster
    tally.counts.undefined_phases = [name for name in phases_of_cluster if name not in defined]
    tally.counts.is_whole = is_whole(config)
    # Phases that no test defines were not left out by anybody.
    undefined = tally.counts.undefined_phases if tally.counts.is_whole else ()
    is_part = not {*tally.phases_of_cluster} <= {*tally.phases, *undefined}
    is_cut = any(phase.counts.is_cut for phase in tally.phases.values())
    tally.counts.selection = describe_selection(config, is_cut, tally.phases if is_part else ())


def _list_sides(phase: Phase) -> list[str]:
    """Where the ranks of a phase communicate: inside nodes, between nodes, or both."""
    several = {BETWEEN: phase.nodes, INSIDE: phase.gpus_per_node}
    return sorted(side for side, count in several.items() if int(count.value) > 1)


def count_report(tally: RunTally, report: pytest.TestReport) -> tuple[str, str] | None:
    """Count one report; the result of a criterion is that of its worst part.

    Returns the phase and the criterion, if the report is of one.
    """
    marks = marks_of(report)
    if "phase" not in marks:
        if report.failed and str(report.when) == CRASHED:
            tally.counts.crashed_tests.append(sanitize_line(report.nodeid))
        else:
            count_other(tally, report)
        return None
    phase_name, name = marks["phase"], criterion_of(report.nodeid)
    phase = tally.phase(phase_name)
    result = _find_result(f"{phase_name}: {name}", phase.criteria.get(name), report, marks)
    if result is not None:
        phase.criteria[name] = result
    unmeasured = marks.get("unmeasured", JOB)  # JOB: skipped, because the job did not pass
    if report.skipped and unmeasured != JOB and not _is_expected(report, marks):
        phase.unmeasured.add(unmeasured)
    if marks.get("proofs"):
        phase.counts.proofs = marks["proofs"].split(",")
    if marks.get("judged"):
        kinds = marks["judged"].split(",")
        phase.counts.judged = sorted({*phase.counts.judged, *kinds})
    return (phase_name, name) if name in phase.criteria else None


def count_other(tally: RunTally, report: pytest.TestReport | pytest.CollectReport) -> None:
    """Count a failure of what belongs to no phase: a test, its fixtures, or a file."""
    tally.counts.other_failures += report.failed
    name = sanitize_line(report.nodeid)
    if report.failed and name not in tally.counts.failed_tests:
        tally.counts.failed_tests.append(name)


def _find_result(
    what: str,
    earlier: CriterionRecord | None,
    report: pytest.TestReport,
    marks: Mapping[str, str],
) -> CriterionRecord | None:
    """The result that a report gives a criterion, or None: an earlier one stays unless this one is
    worse."""
    kinds = marks.get("kinds", "")
    if report.failed:
        return CriterionRecord.of("failed", failure_text(report), judged=kinds)
    if report.skipped and _is_expected(report, marks):
        if earlier is None or earlier.result in ("passed", "skipped"):
            known = _known_failure(what, marks)
            return CriterionRecord.of("known", failure_text(report), known, kinds)
    elif earlier is None and report.skipped:
        return CriterionRecord.of("skipped", failure_text(report))
    # Not so if pytest-rerunfailures runs the test again: then the outcome is `rerun`.
    elif earlier is None and report.when == "call" and report.passed:
        return CriterionRecord.of("passed", marks.get("sensitivity", ""), judged=kinds)
    return None


def _is_expected(report: pytest.TestReport, marks: Mapping[str, str]) -> bool:
    """Whether a failure was expected: by `known` of cluster.yaml, or by a plain xfail."""
    return bool(marks.get("known")) or hasattr(report, "wasxfail")


def _known_failure(what: str, marks: Mapping[str, str]) -> KnownRecord | None:
    if not marks.get("known"):
        return None
    reason, until, where = (marks[name] for name in ("known", "known_until", "known_where"))
    return KnownRecord(what=what, reason=reason, until=until, where=where)


def failure_text(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a test or file failed or was skipped, without the traceback, and without saying that an
    assertion failed."""
    why = report.longrepr
    if isinstance(why, tuple):  # a skip: file, line, reason
        text = str(why[2]).removeprefix("Skipped: ")
    else:
        crash = getattr(why, "reprcrash", None)
        text = str(crash.message) if crash is not None else str(why or "")
        text = text.removeprefix("AssertionError: ")
    return sanitize_lines(text[-MAX_CHARACTERS:])
