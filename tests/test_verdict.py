"""FIT, UNFIT, INCONCLUSIVE: the verdict is never better than its evidence."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_clustersmoke.evidence import BETWEEN, INSIDE
from pytest_clustersmoke.items import TOLD
from pytest_clustersmoke.result import OUTCOMES
from pytest_clustersmoke.verdict import EXIT_INCONCLUSIVE, FIT, INCONCLUSIVE, UNFIT, Tally


def report(
    name: str = "test_a", outcome: Any = "passed", when: Any = "call", **properties: str
) -> pytest.TestReport:
    made = pytest.TestReport(
        nodeid=f"test_x.py::TestA::{name}",
        location=("test_x.py", 1, name),
        keywords={},
        outcome=outcome,
        longrepr=None,
        when=when,
    )
    if properties:
        setattr(made, TOLD, properties)
    return made


def tally(*reports: pytest.TestReport, require: Any = (), **outcomes: str) -> Tally:
    made = Tally(require)
    made.outcomes = outcomes
    made.chosen = made.all_phases = list(outcomes) or ["a"]
    for one in reports:
        made.hear(one)
    return made


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        ("passed", FIT),
        ("failed", UNFIT),
        ("cluster_failed", UNFIT),
        ("never_ran", INCONCLUSIVE),
        ("preempted", INCONCLUSIVE),
        ("cancelled", INCONCLUSIVE),
        ("lost", INCONCLUSIVE),
    ],
)
def test_the_verdict_of_each_outcome(outcome: str, verdict: str) -> None:
    """A job that failed is UNFIT; one that was not measured is INCONCLUSIVE, never FIT."""
    assert tally(a=outcome).verdict() == verdict


def test_every_outcome_has_a_verdict() -> None:
    """No outcome but `passed` alone can be FIT."""
    assert [one for one in OUTCOMES if tally(a=one).verdict() == FIT] == ["passed"]


def test_a_failed_criterion_is_unfit() -> None:
    """One criterion that failed beside a job that passed is named."""
    made = tally(report("test_b", "failed", phase="a"), a="passed")
    assert made.verdict() == UNFIT and made.failed() == ["a: test_b"]


def test_criteria_of_a_failed_job_are_not_told_beside_it() -> None:
    """Where the job failed, the job is the reason, and its criteria add nothing."""
    made = tally(report("test_b", "failed", phase="a"), a="failed")
    assert made.failed() == ["a: failed"]


def test_an_error_in_teardown_is_a_failure() -> None:
    """A criterion that passed in its call and failed in teardown has failed."""
    made = tally(
        report(phase="a"), report(outcome="failed", when="teardown", phase="a"), a="passed"
    )
    assert made.verdict() == UNFIT


def test_required_and_unmeasured_is_inconclusive() -> None:
    """A skipped criterion of a required kind makes FIT impossible; of another kind it may."""
    skipped = report(outcome="skipped", phase="a", unmeasured="transports")
    other = report("test_b", phase="a")
    assert tally(skipped, other, a="passed").verdict() == FIT
    made = tally(skipped, other, a="passed", require=["transports"])
    assert made.verdict() == INCONCLUSIVE
    assert made.sentence() == "INCONCLUSIVE: 1 of 1 phases (a: transports not measured)"


def test_unfit_beats_inconclusive() -> None:
    """One failed phase is UNFIT, whatever else was not measured."""
    assert tally(a="failed", b="lost").verdict() == UNFIT


def test_no_result_is_inconclusive() -> None:
    """A chosen phase without any outcome, and a run without phases, are never FIT."""
    made = tally(a="passed")
    made.chosen = ["a", "b"]
    assert made.verdict() == INCONCLUSIVE and "b: no result" in made.sentence()
    assert Tally(()).verdict() == INCONCLUSIVE


def test_an_interrupted_run_is_inconclusive() -> None:
    """Ctrl-C: never FIT, and pytest's own status stays."""
    made = tally(a="passed")
    made.interrupted, made.exitstatus = True, 2
    assert made.verdict() == INCONCLUSIVE and made.exit_code() == 2
    assert made.sentence() == "INCONCLUSIVE: 1 of 1 phases (interrupted)"


@pytest.mark.parametrize(
    ("outcome", "pytests", "code"),
    [
        ("passed", 0, 0),
        ("failed", 0, 1),
        ("failed", 1, 1),
        ("lost", 0, EXIT_INCONCLUSIVE),
        ("lost", 1, EXIT_INCONCLUSIVE),
    ],
)
def test_exit_statuses(outcome: str, pytests: int, code: int) -> None:
    """0 FIT, 1 UNFIT, 6 INCONCLUSIVE, whether pytest had failures or none."""
    made = tally(a=outcome)
    made.exitstatus = pytests
    assert made.exit_code() == code


@pytest.mark.parametrize("status", [2, 3, 4, 5])
def test_what_ended_pytest_early_keeps_its_status(status: int) -> None:
    """Interrupted, internal error, usage, nothing collected: pytest's own status."""
    made = tally(a="passed")
    made.exitstatus = status
    assert made.exit_code() == status and made.verdict() != FIT


def test_other_tests_count() -> None:
    """A failing test that is no phase's makes the run UNFIT."""
    assert tally(report(outcome="failed"), a="passed").verdict() == UNFIT


@given(
    st.dictionaries(st.sampled_from("abcd"), st.sampled_from(OUTCOMES)),
    st.lists(st.sampled_from(["passed", "failed", "skipped"])),
)
def test_fit_is_never_said_of_anything_but_all_passed(
    outcomes: dict[str, str], criteria: list[str]
) -> None:
    """Whatever is heard, FIT means: at least one phase, all passed, no criterion failed."""
    reports = [
        report(f"test_{i}", one, phase=phase)
        for phase in outcomes
        for i, one in enumerate(criteria)
    ]
    made = tally(*reports, **outcomes)
    if made.verdict() == FIT:
        assert outcomes and set(outcomes.values()) == {"passed"} and "failed" not in criteria


def test_a_required_kind_that_no_criterion_judged() -> None:
    """What is required and was judged by nobody is missing, unless criteria were chosen singly, or
    the phase has one rank and so no transports; of transports each side where there are ranks."""
    made = tally(report(phase="a"), require=["transports"], a="passed")
    assert made.verdict() == FIT  # one rank
    made.sides = {"a": {INSIDE}}
    assert made.verdict() == INCONCLUSIVE
    assert made.missing() == ["a: no criterion judged transports inside nodes"]
    made.collected, made.selected = {"a": {"test_a", "test_b"}}, {"a": {"test_a"}}
    assert made.verdict() == FIT
    made.collected = {"a": {"test_a"}}
    assert made.verdict() == INCONCLUSIVE
    made.hear(report("test_b", phase="a", judged=INSIDE))
    assert made.verdict() == FIT
    made.sides = {"a": {INSIDE, BETWEEN}}  # right inside nodes says nothing of the network
    assert made.missing() == ["a: no criterion judged transports between nodes"]
    made.hear(report("test_c", phase="a", judged=f"references,{BETWEEN}"))
    assert made.verdict() == FIT


def expected_to_fail(name: str, **changes: str) -> pytest.TestReport:
    made = report(name, "skipped", phase="a", **changes)
    made.wasxfail = "later"
    return made


def test_an_xfail_without_an_owner_is_never_fit() -> None:
    """It is named, and counts as known in the record; an owner in cluster.yaml answers for it."""
    made = tally(report(phase="a"), expected_to_fail("test_b"), a="passed")
    assert made.verdict() == INCONCLUSIVE and made.exit_code() == EXIT_INCONCLUSIVE
    assert made.sentence() == (
        "INCONCLUSIVE: 1 of 1 phases (a: test_b is marked to fail (xfail), and no entry of `known` "
        "answers for it)"
    )
    assert made.criteria["a"]["test_b"]["result"] == "known" and made.known == []
    owned = expected_to_fail("test_b", known="fan", known_until="d", known_where="c:1")
    made = tally(owned, a="passed")
    assert made.verdict() == INCONCLUSIVE and made.missing() == []
    assert tally(expected_to_fail("test_b"), a="failed").verdict() == UNFIT


def test_a_phase_whose_criteria_were_all_skipped_is_not_fit() -> None:
    """A job that passed is no criterion; a phase that has none is judged by its job alone."""
    job, skipped = report("job", phase="a"), report("test_a", "skipped", phase="a")
    made = tally(job, skipped, a="passed")
    assert made.verdict() == INCONCLUSIVE and made.missing() == ["a: no criterion was judged"]
    assert tally(job, skipped, report("test_b", phase="a"), a="passed").verdict() == FIT
    assert tally(job, a="passed").verdict() == FIT


def test_criteria_that_were_not_heard_are_told() -> None:
    """Those left out are counted; those that were to run and were not heard make FIT impossible."""
    made = tally(report("job", phase="a"), report(phase="a"), a="passed")
    assert not made.heard_all("a")  # nobody knows what there is
    made.collected = {"a": {"test_a", "test_b", "test_c"}}
    made.selected = {"a": {"test_a"}}
    assert made.verdict() == FIT and not made.heard_all("a")
    assert made.sentence() == "FIT: 1 of 1 phases, 1 of 3 criteria"
    assert made.as_dict()["selection"] == "1 of 3 criteria"
    made.selected = {"a": {"test_a", "test_b"}}
    assert made.verdict() == INCONCLUSIVE and made.missing() == ["a: no result of test_b"]
    for name in ("test_b", "test_c"):
        made.hear(report(name, phase="a"))
    assert made.heard_all("a") and made.sentence() == "FIT: 1 of 1 phases"
    assert made.as_dict()["selection"] == ""
