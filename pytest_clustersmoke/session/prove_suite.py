"""The suite of a session that proves: faults are staged instead of phases run.

Each gate has a job of its own. Where a criterion must go red, the phase's own criteria judge what
the job left, as they would in a run; and they judge the same small phase with nothing staged, so
that what is red has its cause in the fault.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from ..config.phase import Phase
from ..config.profile import Profile
from ..criteria.phase_criteria import PhaseView
from ..evidence.phase_result import PhaseResult
from ..faults import FAULTS
from ..faults.gate import GREEN, NOT_STAGED, OTHER, PROVEN, Alone, Gate, Seen, judge
from ..report.record_builder import FinishedRun
from ..report.verdict import CriterionResult, ProofTally, RunVerdict, judge_proof
from ..text import plural
from .gates import Candidate, GateItem, alone, best, with_fault
from .items import JobFailed, PhaseClass, phase_class
from .selection import scope_words
from .suite import Suite
from .tally import words_of

# A phase on which every rank sleeps as long as it works is at half its speed.
SLOWER = "-10 %"
WITH_XDIST = (
    "--cluster-prove does not run with pytest-xdist (-n, --dist, --tx): one session stages every "
    "fault, and its jobs already overlap within the cluster's `limits`; omit -n"
)


class ProveSuite(Suite):
    """One session's gates on one cluster."""

    latest = "latest-proof"  # `latest` is what was found of the cluster as it is

    def __init__(self, config: pytest.Config, profile: Profile) -> None:
        if hasattr(config, "workerinput") or getattr(config.option, "tx", None):
            raise pytest.UsageError(WITH_XDIST)
        # What is staged must turn red, whoever answers for the same failure of the cluster.
        super().__init__(config, profile.model_copy(update={"known": ()}))
        self.proof = ProofTally(profile.name, time.strftime("%Y-%m-%d"))
        self._gates: dict[str, Gate] = {}
        self._not_applicable: dict[str, str] = {}
        self._chosen: dict[str, Candidate] = {}
        self._alone: dict[PhaseClass, Alone] = {}
        self._current = ""  # the staged phase whose criteria run now
        self._seen: dict[str, dict[str, Seen]] = {}

    # Collection

    def select(self, items: list[pytest.Item]) -> None:
        """Of the gates that pytest selected keep one for each fault, in the phase that fits it."""
        self._keep_best(items)
        super().select(items)

    def _keep_best(self, items: list[pytest.Item]) -> None:
        candidates: dict[str, list[Candidate]] = {}
        for item in items:
            if isinstance(item, GateItem):
                candidates.setdefault(item.fault.name, []).append(self._candidate(item))
        for name, found in candidates.items():
            chosen = best(FAULTS[name], found, self.profile)
            if isinstance(chosen, str):
                self._not_applicable[name] = chosen
            else:
                self._chosen[name] = chosen
        kept = {id(one.item) for one in self._chosen.values()}
        gone = [item for item in items if id(item) not in kept]
        self.config.hook.pytest_deselected(items=gone)
        items[:] = [item for item in items if id(item) in kept]
        self.proof.planned = [item.fault.name for item in items if isinstance(item, GateItem)]

    def _candidate(self, item: GateItem) -> Candidate:
        cls = phase_class(item)
        assert cls is not None
        return Candidate(
            item,
            cls,
            self.phases[self._names[cls]],
            frozenset(mark.name for mark in cls.iter_markers()),
            tuple(one for one in cls.criteria if isinstance(one, pytest.Item)),
        )

    def pytest_report_collectionfinish(self) -> list[str]:
        absent = [f"{name} is not staged: {why}" for name, why in self._not_applicable.items()]
        return [f"{plural(len(self._chosen), 'gate')} to prove, each by a staged fault", *absent]

    # The run

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[Any]:
        chosen = [self._chosen[i.fault.name] for i in session.items if isinstance(i, GateItem)]
        phases = self._staged_phases(chosen)
        for phase in phases:
            self.tally.phase(phase.name)
        self.tally.phases_of_cluster = list(self.profile.phases)
        # Which phases the faults are staged in selects nothing.
        self.tally.selection = scope_words(self.config, is_cut=False)
        if self.config.getoption("--cluster-dry-run"):
            self._print_plan(chosen)
            session.items.clear()
            return (yield)
        if chosen and not self._plans_only and not session.testsfailed:
            self.phases = {phase.name: phase for phase in phases}
            self.start(phases)
        return (yield)

    def _staged_phases(self, chosen: list[Candidate]) -> list[Phase]:
        """The phases of all jobs, each comparison just before the first fault that needs it."""
        phases: dict[str, Phase] = {}
        for one in chosen:
            fault = one.item.fault
            made = [alone(one)] if fault.of_criteria else []
            phases |= {phase.name: phase for phase in [*made, with_fault(fault, one)]}
        return list(phases.values())

    def asked(self) -> dict[str, Any]:
        return {**super().asked(), "proof": list(self._chosen)}

    def _print_plan(self, chosen: list[Candidate]) -> None:
        out = sys.stdout
        out.write(
            f"\ncluster {self.profile.name}: nothing is submitted; these faults would be staged\n"
        )
        for one in chosen:
            fault, phase = one.item.fault, one.phase
            size = f"{phase.nodes.value} x {phase.gpus_per_node.value}"
            red = ", ".join([*sorted(fault.red), *fault.findings])
            out.write(f"{fault.name}: {phase.name}, {size} ranks: {fault.what} -> {red}\n")
        for name, why in self._not_applicable.items():
            out.write(f"{name} is not staged: {why}\n")
        out.flush()

    def result_of(self, item: pytest.Item) -> PhaseView:
        """What the gate's own job left; for a criterion, that of the phase it is to judge now."""
        name = item.staged_name if isinstance(item, GateItem) else self._current
        if name not in self._results:
            self.wait(name)
            from ..criteria.phase_criteria import view_phase

            staged = self.phases[name].staged
            assert staged is not None
            # What a cluster expects of the phase holds of the small one, too; references do not.
            self._results[name] = replace(
                view_phase(self.read_phase(name)),
                expect=self.profile.expect.get(staged.base),
            )
        return self._results[name]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Iterator[Any]:
        """Before a gate is judged, its phase's criteria run; they are no results of their own."""
        if isinstance(item, GateItem) and self.session is not None:
            result = self.result_of(item)
            if item.fault.of_criteria and result.outcome == "passed":
                one = self._chosen[item.fault.name]
                if one.cls not in self._alone:
                    self._alone[one.cls] = self._judge_alone(item, one)
                if item.fault.slower_than_alone and self._alone[one.cls].outcome == "passed":
                    self._compare_with_alone(item, one)
                self._seen[item.fault.name] = self._judge(item, one, item.staged_name)
        return (yield)

    def _judge_alone(self, gate: GateItem, one: Candidate) -> Alone:
        self._current = alone(one).name
        result = self.result_of(one.criteria[0])
        seen = self._judge(gate, one, self._current) if result.outcome == "passed" else {}
        return Alone(result.outcome, str(result.job.get("reason", "")), seen)

    def _judge(self, gate: GateItem, one: Candidate, name: str) -> dict[str, Seen]:
        """Every criterion of the phase, over the job of this name."""
        self._current = name
        results = self.tally.phase(name).criteria
        for item in one.criteria:
            item.user_properties.clear()
            reports = runtestprotocol(item, log=False, nextitem=gate)
            failed = next((report for report in reports if report.failed), None)
            if failed is not None:
                results[item.name] = CriterionResult("failed", words_of(failed))
            else:
                skipped = any(report.skipped for report in reports)
                results[item.name] = CriterionResult("skipped" if skipped else "passed")
        return {key: Seen(result.result, result.text) for key, result in results.items()}

    def _compare_with_alone(self, item: GateItem, one: Candidate) -> None:
        """Give the staged phase what the same phase reached alone as its reference."""
        from ..config.profile import Reference

        self._current = alone(one).name
        metric = self.result_of(one.criteria[0]).metric("steps_per_s")
        reference = Reference.model_validate(
            {
                "value": metric.value,
                "lower": SLOWER,
                "unit": metric.unit,
                "source": f"{self._current}: the same with nothing staged",
            }
        )
        staged = self.result_of(item)
        name = item.staged_name
        self._results[name] = replace(staged, references={"steps_per_s": reference})

    def run_gate(self, item: GateItem) -> None:
        """Judge the gate, and keep it for the report."""
        assert self.run is not None
        result = self.result_of(item)
        fault, one = item.fault, self._chosen[item.fault.name]
        seen = self._seen.get(fault.name, {})
        before = self._alone.get(one.cls) if seen else None
        gate = judge(fault, one.phase.name, result, seen, before, self.run)
        self._gates[fault.name] = gate
        proof = self.proof
        {
            PROVEN: proof.proven,
            GREEN: proof.stayed_green,
            OTHER: proof.wrong,
            NOT_STAGED: proof.not_staged,
        }[gate.status].append(fault.name)
        item.user_properties += _properties(gate, result, self.proof.date)
        if gate.status != PROVEN:
            raise JobFailed("\n".join([f"gate {gate.fault}: {gate.status}", *gate.reasons]))

    # The end

    def _count(self, report: pytest.TestReport) -> None:
        """A gate is counted where it is judged; what pytest reports of it says no more."""

    def _give_verdict(self) -> RunVerdict:
        return judge_proof(self.proof, self.tally)

    def results(self) -> dict[str, PhaseResult]:
        """The evidence as it is, without the references that a gate was compared with."""
        return dict(self.session.results) if self.session is not None else {}

    def _finished(self) -> FinishedRun:
        proof = {
            "cluster": self.proof.cluster,
            "date": self.proof.date,
            "planned": self.proof.planned,
            "proven": self.proof.proven,
            "stayed_green": self.proof.stayed_green,
            "gates": [gate.as_dict() for gate in self._gates.values()],
            "not_applicable": self._not_applicable,
        }
        return replace(super()._finished(), proof=proof)

    def _publish(self, session: pytest.Session) -> None:
        super()._publish(session)
        assert self.run is not None
        for name in self.phases:  # checkpoints of jobs that failed as they had to
            shutil.rmtree(self.run.phase(name).output, ignore_errors=True)


def _properties(gate: Gate, result: PhaseResult, date: str) -> list[tuple[str, object]]:
    from ..report.junit import phase_properties

    mine = [("fault", gate.fault), ("base_phase", gate.phase), ("gate", gate.status)]
    return [*mine, ("date", date), ("red", ",".join(gate.red)), *phase_properties(result)]
