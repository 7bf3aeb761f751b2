"""Stage faults of the table, and compare what each led to with its row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from pytest_clustersmoke.evidence.telemetry import read_events
from tests.faults.table import BEHIND, UNMEASURED, Fault
from tests.faults.table.model import DATA, OTHERS, REPLICAS, SKIPPED_BY_BASE, STEP_LIMIT_S, TWIN
from tests.support.harness import PROGRAMS, SMOKE_TESTS, Outcome, Suite
from tests.support.load import load_factor
from tests.support.waiting import PATIENCE_S

RESUMED = {"test_training_resumes_where_it_stopped", "test_training_before_the_stop_was_sound"}
Recorder = Callable[[str, object], None]


def add(fault: Fault, suite: Suite) -> None:
    """Make the fault's program a phase of the suite, with all criteria of its base class."""
    # Only a hang needs a short limit, which a busy machine exceeds.
    limit_s = PATIENCE_S if fault.failed else STEP_LIMIT_S
    before = suite.profile.get("stage_limits_s", {}).get("train_step", limit_s)
    suite.profile["stage_limits_s"] = {"train_step": min(before, limit_s)}
    suite.profile |= fault.profile
    if fault.settings:
        suite.profile["phases"][fault.name] = dict(fault.settings)
    own_base = fault.base == "FineTuned"
    if own_base:
        (suite.path / "pytest.ini").write_text(f"[pytest]\npythonpath = {SMOKE_TESTS}\n")
    suite.phase(
        fault.name,
        base=f"{fault.base}, Resumed" if fault.settings.get("resume") else fault.base,
        imports="from test_lora_sft import FineTuned" if own_base else "",
        body="pass",
        script=PROGRAMS / fault.program,
        nodes=fault.nodes,
        gpus_per_node=fault.ranks_per_node,
        args=dict(fault.args),
    )


def run_together(faults: Sequence[Fault], suite: Suite) -> Outcome:
    """Stage faults on this machine, each in a phase of one run, and wait until all have ended."""
    for fault in faults:
        add(fault, suite)
    return suite.run_apart(patience_s=PATIENCE_S * max(1, len(faults) // 2))


def check(fault: Fault, outcome: Outcome, record: Recorder, struck: float | None = None) -> None:
    """The fault led to what its row says, and to nothing else.

    `record` (pytest's record_property) takes what was measured, for the table at the end. `struck`
    is the time of a fault that no rank stages itself.
    """
    record("fault", fault.name)
    record("family", fault.family)
    record("replayed", fault.replayed)
    record("of", fault.of)
    if fault.usage:
        _check_usage_error(fault, outcome, record)
    elif fault.failed:
        _check_criteria(fault, outcome, record)
    else:
        _check_finding(fault, outcome, record, struck)


def _check_usage_error(fault: Fault, outcome: Outcome, record: Recorder) -> None:
    """Nothing was submitted, and the error says what is wrong."""
    assert outcome.ret == pytest.ExitCode.USAGE_ERROR, outcome.output
    assert not list(outcome.files.shared.glob("*/run.json"))
    for words in fault.usage:
        assert words in outcome.output, (words, outcome.output)
    record("red", "usage error")
    record("finding", "usage error")
    record("named", True)


def _check_criteria(fault: Fault, outcome: Outcome, record: Recorder) -> None:
    """Exactly the row's criteria failed, and name its rank."""
    assert outcome.ret == 1, outcome.output
    assert outcome.record()["verdict"] == "UNFIT"
    ranks = fault.nodes * fault.ranks_per_node
    few = ({BEHIND, REPLICAS, DATA} if ranks == 1 else set()) | ({OTHERS} if ranks < 3 else set())
    sampled = set() if fault.settings.get("proof") == "twin" else {TWIN}
    skipped = UNMEASURED | fault.skipped | SKIPPED_BY_BASE[fault.base] | few | sampled
    skipped -= fault.failed
    green = fault.criteria - fault.failed - skipped
    assert _criteria_by_result(fault, outcome) == {
        "passed": green,
        "failed": fault.failed,
        "skipped": skipped,
    }, outcome.output
    record("red", ", ".join(sorted(fault.failed)))
    record("finding", "criterion")
    messages = outcome.failures(fault.name)
    for words in fault.words:
        assert _name_nodes(words, fault, outcome) in messages, (words, messages)
    record("named", bool(messages) and "unknown cause" not in messages)
    if fault.rank is not None:
        node = _list_nodes(fault, outcome)[fault.rank // fault.ranks_per_node]
        assert f"rank {fault.rank} ({node})" in messages, messages
        record("ranks", [fault.rank])
        record("hosts", [node])


def _check_finding(fault: Fault, outcome: Outcome, record: Recorder, struck: float | None) -> None:
    """The finding names its cause, rank and host, in time."""
    assert outcome.phase(fault.name)["outcome"] == fault.outcome, outcome.output
    criteria = fault.criteria | (RESUMED if fault.settings.get("resume") else set())
    assert _criteria_by_result(fault, outcome) == {
        "passed": set(),
        "failed": {"job"},
        "skipped": criteria - {"job"},
    }
    finding = outcome.finding(fault.name)
    assert finding["id"] == fault.finding, finding
    _check_place(fault, outcome, finding)
    signature = finding["detail"].get("signature", "")
    assert signature in {fault.signature, fault.maybe or fault.signature}, finding
    for words in fault.words:
        assert _name_nodes(words, fault, outcome) in finding["cause"], finding
    named = "unknown cause" not in finding["cause"]
    assert named is not fault.unknown, finding
    record("red", "job")
    record("finding", f"{finding['id']} {signature}".strip())
    assert fault.words or named, "the row must quote an exception that no signature knows"
    record("named", True)
    record("ranks", finding["ranks"])
    record("hosts", finding["hosts"])
    if fault.timed:
        since, ended = find_moments(fault, outcome, struck)
        record("seconds", round(ended - since, 1))
        record("within", fault.within_s)
        assert ended >= since, ended - since
        own_s = outcome.pressure.own_s(since, ended)
        assert own_s < fault.within_s * load_factor(), (own_s, ended - since)


def _check_place(fault: Fault, outcome: Outcome, finding: Mapping[str, Any]) -> None:
    """The finding names the row's rank and host, or any rank where all are equally wrong; and the
    host of each rank that it names."""
    if fault.rank is not None:
        assert finding["ranks"] == [fault.rank], finding
    if fault.host:
        assert finding["hosts"] == [_name_nodes(fault.host, fault, outcome)], finding
    if fault.of != "nobody":
        assert finding["hosts"], finding
    if fault.of == "rank":
        assert finding["ranks"], finding
    if nodes := _list_nodes(fault, outcome):
        hosts = {nodes[rank // fault.ranks_per_node] for rank in finding["ranks"]}
        assert not hosts or set(finding["hosts"]) == hosts, finding


def _name_nodes(words: str, fault: Fault, outcome: Outcome) -> str:
    """The row's words with the names of this run's nodes, which on Slurm are not local0, local1."""
    for number, node in enumerate(_list_nodes(fault, outcome)):
        words = words.replace(f"local{number}", node)
    return words


def _list_nodes(fault: Fault, outcome: Outcome) -> list[str]:
    """The names of the phase's nodes, in the order of their ranks."""
    names = [node["node"] for node in outcome.phase(fault.name)["nodes"]]
    if fault.settings.get("launcher") != "torchrun-c10d" or fault.nodes == 1:
        return names
    ranks = outcome.evidence(fault.name).ranks[:: fault.ranks_per_node]
    left = [name for name in names if name not in {rank.node for rank in ranks}]
    return [rank.node if rank.node in names else left.pop() for rank in ranks]


def _criteria_by_result(fault: Fault, outcome: Outcome) -> dict[str, set[str]]:
    by_result: dict[str, set[str]] = {"passed": set(), "failed": set(), "skipped": set()}
    for name, criterion in outcome.phase(fault.name)["criteria"].items():
        by_result[criterion["result"]].add(name)
    return by_result


def find_moments(
    fault: Fault, outcome: Outcome, struck: float | None = None
) -> tuple[float, float]:
    """When the fault was staged, and the phase's end in the journal. The first is `struck`, or the
    row's event (`staged` is what a rank writes just before its fault; a rank that cannot know when
    the fault comes writes it again and again, and the last counts)."""
    evidence = outcome.evidence(fault.name)
    attempts = (*evidence.earlier, evidence)
    files = [rank.events for attempt in attempts for rank in attempt.ranks]
    files += [read_events(evidence.directory.node_events(node)) for node in range(fault.nodes)]
    last = [events.last(fault.since) for events in files]
    times = [event["time"] for event in last if event is not None]
    assert times or struck is not None, f"no event says when {fault.name} was staged"
    since = min(times) + fault.since_s if struck is None else struck
    (ended,) = [event["time"] for event in outcome.events("ended") if event["phase"] == fault.name]
    return since, float(ended)
