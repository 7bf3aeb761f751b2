"""`--cluster-isolate`: runs a failed phase's program on groups of its nodes, and writes the answer
as a finding of the phase's job.

Each test is pinned to its nodes, as a step of one allocation or as a job, and has a directory below
the phase's. What is known is written after each test, so that an interrupted run keeps it, and an
attached one goes on from there: the plan is replayed with the recorded results.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pytest

from ..config.hostlist import expand_hostlist
from ..config.marker import JOB
from ..config.phase import DEFAULT, Phase, Sourced
from ..config.profile import Profile
from ..criteria.phase_criteria import view_phase
from ..criteria.stragglers import find_slow_groups
from ..evidence.finding import ISOLATION_FINDING
from ..evidence.metric import BETWEEN, Unmeasured
from ..evidence.phase_attempts import NODE_FAILED
from ..evidence.phase_result import PhaseResult
from ..evidence.run_counts import CriterionRecord, PhaseTally
from ..evidence.run_directory import PhaseDir, read_json, write_json
from ..evidence.telemetry import parse_finite, parse_rows, parse_text, parse_texts, to_json_value
from ..jobs.slurm_client import SlurmClient, SlurmUnavailable
from ..text import plural
from .group_tests import FAILED, NO_ANSWER, PASSED, SLOW, Group
from .isolation_answer import UNKNOWN, IsolationAnswer, explain_answer
from .isolation_place import SOURCE, IsolationPlace
from .isolation_plan import IsolationPlan
from .job_session import JobSession
from .suite import Suite

STRAGGLERS = "stragglers"
# Criteria that a bad node, link or switch turns red although the job passed.
BETWEEN_NODES = (BETWEEN, STRAGGLERS)
# Outcomes of a job from which something was measured.
MEASURED = ("passed", "failed", NODE_FAILED)
TIME_IS_OVER = "the time for isolation is over"
MOST_SHOWN = 4  # nodes in a line


@dataclass
class GroupJob:
    """One test: its number, its round, its nodes, and how it ended."""

    number: int
    round: int
    nodes: Group
    result: str = ""
    outcome: str = ""
    reason: str = ""
    job_id: str = ""
    run_s: float | None = None


def find_symptom(criteria: Mapping[str, CriterionRecord]) -> str:
    """What of a phase failed that nodes or what connects them can cause: its job, or the kind of a
    criterion; empty if nothing did."""
    failed = {name: record for name, record in criteria.items() if record.result == "failed"}
    if JOB in failed:
        return JOB
    kinds = {kind for record in failed.values() for kind in record.judged}
    return next((kind for kind in BETWEEN_NODES if kind in kinds), "")


class IsolationOfPhases:
    """A plugin of a session with --cluster-isolate: after the last criterion it isolates what
    failed each phase of several nodes."""

    def __init__(self, suite: Suite) -> None:
        self._suite = suite

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[Any]:
        try:
            outcome = yield
        except session.Failed:  # as under -x
            self._isolate_all()
            raise
        self._isolate_all()
        return outcome

    def _isolate_all(self) -> None:
        jobs, tally = self._suite.session, self._suite.tally
        if jobs is None:  # nothing was submitted
            return
        for name in tally.phases:
            phase, result = jobs.phases.get(name), jobs.results.get(name)
            symptom = find_symptom(tally.phases[name].criteria)
            if phase is None or result is None or result.outcome not in MEASURED:
                continue
            if symptom and int(phase.nodes.value) > 1:
                self._isolate(jobs, phase, result, symptom)

    def _isolate(self, jobs: JobSession, phase: Phase, result: PhaseResult, symptom: str) -> None:
        suite = self._suite
        client = SlurmClient(suite.collection.scheduler_environ()[0])
        isolation = FaultIsolation(
            phase, result, symptom, suite.profile, jobs, client, suite.wait, suite.terminal.say
        )
        try:
            isolation.run(list_good(jobs.results, suite.tally.phases))
        finally:  # an interrupted one says what is known
            jobs.results[phase.name] = isolation.result
            if view := suite.views.by_name.get(phase.name):
                suite.views.by_name[phase.name] = replace(view, job=isolation.result.job)


def list_good(results: Mapping[str, PhaseResult], phases: Mapping[str, PhaseTally]) -> list[str]:
    """The nodes that passed phases of several nodes in this session, and no criterion of which
    failed that nodes can cause."""
    passed = [
        results[name]
        for name, tally in phases.items()
        if name in results and not find_symptom(tally.criteria)
        if results[name].outcome == "passed" and len(results[name].nodes) > 1
    ]
    shown = [parse_text(result.job.get("scheduler_nodes")) or "" for result in passed]
    return [*dict.fromkeys(node for hosts in shown for node in expand_hostlist(hosts))]


class FaultIsolation:
    """Isolates what failed one phase. `wait` returns the result of a test; `say` prints a line."""

    def __init__(
        self,
        phase: Phase,
        result: PhaseResult,
        symptom: str,
        profile: Profile,
        session: JobSession,
        client: SlurmClient,
        wait: Callable[[str], PhaseResult],
        say: Callable[[str], None],
    ) -> None:
        self._phase, self.result, self._symptom = phase, result, symptom
        self._profile, self._session, self._client = profile, session, client
        self._wait, self._say = wait, say
        self._directory = PhaseDir(result.directory.phase)
        self._jobs: list[GroupJob] = []
        self._earlier: list[GroupJob] = []  # of a controller before, to be replayed
        self._budget = profile.limits.isolate
        self._ends = time.monotonic() + 60 * self._budget.minutes
        self._basis: dict[str, Any] = {}
        self._place = IsolationPlace(phase, profile, session, client, self._directory, say)

    def run(self, good: Iterable[str]) -> PhaseResult:
        """Test groups until the answer is found; return the phase's result with its finding.
        `good`: nodes that passed other phases."""
        nodes = self._list_nodes()
        if why := self._find_obstacle(nodes):
            return self._conclude(IsolationAnswer(UNKNOWN, support=(why,)))
        plan = self._make_plan(nodes, good)
        at_once = self._profile.limits.max_jobs
        self._say(
            f"isolating {self._phase.name}: {plural(len(nodes), 'node')}; at most "
            f"{plural(self._budget.tests, 'test')} and {self._budget.minutes:g} minutes, "
            f"{at_once} at a time"
        )
        try:
            while plan.answer is None:
                if time.monotonic() > self._ends:
                    return self._conclude(plan.give_up(TIME_IS_OVER))
                results = self._test_round(plan)
                plan.take(results, self._find_down(plan, results))
            return self._conclude(plan.answer)
        finally:
            self._place.release()

    def _list_nodes(self) -> list[str]:
        """The nodes of the job, by Slurm's names. Slurm no longer lists one that failed; then what
        the nodes and its findings say counts as well, of names that Slurm knows."""
        listed = expand_hostlist(parse_text(self.result.job.get("scheduler_nodes")) or "")
        if len(listed) == int(self._phase.nodes.value):
            return listed
        named = [node.name for node in self.result.nodes]
        named += [host for each in self.result.findings for host in each.hosts]
        try:
            known = self._client.nodes()
        except SlurmUnavailable:
            return listed
        return [*dict.fromkeys(name for name in (*listed, *named) if name in known)]

    def _find_obstacle(self, nodes: Sequence[str]) -> str:
        """Why the phase cannot be run on groups of its nodes; empty if it can."""
        needed = int(self._phase.nodes.value)
        if self._phase.nodes_fixed:
            return f"{self._phase.name} needs {needed} nodes (nodes_fixed)"
        if len(nodes) != needed:
            return f"the scheduler did not name the {needed} nodes that the job ran on"
        return ""

    def _make_plan(self, nodes: Sequence[str], good: Iterable[str]) -> IsolationPlan:
        """The plan, on the basis that an earlier controller of the run had, if there was one."""
        earlier = read_json(self._directory.isolation) or {}
        basis = earlier.get("basis")
        if not isinstance(basis, dict):
            basis = {
                "good": [*good],
                "switches": {name: [*below] for name, below in self._ask_topology().items()},
                "down": self._ask_down(nodes),
            }
        else:
            self._jobs = [
                job for row in parse_rows(earlier.get("tests")) if (job := _parse_job(row))
            ]
        self._basis, self._earlier = basis, [*self._jobs]
        return IsolationPlan(
            nodes, basis["good"], basis["switches"], self._budget.tests, basis["down"]
        )

    def _ask_topology(self) -> Mapping[str, Sequence[str]]:
        try:
            return self._client.topology()
        except SlurmUnavailable:  # also where no topology is configured
            return {}

    def _ask_down(self, nodes: Iterable[str]) -> dict[str, str]:
        """The nodes on which Slurm starts no job, and its words for that."""
        try:
            known = self._client.nodes()
        except SlurmUnavailable:
            return {}
        found = {node: known[node] for node in nodes if node in known}
        gone = {name: node for name, node in found.items() if node.gone or node.is_silent}
        return {name: f"Slurm says: {node.description}" for name, node in gone.items()}

    def _find_down(self, plan: IsolationPlan, results: Mapping[Group, str]) -> dict[str, str]:
        """The nodes that are gone, asked after a test that had no answer or lost its node."""
        lost = [job for job in self._jobs if job.nodes in results and job.outcome == NODE_FAILED]
        if not lost and NO_ANSWER not in results.values():
            return {}
        return self._ask_down(plan.nodes)

    # One round

    def _test_round(self, plan: IsolationPlan) -> dict[Group, str]:
        """Run the groups of a round side by side; return their results. What did not pass while the
        allocation ended is run again, as a job."""
        jobs = [self._take_earlier(group, plan.rounds) for group in plan.round]
        waiting = [job for job in jobs if not job.result]
        nodes = [node for node in plan.nodes if node not in self._basis["down"]]
        left_s = self._ends - time.monotonic()
        self._place.prepare(nodes, [job.nodes for job in waiting], left_s)
        found = self._run_tests(plan, waiting)
        if any(job.result != PASSED for job, _ in found) and self._place.give_up_lost():
            passed = [(job, result) for job, result in found if job.result == PASSED]
            again = [job for job, _ in found if job.result != PASSED]
            for job in again:
                job.number, job.result = self._next_number(), ""
            found = [*passed, *self._run_tests(plan, again)]
        if self._symptom == STRAGGLERS:
            _judge_slow(found)
        for job in waiting:
            words = f"{plural(len(job.nodes), 'node')} ({', '.join(job.nodes[:MOST_SHOWN])})"
            self._say(f"  isolating {self._phase.name}: {words}: {job.result}")
        return {job.nodes: job.result for job in jobs}

    def _run_tests(
        self, plan: IsolationPlan, tests: Sequence[GroupJob]
    ) -> list[tuple[GroupJob, PhaseResult]]:
        """Run tests side by side until the last has ended."""
        names = {job.number: f"{self._phase.name}.isolate{job.number}" for job in tests}
        self._session.run_more(self._make_test(names[job.number], job.nodes) for job in tests)
        timer = threading.Timer(
            max(0.0, self._ends - time.monotonic()),
            lambda: self._session.end_more(names.values(), TIME_IS_OVER),
        )
        timer.start()
        found: list[tuple[GroupJob, PhaseResult]] = []
        try:
            for job in tests:
                result = self._wait(names[job.number])
                found.append((job, result))
                self._note(job, result)
                self._write(plan.give_up(f"interrupted after {plural(len(self._jobs), 'test')}"))
        finally:
            timer.cancel()
        return found

    def _take_earlier(self, group: Group, number: int) -> GroupJob:
        """The next test of an earlier controller, if it is of this group; otherwise a new one."""
        if self._earlier and self._earlier[0].nodes == group and self._earlier[0].result:
            return self._earlier.pop(0)
        self._earlier = []
        job = GroupJob(self._next_number(), number, group)
        self._jobs.append(job)
        return job

    def _next_number(self) -> int:
        last = 1 + max((job.number for job in self._jobs), default=0)
        while f"{self._phase.name}.isolate{last}" in self._session.phases:
            last += 1  # of a controller before, which did not see it end
        return last

    def _make_test(self, name: str, group: Group) -> Phase:
        """The phase on these nodes alone, and by itself."""
        return replace(
            self._phase,
            name=name,
            nodes=Sourced(len(group), SOURCE),
            slurm=self._place.list_options(group),
            after=Sourced("", DEFAULT),
            peaks=Sourced("never", SOURCE),
            base="",
            trace=None,
        )

    def _note(self, job: GroupJob, result: PhaseResult) -> None:
        job.outcome, job.reason = result.outcome, result.reason
        job.job_id, job.run_s = result.job_id, result.run_s
        if result.outcome == "passed":
            expect = self._profile.expect.get(self._phase.entry)
            judged = replace(result, expect=expect)
            job.result = judge_transports(judged) if self._symptom == BETWEEN else PASSED
        else:
            job.result = FAILED if result.outcome in ("failed", NODE_FAILED) else NO_ANSWER

    # What is written

    def _conclude(self, answer: IsolationAnswer) -> PhaseResult:
        self._say(f"isolated {self._phase.name}: {answer}")
        return self._write(answer, ended=True)

    def _write(self, answer: IsolationAnswer, ended: bool = False) -> PhaseResult:
        """Write what is known so far, and the finding into the phase's result."""
        record = {
            "schema": 1,
            "phase": self._phase.name,
            "symptom": self._symptom,
            "budget": {"tests": self._budget.tests, "minutes": self._budget.minutes},
            "basis": self._basis,
            "allocation": {"job_id": self._place.job_id, "why_none": self._place.why},
            "tests": [asdict(job) for job in self._jobs],
            "answer": answer.as_record(),
            "ended": ended,
        }
        where = str(self._directory.isolation.relative_to(self._directory.phase))
        finding = explain_answer(answer, len(self._jobs), where)
        others = [each for each in self.result.findings if each.id != ISOLATION_FINDING]
        found = [each.as_dict() for each in (*others, finding)]
        job = {**self.result.job, "findings": found}
        with contextlib.suppress(OSError):  # a full disk: the result of this process has it
            self._directory.isolation.parent.mkdir(exist_ok=True)
            write_json(self._directory.isolation, to_json_value(record))
            write_json(self._directory.result, to_json_value(job))
        self.result = replace(self.result, job=job)
        return self.result


def judge_transports(result: PhaseResult) -> str:
    """Whether a group's nodes talk as the cluster expects of the phase."""
    try:
        view_phase(result).transports.inter_node.check()
    except AssertionError:
        return FAILED
    except Unmeasured:
        return NO_ANSWER
    return PASSED


def _judge_slow(found: Sequence[tuple[GroupJob, PhaseResult]]) -> None:
    """Judge the groups of a round by each rank's own work, compared with that of all of them."""
    passed = [(job, result) for job, result in found if job.result == PASSED]
    try:
        slow = find_slow_groups([result for _, result in passed]) if passed else []
        for (job, _), is_slow in zip(passed, slow, strict=True):
            job.result = SLOW if is_slow else PASSED
    except Unmeasured as missing:
        for job, _ in passed:
            job.result, job.reason = NO_ANSWER, str(missing)


def _parse_job(row: Mapping[str, Any]) -> GroupJob | None:
    """A test of isolation.json that has ended; None for one that has not."""
    number, result, nodes = row.get("number"), row.get("result"), parse_texts(row.get("nodes"))
    if not isinstance(number, int) or result not in (PASSED, FAILED, SLOW, NO_ANSWER) or not nodes:
        return None
    reason, outcome = parse_text(row.get("reason")) or "", parse_text(row.get("outcome")) or ""
    job_id, run_s = parse_text(row.get("job_id")) or "", parse_finite(row.get("run_s"))
    return GroupJob(number, 0, tuple(nodes), str(result), outcome, reason, job_id, run_s)
