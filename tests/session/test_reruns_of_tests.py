"""pytest-rerunfailures runs a test again: it judges the same evidence, and nothing is submitted."""

from __future__ import annotations

import pytest

from tests.support.harness import Suite

FLAKY = """
def test_second_look(self, phase):
    with open("looks", "a") as looks:
        looks.write(f"{phase.job_id} {id(phase)}\\n")
    assert len(open("looks").readlines()) > 1
"""


@pytest.mark.parametrize("words", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)])
def test_criterion_that_is_run_again_sees_the_same_job(
    suite: Suite, words: tuple[str, ...]
) -> None:
    """What it read the first time is what it reads the second time."""
    suite.phase(body=FLAKY)
    outcome = suite.run_apart("--reruns", "1", *words)
    assert outcome.ret == 0, outcome.output
    assert "1 rerun" in outcome.output
    looks = (suite.path / "looks").read_text().splitlines()
    assert len(looks) == 2 and len({*looks}) == 1
    assert [event["phase"] for event in outcome.events("submitted")] == ["small"]


def test_job_that_failed_is_not_submitted_by_a_rerun(suite: Suite) -> None:
    """Its item fails as often as it is run; the report counts it once."""
    suite.phase(args={"leave": True})
    outcome = suite.run_apart("--reruns", "2")
    assert outcome.ret == 1, outcome.output
    assert "2 rerun" in outcome.output
    assert [event["phase"] for event in outcome.events("submitted")] == ["small"]
    assert outcome.phase("small")["outcome"] == "failed"
    assert outcome.phase("small")["criteria"]["job"]["result"] == "failed"
