"""Stage faults of the table, and hold what came of each against its row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from pytest_clustersmoke.evidence.telemetry import read_events
from tests.faults.harness import PATIENCE_S, Outcome, Suite
from tests.faults.table import BEHIND, CRITERIA, UNMEASURED, Fault
from tests.faults.table.programs import STEP_LIMIT_S

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
    tell("of", fault.of)
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
    tell("named", True)


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
    tell("named", bool(said) and "unknown cause" not in said)
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
    _check_place(fault, outcome, finding)
    known = finding["detail"].get("signature", "")
    assert known in {fault.signature, fault.maybe or fault.signature}, finding
    for words in fault.words:
        assert words in finding["cause"], finding
    named = "unknown cause" not in finding["cause"]
    assert named is not fault.unknown, finding
    tell("red", "job")
    tell("finding", f"{finding['id']} {known}".strip())
    assert fault.words or named, "the words of an exception that nobody else knows"
    tell("named", True)
    tell("ranks", finding["ranks"])
    tell("hosts", finding["hosts"])
    if fault.timed:
        seconds = seconds_to_the_finding(fault, outcome, struck)
        tell("seconds", round(seconds, 1))
        tell("within", fault.within_s)
        assert 0 <= seconds < fault.within_s, seconds


def _check_place(fault: Fault, outcome: Outcome, finding: Mapping[str, Any]) -> None:
    """The finding names the row's rank and host, or any where every rank is as wrong; and each rank
    that it names with its host."""
    if fault.rank is not None:
        assert finding["ranks"] == [fault.rank], finding
    if fault.host:
        assert finding["hosts"] == [fault.host], finding
    if fault.of != "nobody":
        assert finding["hosts"], finding
    if fault.of == "rank":
        assert finding["ranks"], finding
    if finding["ranks"] and outcome.suite.profile["backend"] == "local":
        hosts = {f"local{rank // fault.ranks_per_node}" for rank in finding["ranks"]}
        assert set(finding["hosts"]) == hosts, finding


def _by_result(fault: Fault, outcome: Outcome) -> dict[str, set[str]]:
    by_result: dict[str, set[str]] = {"passed": set(), "failed": set(), "skipped": set()}
    for name, one in outcome.phase(fault.name)["criteria"].items():
        by_result[one["result"]].add(name)
    return by_result


def seconds_to_the_finding(fault: Fault, outcome: Outcome, struck: float | None = None) -> float:
    """From `struck`, or else from the row's event (`staged` is what a rank writes just before its
    fault), to the phase's end in the journal."""
    result = outcome.result(fault.name)
    files = [rank.events for rank in result.ranks]
    files += [read_events(result.directory.node_events(node)) for node in range(fault.nodes)]
    came = [one["time"] for events in files for one in events.named(fault.since)]
    assert came or struck is not None, f"nothing tells when {fault.name} came"
    since = min(came) + fault.since_s if struck is None else struck
    (ended,) = [one["time"] for one in outcome.journal("ended") if one["phase"] == fault.name]
    return float(ended - since)


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
