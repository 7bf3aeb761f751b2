"""A phase that is swept: one phase, one result and one set of criteria for each point."""

from __future__ import annotations

from datetime import date, timedelta

import pytest

from tests.support.harness import Suite

SWEEP = {"steps": [3, 5]}
POINTS = ["small-steps-3", "small-steps-5"]
OF_POINT = "test_small.py::TestSmall::steps-5"


def test_each_point_is_a_phase_of_its_own(suite: Suite) -> None:
    """Each trains with its own value; the verdict counts the points in place of the phase."""
    suite.phase(args={"steps": 1}, sweep=SWEEP)
    outcome = suite.run()
    assert outcome.ret == 0, outcome.output
    record = outcome.record()
    assert record["phases_of_cluster"] == POINTS
    assert [phase["phase"] for phase in record["phases"]] == POINTS
    assert record["sentence"].startswith("FIT: 2 of 2 phases passed")
    for name, steps in zip(POINTS, SWEEP["steps"], strict=True):
        phase = outcome.evidence(name)
        assert [rank.steps_done for rank in phase.ranks] == [steps] and phase.entry == "small"


@pytest.mark.parametrize(
    "words",
    [
        (OF_POINT,),
        ("-k", "small-steps-5"),
        ("-k", "steps-5"),
        (f"{OF_POINT}::test_all_done",),
    ],
)
def test_point_can_be_selected_alone(words: tuple[str, ...], suite: Suite) -> None:
    """By its node id or its name, which pytest prints."""
    suite.phase(sweep=SWEEP)
    outcome = suite.run(*words)
    assert outcome.ret == 0, outcome.output
    assert [phase["phase"] for phase in outcome.record()["phases"]] == POINTS[1:]
    sentence = outcome.record()["sentence"]
    assert "1 of 1 phases passed" in sentence and sentence.endswith(" (1 of 2 phases)")


@pytest.mark.parametrize(
    "words",
    [
        ("-k", "small"),
        *(
            pytest.param(words, marks=pytest.mark.slow)
            for words in (("test_small.py::TestSmall",), ("-n", "2"))
        ),
    ],
)
def test_name_of_the_phase_selects_all_points(words: tuple[str, ...], suite: Suite) -> None:
    """Also under pytest-xdist, whose controller collects nothing."""
    suite.phase(sweep=SWEEP)
    outcome = suite.run_apart(*words)
    assert outcome.ret == 0, outcome.output
    assert [phase["phase"] for phase in outcome.record()["phases"]] == POINTS
    assert outcome.record()["phases_of_cluster"] == POINTS


def test_sweep_of_the_profile_replaces_that_of_the_marker(suite: Suite) -> None:
    """An empty one drops it."""
    suite.phase(sweep=SWEEP)
    suite.profile["phases"]["small"] = {"sweep": {"steps": [7]}}
    lines = suite.run("--collect-only", "-q").output
    assert "TestSmall::steps-7::job" in lines and "steps-5" not in lines
    suite.profile["phases"]["small"] = {"sweep": {}}
    assert "TestSmall::job" in suite.run("--collect-only", "-q").output


def test_points_are_collected_without_a_cluster(suite: Suite) -> None:
    """By the marker's sweep; they are skipped, as every phase is."""
    suite.phase(sweep=SWEEP)
    outcome = suite.run(cluster="")
    assert outcome.ret == 0 and "skipped" in outcome.output
    assert f"{OF_POINT}::job" in suite.run("--collect-only", "-q", cluster="").output


def test_mistakes_of_sweeps_are_refused(suite: Suite) -> None:
    """Each once, with its place."""
    suite.phase(sweep={"steps": [3, 3]})
    assert suite.refused() == [
        "test_small.py:3: sweep of phase 'small' has steps=3 twice; expected each value once"
    ]
    suite.phase()
    suite.profile["phases"]["small"] = {"sweep": {"steps": ["a b"]}}
    (message,) = suite.refused()
    assert "clusters.one.phases.small.sweep has steps='a b'; expected a finite number" in message


def test_point_named_like_another_phase_is_refused(suite: Suite) -> None:
    """Also if no test that was collected defines the other one: they would share a history."""
    suite.phase(sweep=SWEEP)
    suite.profile["phases"][POINTS[0]] = None
    assert suite.refused() == [
        "test_small.py:3: a point of the sweep of phase `small` is named `small-steps-3`; expected "
        "names that no phase of the cluster has; list other values"
    ]


@pytest.mark.parametrize("phase", ["small", POINTS[1], "small-*"])
def test_known_failure_of_points_is_accepted(phase: str, suite: Suite) -> None:
    """By the name of the phase, of the point, or a glob; one that fails nowhere else is covered."""
    suite.phase(body="def test_bad(self, phase):\n    assert phase.args['steps'] == 3", sweep=SWEEP)
    until = (date.today() + timedelta(days=9)).isoformat()
    entry = {"phase": phase, "criterion": "test_bad", "reason": "slow", "until": until}
    suite.cluster(phases={"small": None}, known=[entry])
    outcome = suite.run()
    assert outcome.ret == 6, outcome.output  # a known failure proves nothing
    results = [outcome.phase(name)["criteria"]["test_bad"]["result"] for name in POINTS]
    assert results == ["passed", "known"]
    suite.cluster(phases={"small": None}, known=[{**entry, "criterion": "test_typo"}])
    last = suite.run("--co").output + suite.run().output
    assert "`test_typo` matches no criterion of small-steps-" in last


@pytest.mark.parametrize("name", [["small"], None])
def test_name_that_is_no_text_has_a_clear_message(name: object, suite: Suite) -> None:
    path = suite.phase(sweep=SWEEP)
    path.write_text(path.read_text().replace('"small"', repr(name), 1))
    (message,) = suite.refused()
    assert message.startswith("test_small.py:3: the phase marker has no valid name")


def test_nothing_runs_after_all_points(suite: Suite) -> None:
    """The order of a phase is after one other, so the name of a swept phase is refused."""
    suite.phase(sweep=SWEEP)
    suite.phase("later", after="small")
    (message,) = suite.refused()
    assert "phase `later` runs after `small`, which no test defines" in message
    suite.phase("later", after=POINTS[0].replace(".", "-"))
    assert suite.run().ret == 0
