"""The results of phases for the items of pytest that judge them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from .collection import PhaseCollection
from .items import phase_class
from .tally import JudgedKinds, mark_known, mark_report

if TYPE_CHECKING:
    from ..criteria.phase_criteria import PhaseView
    from ..evidence.phase_result import PhaseResult


class PhaseViews:
    """The result of each phase, made once, when an item first needs it: `make` waits for the job.

    A plugin: it fails the criteria of a job that did not pass, and marks the reports of all.
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
        """The result that an item judges; the item's properties name its phase."""
        name = self._name_of(item)
        if name not in self.by_name:
            self.by_name[name] = self._make(name)
        result = self.by_name[name]
        if "phase" not in dict(item.user_properties):
            item.user_properties.append(("phase", name))
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> None:
        """If the job did not pass, fail the criterion with one line that points to the job."""
        cls = phase_class(pyfuncitem)
        if cls is None:
            return
        result = self.of(pyfuncitem)
        if result.outcome != "passed":
            pytest.fail(
                f"phase {result.name}: {result.outcome}; see {cls.nodeid}::job", pytrace=False
            )

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


def make_view(collection: PhaseCollection, result: PhaseResult) -> PhaseView:
    """A phase's result with the profile's bounds and its past, for its criteria."""
    from ..criteria.phase_criteria import view_phase
    from ..evidence.phase_result import with_bounds

    bounded = with_bounds(result, collection.profile, collection.report_dir)
    return view_phase(replace(bounded, judged=JudgedKinds()))
