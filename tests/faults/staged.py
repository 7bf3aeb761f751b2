"""Stage faults of the table, and hold what came of each against its row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from .harness import PATIENCE_S, Outcome, Suite
from .table import BEHIND, CRITERIA, UNMEASURED, Fault
from .table.programs import STEP_LIMIT_S

Tell = Callable[[str, object], None]


def add(fault: Fault, suite: Suite) -> None:
    """Make the fault's program a phase of the suite, with all of `Trained`'s criteria."""
    suite.profile["stage_limits_s"] = {"train_step": STEP_LIMIT_S}
    suite.profile |= fault.profile
    if fault.settings:
        suite.profile["phases"][fault.name] = dict(fault.settings)
    size: dict[str, Any] = {"nodes": fault.nodes, "gpus_per_node": fault.ranks_per_node}
    suite.phase(fault.name, fault.program, **size, args=dict(fault.args))


def check(fault: Fault, outcome: Outcome, tell: Tell, struck: float | None = None) -> None:
    """What came of the fault is what its row says, and nothing else.

    `tell` (pytest's record_property) hears what was measured, for the table at the end. `struck` is
    the time of a fault that no rank stages itself.
    """
    tell("fault", fault.name)
    tell("family", fault.family)
    tell("replayed", fault.replayed)
    of = "rank" if not fault.host or fault.rank is not None else "node"
    tell("of", "nobody" if fault.of_nobody else of)
    if fault.usage:
        _check_refusal(fault, outcome, tell)
    elif fault.failed:
        _check_criteria(fault, outcome, tell)
    else:
        _check_finding(fault, outcome, tell, struck)


def _check_refusal(fault: Fault, outcome: Outcome, tell: Tell) -> None:
    """Nothing was submitted, and the error says what is wrong."""
    assert outcome.status == pytest.ExitCode.USAGE_ERROR, outcome.output
    assert not list((outcome.suite.path / "shared").glob("*/run.json"))
    for words in fault.usage:
        assert words in outcome.output, (words, outcome.output)
    tell("red", "usage error")
    tell("finding", "usage error")


def _check_criteria(fault: Fault, outcome: Outcome, tell: Tell) -> None:
    assert outcome.status == 1, outcome.output
    assert outcome.report["verdict"] == "UNFIT"
    skipped = UNMEASURED | ({BEHIND} if fault.nodes * fault.ranks_per_node == 1 else set())
    green = CRITERIA - fault.failed - skipped
    assert _by_result(fault, outcome) == {
        "passed": green,
        "failed": fault.failed,
        "skipped": skipped,
    }, outcome.output
    tell("red", ", ".join(sorted(fault.failed)))
    tell("finding", "criterion")
    said = outcome.failures(fault.name)
    for words in fault.words:
        assert words in said, (words, said)
    if fault.rank is not None:
        node = f"local{fault.rank // fault.ranks_per_node}"
        assert f"rank {fault.rank} ({node})" in said, said
        tell("ranks", [fault.rank])
        tell("hosts", [node])


def _check_finding(fault: Fault, outcome: Outcome, tell: Tell, struck: float | None) -> None:
    """The finding names its cause, rank and host in time."""
    assert outcome.phase(fault.name)["outcome"] == fault.outcome, outcome.output
    assert _by_result(fault, outcome) == {"passed": set(), "failed": CRITERIA, "skipped": set()}
    finding = outcome.finding(fault.name)
    assert finding["id"] == fault.finding, finding
    if fault.rank is not None:
        assert finding["ranks"] == [fault.rank], finding
        if outcome.suite.profile["backend"] == "local":
            assert finding["hosts"] == [f"local{fault.rank // fault.ranks_per_node}"], finding
    if fault.host:
        assert finding["hosts"] == [fault.host], finding
    known = finding["detail"].get("signature", "")
    assert known == fault.signature or known == fault.maybe, finding
    for words in fault.words:
        assert words in finding["cause"], finding
    tell("red", "job")
    tell("finding", f"{fault.finding} {fault.signature}".strip())
    tell("ranks", finding["ranks"])
    tell("hosts", finding["hosts"])
    seconds = seconds_to_the_finding(outcome, fault.name, struck)
    if seconds is not None:
        tell("seconds", round(seconds, 1))
        tell("within", fault.within_s)
        assert seconds < fault.within_s, seconds


def _by_result(fault: Fault, outcome: Outcome) -> dict[str, set[str]]:
    by_result: dict[str, set[str]] = {"passed": set(), "failed": set(), "skipped": set()}
    for name, one in outcome.phase(fault.name)["criteria"].items():
        by_result[one["result"]].add(name)
    return by_result


def seconds_to_the_finding(
    outcome: Outcome, phase: str, struck: float | None = None
) -> float | None:
    """From the event `staged`, which a rank writes just before its fault, or from `struck`, to the
    phase's end in the journal, in seconds; None where neither is known."""
    ranks = outcome.result(phase).ranks
    staged = [one["time"] for rank in ranks for one in rank.events.named("staged")]
    staged += [] if struck is None else [struck]
    ended = [one["time"] for one in outcome.journal("ended") if one["phase"] == phase]
    return ended[0] - min(staged) if staged and ended else None


def run(fault: Fault, suite: Suite, request: pytest.FixtureRequest) -> Outcome:
    """Stage one fault on this machine, to its end, and check it."""
    outcome = together([fault], suite)
    record: Tell = request.getfixturevalue("record_property")
    check(fault, outcome, record)
    return outcome


def together(faults: Sequence[Fault], suite: Suite) -> Outcome:
    """Stage faults on this machine, each a phase of one run, to the end of all."""
    for fault in faults:
        add(fault, suite)
    return suite.run(patience_s=PATIENCE_S * max(1, len(faults) // 2))
