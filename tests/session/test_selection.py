"""A verdict names the phases and criteria that it holds for, and how they were changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_clustersmoke.session.selection import criterion_of
from tests.support.harness import Suite, lines_with

BODY = """
@pytest.mark.parametrize("kind", ["a", "b[c]"])
def test_kind(self, phase, kind):
    assert phase.ranks_done
def test_good(self, phase):
    assert phase.ranks_done
@pytest.mark.skip(reason="not here")
def test_skipped(self):
    pass
def test_bad(self, phase):
    assert not phase.ranks_done, "slow"
"""
OF_BAD = "test_small.py::TestSmall::test_bad"


@pytest.mark.parametrize(
    ("nodeid", "name"),
    [
        ("a/test_x.py::TestX::test_a", "test_a"),
        ("test_x.py::TestX::TestY::test_a[1-2]", "test_a[1-2]"),
        ("test_x.py::TestX::test_a[x::y[0]]", "test_a[x::y[0]]"),
        ("a[b]/test_x.py::TestX::job", "job"),
        ("test_x.py", "test_x.py"),
    ],
)
def test_criterion_of_takes_the_name_from_a_node_id(nodeid: str, name: str) -> None:
    """Whatever its parameters contain, and wherever its file is."""
    assert criterion_of(nodeid) == name


@pytest.mark.parametrize("workers", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("words", "sentence", "selection"),
    [
        (
            ("-k", "small and test_good"),
            "FIT: 1 of 1 phases passed, 1 of 5 criteria reported; selected: small and test_good",
            "small and test_good",
        ),
        (
            ("--deselect", OF_BAD),
            f"FIT: 1 of 1 phases passed, 4 of 5 criteria reported; selected: --deselect {OF_BAD}",
            f"--deselect {OF_BAD}",
        ),
        (
            ("test_small.py::TestSmall::test_good",),
            "FIT: 1 of 1 phases passed, 1 of 5 criteria reported; selected: "
            "test_small.py::TestSmall::test_good",
            "test_small.py::TestSmall::test_good",
        ),
        (
            ("-m", "singlegpu", "-k", "test_good or test_skipped"),
            "FIT: 1 of 1 phases passed, 2 of 5 criteria reported; selected: "
            "singlegpu and (test_good or test_skipped)",
            "singlegpu and (test_good or test_skipped)",
        ),
        (
            ("-k", "small"),
            "UNFIT: 1 of 1 phases failed (small: test_bad); selected: small",
            "small",
        ),
        (("--deselect", "test_other.py"), "UNFIT: 1 of 1 phases failed (small: test_bad)", ""),
    ],
)
def test_verdict_names_the_selected_part(
    suite: Suite, words: tuple[str, ...], sentence: str, selection: str, workers: tuple[str, ...]
) -> None:
    """It does not count as a run of the whole cluster in metrics and history."""
    suite.phase(body=BODY)
    run = suite.run_apart if workers else suite.run
    result = run(*words, *workers)
    assert result.outlines[-1] == sentence
    record = suite.record()
    assert record["sentence"] == sentence and record["selection"] == selection
    (phase,) = record["phases"]
    assert phase["all_criteria"] is ("criteria" not in sentence)
    assert len(phase["counts"]["defined"]) == 5
    assert (suite.reports / "metrics-one.prom").exists() is (selection == "")


@pytest.mark.parametrize("workers", [(), pytest.param(("-n", "1"), marks=pytest.mark.slow)])
def test_run_stopped_at_a_failure_counts_its_criteria(
    suite: Suite, workers: tuple[str, ...]
) -> None:
    """Criteria without a result are not part of the verdict."""
    suite.phase(body=BODY + "def test_later(self, phase):\n    pass\n")
    result = suite.run_apart("-x", *workers) if workers else suite.run("-x")
    assert (
        result.outlines[-1]
        == "UNFIT: 1 of 1 phases failed, 5 of 6 criteria reported (small: test_bad)"
    )
    record = suite.record()
    assert record["selection"] == "5 of 6 criteria"
    if not workers:  # xdist reports an interruption to pytest
        assert record["not_measured"] == ["small: no result from test_later"]
    assert not (suite.reports / "metrics-one.prom").exists()


@pytest.mark.parametrize(
    ("word", "named"),
    [("--lf", "--last-failed"), pytest.param("--sw", "--stepwise", marks=pytest.mark.slow)],
)
def test_run_of_last_failures_is_not_the_whole_phase(suite: Suite, word: str, named: str) -> None:
    """It counts as a whole run only if nothing was left out."""
    cached = ("-p", "cacheprovider", "-p", "stepwise", word)
    path = suite.phase(body=BODY)
    assert suite.run_apart(*cached).ret != 0
    path.write_text(path.read_text().replace("not phase.ranks_done", "phase.ranks_done"))
    sentence = suite.run_apart(*cached).outlines[-1]
    assert sentence == f"FIT: 1 of 1 phases passed, 1 of 5 criteria reported; selected: {named}"
    assert suite.run_apart(*cached).outlines[-1] == "FIT: 1 of 1 phases passed"


@pytest.mark.parametrize(
    ("word", "workers"),
    [
        pytest.param("--lf", (), marks=pytest.mark.slow),
        pytest.param("--ff", (), marks=pytest.mark.slow),
        pytest.param("--sw", (), marks=pytest.mark.slow),
        ("--lf", ("-n", "2")),
    ],
)
def test_criteria_of_a_failed_job_run_again_with_it(
    suite: Suite, word: str, workers: tuple[str, ...]
) -> None:
    """Whatever option runs the job again takes its criteria along, and no other phase's."""
    cached = ("-p", "cacheprovider", "-p", "stepwise", "-v", *workers)
    suite.phase("early")
    path = suite.phase("small", args={"fail": True}, body="def test_a(self, phase): pass")
    suite.run_apart(*cached, *(["--sw"] if word == "--sw" else []))
    path.write_text(path.read_text().replace("{'fail': True}", "{}"))
    again = suite.run_apart(*cached, word)
    assert again.ret == 0, again.output
    assert lines_with(again, "TestSmall::test_a") and lines_with(again, "TestSmall::job")
    assert bool(lines_with(again, "TestEarly::")) is (word == "--ff")


@pytest.mark.parametrize("chosen", ["test_small.py::TestSmall::test_a", "-ktest_a"])
def test_job_runs_with_any_criterion_of_its_phase(suite: Suite, chosen: str) -> None:
    """A failed job is red, whichever of its criteria was selected."""
    body = "def test_a(self, phase): pass\ndef test_b(self, phase): pass"
    suite.phase(args={"fail": True}, body=body)
    result = suite.run(chosen)
    result.assert_outcomes(failed=1, skipped=1, deselected=0 if "::" in chosen else 1)
    assert result.ret == 1


@pytest.mark.parametrize("workers", [(), pytest.param(("-n", "1"), marks=pytest.mark.slow)])
def test_phase_runs_without_the_one_before_it_if_only_it_is_selected(
    suite: Suite, workers: tuple[str, ...]
) -> None:
    """The order is dropped, and the run says so; where both run there is nothing to say."""
    suite.phase("small")
    suite.phase("second", after="small")
    run = suite.run_apart if workers else suite.run
    remark = "second does not wait for small, which is not selected"
    outcome = run("-k", "second", *workers)
    assert outcome.ret == 0 and lines_with(outcome, remark), outcome.output
    assert outcome.record()["absent_phases"] == [remark]
    assert [phase["phase"] for phase in outcome.record()["phases"]] == ["second"]
    outcome = run(*workers)
    assert outcome.ret == 0 and lines_with(outcome, remark) == [], outcome.output
    assert outcome.record()["absent_phases"] == []


def test_fixture_of_a_failed_job_is_not_set_up(suite: Suite) -> None:
    """Only the job is red, even if a criterion's fixture cannot do without its results."""
    body = """
    @pytest.fixture
    def losses(self, phase):
        return phase.losses[0]
    def test_a(self, losses):
        pass
    """
    suite.phase(args={"fail": True}, body=body)
    suite.run().assert_outcomes(failed=1, skipped=1)


def test_criteria_of_a_nested_class_count_for_the_phase(suite: Suite) -> None:
    """If node ids select a part of it, the number of its criteria is unknown."""
    inner = "class TestInner:\n    def test_{}(self, phase): pass\n    def test_d(self): pass\n"
    suite.phase(body=inner.format("c") + "def test_a(self, phase): pass\n")
    assert suite.run().outlines[-1] == "FIT: 1 of 1 phases passed"
    node_id = "test_small.py::TestSmall::TestInner::test_c"
    assert (
        suite.run(node_id).outlines[-1]
        == f"FIT: 1 of 1 phases passed, 1 of 3 criteria reported; selected: {node_id}"
    )
    sentence = suite.run("-k", "test_c").outlines[-1]
    assert sentence == "FIT: 1 of 1 phases passed, 1 of 3 criteria reported; selected: test_c"


def test_criteria_of_one_name_are_refused(suite: Suite) -> None:
    """They would count as one: the result of the one would stand for the other."""
    inner = "class Test{}:\n    def test_c(self, phase): pass\n"
    suite.phase(body=inner.format("Inside") + inner.format("Between"))
    (line,) = suite.refused()
    assert "phase `small` has 2 criteria named `test_c`; expected a name of its own" in line


def test_class_that_pytest_leaves_out_submits_nothing(suite: Suite) -> None:
    """By `__test__ = False`."""
    suite.phase("one_a")
    suite.phase("one_b", body="__test__ = False\ndef test_a(self, phase): pass\n")
    outcome = suite.run_apart()
    assert [event["phase"] for event in outcome.events("submitted")] == ["one_a"]


@pytest.mark.parametrize("workers", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)])
def test_verdict_names_changed_settings(suite: Suite, workers: tuple[str, ...]) -> None:
    """A run with --cluster-set never counts for the cluster's state."""
    suite.phase()
    sets = ("--cluster-set", "small.args.steps=3", "--cluster-set", "small.env.X=1")
    result = suite.run_apart(*sets, *workers) if workers else suite.run(*sets)
    how = "with --cluster-set small.args.steps=3, small.env.X=1"
    assert result.outlines[-1] == f"FIT: 1 of 1 phases passed; selected: all {how}"
    assert suite.record()["selection"] == f"all {how}"
    assert [path.name for path in textfiles(suite)] == []
    if not workers:
        sentence = suite.run(*sets, "-m", "singlegpu").outlines[-1]
        assert sentence == f"FIT: 1 of 1 phases passed; selected: singlegpu {how}"


def textfiles(suite: Suite) -> list[Path]:
    return list(suite.reports.glob("*.prom"))
