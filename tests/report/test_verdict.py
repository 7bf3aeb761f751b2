"""FIT, UNFIT, INCONCLUSIVE: the verdict is never better than its evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_clustersmoke.evidence.measured_peaks import measured_in
from pytest_clustersmoke.evidence.metric import BETWEEN, INSIDE
from pytest_clustersmoke.evidence.phase_result import OUTCOMES
from pytest_clustersmoke.evidence.run_counts import RunTally
from pytest_clustersmoke.report.publication import metrics_path
from pytest_clustersmoke.report.verdict import (
    EXIT_INCONCLUSIVE,
    FIT,
    INCONCLUSIVE,
    UNFIT,
    RunVerdict,
    judge_record,
)
from pytest_clustersmoke.session.tally import count_report
from tests.report.pytest_reports import report
from tests.support.records import counted, judged


def tally(*reports: pytest.TestReport, require: Any = (), **outcomes: str) -> RunTally:
    made = RunTally(phases_of_cluster=list(outcomes) or ["a"])
    made.counts.require = list(require)
    for name, outcome in outcomes.items():
        phase = made.phase(name)
        if outcome:
            phase.end(outcome)
    for test_report in reports:
        count_report(made, test_report)
    return made


def judge(made: RunTally) -> RunVerdict:
    return judge_record(counted(made))


def verdict_of(*reports: pytest.TestReport, require: Any = (), **outcomes: str) -> RunVerdict:
    return judge(tally(*reports, require=require, **outcomes))


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
def test_verdict_of_each_outcome(outcome: str, verdict: str) -> None:
    """A job that failed is UNFIT; one that was not measured is INCONCLUSIVE, never FIT."""
    assert verdict_of(a=outcome).name == verdict


def test_every_outcome_has_a_verdict() -> None:
    """Only `passed` can be FIT."""
    assert [outcome for outcome in OUTCOMES if verdict_of(a=outcome).name == FIT] == ["passed"]


def test_failed_criterion_is_unfit() -> None:
    """A failed criterion of a passed job is named."""
    made = verdict_of(report("test_b", "failed", phase="a"), a="passed")
    assert made.name == UNFIT and made.failed == ["a: test_b"]


def test_criteria_of_a_failed_job_are_left_out() -> None:
    """If the job failed, only the job is named as the reason."""
    made = verdict_of(report("test_b", "failed", phase="a"), a="failed")
    assert made.failed == ["a: failed"]


def test_error_in_teardown_is_a_failure() -> None:
    """A criterion that passes in its call but fails in teardown has failed."""
    torn = report(outcome="failed", when="teardown", phase="a")
    assert verdict_of(report(phase="a"), torn, a="passed").name == UNFIT


def test_required_and_unmeasured_is_inconclusive() -> None:
    """A skipped criterion prevents FIT only if its kind is required."""
    skipped = report(outcome="skipped", phase="a", unmeasured="transports")
    other = report("test_b", phase="a")
    assert verdict_of(skipped, other, a="passed").name == FIT
    made = verdict_of(skipped, other, a="passed", require=["transports"])
    assert made.name == INCONCLUSIVE
    assert made.sentence == "INCONCLUSIVE: 1 of 1 phases finished (a: transports not measured)"


def test_proof_that_could_not_be_made_is_never_fit() -> None:
    """A gradient proof that shows nothing prevents FIT, though no cluster requires it by name."""
    skipped = report(outcome="skipped", phase="a", unmeasured="gradients")
    made = verdict_of(skipped, report("test_b", phase="a"), a="passed")
    assert made.name == INCONCLUSIVE
    assert made.sentence.startswith(
        "INCONCLUSIVE: 1 of 1 phases finished (a: gradients not measured)"
    )


@pytest.mark.parametrize("kind", ["data", "checkpoint"])
def test_data_and_checkpoint_are_required_of_training(kind: str) -> None:
    """Whatever the cluster requires, a phase that checks them is not FIT without them."""
    skipped = report(outcome="skipped", phase="a", unmeasured=kind)
    made = verdict_of(skipped, report("test_b", phase="a"), a="passed")
    assert (made.name, made.exit_status) == (INCONCLUSIVE, 6)
    assert made.not_measured == [f"a: {kind} not measured"]


def test_sentence_names_what_was_not_proven_of_a_program() -> None:
    """By phase, whatever the verdict; other kinds are not proofs of the program."""
    reports = [
        report(f"test_{kind}", "skipped", phase=phase, unmeasured=kind)
        for phase, kind in [
            *(("a", "samples"), ("a", "replay"), ("b", "replay"), ("c", "references")),
            *(("b", "samples"), ("d", "replicas")),
        ]
    ]
    reports += [report("test_good", phase=phase) for phase in "abcd"]
    end = "; not proven: a, b: replay, samples; d: replicas"
    passed = dict.fromkeys("abcd", "passed")
    assert verdict_of(*reports, **passed).sentence == f"FIT: 4 of 4 phases passed{end}"
    unfit = verdict_of(*reports, report("test_bad", "failed", phase="c"), **passed)
    assert unfit.sentence == f"UNFIT: 1 of 4 phases failed (c: test_bad){end}"


def test_unfit_beats_inconclusive() -> None:
    """One failed phase is UNFIT, whatever else was not measured."""
    assert verdict_of(a="failed", b="lost").name == UNFIT


def test_sentence_counts_the_phases() -> None:
    """UNFIT counts failed phases, FIT passed ones, INCONCLUSIVE those that ended with a result: of
    those that were to run. Of a part, its end says how many the cluster has."""
    made = tally(report("test_b", "failed", phase="c"), a="failed", b="passed", c="passed")
    assert judge(made).sentence == "UNFIT: 2 of 3 phases failed (a: failed; c: test_b)"
    made.phases_of_cluster, made.counts.selection = list("abcdefgh"), "a or b or c"
    assert judge(made).sentence == (
        "UNFIT: 2 of 3 phases failed (a: failed; c: test_b); selected: a or b or c (3 of 8 phases)"
    )
    made = tally(report(phase="b"), a="lost", b="passed", c="")
    assert judge(made).sentence.startswith("INCONCLUSIVE: 1 of 3 phases finished (a: lost; c: ")
    assert verdict_of(a="passed", b="passed").sentence == "FIT: 2 of 2 phases passed"


def test_sentence_names_the_nodes_that_no_job_got() -> None:
    """The run is whole all the same: its place is among the nights of the cluster, and its metrics
    replace those of the night before. Many nodes are counted."""
    made = tally(report(phase="a"), a="passed")
    made.counts.avoided = ["n3"]
    record = judged(made)
    assert (
        record.sentence == "FIT: 1 of 1 phases passed; selected: all without n3 (--cluster-avoid)"
    )
    assert (record.selection, record.partial) == ("", "")
    assert metrics_path(record, Path("reports")) == [Path("reports/metrics-gilbreth.prom")]
    made.counts.selection = "multinode"
    end = "; selected: multinode without n3 (--cluster-avoid)"
    assert judge(made).sentence.endswith(end) and judge(made).scope == "multinode"
    made.counts.avoided = [f"n{number}" for number in range(10)]
    assert judge(made).sentence.endswith("n7 and 2 more (--cluster-avoid)")


def test_no_result_is_inconclusive() -> None:
    """A selected phase without an outcome, and a run without phases, are never FIT."""
    made = verdict_of(a="passed", b="")
    assert made.name == INCONCLUSIVE and "b: no result" in made.sentence
    assert judge(RunTally()).name == INCONCLUSIVE


def test_interrupted_run_is_inconclusive() -> None:
    """After Ctrl-C the run is never FIT, and pytest's own exit status stays."""
    made = tally(a="passed")
    made.interrupted, made.counts.exit_status = True, 2
    verdict = judge(made)
    assert verdict.name == INCONCLUSIVE and verdict.exit_status == 2
    assert verdict.sentence == "INCONCLUSIVE: 1 of 1 phases finished (interrupted)"
    assert verdict.partial == "the run was interrupted"


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
    """FIT is 0, UNFIT 1, INCONCLUSIVE 6, whether or not pytest saw failures."""
    made = tally(a=outcome)
    made.counts.exit_status = pytests
    assert judge(made).exit_status == code


@pytest.mark.parametrize("status", [2, 3, 4, 5])
def test_early_exit_status_of_pytest_is_kept(status: int) -> None:
    """Interrupted, internal error, usage error, nothing collected."""
    made = tally(a="passed")
    made.counts.exit_status = status
    assert judge(made).exit_status == status and judge(made).name != FIT


def test_failure_outside_the_phases_is_unfit() -> None:
    """A failing test that belongs to no phase makes the run UNFIT."""
    assert verdict_of(report(outcome="failed"), a="passed").name == UNFIT


@given(
    st.dictionaries(st.sampled_from("abcd"), st.sampled_from(OUTCOMES)),
    st.lists(st.sampled_from(["passed", "failed", "skipped"])),
)
def test_fit_requires_that_everything_passed(outcomes: dict[str, str], criteria: list[str]) -> None:
    """FIT means: at least one phase, all passed, no criterion failed."""
    reports = [
        report(f"test_{i}", result, phase=phase)
        for phase in outcomes
        for i, result in enumerate(criteria)
    ]
    if verdict_of(*reports, **outcomes).name == FIT:
        assert outcomes and set(outcomes.values()) == {"passed"} and "failed" not in criteria


def test_required_kind_must_be_judged() -> None:
    """A required kind that no criterion judged is missing, unless only some criteria were selected.
    Transports are required on each side where ranks communicate: one rank has none."""
    made = tally(report(phase="a"), require=["transports"], a="passed")
    assert judge(made).name == FIT  # one rank
    counts = made.phase("a").counts
    counts.sides = [INSIDE]
    assert judge(made).name == INCONCLUSIVE
    assert judge(made).not_measured == ["a: no criterion judged transports inside nodes"]
    (missing,) = judge(made).missing
    assert (missing.phase, missing.kind) == ("a", "transports")
    counts.defined, counts.selected = ["test_a", "test_b"], ["test_a"]
    assert judge(made).name == FIT
    counts.defined = ["test_a"]
    assert judge(made).name == INCONCLUSIVE
    count_report(made, report("test_b", phase="a", judged=INSIDE))
    assert judge(made).name == FIT
    counts.sides = [INSIDE, BETWEEN]  # transports inside nodes say nothing about the network
    assert judge(made).not_measured == ["a: no criterion judged transports between nodes"]
    count_report(made, report("test_c", phase="a", judged=f"references,{BETWEEN}"))
    assert judge(made).name == FIT


def test_devices_that_another_phase_measured_count_by_run() -> None:
    """`require: [peaks]`: the phase that measured them must have judged them."""
    made = tally(report(phase="a"), report(phase="b"), require=["peaks"], a="passed", b="passed")
    count_report(made, report("test_c", phase="b", judged=measured_in("a")))
    assert judge(made).not_measured == [
        "a: no criterion judged peaks",
        "b: no criterion judged peaks",
    ]
    count_report(made, report("test_c", phase="a", judged="peaks"))
    assert judge(made).name == FIT


def test_twin_run_that_no_criterion_judges_is_missing() -> None:
    """A phase that asks for a twin run, with a class that has no criterion for it, is not FIT."""
    made = tally(report(phase="a"), a="passed")
    made.phase("a").counts.require = ["twin"]
    assert judge(made).not_measured == ["a: no criterion judged twin"]
    count_report(made, report("test_b", phase="a", judged="twin"))
    assert judge(made).name == FIT


def test_phase_whose_class_has_no_criterion_is_not_fit() -> None:
    """Its methods may be misspelt: `check_loss` is no test."""
    made = tally(a="passed")
    made.phase("a").counts.defined = []
    assert judge(made).not_measured == ["a: no criterion was judged"]


PROOFS = "gradients,data,checkpoint"


def test_training_whose_proofs_no_criterion_judges_is_never_fit() -> None:
    """Its class has no criterion for them, or overrides or skips it. Each proof is named once."""
    made = tally(report(phase="a", proofs=PROOFS), a="passed")
    verdict = judge(made)
    assert (verdict.name, verdict.exit_status) == (INCONCLUSIVE, EXIT_INCONCLUSIVE)
    assert verdict.sentence == (
        "INCONCLUSIVE: 1 of 1 phases finished (a: no criterion judged gradients, data, checkpoint, "
        "as `Trained` does)"
    )
    assert [missing.kind for missing in verdict.missing] == PROOFS.split(",")
    made.counts.require = ["data"]
    assert [each.kind for each in judge(made).missing] == ["data", "gradients", "checkpoint"]
    count_report(made, report("test_b", phase="a", judged="checkpoint,gradients"))
    assert judge(made).not_measured == ["a: no criterion judged data"]
    count_report(made, report("test_c", "skipped", phase="a", unmeasured="data"))
    assert judge(made).sentence == "INCONCLUSIVE: 1 of 1 phases finished (a: data not measured)"
    count_report(made, report("test_d", phase="b", judged=PROOFS, proofs=PROOFS))
    made.phase("b").end("passed")
    assert {missing.phase for missing in judge(made).missing} == {"a"}


def test_phases_without_the_same_proofs_are_named_together() -> None:
    """What is only left unmeasured is named at the end, and no proof is named twice."""
    reports = [report(phase=name, proofs=PROOFS) for name in "ab"]
    made = tally(*reports, a="passed", b="passed", c="passed")
    count_report(made, report("test_b", "skipped", phase="c", unmeasured="gradients"))
    count_report(made, report("test_c", "skipped", phase="c", unmeasured="replay"))
    count_report(made, report("test_d", phase="c"))
    assert judge(made).sentence == (
        "INCONCLUSIVE: 3 of 3 phases finished (c: gradients not measured; a, b: no criterion "
        "judged gradients, data, checkpoint, as `Trained` does); not proven: c: replay"
    )
    count_report(made, report("test_e", "failed", phase="c"))
    assert judge(made).sentence == (
        "UNFIT: 1 of 3 phases failed (c: test_e); not proven: a, b: data, gradients, checkpoint; "
        "c: replay, gradients"
    )


def test_proofs_of_a_phase_that_is_not_judged_as_a_whole_are_not_missed() -> None:
    """With -k the verdict names its scope; another failure, or a result that never came, says
    enough; and what failed may be the proof, also if that is known."""
    part = tally(report(phase="a", proofs=PROOFS), a="passed")
    counts = part.phase("a").counts
    counts.defined, counts.selected = ["test_a", "test_b"], ["test_a"]
    assert judge(part).sentence == "FIT: 1 of 1 phases passed, 1 of 2 criteria reported"
    counts.selected = ["test_a", "test_b"]
    assert judge(part).not_measured == ["a: no result from test_b"]
    owned = expected_to_fail("test_b", known="fan", known_until="d", known_where="c:1")
    for worse in (report("test_b", "failed", phase="a"), owned):
        made = tally(report(phase="a", proofs=PROOFS), worse, a="passed")
        assert judge(made).name != FIT and judge(made).missing == []
    for outcome in OUTCOMES:
        missing = judge(tally(report(phase="a", proofs=PROOFS), a=outcome)).not_measured
        assert any("judged" in words for words in missing) is (outcome == "passed")


def expected_to_fail(name: str, **changes: str) -> pytest.TestReport:
    made = report(name, "skipped", phase="a", **changes)
    made.wasxfail = "later"
    return made


def test_xfail_without_entry_is_never_fit() -> None:
    """It is named, and is `known` in the record; an entry of `known` covers it."""
    xfailed = tally(report(phase="a"), expected_to_fail("test_b"), a="passed")
    made = judge(xfailed)
    assert made.name == INCONCLUSIVE and made.exit_status == EXIT_INCONCLUSIVE
    assert made.sentence == (
        "INCONCLUSIVE: 1 of 1 phases finished (a: test_b is marked xfail, and no entry of `known` "
        "covers it)"
    )
    assert xfailed.phase("a").criteria["test_b"].result == "known" and made.known == []
    owned = expected_to_fail("test_b", known="fan", known_until="d", known_where="c:1")
    made = verdict_of(owned, a="passed")
    assert made.name == INCONCLUSIVE and made.not_measured == []
    assert verdict_of(expected_to_fail("test_b"), a="failed").name == UNFIT


def test_phase_with_all_criteria_skipped_is_not_fit() -> None:
    """A passed job is not a criterion; a phase without criteria is judged by its job alone."""
    job, skipped = report("job", phase="a"), report("test_a", "skipped", phase="a")
    made = verdict_of(job, skipped, a="passed")
    assert made.name == INCONCLUSIVE and made.not_measured == ["a: no criterion was judged"]
    assert verdict_of(job, skipped, report("test_b", phase="a"), a="passed").name == FIT
    assert verdict_of(job, a="passed").name == FIT


def all_reported(made: RunTally) -> bool:
    (phase,) = counted(made).phases
    return phase.all_criteria


def test_unreported_criteria_are_named() -> None:
    """Criteria that were not selected are counted; a selected criterion without a result prevents
    FIT."""
    made = tally(report("job", phase="a"), report(phase="a"), a="passed")
    assert not all_reported(made)  # its criteria are unknown
    counts = made.phase("a").counts
    counts.defined, counts.selected = ["test_a", "test_b", "test_c"], ["test_a"]
    assert judge(made).name == FIT and not all_reported(made)
    assert judge(made).sentence == "FIT: 1 of 1 phases passed, 1 of 3 criteria reported"
    assert judge(made).scope == "1 of 3 criteria"
    counts.selected = ["test_a", "test_b"]
    assert judge(made).name == INCONCLUSIVE
    assert judge(made).not_measured == ["a: no result from test_b"]
    for name in ("test_b", "test_c"):
        count_report(made, report(name, phase="a"))
    assert all_reported(made) and judge(made).sentence == "FIT: 1 of 1 phases passed"
    assert judge(made).scope == ""


def test_phase_that_reported_nothing_makes_the_run_partial() -> None:
    """It is named, even if pytest saw no failure."""
    made = judge(tally(report(phase="a"), a="passed", b="passed"))
    assert made.partial == "no result for b"
    assert judge(tally(report(phase="a"), a="passed")).partial == ""


def test_sentence_is_one_short_line_that_begins_with_the_verdict_and_ends_with_the_selection() -> (
    None
):
    """However many phases failed, and whatever was selected; the lists have everything."""
    names = [f"phase_{number}_" + "x" * 40 for number in range(60)]
    made = tally(**dict.fromkeys(names, "failed"))
    made.counts.selection = " or ".join(names)
    verdict = judge(made)
    start, _, end = verdict.sentence.partition("; selected: ")
    assert start.startswith(f"UNFIT: 60 of 60 phases failed ({names[0]}: failed; ")
    assert made.counts.selection.startswith(end.removesuffix("...")) and end.endswith("...")
    assert len(verdict.sentence) < 400 and "\n" not in verdict.sentence
    assert len(verdict.failed) == 60 and verdict.scope == made.counts.selection
    many = tally(**dict.fromkeys(["a", "b", "c", "d", "e"], "failed"))
    assert judge(many).sentence.endswith("(a: failed; b: failed; c: failed; and 2 more)")
