"""The results of phases for the items of pytest that judge them, and the marks of their reports."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from _pytest.outcomes import Skipped  # pytest.skip.Exception, by a name that type checkers know

from ..config.marker import JOB
from ..evidence.finding import add_place, describe_findings
from ..evidence.metric import RESULT, Unmeasured
from ..evidence.run_counts import TRAINING_PROOFS
from ..evidence.run_directory import RunDir
from ..text import outcome_words, sanitize_line, sanitize_lines
from .collection import PhaseCollection
from .items import JobFailed, PhaseItem, phase_class, phase_classes
from .tally import MARKS, MAX_CHARACTERS, failure_text, marks_of

if TYPE_CHECKING:  # a collection does not load it
    from ..criteria.phase_criteria import PhaseView
    from ..evidence.job_results import RankResult
    from ..evidence.phase_result import PhaseResult
    from ..report.acknowledgements import Acknowledgements

# A criterion that does not hold raises one of these; any other exception is an error in its code.
JUDGED = (AssertionError, JobFailed, pytest.fail.Exception)
TRAIN_LOSS = "train_loss"  # a metric that only `rank.steps` records, of the losses of its steps


class JobFailedEarlier(Skipped):
    """Raised in place of a criterion whose job did not pass: the job's item has the cause."""

    kind = JOB

    def __init__(self, message: str) -> None:
        super().__init__(message, _use_item_location=True)


class PhaseViews:
    """The result of each phase, made once, when an item first needs it: `make` waits for the job.

    A plugin: it skips the criteria of a job that did not pass, and marks the reports of all.
    """

    def __init__(
        self,
        collection: PhaseCollection,
        name_of: Callable[[pytest.Item], str],
        make: Callable[[str], PhaseView],
    ) -> None:
        self._collection, self._name_of, self._make = collection, name_of, make
        self.by_name: dict[str, PhaseView] = {}

    def of(self, item: pytest.Item) -> PhaseView:
        """The view of the phase that an item judges; the item's properties then name the phase."""
        name = self._name_of(item)
        if name not in self.by_name:
            self.by_name[name] = self._wait(name)
        result = self.by_name[name]
        if "phase" not in dict(item.user_properties):
            item.user_properties.append(("phase", name))
        return result

    def _wait(self, name: str) -> PhaseView:
        """The result of a phase; unmeasured if a time limit of the user's own ends the wait, as
        pytest-timeout does from a signal handler."""
        try:
            return self._make(name)
        except pytest.fail.Exception as stop:
            raise Unmeasured(RESULT, f"pytest stopped waiting for phase {name}: {stop}") from None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Lift pytest-timeout's limit for all tests, unless the user marked the phase: its job has
        limits of its own, and may wait in a queue. Done after `-m` and `-k` have selected."""
        if session.config.pluginmanager.hasplugin("timeout"):
            for cls in phase_classes(session.items):
                if cls.get_closest_marker("timeout") is None:
                    cls.add_marker(pytest.mark.timeout(0))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """If the job did not pass, skip the criterion with one line that points to the job."""
        cls = phase_class(item)
        if cls is None or isinstance(item, PhaseItem) or self._collection.plans_only:
            return
        if self.of(item).outcome != "passed":
            raise JobFailedEarlier(f"job failed, see {cls.nodeid}::job")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        cls = phase_class(item)
        name = self._collection.names.get(cls, "") if cls else ""
        if name:
            result = self.by_name.get(name)
            mark_report(report, item, call, name, result)
            if result is not None and call.excinfo:
                known = self._collection.acknowledgements
                mark_known(report, item, result, call.excinfo.value, known)
        return report


def make_view(
    collection: PhaseCollection, result: PhaseResult, run_again: Callable[[str, int], PhaseResult]
) -> PhaseView:
    """A phase's result with the profile's bounds and its past, for its criteria; `run_again` runs
    the phase once more, where the profile wants a lasting loss confirmed."""
    from ..criteria.phase_criteria import view_phase
    from ..evidence.phase_result import with_bounds

    bounded = with_bounds(result, collection.profile, collection.report_dir)
    past = bounded.past
    if past is not None and collection.profile.history_check == "confirm":
        past = replace(past, run_again=run_again)
    return view_phase(replace(bounded, past=past, judged=JudgedKinds()))


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
