"""A verdict counts real results only, whatever pytest leaves out or tests claim."""

from __future__ import annotations

import pytest

from pytest_clustersmoke.evidence.run_counts import RunTally
from pytest_clustersmoke.session.tally import MARKS, count_report, failure_text
from tests.support.harness import Suite, lines_with

CLAIMS = """\
def test_plain(record_property):
    record_property("phase", "small")
    record_property("judged", "transports,transports inside nodes")
    assert {}
"""


@pytest.mark.parametrize(
    "workers",
    [(), pytest.param(("-n", "1"), marks=pytest.mark.slow)],
    ids=["alone", "xdist"],
)
def test_property_of_a_phase_makes_no_criterion(suite: Suite, workers: tuple[str, ...]) -> None:
    """Any test can write properties: this one fails the run and judges nothing."""
    suite.phase()
    suite.path.joinpath("test_plain.py").write_text(CLAIMS.format(0))
    result = suite.run_apart(*workers)
    assert result.ret == 1
    assert lines_with(result, "UNFIT") == [
        "UNFIT: 0 of 1 phases failed (1 other test failed or had errors: test_plain.py::test_plain)"
    ]


FIXTURE = """\
import pytest

@pytest.fixture
def licence():
    raise RuntimeError("the licence server is down")

def test_other(licence):
    pass
"""
HOOK = """\
def pytest_runtest_logreport(report):
    raise RuntimeError("the licence server is down")
"""


@pytest.mark.parametrize(
    ("file", "text", "options", "status", "ended"),
    [
        ("test_another.py", FIXTURE, ["-x"], 1, "stopping after 1 failures"),
        ("conftest.py", HOOK, [], 3, "exit status 3"),
    ],
    ids=["fixture", "conftest"],
)
def test_error_in_somebody_elses_code_is_no_interruption(
    suite: Suite, file: str, text: str, options: list[str], status: int, ended: str
) -> None:
    """It ends pytest while the job of a phase runs; nobody interrupted the run."""
    suite.phase(args={"wait-for": str(suite.path / "never")})
    suite.path.joinpath("test_a.py").write_text("def test_first(): pass\n")
    suite.path.joinpath(file).write_text(text)
    result = suite.run_apart(*options)
    assert result.ret == status
    output = result.stdout.str()
    assert "interrupted" not in output
    assert f"small: not measured (cancelled): pytest ended ({ended})" in output
    if file != "conftest.py":
        words = "1 other test failed or had errors: test_another.py::test_other"
        assert words in lines_with(result, "UNFIT")[0]


def test_property_of_judged_kinds_measures_nothing(suite: Suite) -> None:
    """The required kind is still missing."""
    suite.cluster(require=["transports"])
    suite.phase(gpus_per_node=2)
    suite.path.joinpath("test_plain.py").write_text(CLAIMS.format(1))
    result = suite.run_apart()
    assert result.ret == 6
    assert "no criterion judged transports" in lines_with(result, "INCONCLUSIVE")[0]


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_skipped_file_with_a_phase_is_inconclusive(suite: Suite, workers: tuple[str, ...]) -> None:
    """A missing package leaves a phase out: not FIT, and the file is named."""
    suite.cluster(phases={"small": None, "other": None})
    suite.phase()
    suite.path.joinpath("test_other.py").write_text("import pytest\npytest.importorskip('absent')")
    result = suite.run_apart(*workers)
    assert result.ret == 6
    verdict = lines_with(result, "INCONCLUSIVE")[0]
    assert "other: not collected; files skipped as a whole: test_other.py (" in verdict
    assert "absent" in verdict


def test_skipped_file_without_phases_does_not_count(suite: Suite) -> None:
    """Every phase of the cluster was collected."""
    suite.phase()
    suite.path.joinpath("test_other.py").write_text("import pytest\npytest.importorskip('absent')")
    assert suite.run_apart().ret == 0


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_success_of_other_tests_is_not_a_verdict(suite: Suite, workers: tuple[str, ...]) -> None:
    """With --cluster, but without a phase, pytest exits with the status for no tests."""
    suite.phase()
    suite.path.joinpath("test_plain.py").write_text("def test_plain(): pass\n")
    result = suite.run_apart("-k", "plain", *workers)
    assert result.ret == 5
    assert lines_with(result, "no phase ran on one: no verdict") and not suite.reports.exists()


def test_other_tests_run_with_a_cluster_in_the_ini_file(suite: Suite) -> None:
    """Nobody asked for a verdict there."""
    (suite.path / "pytest.ini").write_text("[pytest]\ncluster = one\n")
    suite.phase()
    suite.path.joinpath("test_plain.py").write_text("def test_plain(): pass\n")
    assert suite.run_apart("-k", "plain", cluster="").ret == 0


def test_failure_counted_by_a_plugin_is_not_fit(suite: Suite) -> None:
    """Such as a coverage plugin whose threshold is missed."""
    suite.path.joinpath("conftest.py").write_text(
        "import pytest\n@pytest.hookimpl(wrapper=True)\ndef pytest_runtestloop(session):\n"
        "    found = yield\n    session.testsfailed += 1\n    return found\n"
    )
    suite.phase()
    result = suite.run_apart()
    assert result.ret == 6
    assert "pytest counts a failure that no test reported" in lines_with(result, "INCONCLUSIVE")[0]


def test_dead_worker_is_named_by_its_test(suite: Suite) -> None:
    """The verdict names the test that the worker ran."""
    suite.phase(body="def test_dies(self, phase):\n    import os\n    os._exit(3)\n")
    result = suite.run_apart("-n", "1", "--max-worker-restart", "0")
    assert result.ret != 0
    assert "::test_dies" in lines_with(result, "a pytest-xdist worker died in")[-1]


FULL = """\
import errno
import pytest
def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        {}
"""


def test_job_goes_on_if_its_submission_cannot_be_journalled(suite: Suite) -> None:
    """The disk fills up after sbatch: the journal has announced the job, by which it would be found
    after a kill. One line says what was lost."""
    broken = """from pytest_clustersmoke.evidence.telemetry import EventWriter
        write = EventWriter.write
        def full(self, event, **fields):
            if event == "submitted":
                raise OSError(errno.ENOSPC, "full")
            write(self, event, **fields)
        EventWriter.write = full"""
    suite.path.joinpath("conftest.py").write_text(FULL.format(broken))
    suite.phase()
    result = suite.run_apart()
    assert result.ret == 0 and "Traceback" not in result.output, result.output
    assert result.output.count("1 line of the journal could not be written: the disk of") == 1
    events = {event["event"] for event in suite.journal()}
    assert {"intent", "ended", "closed"} <= events and "submitted" not in events


def test_full_disk_at_the_end_of_workers_keeps_the_verdict(suite: Suite) -> None:
    """xdist's workers also notice that their parent is gone."""
    broken = """import pytest_clustersmoke.session.xdist_suites as d
        write = d.write_json
        def full(path, *given):
            if path.name == "over.json":
                raise OSError(errno.ENOSPC, "full")
            write(path, *given)
        d.write_json = full"""
    suite.path.joinpath("conftest.py").write_text(FULL.format(broken))
    suite.phase()
    assert suite.run_apart("-n", "1").ret == 0


def test_blocked_latest_link_keeps_the_verdict(suite: Suite) -> None:
    """`latest` is a directory: a remark says so, and no temporary link is left."""
    (suite.reports / "latest").mkdir(parents=True)
    suite.phase()
    result = suite.run_apart()
    assert result.ret == 0
    assert lines_with(result, "cannot point `latest` to this run")
    assert not list(suite.reports.glob(".latest*"))


def test_setup_plan_submits_nothing(suite: Suite) -> None:
    """--setup-plan runs nothing."""
    suite.phase()
    suite.run_apart("--setup-plan")
    assert not suite.runs()


def test_test_that_is_run_again_has_not_passed() -> None:
    """pytest-rerunfailures reports a failure that it will repeat as `rerun`: if the run is killed
    then, nothing says that the criterion held."""
    report = pytest.TestReport(
        nodeid="test_x.py::TestSmall::test_loss",
        location=("test_x.py", 1, "test_loss"),
        keywords={},
        outcome="rerun",  # type: ignore[arg-type]
        longrepr="assert 0",
        when="call",
    )
    setattr(report, MARKS, {"phase": "small"})
    tally = RunTally()
    assert count_report(tally, report) is None and tally.phases["small"].criteria == {}
    report.outcome = "passed"
    assert count_report(tally, report) == ("small", "test_loss")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (AssertionError("steps_per_s is 4 steps/s"), "steps_per_s is 4 steps/s"),
        (KeyError("loss"), "KeyError: 'loss'"),
    ],
)
def test_failed_criterion_says_why_and_not_that_an_assertion_failed(
    error: Exception, words: str
) -> None:
    """Its words begin a line of mails and pages; an error in its code keeps its kind."""
    try:
        raise error
    except Exception:
        why = pytest.ExceptionInfo.from_current().getrepr()
    place = ("t.py", 1, "t")
    report = pytest.TestReport("t.py::t", place, {}, "failed", why, "call")
    assert failure_text(report) == words
