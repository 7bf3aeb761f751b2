"""The suite of one pytest session with a cluster: which phases, their jobs, their results.

It exists only where a cluster was chosen. Under xdist the controller owns the jobs and each worker
has a suite that waits for results in the run directory.
"""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .cluster import Profile, find_config
from .collected import Collected
from .errors import UsageProblems
from .interrupts import Interrupts
from .items import JobFailed, JobItem, mark_report, phase_class, phase_classes
from .live.show import Show, say
from .phase import Phase
from .report.junit import OwnFile, complete
from .verdict import Tally, words_of

if TYPE_CHECKING:
    from .locks import ControllerLock
    from .phase_view import PhaseView
    from .rundir import RunDir
    from .session import Session


class Suite(Collected):
    """One session's phases on one cluster."""

    latest = "latest"  # the link to its report

    def __init__(self, config: pytest.Config, profile: Profile) -> None:
        super().__init__(config, profile)
        self.tally = Tally(profile.require)
        self.remarks: list[str] = []  # on the report itself
        self.run: RunDir | None = None
        self.session: Session | None = None
        self.show: Show | None = None
        self._results: dict[str, PhaseView] = {}
        self._controller: ControllerLock | None = None
        self._interrupts = Interrupts(self._cancel)
        self._junit = OwnFile(config, self.report_path / "junit.xml", self._plans_only)

    # The run

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[Any]:
        chosen = [self._names[cls] for cls in phase_classes(session.items)]
        phases = [self.phases[name] for name in chosen]
        self.tally.scope(self.config, phases, self.profile, *self.criteria(session.items))
        if self.config.getoption("--cluster-dry-run"):
            from .dryrun import print_plan

            print_plan(phases, self.profile, self.run_id, self.refused)
            session.items.clear()  # nothing runs, and nothing is reported as if it had
            return (yield)
        goes_on = not session.testsfailed or self.config.option.continue_on_collection_errors
        if phases and not self._plans_only and goes_on:
            self.start(phases)
        return (yield)

    def start(self, phases: list[Phase]) -> None:
        """Check what can be known before, then submit. Raises UsageError with all problems."""
        from . import preflight
        from .session import Session as JobSession

        try:
            self._take_cluster()
            start = preflight.prepare(self.profile, self.run_id, os.environ)
        except UsageProblems as problems:
            raise pytest.UsageError(str(problems)) from None
        self.run = start.run
        for line in preflight.remarks(self.profile, phases, os.environ):
            say(self.config, line)
        self._announce(start.run)
        self.session = JobSession(start.run, self.profile, phases, start.backend, start.check)
        self.show = Show(self.config, self.session)
        self._interrupts.catch()
        self._recover()
        self.session.start()

    def _take_cluster(self) -> None:
        """Under --cluster-exclusive take the cluster's lock until pytest has done with all else."""
        if self.config.getoption("--cluster-exclusive"):
            from .locks import lock_cluster

            held = lock_cluster(self.profile.shared_dir, self.profile.name, self.run_id)
            self.config.add_cleanup(held.release)

    def _announce(self, run: RunDir) -> None:
        """From here on a later command can tell what became of the run, whatever ends this one."""
        from .locks import ControllerLock

        try:
            self._controller = ControllerLock(run)
            self._controller.announce(self.asked(), self.report_path)
        except OSError as error:
            raise pytest.UsageError(f"nothing is submitted: {error}") from None

    def _recover(self) -> None:
        """Tell what became of runs before this one that were never reported."""
        from .report.recover import recover

        for line in recover(self.report_dir, os.environ):
            say(self.config, line)

    def asked(self) -> dict[str, Any]:
        """What run.json says of what was asked, beside the cluster."""
        config = find_config(self.config.rootpath, self.config.getoption("--cluster-config"))
        return {
            "phases_chosen": self.tally.chosen,
            "selection": self.tally.selection,
            "config": str(config.absolute()),
        }

    @property
    def about(self) -> Mapping[str, Any]:
        """What run.json says of the run that was started."""
        assert self._controller is not None
        return self._controller.about

    def _cancel(self) -> None:
        if self.session is not None:
            self.session.cancel()

    def result_of(self, item: pytest.Item) -> PhaseView:
        """Wait for the item's phase, and give the item the phase's properties."""
        cls = phase_class(item)
        assert cls is not None
        name = self._names[cls]
        if name not in self._results:
            self.wait(name)
            from .phase_view import PhaseView
            from .result import collect

            assert self.run is not None
            self._results[name] = PhaseView.of(
                collect(self.run.phase(name), self.profile, self.report_dir)
            )
        result = self._results[name]
        known = {key for key, _ in item.user_properties}
        if "phase" not in known:
            from .report.properties import of_phase

            item.user_properties += of_phase(result)
        return result

    def wait(self, name: str) -> None:
        assert self.show is not None
        self.show.wait(name)

    def run_job(self, item: JobItem) -> None:
        result = self.result_of(item)
        if result.outcome != "passed":
            from .report.terminal import job_failure

            raise JobFailed("\n".join([job_failure(result), *self.known.beside(result)]))

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> None:
        """A criterion of a job that did not pass ends in one line that points to the job."""
        cls = phase_class(pyfuncitem)
        if cls is None:
            return
        result = self.result_of(pyfuncitem)
        if result.outcome != "passed":
            pytest.fail(
                f"phase {result.name}: {result.outcome}; see {cls.nodeid}::job", pytrace=False
            )

    # The end

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        cls = phase_class(item)
        name = self._names.get(cls, "") if cls else ""
        if name:
            result = self._results.get(name)
            mark_report(report, item, call, name, result)
            if result is not None and call.excinfo:
                self.known.mark(report, item, result, call.excinfo.value)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        heard = self.tally.hear(report)
        if heard is not None and self.session is not None:
            phase, name = heard
            self.session.judged(phase, name, self.tally.criteria[phase][name])
        elif self.session is not None and report.failed:
            self.session.failed(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """With --continue-on-collection-errors the phases run all the same."""
        self.tally.other_failures += report.failed
        if report.skipped:
            self.tally.skipped_files.append(f"{report.nodeid} ({words_of(report)})")

    def pytest_keyboard_interrupt(self) -> None:
        self.tally.interrupted = True
        self._cancel()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Iterator[None]:
        if self.session is None:
            self._junit.drop()  # nothing ran, so there is no run to report
            self._no_verdict(session, int(exitstatus))
            return (yield)
        self._interrupts.ending()
        self._judge_run(session, int(exitstatus))
        try:
            yield
        except Exception as error:  # junit.xml on a full disk, say; or another plugin's end
            self._say_traceback()
            self.remarks.append(f"pytest's own end failed: {type(error).__name__}: {error}")
            if session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        try:
            self._publish(session)
        finally:
            self._interrupts.release()
        return None

    def _no_verdict(self, session: pytest.Session, exitstatus: int) -> None:
        """Whoever asked for a cluster shall not take other tests' success for its verdict."""
        asked = self.config.getoption("--cluster") and not self._plans_only
        if asked and exitstatus == pytest.ExitCode.OK:
            say(self.config, f"no phase ran on {self.profile.name}: no verdict")
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED

    def _judge_run(self, session: pytest.Session, exitstatus: int) -> None:
        """Have every job ended, then give the verdict: pytest writes its files with it next."""
        assert self.session is not None and self.show is not None and self.run is not None
        for name in self.session.close():
            self.absences.append(
                f"{name}: the scheduler has not answered its submission; look into the queue"
            )
        with contextlib.suppress(OSError):  # the terminal is gone
            self.show.close()
        self.tally.outcomes = {
            name: judged.outcome for name, judged in self.session.outcomes.items()
        }
        self.tally.exitstatus = exitstatus
        session.exitstatus = self.tally.exit_code()
        try:
            self.tally.known_remarks = self.known.remarks(self.tally, self.run)
            complete(self)
        except Exception as error:  # of ours, and no reason to lose the verdict
            self._say_traceback()
            self.remarks.append(f"junit.xml is not complete: {type(error).__name__}: {error}")

    @staticmethod
    def _say_traceback() -> None:
        with contextlib.suppress(OSError):  # nobody hears it
            traceback.print_exc()

    def _publish(self, session: pytest.Session) -> None:
        """Write the report, then end the terminal's output with the verdict."""
        from .report.finish import finish

        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        if not finish(self, reporter) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        assert self._controller is not None
        self._controller.release()

    @property
    def report_path(self) -> Path:
        return self.report_dir / self.run_id
