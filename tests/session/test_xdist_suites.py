"""pytest-xdist: the same cases, outcomes and properties; every phase submitted once."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from tests.support.harness import Suite, properties
from tests.support.load import load_factor
from tests.support.waiting import wait_for

SAME = ("phase", "outcome", "nodes", "transport", "steps_per_s", "result", "unmeasured")


@pytest.fixture
def three(suite: Suite) -> Suite:
    """A phase that passes, one on two nodes, and one whose job fails; and a test of no phase."""
    suite.cluster(phases=dict.fromkeys(["good", "wide", "bad"]))
    suite.phase("good", args={"steps": 3}, base="Trained", body="pass")
    suite.phase("wide", nodes=2)
    suite.phase("bad", args={"leave": True})
    suite.path.joinpath("test_other.py").write_text("def test_other(): pass\n")
    return suite


def cases(suite: Suite) -> dict[str, dict[str, str | None]]:
    by_case = properties(suite.report / "junit.xml")
    return {name: {key: values.get(key) for key in SAME} for name, values in by_case.items()}


def test_run_with_workers_gives_the_same_results(three: Suite) -> None:
    """-n 2 gives the same cases, outcomes, properties, verdict and status as without it."""
    alone = three.run_apart("-p", "no:xdist")
    want, verdict = cases(three), three.record()["sentence"]
    spread = three.run_apart("-n", "2")
    assert cases(three) == want and len(want) == 33
    assert spread.ret == alone.ret == 1
    assert spread.outlines[-1] == alone.outlines[-1] == verdict
    unproven = "; not proven: good: replay, samples, precision"
    assert verdict == f"UNFIT: 1 of 3 phases failed (bad: failed){unproven}"
    submitted = [event["phase"] for event in three.journal() if event["event"] == "submitted"]
    assert sorted(submitted) == ["bad", "good", "wide"]
    assert [path.name for path in three.shared.glob(".*")] == []


def test_criteria_of_a_phase_stay_on_one_worker(suite: Suite) -> None:
    """Its evidence is read once, in one process."""
    body = (
        "def test_{}(self, phase): open('pids', 'a').write(f'{{__import__(\"os\").getpid()}}\\n')"
    )
    suite.phase(body="\n".join(body.format(name) for name in "abcdef"))
    assert suite.run_apart("-n", "2").ret == 0
    assert len(set((suite.path / "pids").read_text().split())) == 1


def test_usage_error_under_xdist_is_reported_once(suite: Suite) -> None:
    """One error, status 4, no traceback; nothing is left behind."""
    suite.phase(script="gone.py")
    result = suite.run_apart("-n", "2")
    output = result.stdout.str() + result.stderr.str()
    assert result.ret == 4, output
    assert "Traceback" not in output and "INTERNALERROR" not in output
    assert output.count("does not exist") == 1
    assert suite.runs() == [] and suite.published() == []


def test_selection_of_no_phase_submits_nothing_under_xdist(suite: Suite) -> None:
    """A suite without phases runs its tests, has no verdict, and leaves no run behind."""
    suite.path.joinpath("test_other.py").write_text("def test_other(): pass\n")
    result = suite.run_apart("-n", "2")
    result.assert_outcomes(passed=1)
    assert result.ret == 5
    assert suite.runs() == [] and suite.published() == []


@pytest.mark.parametrize("words", [pytest.param((), marks=pytest.mark.slow), ("-n", "2")])
@pytest.mark.parametrize(
    "signum", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_interruption_leaves_nothing(
    suite: Suite,
    leftovers: tuple[str, Callable[[], list[str]]],
    words: tuple[str, ...],
    signum: signal.Signals,
) -> None:
    """After Ctrl-C or SIGTERM pytest and its jobs end within 5 s, and the report says so."""
    never = suite.path / "never"
    suite.phase(args={"wait_for": str(never)}, nodes=2)
    with suite.started(*words) as running:
        running.wait_for_ranks(count=2)
        factor, begun = load_factor(), time.monotonic()
        running.interrupt(signum)
        outcome = running.wait()
        seconds = time.monotonic() - begun
    assert outcome.ret == 2, outcome.output
    factor = max(factor, load_factor())
    assert seconds < 5 * max(LOADED, factor), outcome.output
    wait_for("the end of the run's processes", lambda: not leftovers[1](), 5 * factor)
    assert outcome.phase("small")["outcome"] == "cancelled"
    why = "interrupted by SIGTERM; " if signum == signal.SIGTERM else ""
    assert outcome.outlines[-1].startswith(
        f"INCONCLUSIVE: 0 of 1 phases finished, 0 of 1 criteria reported ({why}small: cancelled"
    )
    assert len(outcome.events("cancelled")) == 1


# The limit of 5 s is for an idle machine; the tests share theirs.
LOADED = 4


@pytest.mark.parametrize("also_here", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_worker_gets_a_result_that_a_full_disk_did_not_take(suite: Suite, also_here: bool) -> None:
    """By the controller's own disk. If that is full, too, nothing is judged: no worker waits for a
    file that will never be there."""
    suite.phase()
    suite.path.joinpath("conftest.py").write_text(
        "import errno\n"
        "from pytest_clustersmoke.session import job_end, xdist_suites\n"
        "def refuse(path, *rest): raise OSError(errno.ENOSPC, 'No space left on device')\n"
        "job_end.write_json, write = refuse, xdist_suites.write_json\n"
        "def hand_over(path, value):\n"
        f"    (refuse if {also_here} and path.parent.name == 'results' else write)(path, value)\n"
        "xdist_suites.write_json = hand_over\n"
    )
    outcome = suite.run_apart("-n", "2")
    if also_here:
        assert outcome.ret == 6, outcome.output
        job = outcome.phase("small")["criteria"]["job"]
        assert "no room to hand over the result of small" in job["text"], job
    else:
        assert outcome.ret == 0, outcome.output
    assert suite.record()["phases"][0]["outcome"] == "passed"
