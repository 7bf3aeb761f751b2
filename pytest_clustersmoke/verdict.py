"""FIT, UNFIT or INCONCLUSIVE, and the exit status that says it.

UNFIT: something failed. INCONCLUSIVE: nothing failed, but something required was not measured, or
failed and is known. UNFIT beats INCONCLUSIVE; a verdict is never better than its evidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from . import clean

if TYPE_CHECKING:
    from .cluster import Profile
    from .phase import Phase
    from .report.model import CriterionRecord, KnownRecord

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
    multi_rank: set[str] = field(default_factory=set)
    all_criteria: bool = True
    collected: dict[str, set[str]] = field(default_factory=dict)  # all criteria of chosen phases
    planned: dict[str, set[str]] = field(default_factory=dict)  # those that were selected
    judged: dict[str, set[str]] = field(default_factory=dict)
    all_phases: list[str] = field(default_factory=list)
    selection: str = ""
    criteria: dict[str, dict[str, CriterionRecord]] = field(default_factory=dict)
    unmeasured: dict[str, set[str]] = field(default_factory=dict)
    other_failures: int = 0
    known_remarks: list[str] = field(default_factory=list)

    def scope(self, config: pytest.Config, chosen: Iterable[Phase], profile: Profile) -> None:
        """What was selected of all that the cluster runs; a verdict must name it."""
        phases = list(chosen)
        self.chosen, self.all_phases = [phase.name for phase in phases], list(profile.phases)
        self.multi_rank = {phase.name for phase in phases if phase.world_size > 1}
        nodes = [word for word in config.args if "::" in word]
        self.all_criteria = not (nodes or config.getoption("keyword", ""))
        words = [config.getoption("markexpr", ""), config.getoption("keyword", ""), *nodes]
        self.selection = " and ".join(word for word in words if word)
        if not self.selection and len(self.chosen) < len(self.all_phases):
            self.selection = ", ".join(self.chosen)

    def hear(self, report: pytest.TestReport) -> tuple[str, str] | None:
        """Take one report; a criterion's result is its worst part.

        Returns the phase and the criterion, where there is a result of one.
        """
        properties = dict(report.user_properties)
        phase = properties.get("phase")
        bad = report.failed
        if phase is None:
            self.other_failures += bad
            return None
        name = report.nodeid.rsplit("::", 1)[-1]
        results = self.criteria.setdefault(str(phase), {})
        if bad:
            results[name] = {"result": "failed", "text": words_of(report)}
        elif properties.get("known") and report.when == "call":
            known = _known(f"{phase}: {name}", properties)
            results[name] = {"result": "known", "text": words_of(report), "known": known}
        elif report.skipped:
            results.setdefault(name, {"result": "skipped", "text": words_of(report)})
            if properties.get("unmeasured"):
                kinds = self.unmeasured.setdefault(str(phase), set())
                kinds.add(str(properties["unmeasured"]))
        if properties.get("judged"):
            self.judged.setdefault(str(phase), set()).update(str(properties["judged"]).split(","))
        if report.when == "call":
            results.setdefault(name, {"result": "passed", "text": ""})
        return (str(phase), name) if name in results else None

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
        return reasons + self._unjudged(required)

    def unheard(self) -> list[str]:
        """Phases of which nothing was judged: the session ended before."""
        return [name for name in self.chosen if name not in self.criteria]

    def heard_all(self, phase: str) -> bool:
        """Whether every criterion of a phase was heard; of one that is not known, nobody knows."""
        return phase in self.collected and not self.collected[phase] - set(
            self.criteria.get(phase, ())
        )

    def _unjudged(self, required: set[str]) -> list[str]:
        """Required kinds of which no criterion said anything at all. Ranks that are alone have no
        transports; where criteria were selected singly, those that are missing were not asked."""
        if not self.all_criteria:
            return []
        passed = [phase for phase in self.chosen if self.outcomes.get(phase) == "passed"]
        return [
            f"{phase}: no criterion judged {kind}"
            for phase in passed
            for kind in sorted(required)
            if (kind != "transports" or phase in self.multi_rank)
            and kind not in self.judged.get(phase, set()) | self.unmeasured.get(phase, set())
            and not self._reds(phase)
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
        return reasons + (["tests that are no phase's"] if self.other_failures else [])

    @property
    def known_phases(self) -> dict[str, KnownRecord]:
        """Phases whose job failed and is known, with who answers for it."""
        return {
            phase: results["job"]["known"]
            for phase, results in self.criteria.items()
            if "known" in results.get("job", ())
        }

    @property
    def known(self) -> list[KnownRecord]:
        """The failures that are known: jobs, and criteria of jobs that passed."""
        jobs = self.known_phases
        return [
            one["known"]
            for phase, results in self.criteria.items()
            for name, one in results.items()
            if "known" in one and (name == "job" or phase not in jobs)
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
        return FIT if self.outcomes and self.exitstatus <= 1 else INCONCLUSIVE

    def exit_code(self) -> int:
        """pytest's own status for what ended the session early, else the verdict's."""
        if self.exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return self.exitstatus
        return {FIT: 0, UNFIT: 1, INCONCLUSIVE: EXIT_INCONCLUSIVE}[self.verdict()]

    def sentence(self) -> str:
        """The verdict with its scope, as the terminal ends with it."""
        count = f"{len(self.chosen)} of {len(self.all_phases)} phases"
        scope = f" for {self.selection}" if self.selection else ""
        known = [f"{one['what']} is known until {one['until']}" for one in self.known]
        reasons = self.failed() if self.verdict() == UNFIT else [*self.missing(), *known]
        if self.interrupted and not reasons:
            reasons = ["interrupted"]
        why = f" ({'; '.join(reasons)})" if reasons else ""
        return f"{self.verdict()}{scope}: {count}{why}"

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
            "selection": self.selection,
            "interrupted": self.interrupted,
        }


def _known(what: str, properties: Mapping[str, object]) -> KnownRecord:
    """What the process that judged a criterion said of who answers for it."""
    return {
        "what": what,
        "reason": str(properties["known"]),
        "until": str(properties.get("known_until")),
        "where": str(properties.get("known_where")),
    }


def words_of(report: pytest.TestReport) -> str:
    """Why a test failed or was skipped, without its traceback."""
    told = report.longrepr
    if isinstance(told, tuple):  # of a skip: file, line, reason
        words = str(told[2]).removeprefix("Skipped: ")
    else:
        crash = getattr(told, "reprcrash", None)
        words = str(crash.message) if crash is not None else str(told or "")
    return clean.lines(words[-MAX_WORDS:])
