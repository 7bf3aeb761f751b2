"""FIT, UNFIT or INCONCLUSIVE, and the exit status that says it.

UNFIT: something failed. INCONCLUSIVE: nothing failed, but something required was not measured, or
failed and is known, or is expected to fail and nobody answers for it. UNFIT beats INCONCLUSIVE; a
verdict is never better than its evidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest

from . import clean
from .evidence import BETWEEN, INSIDE
from .items import told_of
from .scope import changed, criterion_of, is_whole, selecting

if TYPE_CHECKING:
    from .cluster import Profile
    from .phase import Phase
    from .report.model import CriterionRecord, KnownRecord

CRASHED = "???"  # xdist's word for when a test failed whose worker died
JOB = "job"  # the job itself, beside the criteria of its phase

EXIT_INCONCLUSIVE = 6  # beside pytest's own 0 to 5
FIT, UNFIT, INCONCLUSIVE = "FIT", "UNFIT", "INCONCLUSIVE"
PROVEN, NOT_PROVEN = "PROVEN", "NOT PROVEN"  # of gates, by --cluster-prove
MAX_WORDS = 4000
# The cluster was not measured: that is no failure of its, and no pass.
NOT_MEASURED = {"never_ran", "preempted", "cancelled", "lost"}


@dataclass
class Tally:
    """What is known of the run while its reports come in."""

    require: Iterable[str]
    outcomes: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False
    exitstatus: int = 0
    chosen: list[str] = field(default_factory=list)
    sides: dict[str, set[str]] = field(default_factory=dict)  # of phases that have transports
    collected: dict[str, set[str]] = field(default_factory=dict)  # all criteria of chosen phases
    selected: dict[str, set[str]] = field(default_factory=dict)  # those of them that were to run
    judged: dict[str, set[str]] = field(default_factory=dict)
    all_phases: list[str] = field(default_factory=list)
    selection: str = ""
    criteria: dict[str, dict[str, CriterionRecord]] = field(default_factory=dict)
    unmeasured: dict[str, set[str]] = field(default_factory=dict)
    uncollected: list[str] = field(default_factory=list)  # phases of the cluster
    is_whole: bool = False  # nothing was left out: then what was not collected is not there
    skipped_files: list[str] = field(default_factory=list)  # at collection, and why
    other_failures: int = 0
    crashed: list[str] = field(default_factory=list)  # tests during which a worker of xdist died
    known_remarks: list[str] = field(default_factory=list)

    def scope(
        self,
        config: pytest.Config,
        chosen: Iterable[Phase],
        profile: Profile,
        collected: Mapping[str, Iterable[str]] = MappingProxyType({}),
        selected: Mapping[str, Iterable[str]] = MappingProxyType({}),
    ) -> None:
        """What was selected of all that the cluster runs, and how its phases were changed; a
        verdict must name it. The criteria are by phase: all of them, and those selected."""
        phases = list(chosen)
        self.chosen, self.all_phases = [phase.name for phase in phases], list(profile.phases)
        self.sides = {phase.name: _sides(phase) for phase in phases}
        self.collected = {name: set(collected[name]) for name in self.chosen if name in collected}
        self.selected = {name: set(selected.get(name, ())) for name in self.collected}
        self.uncollected = [name for name in self.all_phases if name not in collected]
        self.is_whole = is_whole(config)
        words = selecting(config, any(map(self._is_cut, self.chosen)))
        if not words and self._is_part():
            words = [", ".join(self.chosen)]
        if len(words) > 1:
            words = [f"({word})" if " or " in word else word for word in words]
        how = changed(config)
        self.selection = " ".join(filter(None, [" and ".join(words) or (how and "all"), how]))

    def _is_part(self) -> bool:
        """Whether less than all of the cluster's phases run."""
        return len(self.chosen) < len(self.all_phases)

    def hear(self, report: pytest.TestReport) -> tuple[str, str] | None:
        """Take one report; a criterion's result is its worst part.

        Returns the phase and the criterion, where there is a result of one.
        """
        properties = told_of(report)
        phase = properties.get("phase")
        bad = report.failed
        if phase is None:
            if bad and str(report.when) == CRASHED:
                self.crashed.append(report.nodeid)
            else:
                self.other_failures += bad
            return None
        name = criterion_of(report.nodeid)
        results = self.criteria.setdefault(phase, {})
        if bad:
            results[name] = {"result": "failed", "text": words_of(report)}
        elif report.skipped and (properties.get("known") or hasattr(report, "wasxfail")):
            # By `known` of cluster.yaml; or by an xfail of the suite, for which nobody answers.
            told: CriterionRecord = {"result": "known", "text": words_of(report)}
            if properties.get("known"):
                told["known"] = _known(f"{phase}: {name}", properties)
            if name not in results or results[name]["result"] in ("passed", "skipped"):
                results[name] = told
        elif report.skipped:
            results.setdefault(name, {"result": "skipped", "text": words_of(report)})
            if properties.get("unmeasured"):
                kinds = self.unmeasured.setdefault(phase, set())
                kinds.add(properties["unmeasured"])
        if properties.get("judged"):
            self.judged.setdefault(phase, set()).update(properties["judged"].split(","))
        if report.when == "call":
            results.setdefault(name, {"result": "passed", "text": ""})
        return (phase, name) if name in results else None

    def missing(self) -> list[str]:
        """What was required and not measured, in words."""
        required = set(self.require)
        reasons = [
            f"{phase}: {outcome}"
            for phase, outcome in self.outcomes.items()
            if outcome in NOT_MEASURED and phase not in self.known_phases
        ]
        reasons += [f"{phase}: no result" for phase in self.chosen if phase not in self.outcomes]
        for phase, kinds in self.unmeasured.items():
            reasons += [f"{phase}: {kind} not measured" for kind in sorted(kinds & required)]
        if self.uncollected and self.skipped_files:  # any of them may be there
            files = ", ".join(self.skipped_files)
            absent = ", ".join(self.uncollected)
            reasons.append(f"{absent}: not collected; skipped as a whole: {files}")
        elif self.is_whole:
            words = "listed in cluster.yaml, and no test that was collected defines it"
            reasons += [f"{phase}: {words}" for phase in self.uncollected]
        reasons += [*self._unowned(), *self._silent(required), *self._unjudged(required)]
        if self.exitstatus == 1 and not reasons and not self.known and not self.failed():
            reasons.append("pytest counts a failure of which no test told")
        return reasons

    def unheard(self) -> list[str]:
        """Phases of which nothing was judged: the session ended before."""
        return [name for name in self.chosen if name not in self.criteria]

    def heard_all(self, phase: str) -> bool:
        """Whether every criterion of a phase was heard; of one that is not known, nobody knows."""
        return phase in self.collected and not self.collected[phase] - self._heard(phase)

    def _heard(self, phase: str) -> set[str]:
        """The criteria of a phase that were heard."""
        return set(self.criteria.get(phase, ())) - {JOB}

    def heard(self) -> tuple[int, int]:
        """How many of the chosen phases' criteria were heard, and how many there are."""
        heard = (len(every & self._heard(phase)) for phase, every in self.collected.items())
        return sum(heard), sum(map(len, self.collected.values()))

    def _is_cut(self, phase: str) -> bool:
        """Whether not all criteria of a phase were selected."""
        return bool(self.collected.get(phase, set()) - self.selected.get(phase, set()))

    def _passed(self) -> list[str]:
        return [phase for phase in self.chosen if self.outcomes.get(phase) == "passed"]

    def _unowned(self) -> list[str]:
        """Criteria that are expected to fail, and nobody says so in cluster.yaml."""
        return [
            f"{phase}: {name} is marked to fail (xfail), and no entry of `known` answers for it"
            for phase in self._passed()
            for name, one in self.criteria.get(phase, {}).items()
            if one["result"] == "known" and "known" not in one
        ]

    def _silent(self, required: set[str]) -> list[str]:
        """Phases of which no criterion was judged, be it that all were skipped; and criteria that
        were to run and were never heard."""
        reasons = []
        for phase in self._passed():
            heard, results = self._heard(phase), self.criteria.get(phase, {})
            unheard = sorted(self.selected.get(phase, set()) - heard)
            judged = [name for name in heard if results[name]["result"] != "skipped"]
            if not judged and heard | self.collected.get(phase, set()):
                if not self.unmeasured.get(phase, set()) & required:  # which is told already
                    reasons.append(f"{phase}: no criterion was judged")
            elif unheard and not self.interrupted:
                reasons.append(f"{phase}: no result of {', '.join(unheard)}")
        return reasons

    def _unjudged(self, required: set[str]) -> list[str]:
        """Required kinds of which no criterion said anything at all: of transports, on each side
        where there are ranks. Where criteria were selected singly, those that are missing were not
        asked."""
        return [
            f"{phase}: no criterion judged {one}"
            for phase in self._passed()
            if not self._is_cut(phase)
            for kind in sorted(required - self.unmeasured.get(phase, set()))
            for one in (sorted(self.sides.get(phase, ())) if kind == "transports" else [kind])
            if one not in self.judged.get(phase, set()) and not self._reds(phase)
        ]

    def failed(self) -> list[str]:
        """What failed, in words."""
        reasons = []
        for phase, outcome in self.outcomes.items():
            known = phase in self.known_phases
            if outcome in ("failed", "cluster_failed") and not known:
                reasons.append(f"{phase}: {outcome}")
            elif outcome == "passed" or known:
                names = self._reds(phase)
                if names:
                    reasons.append(f"{phase}: {', '.join(names)}")
        reasons += [f"a worker died in {one}" for one in self.crashed]
        return reasons + (["tests that are no phase's"] if self.other_failures else [])

    @property
    def known_phases(self) -> dict[str, KnownRecord]:
        """Phases whose job failed and is known, with who answers for it."""
        return {
            phase: results[JOB]["known"]
            for phase, results in self.criteria.items()
            if "known" in results.get(JOB, ())
        }

    @property
    def known(self) -> list[KnownRecord]:
        """The failures that are known: jobs, and criteria of jobs that passed."""
        jobs = self.known_phases
        return [
            one["known"]
            for phase, results in self.criteria.items()
            for name, one in results.items()
            if "known" in one and (name == JOB or phase not in jobs)
        ]

    def _reds(self, phase: str) -> list[str]:
        """The criteria of a phase that failed."""
        results = self.criteria.get(phase, {})
        return [name for name, one in results.items() if one["result"] == "failed"]

    def verdict(self) -> str:
        if self.failed():
            return UNFIT
        if self.missing() or self.known or self.interrupted:
            return INCONCLUSIVE
        return FIT if self.outcomes and self.exitstatus == 0 else INCONCLUSIVE

    def exit_code(self) -> int:
        """pytest's own status for what ended the session early, else the verdict's."""
        if self.exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return self.exitstatus
        return {FIT: 0, UNFIT: 1, INCONCLUSIVE: EXIT_INCONCLUSIVE}[self.verdict()]

    def sentence(self) -> str:
        """The verdict with its scope, as the terminal ends with it."""
        heard, every = self.heard()
        count = f"{len(self.chosen)} of {len(self.all_phases)} phases"
        count += f", {heard} of {every} criteria" if heard < every else ""
        scope = f" for {self.selection}" if self.selection else ""
        known = [f"{one['what']} is known until {one['until']}" for one in self.known]
        reasons = self.failed() if self.verdict() == UNFIT else [*self.missing(), *known]
        if self.interrupted and not reasons:
            reasons = ["interrupted"]
        why = f" ({'; '.join(reasons)})" if reasons else ""
        return f"{self.verdict()}{scope}: {count}{why}"

    def scope_told(self) -> str:
        """What the verdict holds for: never empty where less than all was heard."""
        heard, every = self.heard()
        return self.selection or (f"{heard} of {every} criteria" if heard < every else "")

    def as_dict(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict(),
            "sentence": self.sentence(),
            "failed": self.failed(),
            "not_measured": self.missing(),
            "known": self.known,
            "known_remarks": self.known_remarks,
            "phases_chosen": self.chosen,
            "phases_of_cluster": self.all_phases,
            "selection": self.scope_told(),
            "interrupted": self.interrupted,
        }


def _sides(phase: Phase) -> set[str]:
    """Where a phase's ranks talk to each other: kinds of what transport_checks.py judges."""
    sides = {INSIDE} if int(phase.gpus_per_node.value) > 1 else set()
    return sides | ({BETWEEN} if int(phase.nodes.value) > 1 else set())


def _known(what: str, told: Mapping[str, str]) -> KnownRecord:
    """What the process that judged a criterion said of who answers for it."""
    return {
        "what": what,
        "reason": told["known"],
        "until": told["known_until"],
        "where": told["known_where"],
    }


def words_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a test failed or was skipped, or a file was, without its traceback."""
    told = report.longrepr
    if isinstance(told, tuple):  # of a skip: file, line, reason
        words = str(told[2]).removeprefix("Skipped: ")
    else:
        crash = getattr(told, "reprcrash", None)
        words = str(crash.message) if crash is not None else str(told or "")
    return clean.lines(words[-MAX_WORDS:])
