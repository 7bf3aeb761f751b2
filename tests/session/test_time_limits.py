"""pytest-timeout limits tests, not jobs: an item of a phase waits for as long as its job takes."""

from __future__ import annotations

import pytest

from tests.support.harness import TRAIN, Suite
from tests.support.outcome import lines_with

# Longer than the limit of a test that waits for its end; a criterion of its own needs no time.
SLOW = """\
import runpy, time
time.sleep(3)
runpy.run_path({program!r}, run_name="__main__")
"""


def add_slow_phase(suite: Suite) -> None:
    script = suite.path / "slow.py"
    script.write_text(SLOW.format(program=str(TRAIN)))
    suite.profile["env"]["common"]["set"]["PYTHONPATH"] += f":{TRAIN.parent}"
    suite.phase(script=script)


def add_endless_phase(suite: Suite) -> None:
    """Its rank waits for a file that never comes."""
    suite.phase(args={"wait_for": str(suite.path / "never")})


def mark_phase(suite: Suite, marker: str) -> None:
    path = suite.path / "test_small.py"
    path.write_text(path.read_text().replace("class Test", f"@{marker}\nclass Test"))


@pytest.mark.parametrize(
    "words",
    [
        [],
        *(
            pytest.param(words, marks=pytest.mark.slow)
            for words in (["--timeout-method=thread"], ["-n", "2"])
        ),
    ],
)
def test_limit_for_tests_does_not_stop_the_wait_for_a_job(suite: Suite, words: list[str]) -> None:
    """A limit for all tests, as a project sets it, is shorter than the job."""
    add_slow_phase(suite)
    result = suite.run_apart("--timeout=1", *words)
    assert result.ret == 0
    result.assert_outcomes(passed=2)


@pytest.mark.parametrize("words", [[], pytest.param(["-n", "2"], marks=pytest.mark.slow)])
def test_limit_of_a_phase_ends_the_wait_without_a_verdict(suite: Suite, words: list[str]) -> None:
    """The user's own mark counts: nothing was measured, nobody is blamed, no frames are shown."""
    add_endless_phase(suite)
    mark_phase(suite, "pytest.mark.timeout(1, method='signal')")
    result = suite.run_apart("-rs", *words)
    assert result.ret == 6
    result.assert_outcomes(skipped=2)
    assert lines_with(result, "not measured (result): pytest stopped waiting for phase small: Time")
    assert not lines_with(result, "site-packages/pluggy")
    assert result.outlines[-1].startswith("INCONCLUSIVE: ")
    assert "small: result not measured" in result.outlines[-1]


def test_limit_that_ends_pytest_leaves_a_run_to_recover(suite: Suite) -> None:
    """With the method `thread` the process ends, and its job goes on; the next run says so. Once
    the job was ended, a run reports what is known."""
    add_endless_phase(suite)
    mark_phase(suite, "pytest.mark.timeout(1, method='thread')")
    assert suite.run_apart().ret == 1
    (run,) = (path.parent.name for path in suite.shared.glob("*/run.json"))
    assert not (suite.reports / run / "report.json").exists()
    suite.phase("other", script=TRAIN)
    result = suite.run_apart("-k", "other")
    result.stdout.fnmatch_lines([f"*run {run} has 1 job left (*--cluster-reap {run} ends it"])
    assert suite.run_apart("--cluster-reap", run).ret == 0
    result = suite.run_apart("-k", "other")
    ended = "its controller was killed, and --cluster-reap ended its jobs"
    result.stdout.fnmatch_lines([f"*run {run}: {ended}*"])
    assert (suite.reports / run / "report.json").exists()


def test_mark_of_a_criterion_is_kept(suite: Suite) -> None:
    """A limit on one criterion holds for that one alone, and `-k timeout` selects no other."""
    add_slow_phase(suite)
    path = suite.path / "test_small.py"
    path.write_text(path.read_text().replace("    def ", "    @pytest.mark.timeout(77)\n    def "))
    path.with_name("conftest.py").write_text(
        "def pytest_collection_finish(session):\n"
        "    for item in session.items:\n"
        "        print(item.name, item.get_closest_marker('timeout').args)\n"
    )
    result = suite.run_apart("--collect-only", "-q", "-s")
    assert lines_with(result, "job (0,)") and lines_with(result, "test_all_done (77,)")
    result = suite.run_apart("--collect-only", "-q", "-s", "-k", "not timeout")
    assert lines_with(result, "job (0,)") and not lines_with(result, "test_all_done")
