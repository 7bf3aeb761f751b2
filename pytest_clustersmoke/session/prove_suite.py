"""The suite of `--cluster-prove`: it stages faults instead of running phases.

Each gate has its own job. If a criterion must turn red, the phase's own criteria judge the evidence
of that job, as in a run. They also judge the same small phase with nothing staged, so that a red
criterion is known to be caused by the fault.
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
from ..evidence.run_counts import PROVEN_GATE, UNPROVABLE_GATE, CriterionRecord, ProofRecord
from ..faults import FAULTS
from ..faults.gate import Baseline, Observed, judge_gate
from ..text import plural
from .gates import Candidate, GateItem, choose_candidate, with_fault, without_fault
from .items import JobFailed, PhaseClass, phase_class
from .selection import describe_selection
from .suite import Suite
from .tally import failure_text

# Well above noise: a phase whose ranks sleep as long as they work runs at half its speed.
SLOWER = "-10 %"
WITH_XDIST = (
    "--cluster-prove does not run with pytest-xdist (-n, --dist, --tx): one session stages every "
    "fault, and its jobs already overlap within the cluster's `limits`; omit -n"
)
WITH_TRACE = (
    "--cluster-trace does not run with --cluster-prove, whose phases have staged faults; omit one "
    "of them"
)
WITH_HERE = (
    "--cluster-prove does not run with --cluster-here: each fault is staged in a job of its own, "
    "which it may take down; omit one of them"
)


class ProveSuite(Suite):
    """One session's gates on one cluster."""

    latest = "latest-proof"  # `latest` stays with runs without staged faults
    proof: ProofRecord

    def __init__(self, config: pytest.Config, profile: Profile) -> None:
        if hasattr(config, "workerinput") or getattr(config.option, "tx", None):
            raise pytest.UsageError(WITH_XDIST)
        if config.getoption("--cluster-trace"):
            raise pytest.UsageError(WITH_TRACE)
        if config.getoption("--cluster-here"):
            raise pytest.UsageError(WITH_HERE)
        # A staged fault must turn its criterion red even if `known` lists that failure.
        super().__init__(config, profile.model_copy(update={"known": ()}))
        self.proof = ProofRecord(
            cluster=profile.name,
            date=time.strftime("%Y-%m-%d"),
            planned=[],
            proven=[],
            stayed_green=[],
            gates=[],
            not_applicable={},
        )
        self._chosen: dict[str, Candidate] = {}
        self._baselines: dict[PhaseClass, Baseline] = {}
        self._current = ""  # the staged phase whose criteria run now
        self._observations: dict[str, dict[str, Observed]] = {}

    # Collection

    def select(self, items: list[pytest.Item]) -> None:
        """For each fault, keep the selected gate in the phase that fits it best."""
        self.collection.refuse(self.collection.find_mistakes(items), [])
        self._keep_best_gates(items)
        super().select(items)

    def _keep_best_gates(self, items: list[pytest.Item]) -> None:
        candidates: dict[str, list[Candidate]] = {}
        for item in items:
            if isinstance(item, GateItem) and phase_class(item) in self.collection.names:
                candidates.setdefault(item.fault.name, []).append(self._make_candidate(item))
        for name, possible in candidates.items():
            chosen = choose_candidate(FAULTS[name], possible, self.profile)
            if isinstance(chosen, str):
                self.proof.not_applicable[name] = chosen
            else:
                self._chosen[name] = chosen
        kept = {id(candidate.item) for candidate in self._chosen.values()}
        gone = [item for item in items if id(item) not in kept]
        self.config.hook.pytest_deselected(items=gone)
        items[:] = [item for item in items if id(item) in kept]
        self.proof.planned = [item.fault.name for item in items if isinstance(item, GateItem)]

    def _make_candidate(self, item: GateItem) -> Candidate:
        cls = phase_class(item)
        assert cls is not None
        return Candidate(
            item,
            cls,
            self.collection.phases[self.collection.name_of(item)],
            frozenset(mark.name for mark in cls.iter_markers()),
            tuple(item for item in cls.criteria if isinstance(item, pytest.Item)),
        )

    def pytest_report_collectionfinish(self) -> list[str]:
        absent = [f"{name} is not staged: {why}" for name, why in self.proof.not_applicable.items()]
        return [f"{plural(len(self._chosen), 'gate')} to prove, each by a staged fault", *absent]

    # The run

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[Any]:
        chosen = [
            self._chosen[item.fault.name] for item in session.items if isinstance(item, GateItem)
        ]
        phases = self._staged_phases(chosen)
        for phase in phases:
            self.tally.phase(phase.name)
        self.tally.phases_of_cluster = list(self.profile.phases)
        # The choice of phases for the faults is not a selection by the user.
        self.tally.counts.selection = describe_selection(self.config, is_cut=False)
        if self.config.getoption("--cluster-dry-run"):
            self._print_plan(chosen)
            session.items.clear()
            return (yield)
        if chosen and not self.collection.plans_only and not session.testsfailed:
            self.collection.phases = {phase.name: phase for phase in phases}
            self.start(phases)
        return (yield)

    def _staged_phases(self, chosen: list[Candidate]) -> list[Phase]:
        """The phases of all jobs; a baseline comes just before the first fault that needs it."""
        phases: dict[str, Phase] = {}
        for candidate in chosen:
            fault = candidate.item.fault
            baseline = [without_fault(candidate)] if fault.fails_criteria else []
            phases |= {phase.name: phase for phase in [*baseline, with_fault(fault, candidate)]}
        return list(phases.values())

    def describe_request(self) -> dict[str, Any]:
        return {**super().describe_request(), "proof": list(self._chosen)}

    def _print_plan(self, chosen: list[Candidate]) -> None:
        out = sys.stdout
        out.write(
            f"\ncluster {self.profile.name}: nothing is submitted; these faults would be staged\n"
        )
        for candidate in chosen:
            fault, phase = candidate.item.fault, candidate.phase
            size = f"{phase.nodes.value} x {phase.gpus_per_node.value}"
            red = ", ".join([*sorted(fault.red), *fault.findings])
            out.write(f"{fault.name}: {phase.name}, {size} ranks: {fault.description} -> {red}\n")
        for name, why in self.proof.not_applicable.items():
            out.write(f"{name} is not staged: {why}\n")
        out.flush()

    def name_of(self, item: pytest.Item) -> str:
        """The gate's own job; for a criterion, the phase that it judges now."""
        return item.staged_name if isinstance(item, GateItem) else self._current

    def make_view(self, name: str) -> PhaseView:
        """The result with `expect`, which holds for the small phase, too; references do not."""
        from ..criteria.phase_criteria import view_phase

        staged = self.collection.phases[name].staged
        assert staged is not None
        view = view_phase(self.wait(name))
        return replace(view, expect=self.profile.expect.get(staged.base))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Iterator[Any]:
        """Run a phase's criteria before its gate is judged; they are not reported as tests."""
        if isinstance(item, GateItem) and self.session is not None:
            result = self.views.of(item)
            if item.fault.fails_criteria and result.outcome == "passed":
                candidate = self._chosen[item.fault.name]
                if candidate.cls not in self._baselines:
                    self._baselines[candidate.cls] = self._judge_baseline(item, candidate)
                if (
                    item.fault.slower_than_baseline
                    and self._baselines[candidate.cls].outcome == "passed"
                ):
                    self._compare_with_baseline(item, candidate)
                self._observations[item.fault.name] = self._run_criteria(
                    item, candidate, item.staged_name
                )
        return (yield)

    def _judge_baseline(self, gate: GateItem, candidate: Candidate) -> Baseline:
        self._current = without_fault(candidate).name
        result = self.views.of(candidate.criteria[0])
        observed = (
            self._run_criteria(gate, candidate, self._current) if result.outcome == "passed" else {}
        )
        return Baseline(result.outcome, result.reason, observed)

    def _run_criteria(self, gate: GateItem, candidate: Candidate, name: str) -> dict[str, Observed]:
        """Run every criterion of the phase on the job of this name."""
        self._current = name
        results = self.tally.phase(name).criteria
        for item in candidate.criteria:
            item.user_properties.clear()
            reports = runtestprotocol(item, log=False, nextitem=gate)
            failed = next((report for report in reports if report.failed), None)
            if failed is not None:
                results[item.name] = CriterionRecord.of("failed", failure_text(failed))
            else:
                skipped = any(report.skipped for report in reports)
                results[item.name] = CriterionRecord.of("skipped" if skipped else "passed")
        return {key: Observed(result.result, result.text) for key, result in results.items()}

    def _compare_with_baseline(self, item: GateItem, candidate: Candidate) -> None:
        """Use the speed of the baseline as the reference of the staged phase."""
        from ..config.expectations import Reference

        self._current = without_fault(candidate).name
        metric = self.views.of(candidate.criteria[0]).metric("steps_per_s")
        reference = Reference.model_validate(
            {
                "value": metric.value,
                "lower": SLOWER,
                "unit": metric.unit,
                "source": f"{self._current}: the same with nothing staged",
            }
        )
        staged = self.views.of(item)
        name = item.staged_name
        self.views.by_name[name] = replace(staged, references={"steps_per_s": reference})

    def run_gate(self, item: GateItem) -> None:
        """Judge the gate, and keep the result for the report."""
        assert self.run is not None
        result = self.views.of(item)
        fault, candidate = item.fault, self._chosen[item.fault.name]
        observed = self._observations.get(fault.name, {})
        baseline = self._baselines.get(candidate.cls) if observed else None
        gate = judge_gate(fault, candidate.phase.name, result, observed, baseline, self.run)
        self.proof.add(gate)
        item.user_properties += [
            ("fault", gate.fault),
            ("base_phase", gate.phase),
            ("gate", gate.status),
            ("date", self.proof.date),
            ("red", ",".join(gate.red)),
        ]
        if gate.status == UNPROVABLE_GATE:
            pytest.skip(f"{UNPROVABLE_GATE}: {'; '.join(gate.reasons)}")
        if gate.status != PROVEN_GATE:
            raise JobFailed("\n".join([f"gate {gate.fault}: {gate.status}", *gate.reasons]))

    # The end

    def _count(self, report: pytest.TestReport) -> None:
        """Gates are counted in `run_gate`; pytest's reports add nothing."""

    def results(self) -> dict[str, PhaseResult]:
        """The evidence as recorded, without the reference that a gate was compared with."""
        return dict(self.session.results) if self.session is not None else {}

    def _publish(self, session: pytest.Session) -> None:
        super()._publish(session)
        assert self.run is not None
        for name in self.collection.phases:  # checkpoints of jobs that failed as intended
            shutil.rmtree(self.run.phase(name).output, ignore_errors=True)
