"""The suite of one pytest session with a cluster: its phases, their jobs and results.

It exists only if a cluster was chosen. Under xdist the controller owns the jobs, and the suite of
each worker waits for results in the run directory.
"""

from __future__ import annotations

import contextlib
import gc
import os
import secrets
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from ..config.cluster_file import find_config
from ..config.marker import PhaseMarker
from ..config.phase import Phase
from ..config.profile import Profile
from ..evidence.run_counts import ProofRecord, RunTally
from ..text import Problem, UsageProblems
from .collection import PhaseCollection
from .interrupts import Interrupts
from .items import Mistakes, PhaseClass, phase_classes
from .live.board import WatchFailed
from .live.live_view import LiveView
from .live.pytest_terminal import PytestTerminal
from .phase_views import PhaseViews, make_view
from .tally import count_other, count_report, count_selection, failure_text

if TYPE_CHECKING:
    from ..criteria.phase_criteria import PhaseView
    from ..evidence.locks import ControllerLock
    from ..evidence.phase_result import PhaseResult
    from ..evidence.run_directory import RunDir
    from ..evidence.run_journal import FencedJournal
    from ..report.record_builder import FinishedRun
    from .attachment import Attachment
    from .cancellation import EndableJobs
    from .job_session import JobSession


class Suite:
    """One session's phases on one cluster."""

    latest = "latest"  # the link to its report
    superseded = "another process has taken this run over, and reports it"
    proof: ProofRecord | None = None  # the gates, of --cluster-prove

    def __init__(
        self, config: pytest.Config, profile: Profile, attachment: Attachment | None = None
    ) -> None:
        self.config, self.profile, self.attachment = config, profile, attachment
        self.run_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        if attachment is not None:
            self.run_id = attachment.run.run_id
        self._detaches = bool(config.getoption("--cluster-detach"))
        self.collection = PhaseCollection(config, profile, self.run_id)
        self.views = PhaseViews(self.collection, self.name_of, self.make_view)
        config.pluginmanager.register(self.views)
        self.tally = RunTally()
        self.tally.counts.require = sorted(profile.require)
        self.remarks: list[str] = []  # on writing the report
        self.run: RunDir | None = None
        self.jobs: EndableJobs | None = None
        self.session: JobSession | None = None  # the same, if they are of phases
        self.on_unwritten: Callable[[PhaseResult], object] = lambda result: None  # as JobSession's
        self.view: LiveView | None = None
        self.terminal = PytestTerminal(config)
        self._finished: FinishedRun | None = None
        self._controller: ControllerLock | None = None
        self.interrupts = Interrupts()
        # junit.xml goes to the run's report directory, unless the user asked for another place.
        asked = getattr(config.option, "xmlpath", None)
        self._has_own_junit = not asked and not self.collection.plans_only
        if self._has_own_junit:
            config.option.xmlpath = str(self.collection.report_path / "junit.xml")

    # Collection

    def resolve_phases(
        self,
        markers: Mapping[PhaseClass, PhaseMarker],
        mistakes: Mistakes,
        items: list[pytest.Item],
    ) -> None:
        self.collection.resolve_phases(markers, mistakes, items)

    def select(self, items: list[pytest.Item]) -> None:
        """Raise UsageError with all problems of the selected phases."""
        changes: list[Problem] = []
        if self.attachment is not None:
            self.attachment.keep_chosen(self.config, items, self.collection.names)
            phases = self.collection.phases_of(phase_classes(items))
            changes = [*self.attachment.find_changes(self.profile, phases)]
        problems = [*changes, *self.collection.check_selection(items)]
        self.collection.refuse(problems, self.collection.phases_of(phase_classes(items)))

    def header(self) -> list[str]:
        hardware = self.profile.hardware
        attached = " (attached)" if self.attachment is not None else ""
        return [
            f"cluster: {self.profile.name} ({self.profile.backend}; "
            f"{hardware.gpus_per_node} x {hardware.gpu} per node), run {self.run_id}{attached}",
            *(self.attachment or self.collection).avoided.header(),
        ]

    def pytest_report_collectionfinish(self) -> list[str]:
        return [*self.collection.absences]

    # The run

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[Any]:
        phases = self.collection.phases_of(phase_classes(session.items))
        self.count_selection(phases, *self.collection.criteria(session.items))
        if self.config.getoption("--cluster-dry-run"):
            from .plan import print_plan

            chosen = self.collection
            refused, avoided = chosen.refused, chosen.avoided.names
            print_plan(phases, self.profile, self.run_id, refused, chosen.here, avoided)
            session.items.clear()  # nothing runs, so nothing must be reported as run
            return (yield)
        continues = not session.testsfailed or self.config.option.continue_on_collection_errors
        if phases and not self.collection.plans_only and continues:
            self.start(phases)
            if self._detaches:
                self._submit_all()
        return (yield)

    def _submit_all(self) -> None:
        """Submit every phase, to leave the jobs to the scheduler."""
        assert self.session is not None
        with self.watching():
            self.session.join()
        for progress in self.session.board.take_news():
            self.terminal.say(f"{progress.phase}: {progress.text}")

    def _attach_line(self) -> str:
        return f"attach with --cluster {self.profile.name} --cluster-attach {self.run_id}"

    def count_selection(
        self,
        phases: list[Phase],
        defined: Mapping[str, Iterable[str]],
        selected: Mapping[str, Iterable[str]],
    ) -> None:
        """Count the chosen phases and criteria for the verdict."""
        names = self.collection.phases_of_cluster
        count_selection(self.tally, self.config, phases, names, defined, selected)
        self.tally.counts.avoided = [*(self.attachment or self.collection).avoided.names]

    def start(self, phases: list[Phase]) -> None:
        """Run the preflight checks, then submit. Raises UsageError with all problems."""
        from .. import preflight
        from .early_load import prepare_end
        from .job_session import JobSession

        try:
            self._take_cluster()
            environ, no_lab = self.collection.scheduler_environ()
            if no_lab:
                raise UsageProblems(no_lab)
            attached = self.attachment.run if self.attachment is not None else None
            here = self.collection.here
            start = preflight.prepare_run(self.profile, self.run_id, environ, here, attached)
        except UsageProblems as problems:
            raise pytest.UsageError(str(problems)) from None
        self.run = start.run
        for line in preflight.remark_on_start(self.profile, phases, os.environ):
            self.terminal.say(line)
        try:
            session = JobSession(
                start.run,
                self.profile,
                phases,
                start.backend,
                start.check,
                self.attachment is not None,
                self._detaches,
                (self.attachment or self.collection).avoided.names,
                bool(self.config.getoption("--cluster-isolate")),
            )
            self._announce(start.run, phases, session.journal)
        except OSError as error:
            raise pytest.UsageError(f"nothing is submitted: {error}") from None
        self.jobs = self.session = session
        session.on_unwritten = self.on_unwritten
        self.view = LiveView(
            f"cluster {self.profile.name}", self.session.board, start.run, self.terminal
        )
        self.interrupts.catch(session.cancel, session.hurry)
        self._recover()
        if not self._detaches:
            prepare_end(session.board)
        session.start()

    def _take_cluster(self) -> None:
        """Under --cluster-exclusive take the cluster's lock, until pytest is done."""
        if self.config.getoption("--cluster-exclusive"):
            from ..evidence.locks import lock_cluster

            lock = lock_cluster(self.profile.shared_dir, self.profile.name, self.run_id)
            self.config.add_cleanup(lock.release)

    def _announce(self, run: RunDir, phases: list[Phase], journal: FencedJournal) -> None:
        """Record the run, for a later command if this process is killed. Raises OSError."""
        from ..evidence.locks import ControllerLock
        from .attachment import describe_start

        self._controller = journal.controller = ControllerLock(run)
        asked = self.describe_request()
        if self.attachment is None:
            asked |= describe_start(self.profile, phases, self.config.invocation_params.args)
        else:
            self._controller.attach()
        self._controller.announce(asked, self.collection.report_path)

    def _recover(self) -> None:
        """Report earlier runs whose controller was killed, unless they can still be attached."""
        from .dead_runs import report_dead_runs

        for line in report_dead_runs(self.collection.report_dir, os.environ, self.profile):
            self.terminal.say(line)

    def describe_request(self) -> dict[str, Any]:
        """What was requested, for run.json; the cluster is added elsewhere."""
        config = find_config(self.config.rootpath, self.config.getoption("--cluster-config"))
        return {
            "phases_chosen": list(self.tally.phases),
            "phases_of_cluster": self.tally.phases_of_cluster,
            "selection": self.tally.counts.selection,
            "avoided": self.tally.counts.avoided,
            "here": self.collection.here,
            "config": str(config.absolute()),
        }

    @property
    def about(self) -> Mapping[str, Any]:
        """The contents of run.json."""
        assert self._controller is not None
        return self._controller.about

    def name_of(self, item: pytest.Item) -> str:
        """The phase whose result an item judges."""
        return self.collection.name_of(item)

    def make_view(self, name: str) -> PhaseView:
        if self.session is not None and self.session.is_detachable:
            pytest.skip(f"detached: {self._attach_line()}")
        return make_view(self.collection, self.wait(name), self._run_again)

    def _run_again(self, phase: str, number: int) -> PhaseResult:
        """The result of a rerun, for a criterion that needs more than one measurement."""
        assert self.run is not None
        return self.wait(self.run.request_rerun(phase, number))

    def results(self) -> dict[str, PhaseResult]:
        """The evidence of every phase whose job has ended, read once for criteria and report."""
        from ..evidence.phase_result import with_bounds

        results = self.session.results if self.session is not None else {}
        return {
            name: self.views.by_name.get(name) or with_bounds(result, self.profile)
            for name, result in dict(results).items()  # the watch thread may add a rerun
        }

    def wait(self, name: str) -> PhaseResult:
        """The evidence of a phase, once its job has ended, as read by the watch thread."""
        assert self.session is not None and self.view is not None
        with self.watching():
            self.view.wait(name)
        return self.session.results[name]

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Erase the view at the end, and end pytest if the watch thread has failed."""
        assert self.view is not None
        try:
            with self.view.waiting():
                yield
        except WatchFailed as error:
            from ..evidence.locks import Superseded

            if isinstance(error.__cause__, Superseded):
                who = str(error.__cause__)
                pytest.exit(f"{who}; this one ends, and leaves its jobs", returncode=2)
            traceback.print_exception(error.__cause__)
            pytest.exit(f"internal error: {error}; the run's jobs are cancelled", returncode=3)

    # The end

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        criterion = self._count(report)
        if criterion is not None and self.jobs is not None:
            phase, name = criterion
            self.jobs.journal.record_criterion(phase, name, self.tally.phases[phase].criteria[name])
        elif self.jobs is not None and report.failed:
            self.jobs.journal.record_failed_test(report.nodeid)

    def _count(self, report: pytest.TestReport) -> tuple[str, str] | None:
        return count_report(self.tally, report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Count errors: under --continue-on-collection-errors the phases run nevertheless."""
        count_other(self.tally, report)
        if report.skipped:
            self.tally.counts.skipped_files.append(f"{report.nodeid} ({failure_text(report)})")

    def pytest_keyboard_interrupt(self) -> None:
        self.tally.interrupted, self.tally.counts.signal = True, self.interrupts.signal
        if self.jobs is not None:
            self.jobs.cancel()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Iterator[None]:
        if self.jobs is None:
            self._drop_junit()  # nothing ran, so there is no run to report
            self._refuse_other_success(session, int(exitstatus))
            return (yield)
        if self.jobs.is_superseded:
            session.exitstatus = pytest.ExitCode.INTERRUPTED
            return (yield from self._end_unjudged(self.superseded))
        if self.session is not None and self.session.is_detachable:
            return (yield from self._end_detached(session))
        self.interrupts.ending()
        self._judge_run(session, int(exitstatus))
        try:
            yield
        except Exception as error:  # such as junit.xml on a full disk, or another plugin's error
            self._print_traceback()
            self.remarks.append(
                f"pytest failed to end the session: {type(error).__name__}: {error}"
            )
            if session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        try:
            self._publish(session)
        finally:
            self.interrupts.release()
        return None

    def _end_detached(self, session: pytest.Session) -> Iterator[None]:
        from ..report.verdict import EXIT_INCONCLUSIVE
        from .attachment import detach

        assert self.session is not None
        line = f"{detach(self.session)}; {self._attach_line()}"
        if session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = EXIT_INCONCLUSIVE
        return (yield from self._end_unjudged(line))

    def _end_unjudged(self, line: str) -> Iterator[None]:
        """End without a verdict and without touching the jobs: `line` says why."""
        assert self._controller is not None and self.view is not None
        self._drop_junit()
        with contextlib.suppress(OSError):  # the terminal is gone
            self.view.close()
        self.terminal.say(line)
        try:
            yield
        finally:
            self.interrupts.release()
            self._controller.release()

    def _refuse_other_success(self, session: pytest.Session, exitstatus: int) -> None:
        """With --cluster, the success of other tests must not look like the cluster's verdict."""
        judges = self.config.getoption("--cluster") and not self.collection.plans_only
        if judges and exitstatus == pytest.ExitCode.OK:
            self.terminal.say(f"no phase ran on {self.profile.name}: no verdict")
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED

    def _judge_run(self, session: pytest.Session, exitstatus: int) -> None:
        """End every job, then give the verdict, which pytest's own files need next."""
        from ..report.junit import complete_junit

        assert self.jobs is not None and self.view is not None
        ended = session.shouldfail or session.shouldstop or f"exit status {exitstatus}"
        early = "" if self.tally.interrupted else f"pytest ended ({ended})"
        left = self.jobs.close(early)
        self.remarks += self.jobs.journal.describe_lost()
        with contextlib.suppress(OSError):  # the terminal is gone
            self.view.close()
        if left:
            from .dead_runs import describe_leftover

            self.remarks.append(describe_leftover(left, self.profile, self.run_id, self.about))
        for name, judgement in self.session.outcomes.items() if self.session is not None else ():
            if name in self.tally.phases:  # not a rerun
                self.tally.phases[name].end(judgement.outcome)
        self.tally.counts.exit_status = exitstatus
        self._finished = self._gather_run()
        session.exitstatus = self._finished.verdict.exit_status
        try:
            complete_junit(self.config, self._finished.record, self._finished.target, self.about)
        except Exception as error:  # a bug of ours must not lose the verdict
            self._print_traceback()
            self.remarks.append(f"junit.xml is incomplete: {type(error).__name__}: {error}")

    def _drop_junit(self) -> None:
        if self._has_own_junit:
            from ..report.junit import drop_junit

            drop_junit(self.config)

    def _gather_run(self) -> FinishedRun:
        """Everything the report is made from."""
        from ..report.record_builder import FinishedRun

        assert self.run is not None
        return FinishedRun(
            directory=self.run,
            target=self.collection.report_path,
            about=self.about,
            tally=self.tally,
            profile=self.profile,
            phases=self.collection.phases,
            absences=tuple(self.collection.absences),
            acknowledgements=self.collection.acknowledgements,
            proof=self.proof,
            results=self.results(),
        )

    @staticmethod
    def _print_traceback() -> None:
        with contextlib.suppress(OSError):  # the terminal is gone
            traceback.print_exc()

    def _publish(self, session: pytest.Session) -> None:
        """Write the report, then end the terminal's output with the verdict."""
        from ..report.publication import finish

        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        assert self._finished and self.jobs and self._controller
        if self.jobs.is_superseded:
            self.terminal.say(self.superseded)
            session.exitstatus = pytest.ExitCode.INTERRUPTED
            return
        written = finish(self._finished, reporter, latest=self.latest, remarks=self.remarks)
        if not written and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        self._controller.release()
        if self.tally.interrupted:
            gc.freeze()  # pytest searches all objects for garbage, up to five times, at its end
