"""N of N gates proven, and the exit status that says it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from .. import verdict
from .judge import GREEN, NOT_STAGED, OTHER, PROVEN, Gate

STATUS = {
    verdict.PROVEN: pytest.ExitCode.OK,
    verdict.NOT_PROVEN: pytest.ExitCode.TESTS_FAILED,
    verdict.INCONCLUSIVE: verdict.EXIT_INCONCLUSIVE,
}


class Proof(verdict.Tally):
    """What is known of the gates while they are judged. It says nothing of FIT or UNFIT."""

    def __init__(self, cluster: str) -> None:
        super().__init__(())
        self.cluster = cluster
        self.date = time.strftime("%Y-%m-%d")
        self.planned: list[str] = []
        self.gates: dict[str, Gate] = {}
        self.not_applicable: dict[str, str] = {}

    def _is_part(self) -> bool:
        """Which phases the faults are staged in selects nothing."""
        return False

    def hear(self, report: pytest.TestReport) -> None:
        """A gate is told by the suite, which judged it; what pytest reports of it says no more."""

    def unheard(self) -> list[str]:
        return [name for name in self.planned if name not in self.gates]

    def count(self, status: str) -> list[str]:
        return [name for name, gate in self.gates.items() if gate.status == status]

    def failed(self) -> list[str]:
        reasons = {GREEN: "stayed green", OTHER: "not as they must be"}
        return [
            f"{words}: {', '.join(names)}"
            for status, words in reasons.items()
            if (names := self.count(status))
        ]

    def missing(self) -> list[str]:
        reasons = {"could not be staged": self.count(NOT_STAGED), "not judged": self.unheard()}
        return [f"{words}: {', '.join(names)}" for words, names in reasons.items() if names]

    def verdict(self) -> str:
        if self.failed():
            return verdict.NOT_PROVEN
        if self.missing() or self.interrupted or not self.gates or self.exitstatus > 1:
            return verdict.INCONCLUSIVE
        return verdict.PROVEN

    def exit_code(self) -> int:
        if self.exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return self.exitstatus
        return int(STATUS[self.verdict()])

    def sentence(self) -> str:
        proven = len(self.count(PROVEN))
        scope = f" for {self.selection}" if self.selection else ""
        count = f"{proven} of {len(self.planned)} gates proven on {self.cluster}, {self.date}"
        reasons = [*self.failed(), *self.missing()]
        if self.interrupted and not reasons:
            reasons = ["interrupted"]
        why = f" ({'; '.join(reasons)})" if reasons else ""
        return f"{self.verdict()}{scope}: {count}{why}"

    def as_dict(self) -> dict[str, Any]:
        proof = {
            "cluster": self.cluster,
            "date": self.date,
            "planned": self.planned,
            "proven": self.count(PROVEN),
            "stayed_green": self.count(GREEN),
            "gates": [gate.as_dict() for gate in self.gates.values()],
            "not_applicable": self.not_applicable,
        }
        return {**super().as_dict(), "proof": proof}
