"""Stage a fault of the table, and hold what came of it against its row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .harness import Outcome, Suite
from .table import CRITERIA, UNMEASURED, Fault

# Of a rank that stands still; a step of these sizes takes milliseconds.
STEP_LIMIT_S = 4


def add(fault: Fault, suite: Suite) -> None:
    """Make the fault's program a phase of the suite, with all of `Trained`'s criteria."""
    suite.profile["stage_limits_s"] = {"train_step": STEP_LIMIT_S}
    suite.profile |= fault.profile
    size: dict[str, Any] = {"nodes": fault.nodes, "gpus_per_node": fault.ranks_per_node}
    suite.phase(fault.name, fault.program, **size, args=dict(fault.args))


def check(fault: Fault, outcome: Outcome, tell: Callable[[str, object], None]) -> None:
    """The criteria that fail are exactly the fault's; its finding names its rank and host.

    `tell` (pytest's record_property) hears what was measured, for the table at the end.
    """
    phase = outcome.phase(fault.name)
    tell("fault", fault.name)
    tell("family", fault.family)
    tell("replayed", fault.replayed)
    by_result: dict[str, set[str]] = {"passed": set(), "failed": set(), "skipped": set()}
    for name, result in phase["criteria"].items():
        by_result[result].add(name)
    if not fault.finding:
        assert outcome.status == 1, outcome.output
        assert outcome.report["verdict"] == "UNFIT"
        green = CRITERIA - fault.failed - UNMEASURED
        assert by_result == {"passed": green, "failed": fault.failed, "skipped": UNMEASURED}
        tell("red", ", ".join(sorted(fault.failed)))
        return
    assert phase["outcome"] == fault.outcome, outcome.output
    assert by_result == {"passed": set(), "failed": CRITERIA, "skipped": set()}
    finding = outcome.finding(fault.name)
    assert finding["id"] == fault.finding, finding
    if fault.rank is not None:
        assert finding["ranks"] == [fault.rank], finding
    if fault.host:
        assert finding["hosts"] == [fault.host], finding
    if fault.signature:
        assert finding["detail"].get("signature") == fault.signature, finding
    tell("red", "job")
    tell("finding", f"{fault.finding} {fault.signature}".strip())
    tell("ranks", finding["ranks"])
    tell("hosts", finding["hosts"])
    seconds = seconds_to_the_finding(outcome, fault.name)
    if seconds is not None:
        tell("seconds", round(seconds, 1))
        assert seconds < fault.within_s, seconds


def seconds_to_the_finding(outcome: Outcome, phase: str) -> float | None:
    """From the event `staged`, which a rank writes just before its fault, to the phase's end in
    the journal, in seconds; None where no rank wrote it."""
    ranks = outcome.result(phase).ranks
    staged = [one["time"] for rank in ranks for one in rank.events.named("staged")]
    ended = [one["time"] for one in outcome.journal("ended") if one["phase"] == phase]
    return ended[0] - min(staged) if staged and ended else None


def run(fault: Fault, suite: Suite, request: pytest.FixtureRequest) -> Outcome:
    """Stage it on this machine, to its end, and check it."""
    add(fault, suite)
    outcome = suite.run()
    record: Callable[[str, object], None] = request.getfixturevalue("record_property")
    check(fault, outcome, record)
    return outcome
