"""FIT, UNFIT or INCONCLUSIVE, and the exit status that says it.

UNFIT: something failed. INCONCLUSIVE: nothing failed, but something required was not measured.
UNFIT beats INCONCLUSIVE; a verdict is never better than its evidence.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .cluster import Profile
    from .phase import Phase

EXIT_INCONCLUSIVE = 6  # beside pytest's own 0 to 5
FIT, UNFIT, INCONCLUSIVE = "FIT", "UNFIT", "INCONCLUSIVE"
PROVEN, NOT_PROVEN = "PROVEN", "NOT PROVEN"  # of gates, by --cluster-prove
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
    judged: dict[str, set[str]] = field(default_factory=dict)
    all_phases: list[str] = field(default_factory=list)
    selection: str = ""
    criteria: dict[str, dict[str, str]] = field(default_factory=dict)
    unmeasured: dict[str, set[str]] = field(default_factory=dict)
    other_failures: int = 0

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

    def hear(self, report: pytest.TestReport) -> None:
        """Take one report; a criterion's result is its worst part."""
        properties = dict(report.user_properties)
        phase = properties.get("phase")
        bad = report.failed
        if phase is None:
            self.other_failures += bad
            return
        name = report.nodeid.rsplit("::", 1)[-1]
        results = self.criteria.setdefault(str(phase), {})
        if bad:
            results[name] = "failed"
        elif report.skipped:
            results.setdefault(name, "skipped")
            if properties.get("unmeasured"):
                kinds = self.unmeasured.setdefault(str(phase), set())
                kinds.add(str(properties["unmeasured"]))
        if properties.get("judged"):
            self.judged.setdefault(str(phase), set()).update(str(properties["judged"]).split(","))
        elif report.when == "call":
            results.setdefault(name, "passed")

    def missing(self) -> list[str]:
        """What was required and not measured, in words."""
        required = set(self.require)
        reasons = [
            f"{phase}: {outcome}"
            for phase, outcome in self.outcomes.items()
            if outcome in NOT_MEASURED
        ]
        reasons += [f"{phase}: no result" for phase in self.chosen if phase not in self.outcomes]
        for phase, kinds in self.unmeasured.items():
            reasons += [f"{phase}: {kind} not measured" for kind in sorted(kinds & required)]
        return reasons + self._unjudged(required)

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
            and not any(result == "failed" for result in self.criteria.get(phase, {}).values())
        ]

    def failed(self) -> list[str]:
        """What failed, in words."""
        reasons = []
        for phase, outcome in self.outcomes.items():
            if outcome in ("failed", "cluster_failed"):
                reasons.append(f"{phase}: {outcome}")
            elif outcome == "passed":
                names = [n for n, r in self.criteria.get(phase, {}).items() if r == "failed"]
                if names:
                    reasons.append(f"{phase}: {', '.join(names)}")
        return reasons + (["tests that are no phase's"] if self.other_failures else [])

    def verdict(self) -> str:
        if self.failed():
            return UNFIT
        if self.missing() or self.interrupted or not self.outcomes or self.exitstatus > 1:
            return INCONCLUSIVE
        return FIT

    def exit_code(self) -> int:
        """pytest's own status for what ended the session early, else the verdict's."""
        if self.exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return self.exitstatus
        return {FIT: 0, UNFIT: 1, INCONCLUSIVE: EXIT_INCONCLUSIVE}[self.verdict()]

    def sentence(self) -> str:
        """The verdict with its scope, as the terminal ends with it."""
        count = f"{len(self.chosen)} of {len(self.all_phases)} phases"
        scope = f" for {self.selection}" if self.selection else ""
        reasons = self.failed() if self.verdict() == UNFIT else self.missing()
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
            "phases_chosen": self.chosen,
            "phases_of_cluster": self.all_phases,
            "selection": self.selection,
            "interrupted": self.interrupted,
        }
