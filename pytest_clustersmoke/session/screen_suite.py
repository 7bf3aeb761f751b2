"""The suite of `--cluster-screen`: every node of a partition, each alone, in place of the phases.

It needs no test file. Slurm is asked once for the nodes, before collection; each check of each node
is a test, `screen::NODE::CHECK`. The jobs run before the first test, since the checks compare nodes
with each other; the tests then report what was judged. Under pytest-xdist no worker starts: there
is nothing for one to do.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from .. import preflight
from ..config.profile import Profile
from ..criteria.screen_judge import CHECKS as JUDGED
from ..criteria.screen_peaks import PEAKS
from ..evidence.device_links import list_card_figures
from ..evidence.node_measurement import read_measurement
from ..evidence.screen_files import ScreenFiles
from ..evidence.screen_record import (
    ANSWER,
    FAILING,
    NO_ANSWER,
    NOT_SCREENED,
    PASSING,
    ScreenedNode,
    ScreenRecord,
)
from ..evidence.variable_names import hide_assignments
from ..jobs.screen_jobs import NodeEnd, ScreenJobs, SecondPart, make_script
from ..jobs.screen_plan import PlannedNode, plan_screen, remark_constraint
from ..jobs.slurm_client import SlurmClient, SlurmUnavailable
from ..report.node_evidence import observe_screen
from ..report.node_records import record_facts
from ..report.record_builder import FinishedRun
from ..report.redaction import choose_redactor
from ..text import Problem, UsageProblems, plural
from .items import JobFailed, PhaseItem, suite_of
from .live.live_view import LiveView
from .screen_results import ScreenSession, build_record, make_spec
from .selection import describe_selection
from .suite import Suite

ROOT = "screen"
CHECKS = (ANSWER, *JUDGED, PEAKS)
OPTION = "--cluster-screen"
# Options that a screen does not go with, and why.
CONFLICTS = {
    "--cluster-prove": "a proof stages faults in phases, and a screen runs no phase",
    "--cluster-isolate": "isolation tests the nodes of a phase, and a screen runs no phase",
    "--cluster-detach": "a screen is over in a minute, and its session judges it",
    "--cluster-attach": "a screen is over in a minute, and its session judges it",
    "--cluster-here": "a screen submits a job to each node of the partition",
    "--cluster-avoid": "a screen looks at every node, also at those that phases avoid",
    "--cluster-set": "it changes phases, and a screen runs no phase",
    "--cluster-trace": "it traces phases, and a screen runs no phase",
}
PART_SHARE = 0.5  # of a node's time that one part of its facts may take


def refuse_conflicts(config: pytest.Config, profile: Profile) -> None:
    """Raise UsageError for options and clusters that a screen does not go with."""
    for option, why in CONFLICTS.items():
        if config.getoption(option, None) not in (None, False, [], ""):
            raise pytest.UsageError(f"{OPTION} does not run with {option}: {why}; omit one of them")
    if profile.backend != "slurm":
        raise pytest.UsageError(
            f"{OPTION}: {profile.name} has `backend: {profile.backend}` ({profile.where('backend')}"
            "); expected a Slurm cluster, whose nodes sinfo lists; without Slurm run the phases, "
            "which check each node before their ranks start"
        )


class ScreenGroup(pytest.Collector):
    """The screen, or one node of it."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        return ()  # make_items has what belongs to it


class ScreenItem(PhaseItem):
    """One check of one node."""

    def __init__(self, *, node: str, check: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.node, self.check = node, check

    def runtest(self) -> None:
        suite_of(self.config).report(self)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, 0, f"{self.node}.{self.check}"


def make_items(session: pytest.Session, nodes: Sequence[str]) -> Iterator[ScreenItem]:
    """The checks of these nodes."""
    path = session.config.rootpath / ROOT
    root = ScreenGroup.from_parent(session, name=ROOT, nodeid=ROOT, path=path)
    for node in nodes:
        nodeid = f"{ROOT}::{node}"
        group = ScreenGroup.from_parent(root, name=node, nodeid=nodeid, path=path)
        for check in CHECKS:
            item: ScreenItem = ScreenItem.from_parent(group, name=check, node=node, check=check)
            yield item


def skip(reason: str) -> NoReturn:
    """Skip the running check; pytest names the check as the place, not this line."""
    raise pytest.skip.Exception(reason, _use_item_location=True)


def selected_nodes(items: Iterable[pytest.Item]) -> list[str]:
    """The nodes with a selected check, in order."""
    return list(dict.fromkeys(item.node for item in items if isinstance(item, ScreenItem)))


class ScreenSuite(Suite):
    """One session's screen of one cluster."""

    latest = "latest-screen"  # `latest` stays with runs of phases

    def __init__(self, config: pytest.Config, profile: Profile) -> None:
        refuse_conflicts(config, profile)
        super().__init__(config, profile)
        self._plan: list[PlannedNode] = []
        self._partition = ""
        self._items: list[pytest.Item] = []
        self.screen: ScreenRecord | None = None
        self._results: dict[str, ScreenedNode] = {}

    # Collection

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> bool:
        """Collect the checks of the partition's nodes in place of test files."""
        self._plan, self._partition = self._ask_for_nodes()
        items = session.items = list(make_items(session, [node.name for node in self._plan]))
        self._items = list(items)
        hook = session.config.hook
        collected = pytest.CollectReport(ROOT, "passed", None, list(items))
        hook.pytest_collectreport(report=collected)  # the terminal counts what it has
        hook.pytest_collection_modifyitems(session=session, config=session.config, items=items)
        hook.pytest_collection_finish(session=session)
        session.testscollected = len(items)
        return True

    def _ask_for_nodes(self) -> tuple[list[PlannedNode], str]:
        """The nodes of the partition, by sinfo. Raises UsageError."""
        environ, problems = self.collection.scheduler_environ()
        report_dir = self.collection.report_dir
        problems += preflight.find_start_problems(self.profile, [], report_dir, environ)
        if problems:
            raise pytest.UsageError(str(UsageProblems(problems)))
        partition, slurm = "", self.profile.slurm
        try:
            wanted = slurm.get("partition") or ""
            partition, nodes = SlurmClient(environ).partition_nodes(str(wanted))
        except SlurmUnavailable as error:
            raise pytest.UsageError(f"{OPTION}: {error}") from None
        hostlist = self.config.getoption("--cluster-nodes") or ""
        plan, problems = plan_screen(nodes, hostlist, slurm)
        if not nodes:
            where = self.profile.where("slurm", "partition")
            expected = "a partition that sinfo lists" + (
                "" if partition else ", since Slurm has no default one: set `slurm.partition`"
            )
            problems = [Problem(f"no node in partition `{partition}`", where, expected)]
        if problems:
            raise pytest.UsageError(str(UsageProblems(problems)))
        return plan, partition

    def resolve_phases(self, *_: object) -> None:
        """There are no phases."""

    def select(self, items: list[pytest.Item]) -> None:
        is_cut = len(items) < len(self._items)
        words = [f"--cluster-nodes {self.config.getoption('--cluster-nodes')}"]
        part = words if self.config.getoption("--cluster-nodes") else ()
        self.tally.counts.selection = describe_selection(self.config, is_cut, part)

    def pytest_report_collectionfinish(self) -> list[str]:
        chosen = [node for node in self._plan if not node.skip]
        left = len(self._plan) - len(chosen)
        words = f"{plural(len(chosen), 'node')} of partition {self._partition} to screen, each "
        words += f"alone and for at most {self.profile.limits.screen_s:g} s"
        if second := SecondPart.measuring(self.profile):
            words += f", then {second.limit_s:g} s to measure its devices"
        remark = remark_constraint(self.profile.slurm)
        return [f"{words}; {left} not screened" if left else words, *filter(None, [remark])]

    # The run

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[Any]:
        if self.config.getoption("--cluster-dry-run"):
            self._print_plan()
            session.items.clear()
            return (yield)
        if session.items and not self.collection.plans_only and not session.testsfailed:
            self._screen(selected_nodes(session.items))
        return (yield)

    def _print_plan(self) -> None:

        files = ScreenFiles(self.profile.shared_dir / self.run_id)
        sys.stdout.write(f"\ncluster {self.profile.name}: nothing is submitted\n")
        for node in self._plan:
            why = f"not screened: {node.why}" if node.skip else "one job, on this node alone"
            sys.stdout.write(f"{node.name} ({node.state}): {why}\n")
        script = make_script(self.profile, files, SecondPart.measuring(self.profile))
        sys.stdout.write(f"\n{hide_assignments(script)}")
        sys.stdout.flush()

    def _screen(self, chosen: Sequence[str]) -> None:
        """Run the jobs to their end, and judge what the nodes answered."""
        try:
            self._take_cluster()
            environ, _ = self.collection.scheduler_environ()
            start = preflight.prepare_run(self.profile, self.run_id, environ)
        except UsageProblems as problems:
            raise pytest.UsageError(str(problems)) from None
        self.run, files = start.run, ScreenFiles(start.run.root)
        plan = [node for node in self._plan if node.name in chosen]
        second = SecondPart.measuring(self.profile)
        jobs = ScreenJobs(SlurmClient(environ), self.profile, self.run_id, files, second)
        try:
            files.create(self._request(plan))
            screen = ScreenSession(start.run, jobs)
            self._announce(start.run, [], screen.journal)
        except OSError as error:
            raise pytest.UsageError(f"nothing is submitted: {error}") from None
        self.jobs = screen
        self.view = LiveView(f"cluster {self.profile.name}", screen.board, start.run, self.terminal)
        self.interrupts.catch(screen.cancel, screen.hurry)
        self._recover()
        names = [node.name for node in plan if not node.skip]
        try:
            screen.run(names, self._report_end)
        finally:  # an interrupted screen reports what is known
            self.screen = build_record(
                self.profile, self._partition, self._minimum, plan, screen.ends, files
            )
            self._results = {node.node: node for node in self.screen.nodes}

    @property
    def _minimum(self) -> float:
        return float(self.config.getoption("--cluster-screen-min") or 0.0)

    def _request(self, plan: Sequence[PlannedNode]) -> dict[str, Any]:
        """What every node is asked, and the nodes as Slurm has them."""
        return {
            "partition": self._partition,
            "nodes": {node.name: {"state": node.state, "skip": node.skip} for node in plan},
            "spec": make_spec(self.profile),
            "part_s": max(1.0, PART_SHARE * self.profile.limits.screen_s),
        }

    def describe_request(self) -> dict[str, Any]:
        return {**super().describe_request(), "screen": self._partition}

    def _report_end(self, node: str, end: NodeEnd) -> None:
        if end.kind != "answered":
            self.terminal.say(f"  {node}: {end.why}")

    def report(self, item: ScreenItem) -> None:
        """Let a test end as its check did."""
        node = self._results.get(item.node)
        if node is None:
            skip("the screen was interrupted")
        item.user_properties += [
            ("node", node.node),
            ("state", node.state),
            ("slurm_state", node.slurm_state),
            ("job_id", node.job_id),
        ]
        if node.state == NOT_SCREENED:
            skip(f"not screened: {node.reason}")
        check = node.checks.get(item.check)
        if check is None:
            skip(f"{node.state}: {node.reason}")
        if check.result == "failed":
            raise JobFailed(f"{node.node}: {item.check}: {check.text}")
        if check.result == "skipped":
            skip(check.text)
        if check.text:
            item.user_properties.append(("warning", check.text))

    # The end

    def _count(self, report: pytest.TestReport) -> None:
        """Checks are counted in the screen's record."""

    def _gather_run(self) -> FinishedRun:
        seen = observe_screen(self.screen) if self.screen is not None else ()
        finished = replace(super()._gather_run(), screen=self.screen, observations=tuple(seen))
        if self.screen is None:
            return finished
        files = ScreenFiles(finished.directory.root)
        names = [node.node for node in self.screen.nodes]
        measured = {name: read_measurement(files, name) for name in names}
        figures = [
            figure
            for name, found in measured.items()
            for figure in (*found.figures, *list_card_figures(name, found.cards))
        ]
        # A node that was ended may have written its answer as it was.
        in_time = [node.node for node in self.screen.nodes if node.state in (PASSING, FAILING)]
        answers = [answer for name in in_time if (answer := files.read_answer(name)) is not None]
        return replace(finished, figures=tuple(figures), screened=[*map(record_facts, answers)])

    def results(self) -> dict[str, Any]:
        return {}

    def _publish(self, session: pytest.Session) -> None:
        super()._publish(session)
        hides = choose_redactor(self.about) is not None  # then the evidence stays where it is
        if self.run is not None and self.screen is not None and not hides:
            self._keep_evidence(ScreenFiles(self.run.root), self.screen)

    def _keep_evidence(self, files: ScreenFiles, screen: ScreenRecord) -> None:
        """Copy the answers and logs of nodes that are not fit into the report."""
        target = ScreenFiles(self.collection.report_path)
        for node in (*screen.of(FAILING), *screen.of(NO_ANSWER)):
            for kind in (files.answer, files.log):
                if kind(node.node).is_file():
                    copy = target.root / kind(node.node).relative_to(files.root)
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(kind(node.node), copy)
