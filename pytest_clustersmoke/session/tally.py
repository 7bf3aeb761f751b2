"""Counts pytest's reports for the verdict; each report is marked where it is made.

Under xdist a worker marks a report and the controller counts it, so marks are plain strings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from ..config.phase import Phase
from ..evidence.finding import add_place, describe_findings
from ..evidence.job_results import RankResult
from ..evidence.metric import BETWEEN, INSIDE
from ..evidence.phase_result import PhaseResult
from ..evidence.run_counts import JOB, TRAINING_PROOFS, CriterionRecord, KnownRecord, RunTally
from ..evidence.run_directory import RunDir
from ..report.acknowledgements import Acknowledgements
from ..text import outcome_words, sanitize_line, sanitize_lines
from .items import JobFailed
from .selection import criterion_of, describe_selection, is_whole

MARKS = "clustersmoke"  # an attribute of reports
CRASHED = "???"  # xdist's `when` for a test whose worker died
# A criterion that does not hold raises one of these; any other exception is an error in its code.
JUDGED = (AssertionError, JobFailed, pytest.fail.Exception)
MAX_CHARACTERS = 4000
TRAIN_LOSS = "train_loss"  # a metric that only `rank.steps` records, of the losses of its steps


# Where a report is made


def job_failure_text(result: PhaseResult, report: Path) -> str:
    """The text of a failed `::job`: outcome, reason, then each finding with evidence and fix. The
    paths are those in the directory of the report."""
    folder = RunDir(report).phase(result.name).root
    first, cause = next(iter(result.findings), None), sanitize_line(result.reason)
    text = [
        f"phase {result.name}: {outcome_words(result.outcome)}: "
        f"{add_place(cause, first.hosts, first.ranks) if first and first.primary else cause}",
        *describe_findings(result.findings, folder),
        "",
        f"evidence: {folder}",
    ]
    return sanitize_lines("\n".join(text))


class JudgedKinds(set[str]):
    """The kinds that a phase's criteria judged so far; those of the running test are kept apart."""

    def __init__(self) -> None:
        super().__init__()
        self._of_test: set[str] = set()

    def add(self, kind: str) -> None:
        super().add(kind)
        self._of_test.add(kind)

    def take_test(self) -> list[str]:
        """The kinds judged since the last call, sorted: those of one test."""
        kinds, self._of_test = sorted(self._of_test), set()
        return kinds


def mark_report(
    report: pytest.TestReport,
    item: pytest.Item,
    call: pytest.CallInfo[None],
    phase: str,
    result: PhaseResult | None,
) -> None:
    """Mark the report of a phase's test with what the verdict needs: the phase, and which kinds
    were judged or could not be measured. The verdict does not read JUnit's properties, which say
    the same, because any test can write them."""
    marks = {"phase": phase}
    setattr(report, MARKS, marks)
    if result is not None:
        _mark_judged(report, item, marks, result.judged)
        if report.when == "call":
            marks.update(filter(None, [name_proofs(result)]))
        _mark_sensitivity(report, item, marks, result.sensitivity)
    if "phase" not in dict(report.user_properties):  # the test did not reach its fixture
        report.user_properties.append(("phase", phase))
    if report.skipped and call.excinfo and isinstance(getattr(call.excinfo.value, "kind", 0), str):
        unmeasured = ("unmeasured", getattr(call.excinfo.value, "kind", ""))
        marks.update([unmeasured])
        item.user_properties.append(unmeasured)
        report.user_properties.append(unmeasured)
        path, line = item.location[0], (item.location[1] or 0) + 1
        report.longrepr = (path, line, f"Skipped: {call.excinfo.value}")


def _mark_judged(
    report: pytest.TestReport, item: pytest.Item, marks: dict[str, str], judged: set[str]
) -> None:
    """Mark the kinds judged: for the verdict those of the phase so far, for JUnit the test's own.

    JUnit takes properties from the teardown's report, so they go to the item, too.
    """
    if report.when == "call" and judged:
        marks["judged"] = ",".join(sorted(judged))
    if report.when == "setup" or not isinstance(judged, JudgedKinds):
        return  # what set-up judged counts with the call
    kinds = judged.take_test()
    if report.when == "call" and kinds:
        marks["kinds"] = ",".join(kinds)
        for holder in (item, report):
            holder.user_properties.append(("judged", ",".join(kinds)))


def name_proofs(result: PhaseResult) -> tuple[str, str] | None:
    """The mark with the proofs of training that the phase must have; None if its program trained in
    no loop of `rank.steps`."""
    from ..criteria.workload import has_replicas  # loads all criteria: collection must be fast

    if not any(map(_has_trained, result.ranks)):
        return None
    return "proofs", ",".join(TRAINING_PROOFS if has_replicas(result) else ["checkpoint"])


def _has_trained(rank: RankResult) -> bool:
    """Whether the rank began a loop of `rank.steps`, whose stage alone says how many steps it has.
    The program may have left it before its end, and may have recorded no loss."""
    begun = (record for record in rank.events.named("stage") if record.get("state") == "begin")
    return TRAIN_LOSS in rank.metrics() or any("steps" in record for record in begun)


def _mark_sensitivity(
    report: pytest.TestReport, item: pytest.Item, marks: dict[str, str], sensitivity: list[str]
) -> None:
    """Mark what a passing test could have seen, and forget it."""
    if report.when == "call" and report.passed and sensitivity:
        marks["sensitivity"] = sanitize_line("; ".join(sensitivity)[:MAX_CHARACTERS])
        for holder in (item, report):
            holder.user_properties.append(("sensitivity", marks["sensitivity"]))
    sensitivity.clear()


def mark_known(
    report: pytest.TestReport,
    item: pytest.Item,
    result: PhaseResult,
    error: object,
    acknowledgements: Acknowledgements,
) -> None:
    """Turn a known failure into an expected one; leave any other failure as it is.

    An xfail of the suite gets its owner here, if it has one.
    """
    if not report.failed and not hasattr(report, "wasxfail"):
        return
    if report.when != "call" or not isinstance(error, JUDGED):
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
    for holder in (item, report):  # JUnit reads the properties of the teardown's report
        present = holder.user_properties
        present += [pair for pair in properties if pair not in present]
    first_line = next(iter(failure_text(report).splitlines()), "")
    report.outcome = "skipped"
    report.wasxfail = f"{known.sentence}: {first_line}"


def marks_of(report: pytest.TestReport) -> dict[str, str]:
    """The marks that `mark_report` set; none on a report of any other test."""
    return getattr(report, MARKS, {})


# Where it is counted


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
