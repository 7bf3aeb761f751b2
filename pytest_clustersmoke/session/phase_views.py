"""The results of phases for the items of pytest that judge them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from _pytest.outcomes import Skipped  # pytest.skip.Exception, by a name that type checkers know

from ..evidence.metric import RESULT, Unmeasured
from ..evidence.run_counts import JOB
from .collection import PhaseCollection
from .items import PhaseItem, phase_class, phase_classes
from .tally import JudgedKinds, mark_known, mark_report

if TYPE_CHECKING:
    from ..criteria.phase_criteria import PhaseView
    from ..evidence.phase_result import PhaseResult


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
