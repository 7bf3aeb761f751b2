"""What pytest's reports say of a run: each is marked where it is made, and counted for the verdict.

Under xdist a worker marks a report and the controller counts it: the marks travel as plain texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from ..config.phase import Phase
from ..config.profile import Profile
from ..evidence.metric import BETWEEN, INSIDE
from ..evidence.phase_result import PhaseResult
from ..report.acknowledgements import Acknowledgements
from ..report.verdict import CriterionResult, KnownFailure, PhaseTally, RunTally
from ..text import sanitize_lines
from .items import JobFailed
from .selection import criterion_of, is_whole, scope_words

MARKS = "clustersmoke"  # an attribute of reports
CRASHED = "???"  # xdist's word for when a test failed whose worker died
# How a criterion says that something does not hold; any other exception is a mistake in its code.
JUDGED = (AssertionError, JobFailed, pytest.fail.Exception)
MAX_WORDS = 4000


# Where a report is made


def mark_report(
    report: pytest.TestReport,
    item: pytest.Item,
    call: pytest.CallInfo[None],
    phase: str,
    result: PhaseResult | None,
) -> None:
    """Give the report of a phase's test what the verdict has to know: the phase, and which kinds of
    criteria were judged or could not be. JUnit's properties say the same, but any test may write
    those."""
    marks = {"phase": phase}
    if result is not None and result.judged and report.when == "call":
        marks["judged"] = ",".join(sorted(result.judged))
        report.user_properties.append(("judged", marks["judged"]))
    setattr(report, MARKS, marks)
    if "phase" not in dict(report.user_properties):  # it did not come to its fixture
        report.user_properties.append(("phase", phase))
    if report.skipped and call.excinfo and isinstance(getattr(call.excinfo.value, "kind", 0), str):
        unmeasured = ("unmeasured", getattr(call.excinfo.value, "kind", ""))
        marks.update([unmeasured])
        item.user_properties.append(unmeasured)
        report.user_properties.append(unmeasured)
        path, line = item.location[0], (item.location[1] or 0) + 1
        report.longrepr = (path, line, f"Skipped: {call.excinfo.value}")


def mark_known(
    report: pytest.TestReport,
    item: pytest.Item,
    result: PhaseResult,
    error: object,
    acknowledgements: Acknowledgements,
) -> None:
    """Make a failure that is known one that was expected; leave any other as it is.

    Where the job did not pass, set-up and teardown have nothing to work on: whatever they raise is
    known with the job. An xfail of the suite gets its owner here, where it has one.
    """
    if not report.failed and not hasattr(report, "wasxfail"):
        return
    is_judged = report.when == "call" and isinstance(error, JUDGED)
    if result.outcome == "passed" and not is_judged:
        return
    known = acknowledgements.answer(result, item.name)
    if known is None:
        return
    properties = [
        ("known", known.reason),
        ("known_until", known.until),
        ("known_where", known.where),
    ]
    marks_of(report).update(properties)
    for one in (item, report):  # JUnit reads those of the teardown
        one.user_properties += [pair for pair in properties if pair not in one.user_properties]
    first = next(iter(words_of(report).splitlines()), "")
    report.outcome = "skipped"
    report.wasxfail = f"{known.sentence}: {first}"


def marks_of(report: pytest.TestReport) -> dict[str, str]:
    """What `mark_report` gave a report; nothing where it is no phase's."""
    return getattr(report, MARKS, {})


# Where it is counted


def count_selection(
    tally: RunTally,
    config: pytest.Config,
    chosen: Iterable[Phase],
    profile: Profile,
    defined: Mapping[str, Iterable[str]],
    selected: Mapping[str, Iterable[str]],
) -> None:
    """Count what was selected of all that the cluster runs, and how its phases were changed: a
    verdict must name it. The criteria are by phase: all that are defined, and those selected."""
    for phase in chosen:
        counted = tally.phase(phase.name)
        counted.sides = _sides(phase)
        if phase.name in defined:
            counted.defined = frozenset(defined[phase.name])
            counted.selected = frozenset(selected.get(phase.name, ()))
    tally.phases_of_cluster = list(profile.phases)
    tally.undefined = [name for name in profile.phases if name not in defined]
    tally.is_whole = is_whole(config)
    is_part = len(tally.phases) < len(tally.phases_of_cluster)
    is_cut = any(phase.is_cut for phase in tally.phases.values())
    tally.selection = scope_words(config, is_cut, tally.phases if is_part else ())


def _sides(phase: Phase) -> frozenset[str]:
    """Where a phase's ranks talk to each other: kinds of what transport_checks.py judges."""
    inside = {INSIDE} if int(phase.gpus_per_node.value) > 1 else set()
    return frozenset(inside | ({BETWEEN} if int(phase.nodes.value) > 1 else set()))


def count_report(tally: RunTally, report: pytest.TestReport) -> tuple[str, str] | None:
    """Count one report; a criterion's result is its worst part.

    Returns the phase and the criterion, where there is a result of one.
    """
    marks = marks_of(report)
    if "phase" not in marks:
        if report.failed and str(report.when) == CRASHED:
            tally.crashed.append(report.nodeid)
        else:
            tally.other_failures += report.failed
        return None
    phase, name = tally.phase(marks["phase"]), criterion_of(report.nodeid)
    _count_result(phase, name, report, marks)
    if report.skipped and marks.get("unmeasured") and not _is_expected(report, marks):
        phase.unmeasured.add(marks["unmeasured"])
    if marks.get("judged"):
        phase.judged.update(marks["judged"].split(","))
    return (phase.name, name) if name in phase.criteria else None


def _count_result(
    phase: PhaseTally, name: str, report: pytest.TestReport, marks: Mapping[str, str]
) -> None:
    held = phase.criteria.get(name)
    if report.failed:
        phase.criteria[name] = CriterionResult("failed", words_of(report))
    elif report.skipped and _is_expected(report, marks):
        if held is None or held.result in ("passed", "skipped"):
            known = _known(f"{phase.name}: {name}", marks)
            phase.criteria[name] = CriterionResult("known", words_of(report), known)
    elif held is None and report.skipped:
        phase.criteria[name] = CriterionResult("skipped", words_of(report))
    elif held is None and report.when == "call":
        phase.criteria[name] = CriterionResult("passed")


def _is_expected(report: pytest.TestReport, marks: Mapping[str, str]) -> bool:
    """Whether a failure was expected: by `known` of cluster.yaml, or by an xfail of the suite, for
    which nobody answers."""
    return bool(marks.get("known")) or hasattr(report, "wasxfail")


def _known(what: str, marks: Mapping[str, str]) -> KnownFailure | None:
    if not marks.get("known"):
        return None
    return KnownFailure(what, marks["known"], marks["known_until"], marks["known_where"])


def words_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a test failed or was skipped, or a file was, without its traceback."""
    why = report.longrepr
    if isinstance(why, tuple):  # of a skip: file, line, reason
        words = str(why[2]).removeprefix("Skipped: ")
    else:
        crash = getattr(why, "reprcrash", None)
        words = str(crash.message) if crash is not None else str(why or "")
    return sanitize_lines(words[-MAX_WORDS:])
