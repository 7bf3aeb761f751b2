"""A known failure is neither green nor red: it is reported, and the run is never FIT."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from pytest_clustersmoke.diagnose import diagnose
from pytest_clustersmoke.evidence.phase_result import PhaseResult
from pytest_clustersmoke.evidence.run_counts import CriterionRecord, RunTally
from pytest_clustersmoke.evidence.run_record import FactsRecord, FindingRecord
from pytest_clustersmoke.evidence.scheduler_record import SchedulerRecord
from pytest_clustersmoke.evidence.telemetry import EventWriter
from pytest_clustersmoke.jobs.job_watch import read_messages
from pytest_clustersmoke.jobs.outcome import Judgement
from pytest_clustersmoke.report.acknowledgements import Acknowledgements
from pytest_clustersmoke.report.verdict import (
    FIT,
    INCONCLUSIVE,
    UNFIT,
    judge_record,
)
from pytest_clustersmoke.session.tally import count_report
from tests.report.pytest_reports import report
from tests.support import records
from tests.support.evidence import Evidence, make_profile
from tests.support.harness import Outcome, Suite, properties

TODAY = date.today()
SOON, PAST = (TODAY + timedelta(days=9)).isoformat(), (TODAY - timedelta(days=1)).isoformat()
RUN_ID = f"{TODAY:%Y%m%d}-020000-abcdef"
BAD_NODE = {"node": "n3", "reason": "RMA 4711", "until": SOON}
SLOW = {"phase": "small", "criterion": "test_rate", "reason": "the switch", "until": SOON}


@pytest.fixture
def held(tmp_path: Path) -> Callable[..., Acknowledgements]:
    """A function that makes a profile's entries; the profile has the phases `small` and `wide`."""

    def make(*entries: dict[str, str]) -> Acknowledgements:
        phases = {"small": None, "wide": None}
        return Acknowledgements(make_profile(tmp_path, phases=phases, known=entries), RUN_ID)

    return make


def ended(folder: Path, outcome: str, *hosts: tuple[str, ...] | None) -> PhaseResult:
    """The phase `small` after its job, with a failure for each tuple of hosts; None: a warning."""
    findings = [
        {"id": "f", "primary": True, "hosts": list(names or ("n9",)), "severity": severity}
        for names in hosts
        for severity in ["warning" if names is None else "failure"]
    ]
    result = Evidence(folder).result()
    return replace(result, job={"outcome": outcome, "findings": findings})


# Which entry covers a failure


@pytest.mark.parametrize(
    ("phase", "criterion", "name", "known"),
    [
        ("small", "test_rate", "test_rate", True),
        ("small", "test_rate", "test_rates", False),
        ("small", "test_r*", "test_rates", True),
        ("small", "test_rate", "test_rate[a-b]", True),
        ("small", "test_rate[a-b]", "test_rate[a-b]", True),
        ("small", "test_rate[a-b]", "test_rate[a-c]", False),
        ("s*", "test_rate", "test_rate", True),
        ("wide", "test_rate", "test_rate", False),
        ("small", "job", "test_rate", False),
        ("small", "TEST_RATE", "test_rate", False),
    ],
)
def test_entry_covers_criterion_by_name(
    held: Callable[..., Acknowledgements],
    tmp_path: Path,
    phase: str,
    criterion: str,
    name: str,
    known: bool,
) -> None:
    """Only in the phases that the entry names."""
    entries = held({**SLOW, "phase": phase, "criterion": criterion})
    answer = entries.answer(ended(tmp_path, "passed"), name)
    assert (answer is not None) is known
    if answer is not None:
        assert (answer.what, answer.reason) == (f"small: {name}", "the switch")
        assert answer.until == SOON and ":" in answer.where


@pytest.mark.parametrize(
    ("hosts", "known"),
    [
        ([("n3",)], True),
        ([("n3.cluster.local",)], True),
        ([("n3",), ("n3",)], True),
        ([("n3",), None], True),
        ([("n3", "n4")], False),
        ([("n3",), ("n4",)], False),
        ([("n3",), ()], False),
        ([()], False),
        ([("n33",)], False),
        ([("unknown",)], False),
        ([], False),
    ],
)
@pytest.mark.parametrize("outcome", ["failed", "cluster_failed", "lost"])
def test_entries_must_cover_the_hosts_of_all_causes(
    held: Callable[..., Acknowledgements],
    tmp_path: Path,
    hosts: list[tuple[str, ...] | None],
    known: bool,
    outcome: str,
) -> None:
    """A cause without a host, or on a host that no entry covers, is a new failure."""
    host_lists = [() if names == () else names for names in hosts]
    result = ended(tmp_path, outcome, *host_lists)
    for finding, names in zip(result.job["findings"], host_lists, strict=True):
        finding["hosts"] = list(names) if names is not None else finding["hosts"]
    entries = held(BAD_NODE, {**BAD_NODE, "node": "unknow"})
    assert (entries.answer(result, "job") is not None) is known
    assert (entries.answer(result, "test_rate") is not None) is known


@pytest.mark.parametrize(
    ("primary", "detail", "known"),
    [
        (False, {}, False),  # the same failure on another host
        (False, {"victim": False, "after_s": 1.0}, False),
        (False, {"victim": True, "after_s": 1.0}, True),
        (True, {"victim": True}, False),  # the only cause
        (False, None, False),
    ],
)
def test_second_failing_node_is_not_covered(
    held: Callable[..., Acknowledgements],
    tmp_path: Path,
    primary: bool,
    detail: object,
    known: bool,
) -> None:
    """Every failing node needs an entry, except one that only lost a peer."""
    result = ended(tmp_path, "failed", ("n3",), ("n4",))
    result.job["findings"][1].update(primary=primary, detail=detail)
    entries = held(BAD_NODE)
    assert (entries.answer(result, "job") is not None) is known
    remarks = [] if known else ["`known` covers n3, but not n4"]
    assert entries.uncovered_hosts(result) == remarks


@pytest.mark.parametrize("way", ["ranks", "node", "torchrun", "memory", "hang"])
def test_second_failing_node_is_never_hidden(
    held: Callable[..., Acknowledgements], tmp_path: Path, way: str
) -> None:
    """Two nodes of a job fail in the same way: both need an entry."""
    job = Evidence(tmp_path / "job", nodes=2, ranks_per_node=1).started()
    end = {"reason": "torchrun", "why": "torchrun ended with 1"}
    if way == "ranks":
        error = {"type": "RuntimeError", "message": "uncorrectable ECC error", "traceback": "x"}
        for rank in (0, 1):
            job.rank(rank, ("error", {**error, "stage": "train"}))
    if way == "node":
        end = {"reason": "node", "why": "no such device: /dev/infiniband"}
    if way == "hang":
        end = {"reason": "stalled", "why": "no rank moved for 60 s"}
    for node in (0, 1):
        job.node(node, ok=False, started=100.0, ended=110.0, **end)
    if way == "memory":
        job.dir.submitit.mkdir(parents=True, exist_ok=True)
        lines = "".join(f"srun: error: n{n}: task {n}: Out Of Memory\n" for n in (0, 1))
        (job.dir.submitit / "7_0_log.err").write_text(lines)
        for node in (0, 1):
            writer = EventWriter(job.dir.node_events(node))
            writer.write("ranks", states=[{"rank": node, "alive": False}])
            writer.close()
        SchedulerRecord(messages=read_messages(job.dir)).write(job.dir.scheduler)
    result = job.result()
    findings = [finding.as_dict() for finding in diagnose(result, Judgement("failed", "x"))]
    assert [finding["hosts"] for finding in findings] == [["n0"], ["n1"]]
    job = json.loads(json.dumps({"outcome": "failed", "findings": findings}))
    result = replace(result, job=job)
    alone = [{**BAD_NODE, "node": name} for name in ("n0", "n1")]
    assert [held(entry).answer(result, "job") for entry in alone] == [None, None]
    assert held(*alone).answer(result, "job") is not None


@pytest.mark.parametrize(
    ("node", "matched"),
    [
        ("gpu[10-12]", ["gpu10", "gpu11", "gpu12"]),
        ("gpu[1,12]", ["gpu1", "gpu12"]),
        ("gpu1,gpu2", ["gpu1", "gpu2"]),
        ("gpu1?", ["gpu10", "gpu11", "gpu12"]),
        ("gpu[0-1]*", ["gpu0", "gpu1", "gpu10", "gpu11", "gpu12"]),
    ],
)
def test_node_entry_may_be_a_slurm_host_list(
    held: Callable[..., Acknowledgements], tmp_path: Path, node: str, matched: list[str]
) -> None:
    """Brackets are ranges of numbers, not character classes as in a glob."""
    entries = held({**BAD_NODE, "node": node})
    names = [f"gpu{n}" for n in (0, 1, 2, 10, 11, 12)]
    for end in ("", ".cluster.local"):
        of = {name: ended(tmp_path / name, "failed", (name + end,)) for name in names}
        assert [name for name in names if entries.answer(of[name], "job")] == matched


def test_job_without_a_primary_finding_is_not_known(
    held: Callable[..., Acknowledgements], tmp_path: Path
) -> None:
    """Only a primary finding can be covered by the entry of its host."""
    result = ended(tmp_path, "failed", ("n3",))
    result.job["findings"][0]["primary"] = False
    assert held(BAD_NODE).answer(result, "job") is None


@pytest.mark.parametrize("findings", [None, 7, "x", [7, None], [{"primary": True, "hosts": None}]])
def test_malformed_findings_are_not_known(
    held: Callable[..., Acknowledgements], tmp_path: Path, findings: object
) -> None:
    """Malformed findings in the job's result raise no error and count as unknown."""
    result = replace(ended(tmp_path, "failed"), job={"outcome": "failed", "findings": findings})
    assert held(BAD_NODE).answer(result, "job") is None


def test_each_failing_node_needs_an_entry(
    held: Callable[..., Acknowledgements], tmp_path: Path
) -> None:
    """The answer names all entries; its day is the earliest of theirs."""
    later = (TODAY + timedelta(days=20)).isoformat()
    other = {"node": "n4", "reason": "fan", "until": later}
    answer = held(BAD_NODE, other).answer(ended(tmp_path, "failed", ("n3", "n4")), "job")
    assert answer is not None
    assert (answer.reason, answer.until) == ("RMA 4711; fan", SOON)
    assert answer.where.count("cluster.yaml:") == 2


@pytest.mark.parametrize("outcome", ["failed", "cluster_failed", "never_ran", "preempted", "lost"])
def test_entry_for_job_covers_phase(
    held: Callable[..., Acknowledgements], tmp_path: Path, outcome: str
) -> None:
    """An entry for `job` covers every outcome of the job, and all criteria."""
    entries = held({**SLOW, "criterion": "job"})
    result = ended(tmp_path, outcome)
    assert entries.answer(result, "job") and entries.answer(result, "test_other")


def test_cancelled_job_is_not_known(held: Callable[..., Acknowledgements], tmp_path: Path) -> None:
    """We cancelled it ourselves: that is not a failure."""
    entries = held({**SLOW, "criterion": "job"}, BAD_NODE)
    assert entries.answer(ended(tmp_path, "cancelled", ("n3",)), "job") is None


def test_entry_for_criterion_does_not_cover_job(
    held: Callable[..., Acknowledgements], tmp_path: Path
) -> None:
    """If the job failed, no criterion was judged."""
    entries = held({**SLOW, "criterion": "test_*"})
    assert entries.answer(ended(tmp_path, "failed"), "test_rate") is None


def test_entry_is_valid_through_its_last_day(tmp_path: Path) -> None:
    """The day in the run's name counts, so that midnight changes nothing during a run."""
    profile = make_profile(tmp_path, known=[{**SLOW, "until": "2026-01-31"}])
    passed = ended(tmp_path, "passed")
    for run_id, known in (("20260131-235959-abcdef", True), ("20260201-000000-abcdef", False)):
        assert bool(Acknowledgements(profile, run_id).answer(passed, "test_rate")) is known


# Remarks about entries


def tally(**outcomes: str) -> RunTally:
    made = RunTally(phases_of_cluster=list(outcomes))
    for name, outcome in outcomes.items():
        phase = made.phase(name)
        if outcome:
            phase.end(outcome)
    return made


def test_expired_entry_is_reported(held: Callable[..., Acknowledgements], tmp_path: Path) -> None:
    """Even a partial run reports it, with its line; it covers nothing."""
    entries = held({**SLOW, "until": PAST})
    part = tally(small="passed")
    part.counts.selection = "small"
    (remark,) = entries.remarks(records.judged(part))
    assert remark.startswith("the entry of `known` at ")
    assert remark.endswith(f" expired on {PAST}: renew or remove it")
    assert entries.answer(ended(tmp_path, "passed"), "test_rate") is None


@pytest.mark.parametrize(
    ("outcomes", "result", "reported"),
    [
        ({"small": "passed", "wide": "passed"}, "passed", True),
        ({"small": "passed", "wide": "passed"}, "known", False),
        ({"small": "passed", "wide": "passed"}, "failed", False),
        ({"small": "failed", "wide": "passed"}, "failed", False),
        ({"small": "lost", "wide": "passed"}, "failed", False),
    ],
)
def test_unneeded_entry_is_reported(
    held: Callable[..., Acknowledgements],
    tmp_path: Path,
    outcomes: dict[str, str],
    result: Any,
    reported: bool,
) -> None:
    """Only if its criterion was judged and did not fail."""
    counted = tally(**outcomes)
    counted.phase("small").criteria["test_rate"] = CriterionRecord.of(result)
    remarks = held(SLOW).remarks(records.judged(counted))
    assert bool(remarks) is reported
    if reported:
        assert remarks[0].startswith("nothing failed that ") and remarks[0].endswith("remove it?")


@pytest.mark.parametrize(
    "part",
    [
        *({"selection": "x"}, {"avoided": ["n7"]}, {"interrupted": True}),
        *({"exit_status": 2}, {"wide": ""}),
    ],
)
def test_partial_run_reports_no_unneeded_entries(
    held: Callable[..., Acknowledgements], tmp_path: Path, part: dict[str, Any]
) -> None:
    """A criterion that did not run may still fail."""
    made = tally(small="passed", **({"wide": ""} if "wide" in part else {}))
    for name, value in part.items():
        if name != "wide":
            setattr(made if name == "interrupted" else made.counts, name, value)
    assert held(SLOW).remarks(records.judged(made)) == []


@pytest.mark.parametrize(
    ("node", "hosts", "remarks"),
    [
        ("n3", [], ["nothing failed that the entry of `known` at {} covers: remove it?"]),
        (
            "n7",
            [],
            ["nothing failed that the entry of `known` at {} covers; no job ran on that node"],
        ),
        ("n3", ["n3"], []),
    ],
)
def test_unneeded_node_entry_is_reported(
    held: Callable[..., Acknowledgements],
    node: str,
    hosts: list[str],
    remarks: list[str],
) -> None:
    """The remark differs if no job ran on that node."""
    record = records.judged(tally(small="failed"))
    record.nodes = [FactsRecord.model_validate({**records.facts(3, "small"), "node": "n3"})]
    finding = FindingRecord.model_validate(records.finding(hosts=hosts))
    record.phases[0].findings = [finding] if hosts else []
    entries = held({**BAD_NODE, "node": node})
    reported = entries.remarks(record)
    where = reported[0].split(" at ")[1].split(" covers")[0] if reported else ""
    assert reported == [line.format(where) for line in remarks]


def test_entry_for_unknown_criterion_is_misnamed(
    held: Callable[..., Acknowledgements],
) -> None:
    """The message suggests the nearest name; phases not fully collected are not checked."""
    entries = held(SLOW, {**SLOW, "phase": "*", "criterion": "test_loss"})
    (problem, _) = entries.misnamed_entries(
        {"small": ["test_rates"], "wide": ["test_b"]}, {"small"}
    )
    assert "`test_rate` matches no criterion of small" in str(problem)
    assert str(problem).endswith("one of `job`, `test_rates`; did you mean `test_rates`?")
    for criteria in ({"wide": None}, {}, {"wide": ["test_loss"]}):
        assert entries.misnamed_entries({"small": ["test_rate"], **criteria}, {"small"}) == []
    assert entries.misnamed_entries({"small": ["test_rates"], "wide": ["x"]}, set()) == []


# The verdict


def report_of(name: str, outcome: Any, when: Any = "call", **marks: str) -> pytest.TestReport:
    return report(name, outcome, when, phase="small", **marks)


KNOWN = {"known": "the switch", "known_until": SOON, "known_where": "cluster.yaml:12"}


@pytest.mark.parametrize(
    ("outcome", "name", "others", "verdict"),
    [
        ("passed", "test_rate", [], INCONCLUSIVE),
        ("passed", "test_rate", [report_of("test_b", "failed")], UNFIT),
        ("passed", "test_rate", [report_of("test_rate", "failed", "teardown", **KNOWN)], UNFIT),
        ("failed", "job", [], INCONCLUSIVE),
        ("failed", "job", [report_of("test_b", "skipped", **KNOWN)], INCONCLUSIVE),
        ("failed", "job", [report_of("test_b", "failed", "setup")], UNFIT),
        ("failed", "test_rate", [], UNFIT),
        ("never_ran", "job", [], INCONCLUSIVE),
    ],
)
def test_known_failure_is_never_a_pass(
    outcome: str, name: str, others: list[pytest.TestReport], verdict: str
) -> None:
    """Alone it makes the run INCONCLUSIVE; whatever else fails makes it UNFIT."""
    made = tally(small=outcome)
    for test_report in [report_of(name, "skipped", **KNOWN), *others]:
        count_report(made, test_report)
    judged = judge_record(records.counted(made))
    assert judged.name == verdict
    if verdict == INCONCLUSIVE:
        ended = f"{int(outcome != 'never_ran')} of 1 phases finished"
        sentence = f"INCONCLUSIVE: {ended} (small: {name} is known to fail until {SOON})"
        assert judged.sentence == sentence
        (known,) = judged.known
        assert (known.what, known.where) == (f"small: {name}", "cluster.yaml:12")


def test_without_known_failures_the_run_is_fit() -> None:
    """A criterion that passes counts as passed, whatever entries exist."""
    made = tally(small="passed")
    count_report(made, report_of("test_rate", "passed"))
    judged = judge_record(records.counted(made))
    assert judged.name == FIT and judged.known == []


# End to end

TWO = """
def test_rate(self, phase):
    assert phase.metric("steps_per_s").value > 99, "too slow \\x1b[31m"
def test_done(self, phase):
    assert phase.ranks_done
"""


def run_known(suite: Suite, *words: str, apart: bool = False) -> Outcome:
    suite.phase(body=TWO)
    return suite.run_apart(*words) if apart else suite.run(*words)


def skipped(path: Path) -> dict[str, str]:
    """JUnit case -> type and message of its skip."""
    cases = ElementTree.parse(path).getroot().iter("testcase")
    return {
        case.attrib["name"]: f"{skip.attrib['type']}: {skip.attrib['message']}"
        for case in cases
        for skip in case.iter("skipped")
    }


@pytest.mark.parametrize("words", [(), ("-n", "2")])
def test_known_criterion_end_to_end(suite: Suite, words: tuple[str, ...]) -> None:
    """pytest, JUnit, record and verdict show it as neither green nor red, also with xdist."""
    suite.cluster(known=[SLOW])
    result = run_known(suite, "-rx", *words, apart=bool(words))
    result.assert_outcomes(passed=2, xfailed=1)
    assert result.ret == 6
    sentence = (
        f"INCONCLUSIVE: 1 of 1 phases finished (small: test_rate is known to fail until {SOON})"
    )
    assert result.outlines[-1] == sentence
    (place,) = suite.record()["known"]
    where = place["where"]
    assert Path(suite.path / where.rpartition(":")[0]).name == "cluster.yaml"
    reason = f"the switch (known until {SOON}, {where})"
    result.stdout.fnmatch_lines([f"known: small: test_rate: {reason}"])
    result.stdout.fnmatch_lines(["XFAIL test_small.py::TestSmall::test_rate - the switch*"])
    message = skipped(suite.report / "junit.xml")["test_rate"]
    assert message.startswith(f"pytest.xfail: {reason}: ") and "too slow" in message
    case = properties(suite.report / "junit.xml")["test_small.TestSmall::test_rate"]
    assert (case["known"], case["known_until"]) == ("the switch", SOON)
    assert case["known_where"] == where
    record = suite.record()
    assert record["verdict"] == INCONCLUSIVE and record["failed"] == []
    (phase,) = record["phases"]
    assert phase["known"] is None and phase["criteria"]["test_done"]["result"] == "passed"
    criterion = phase["criteria"]["test_rate"]
    assert criterion["result"] == "known" and "too slow" in criterion["text"]
    assert criterion["known"] == place
    assert "\x1b" not in criterion["text"] + result.stdout.str()


FIXTURES = """
@pytest.fixture
def rate(self, phase):
    return phase.metrics()["no such thing"]
@pytest.fixture
def tidy(self):
    yield
    raise OSError("nothing to tidy up")
def test_rate(self, rate):
    assert rate
def test_done(self, tidy, phase):
    assert phase.ranks_done
"""


@pytest.mark.parametrize("words", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)])
def test_fixture_errors_of_a_known_job_are_known(suite: Suite, words: tuple[str, ...]) -> None:
    """Fixtures may raise anything after a failed job: they have no results to work on."""
    suite.cluster(known=[{**SLOW, "criterion": "job"}])
    suite.phase(args={"fail": True}, body=FIXTURES)
    result = suite.run_apart(*words) if words else suite.run()
    result.assert_outcomes(xfailed=1, skipped=2)
    assert result.ret == 6
    sentence = f"INCONCLUSIVE: 1 of 1 phases finished (small: job is known to fail until {SOON})"
    assert result.outlines[-1] == sentence
    (phase,) = suite.record()["phases"]
    results = [criterion["result"] for criterion in phase["criteria"].values()]
    assert results == ["known", "skipped", "skipped"]
    assert phase["all_criteria"]
    case = properties(suite.report / "junit.xml")["test_small.TestSmall::job"]
    assert case["known"] == "the switch" and case["result"] == "skipped"


def test_fixture_errors_of_a_passed_job_are_not_known(suite: Suite) -> None:
    """No entry covers a bug in the suite: the criterion fails."""
    suite.cluster(known=[{**SLOW, "criterion": "test_*"}])
    suite.phase(body=FIXTURES)
    result = suite.run()
    result.assert_outcomes(passed=2, errors=2)
    assert result.ret == 1
    assert result.outlines[-1] == "UNFIT: 1 of 1 phases failed (small: test_rate, test_done)"


EXPECTED = """
@pytest.mark.xfail(reason="later", **{})
def test_rate(self, phase):
    assert phase.metric("steps_per_s").value > 99
def test_word(self, phase):
    pytest.xfail("not yet")
def test_done(self, phase):
    assert phase.ranks_done
"""


@pytest.mark.parametrize("words", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)])
def test_xfail_without_entry_is_inconclusive(suite: Suite, words: tuple[str, ...]) -> None:
    """An xfail mark does not make a failure known; an entry of `known` does."""
    suite.cluster(known=[SLOW])
    suite.phase(body=EXPECTED.format("{}"))
    result = suite.run_apart(*words) if words else suite.run()
    result.assert_outcomes(passed=2, xfailed=2)
    assert result.ret == 6
    assert result.outlines[-1] == (
        "INCONCLUSIVE: 1 of 1 phases finished (small: test_word is marked xfail, and no entry of "
        f"`known` covers it; small: test_rate is known to fail until {SOON})"
    )
    (phase,) = suite.record()["phases"]
    assert phase["criteria"]["test_word"]["result"] == "known"
    assert "known" not in phase["criteria"]["test_word"]


def test_strict_xfail_that_passes_is_a_failure(suite: Suite) -> None:
    """As in pytest itself; an xfail that is not strict passes."""
    mark = "@pytest.mark.xfail(strict={})\ndef test_{}(self, phase):\n    pass\n"
    suite.phase(body=mark.format(True, "a") + mark.format(False, "b"))
    result = suite.run()
    result.assert_outcomes(passed=1, failed=1, xpassed=1)
    assert result.outlines[-1] == "UNFIT: 1 of 1 phases failed (small: test_a)"


def test_new_failure_beside_known_one_is_unfit(suite: Suite) -> None:
    """The run is UNFIT, and the known failure is still listed."""
    suite.cluster(known=[SLOW])
    suite.phase(body=TWO + "def test_new(self, phase):\n    assert not phase.ranks_done\n")
    result = suite.run()
    result.assert_outcomes(passed=2, failed=1, xfailed=1)
    assert (
        result.ret == 1 and result.outlines[-1] == "UNFIT: 1 of 1 phases failed (small: test_new)"
    )
    result.stdout.fnmatch_lines(["known: small: test_rate: the switch*"])


def test_error_in_criterion_is_not_known(suite: Suite) -> None:
    """An exception that is not a failed assertion is a bug in the criterion."""
    suite.cluster(known=[SLOW])
    suite.phase(body="def test_rate(self, phase):\n    phase.no_such_thing()\n")
    result = suite.run()
    result.assert_outcomes(passed=1, failed=1)
    assert result.ret == 1


@pytest.mark.parametrize(
    "entry",
    [
        {"node": "local0", "reason": "RMA 4711", "until": SOON},
        {"phase": "small", "criterion": "job", "reason": "RMA 4711", "until": SOON},
    ],
)
def test_known_job_end_to_end(suite: Suite, entry: dict[str, str]) -> None:
    """An entry for its node or for its phase covers the job; its criteria are skipped."""
    suite.cluster(known=[entry])
    suite.phase(args={"fail": True}, body=TWO)
    result = suite.run()
    result.assert_outcomes(xfailed=1, skipped=2)
    assert result.ret == 6
    assert result.outlines[-1].endswith(f"(small: job is known to fail until {SOON})")
    (phase,) = suite.record()["phases"]
    assert phase["outcome"] == "failed" and phase["known"]["reason"] == "RMA 4711"
    assert phase["criteria"]["job"]["result"] == "known"
    assert [known["what"] for known in suite.record()["known"]] == ["small: job"]
    result.stdout.fnmatch_lines(["small *failed, known *"])
    assert ": phase small: failed: " in skipped(suite.report / "junit.xml")["job"]


def test_expired_entry_covers_nothing(suite: Suite) -> None:
    """The failure is red, and the run says when the entry expired."""
    suite.cluster(known=[{**SLOW, "until": PAST}])
    result = run_known(suite)
    result.assert_outcomes(passed=2, failed=1)
    assert result.ret == 1
    result.stdout.fnmatch_lines([f"the entry of `known` at *cluster.yaml:* expired on {PAST}:*"])
    assert len(suite.record()["known_remarks"]) == 1


def test_unneeded_entry_end_to_end(suite: Suite) -> None:
    """The criterion passes, the run is FIT, and a remark names the entry."""
    suite.cluster(known=[{**SLOW, "criterion": "test_done"}])
    suite.phase(body="def test_done(self, phase):\n    assert phase.ranks_done\n")
    result = suite.run()
    result.assert_outcomes(passed=2)
    assert result.ret == 0 and result.outlines[-1] == "FIT: 1 of 1 phases passed"
    result.stdout.fnmatch_lines(["nothing failed that * at *cluster.yaml:* covers: remove it?"])


@pytest.mark.parametrize("words", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)])
def test_entry_for_unknown_criterion_is_refused(suite: Suite, words: tuple[str, ...]) -> None:
    """The message names the entry's line, and nothing is submitted."""
    suite.cluster(known=[{**SLOW, "criterion": "test_rat"}])
    suite.phase(body=TWO)
    result = suite.run_apart(*words) if words else suite.run()
    output = result.stdout.str() + result.stderr.str()
    assert result.ret == 4 and suite.runs() == []
    assert "`test_rat` matches no criterion of small" in output
    assert output.count("did you mean `test_rate`?") == 1
