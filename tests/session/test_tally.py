"""A verdict is no better than what was heard, whatever pytest leaves out or tests claim."""

from __future__ import annotations

import pytest

from tests.support.harness import Suite, lines_with

CLAIMS = """\
def test_plain(record_property):
    record_property("phase", "small")
    record_property("judged", "transports,transports inside nodes")
    assert {}
"""


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_a_test_that_claims_a_phase_is_none_of_its_criteria(
    suite: Suite, workers: tuple[str, ...]
) -> None:
    """Properties are any test's to write: it fails the run, and judges nothing."""
    suite.phase()
    suite.path.joinpath("test_plain.py").write_text(CLAIMS.format(0))
    result = suite.run_apart(*workers)
    assert result.ret == 1
    assert lines_with(result, "UNFIT") == ["UNFIT: 1 of 1 phases (tests that are no phase's)"]


def test_a_test_that_claims_to_have_judged_measures_nothing(suite: Suite) -> None:
    """What the cluster requires is still missing."""
    suite.cluster(require=["transports"])
    suite.phase(gpus_per_node=2)
    suite.path.joinpath("test_plain.py").write_text(CLAIMS.format(1))
    result = suite.run_apart()
    assert result.ret == 6
    assert "no criterion judged transports" in lines_with(result, "INCONCLUSIVE")[0]


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_a_file_that_is_skipped_takes_no_phase_away_unheard(
    suite: Suite, workers: tuple[str, ...]
) -> None:
    """A package that is missing leaves a phase out: not FIT, and the file is named."""
    suite.cluster(phases={"small": None, "other": None})
    suite.phase()
    suite.path.joinpath("test_other.py").write_text("import pytest\npytest.importorskip('absent')")
    result = suite.run_apart(*workers)
    assert result.ret == 6
    told = lines_with(result, "INCONCLUSIVE")[0]
    assert "other: not collected; skipped as a whole: test_other.py (" in told and "absent" in told


def test_a_file_that_is_skipped_beside_all_phases_is_nothing(suite: Suite) -> None:
    """Every phase of the cluster was collected: what else was skipped does not count."""
    suite.phase()
    suite.path.joinpath("test_other.py").write_text("import pytest\npytest.importorskip('absent')")
    assert suite.run_apart().ret == 0


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_other_tests_success_is_no_verdict(suite: Suite, workers: tuple[str, ...]) -> None:
    """Asked for a cluster of which no phase ran, pytest ends with the status for nothing run."""
    suite.phase()
    suite.path.joinpath("test_plain.py").write_text("def test_plain(): pass\n")
    result = suite.run_apart("-k", "plain", *workers)
    assert result.ret == 5
    assert lines_with(result, "no phase ran on one: no verdict") and not suite.reports.exists()


def test_a_cluster_of_the_ini_file_leaves_other_tests_alone(suite: Suite) -> None:
    """There nobody asked for a verdict."""
    (suite.path / "pytest.ini").write_text("[pytest]\ncluster = one\n")
    suite.phase()
    suite.path.joinpath("test_plain.py").write_text("def test_plain(): pass\n")
    assert suite.run_apart("-k", "plain", cluster="").ret == 0


def test_a_failure_that_no_test_told_is_not_fit(suite: Suite) -> None:
    """A plugin that counts one (a coverage that is too low, say) is heard."""
    suite.path.joinpath("conftest.py").write_text(
        "import pytest\n@pytest.hookimpl(wrapper=True)\ndef pytest_runtestloop(session):\n"
        "    found = yield\n    session.testsfailed += 1\n    return found\n"
    )
    suite.phase()
    result = suite.run_apart()
    assert result.ret == 6
    assert "pytest counts a failure of which no test told" in lines_with(result, "INCONCLUSIVE")[0]


def test_a_worker_that_dies_is_named_by_its_test(suite: Suite) -> None:
    """It is no test of nobody's: the one that it ran is told."""
    suite.phase(body="def test_dies(self, phase):\n    import os\n    os._exit(3)\n")
    result = suite.run_apart("-n", "1", "--max-worker-restart", "0")
    assert result.ret != 0
    assert "::test_dies" in lines_with(result, "a worker died in")[-1]


FULL = """\
import errno
import pytest
def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        {}
"""


def test_a_job_whose_submission_cannot_be_written_down_is_ended(suite: Suite) -> None:
    """The disk is full behind sbatch: the job is known all the same, and cancelled."""
    broken = """from pytest_clustersmoke.evidence.telemetry import EventWriter
        write = EventWriter.write
        def full(self, event, **fields):
            if event == "submitted":
                raise OSError(errno.ENOSPC, "full")
            write(self, event, **fields)
        EventWriter.write = full"""
    suite.path.joinpath("conftest.py").write_text(FULL.format(broken))
    suite.phase(args={"wait_for": str(suite.path / "never")})
    result = suite.run_apart()
    assert result.ret == 3
    (ended,) = (one["jobs"] for one in suite.journal() if one["event"] == "cancelled")
    assert len(ended) == 1


def test_a_full_disk_for_workers_words_costs_no_verdict(suite: Suite) -> None:
    """xdist's workers learn of the end by their parent, too."""
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


def test_a_link_that_cannot_be_made_costs_no_verdict(suite: Suite) -> None:
    """Somebody has made `latest` a directory: told, and no draft is left."""
    (suite.reports / "latest").mkdir(parents=True)
    suite.phase()
    result = suite.run_apart()
    assert result.ret == 0
    assert lines_with(result, "latest does not point to this run")
    assert not list(suite.reports.glob(".latest*"))


def test_a_setup_plan_submits_nothing(suite: Suite) -> None:
    """It is a plan."""
    suite.phase()
    suite.run_apart("--setup-plan")
    assert not suite.runs()
