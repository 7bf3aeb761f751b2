"""Phases in pytest: options, marks, collection, the fixture, exit statuses."""

from __future__ import annotations

import pytest

from tests.support.harness import Suite, lines_with, properties

THREE_SIZES = {"alone": (1, 1), "pair": (1, 2), "wide": (2, 1)}


@pytest.fixture
def sizes(suite: Suite) -> Suite:
    """Phases of one GPU, of two, and of two nodes."""
    suite.cluster(phases=dict.fromkeys(THREE_SIZES))
    for name, (nodes, gpus) in THREE_SIZES.items():
        suite.phase(name, nodes=nodes, gpus_per_node=gpus)
    return suite


def test_phases_without_a_cluster_are_skipped_with_a_hint(suite: Suite) -> None:
    """Without --cluster every criterion and job is skipped, with a hint; nothing runs."""
    suite.phase()
    result = suite.run("-rs", cluster="")
    result.assert_outcomes(skipped=2)
    assert lines_with(result, "no cluster chosen: run with --cluster NAME")
    assert not suite.shared.exists() and not suite.reports.exists()


def test_ini_option_chooses_a_cluster(suite: Suite) -> None:
    """`cluster = one` in the ini file works like --cluster one; the option takes precedence."""
    suite.phase()
    suite.path.joinpath("pytest.ini").write_text("[pytest]\ncluster = one\n")
    assert lines_with(suite.run("--collect-only", cluster=""), "cluster: one (local;")
    assert "no profile `two`" in suite.run(cluster="two").stderr.str()


@pytest.mark.parametrize(
    ("mark", "phase"), [("singlegpu", "alone"), ("multigpu", "pair"), ("multinode", "wide")]
)
@pytest.mark.parametrize("cluster", ["", "one"])
def test_size_marks_are_derived(sizes: Suite, mark: str, phase: str, cluster: str) -> None:
    """-m selects by the phase's resources, with and without a cluster."""
    result = sizes.run("--collect-only", "-q", "-m", mark, cluster=cluster)
    collected = lines_with(result, "::")
    assert collected and all(f"Test{phase.capitalize()}::" in line for line in collected)


def test_size_mark_follows_the_profile(sizes: Suite) -> None:
    """A phase that the profile puts on two nodes is multinode there."""
    sizes.cluster(phases={**dict.fromkeys(THREE_SIZES), "alone": {"nodes": 2}})
    result = sizes.run("--collect-only", "-q", "-m", "multinode")
    assert {line.split("::")[1] for line in lines_with(result, "::")} == {"TestAlone", "TestWide"}


def test_markers_are_documented(suite: Suite) -> None:
    """`pytest --markers` lists our markers."""
    text = suite.run("--markers", cluster="").stdout.str()
    for name in ("phase(", "singlegpu", "multigpu", "multinode", "ddp", "deepspeed", "lora"):
        assert f"@pytest.mark.{name}" in text


def test_our_markers_pass_strict_markers(suite: Suite) -> None:
    """--strict-markers accepts all markers, including the derived ones."""
    suite.phase()
    assert suite.run("--strict-markers", "--collect-only").ret == 0


def test_phase_not_on_the_cluster_is_deselected_with_the_reason(suite: Suite) -> None:
    """Its tests do not run, and one line says why; the listed phase runs."""
    suite.phase()
    suite.phase("huge", gpus_per_node=8)
    suite.phase("other")
    suite.cluster(phases={"small": None})
    result = suite.run("--collect-only")
    assert lines_with(result, "huge does not run on one: it needs 8 GPUs per node, and one has 2")
    assert lines_with(
        result, "other does not run on one: its profile does not list it under `phases`"
    )
    result.stdout.fnmatch_lines(["*2/6 tests collected (4 deselected)*"])


def test_other_tests_run_together_with_phases(suite: Suite) -> None:
    """A test outside all phases runs with a cluster; its failure makes the run UNFIT."""
    suite.phase()
    suite.path.joinpath("test_other.py").write_text("def test_other():\n    assert False\n")
    result = suite.run()
    result.assert_outcomes(passed=2, failed=1)
    assert result.ret == 1
    assert result.outlines[-1] == (
        "UNFIT: 0 of 1 phases failed (1 other test failed or had errors: test_other.py::test_other)"
    )


def test_selection_by_keyword_keeps_the_job(suite: Suite) -> None:
    """-k test_x also runs the job's item, since a failed criterion points to it."""
    suite.phase(body="def test_x(self, phase): pass\ndef test_y(self, phase): pass")
    result = suite.run("-k", "test_x", "-v")
    result.assert_outcomes(passed=2, deselected=1)
    assert lines_with(result, "TestSmall::job PASSED")
    assert result.outlines[-1].startswith("FIT: 1 of 1 phases passed")


def test_failed_job_is_reported_once(suite: Suite) -> None:
    """The job's item has the findings; each criterion is skipped and points to it."""
    suite.phase(
        args={"fail": True},
        body=(
            "def test_a(self, phase): assert phase.ranks_done\n"
            "def test_b(self, phase): assert phase.ranks_done"
        ),
    )
    result = suite.run("-rs")
    result.assert_outcomes(failed=1, skipped=2)
    assert result.ret == 1
    text = result.stdout.str()
    assert text.count("finding rank-error: rank 0 (local0) failed: ValueError: staged") == 1
    assert text.count("  next: read the traceback") == 1
    points = lines_with(result, "job failed, see test_small.py::TestSmall::job")
    assert len(points) == 2 and all(line.startswith("SKIPPED [1] ") for line in points), points
    assert "def test_a" not in text and "JobFailed" not in text
    assert result.outlines[-1] == "UNFIT: 1 of 1 phases failed (small: failed)"


def test_failed_criterion_leaves_the_job_green(suite: Suite) -> None:
    """The job passed, the criterion failed; the verdict names the criterion."""
    suite.phase(args={"loss": "rises", "steps": 3}, base="Trained", body="pass")
    result = suite.run("-v")
    assert lines_with(result, "TestSmall::job PASSED")
    assert lines_with(result, "test_loss_over_all_ranks_falls FAILED")
    result.assert_outcomes(passed=12, failed=1, skipped=15)
    assert result.ret == 1
    assert (
        result.outlines[-1] == "UNFIT: 1 of 1 phases failed (small: test_loss_over_all_ranks_falls)"
        "; not proven: small: replay, samples, precision"
    )


def test_program_that_exits_early_with_status_0_fails(suite: Suite) -> None:
    """A rank that exits with status 0 before it is done fails its phase."""
    suite.phase(args={"leave": True})
    result = suite.run()
    assert result.ret == 1
    assert suite.record()["phases"][0]["outcome"] == "failed"
    assert lines_with(result, "rank 0 (local0)") or lines_with(result, "rank 0 ")


def test_phase_fixture_outside_a_phase_is_an_error(suite: Suite) -> None:
    """The error of the test says where the fixture may be used."""
    suite.path.joinpath("test_other.py").write_text("def test_other(phase):\n    pass\n")
    result = suite.run()
    result.assert_outcomes(errors=1)
    assert "tests of a class marked @pytest.mark.phase(...)" in result.stdout.str()


def test_run_on_two_nodes_and_its_report(suite: Suite) -> None:
    """Two virtual nodes of one rank: every rank is placed, and JUnit carries the properties."""
    suite.phase(
        nodes=2,
        body="""
        def test_ranks_and_nodes(self, phase):
            assert [rank.node for rank in phase.ranks] == ["local0", "local1"]
            assert phase.ranks_done == phase.world_size == 2
            assert phase.metric("steps_per_s").value == 10.0
        """,
    )
    result = suite.run()
    result.assert_outcomes(passed=2)
    assert result.ret == 0
    cases = properties(suite.report / "junit.xml")
    assert set(cases) == {"test_small.TestSmall::job", "test_small.TestSmall::test_ranks_and_nodes"}
    for case in cases.values():
        assert case["phase"] == "small" and case["outcome"] == "passed"
        assert case["nodes"] == "local0,local1" and case["job_id"].startswith("local-")
        assert float(case["queue_s"]) >= 0 and float(case["run_s"]) > 0
        assert case["steps_per_s"] == "10.0" and case["transport"] == "gloo"


def test_junitxml_option_chooses_the_path(suite: Suite) -> None:
    """--junitxml PATH replaces the junit.xml of the report directory."""
    suite.phase()
    suite.run("--junitxml=mine.xml")
    assert suite.path.joinpath("mine.xml").is_file()
    assert not (suite.report / "junit.xml").exists()


def test_required_kind_that_is_not_measured_is_inconclusive(suite: Suite) -> None:
    """Under gloo no NCCL transport can be judged: exit status 6 if the profile requires it."""
    suite.cluster(require=["transports"], expect={"small": {"intra_node": ["P2P/*"]}})
    suite.phase(gpus_per_node=2, base="TalkedInsideNodes", body="pass")
    result = suite.run("-rs")
    assert result.ret == 6
    result.assert_outcomes(passed=1, skipped=1)
    assert lines_with(result, "not measured (transports): the ranks talked over gloo")
    assert (
        result.outlines[-1]
        == "INCONCLUSIVE: 1 of 1 phases finished (small: transports not measured)"
    )


def test_kind_that_is_not_required_need_not_be_measured(suite: Suite) -> None:
    """The same skip is allowed if the profile does not require transports, and another
    criterion was judged."""
    suite.phase(gpus_per_node=2, base="TalkedInsideNodes")
    result = suite.run()
    assert result.ret == 0 and result.outlines[-1] == "FIT: 1 of 1 phases passed"
    suite.phase(gpus_per_node=2, base="TalkedInsideNodes", body="pass")
    verdict = suite.run().outlines[-1]
    assert verdict == "INCONCLUSIVE: 1 of 1 phases finished (small: no criterion was judged)"


def test_terminal_ends_with_table_and_verdict(suite: Suite) -> None:
    """The last lines are the table with a row per phase, the report's path and the verdict."""
    references = {
        "steps_per_s": {"value": 8, "lower": "-10 %", "unit": "steps/s", "source": "a test"}
    }
    suite.cluster(phases=dict.fromkeys(["small", "wide"]), references={"small": references})
    suite.phase()
    suite.phase("wide", nodes=2)
    result = suite.run()
    *_, title, head, small, wide, report, verdict = result.outlines
    assert "cluster one, run " in title
    assert head.split() == [
        "phase",
        "verdict",
        "nodes",
        "queue",
        "s",
        "run",
        "s",
        "steps/s",
        "rate",
        "against",
        "usual",
        "GiB",
        "transport",
        "reference",
    ]
    assert small.split()[:3] == ["small", "passed", "1"]
    assert small.endswith("met (steps_per_s)") and "80.00 samples/s" in small
    assert wide.split()[:3] == ["wide", "passed", "2"] and wide.endswith("no reference")
    assert report == f"report: {suite.report.resolve()}"
    assert verdict == "FIT: 2 of 2 phases passed"


def test_phase_changed_on_the_command_line_is_not_compared(suite: Suite) -> None:
    """Its reference is for other sizes: required, but not measured; the table says so."""
    references = {
        "steps_per_s": {"value": 8, "lower": "-10 %", "unit": "steps/s", "source": "a test"}
    }
    suite.cluster(require=["references"], references={"small": references})
    suite.phase(body="def test_speed(self, phase): phase.metric('steps_per_s').check()")
    assert suite.run().ret == 0
    result = suite.run("-rs", "--cluster-set", "small.nodes=2")
    assert result.ret == 6
    assert lines_with(result, "reference of other sizes (--cluster-set: nodes)")
    (row,) = [line for line in result.outlines if line.startswith("small  ")]
    assert row.endswith("reference of other sizes")
    assert "(small: references not measured); selected: " in result.outlines[-1]


def test_verdict_names_its_selection(sizes: Suite) -> None:
    """With -m the verdict names the selection, and how many of the cluster's phases it has."""
    result = sizes.run("-m", "singlegpu")
    assert result.outlines[-1] == "FIT: 1 of 1 phases passed; selected: singlegpu (1 of 3 phases)"


def test_no_colour_in_pipes(suite: Suite) -> None:
    """No escape sequences are written if the output is not a terminal."""
    suite.phase(args={"fail": True})
    assert "\x1b" not in suite.run().stdout.str()


def test_quiet_run_prints_no_progress(suite: Suite) -> None:
    """-q leaves out the jobs' progress and the header; table and verdict stay."""
    suite.phase()
    result = suite.run("-q")
    assert not lines_with(result, "submitted as job") and not lines_with(result, "cluster: one")
    assert result.outlines[-1] == "FIT: 1 of 1 phases passed"


def test_empty_selection_leaves_no_report(suite: Suite) -> None:
    """A selection that matches nothing ends with pytest's status 5, without a run or report."""
    suite.phase()
    result = suite.run("-k", "matches_nothing")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert suite.runs() == [] and suite.published() == []


def test_collect_only_submits_nothing(suite: Suite) -> None:
    """--collect-only with a cluster makes no run, no report and no directory."""
    suite.phase()
    assert suite.run("--collect-only").ret == 0
    assert not suite.shared.exists() and not suite.reports.exists()


def test_collection_error_submits_nothing(suite: Suite) -> None:
    """A test file that cannot be imported ends the run before any job is submitted."""
    suite.phase()
    suite.path.joinpath("test_broken.py").write_text("import missing_module\n")
    result = suite.run()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert suite.runs() == [] and suite.published() == []


def test_max_jobs_limits_the_jobs_at_once(suite: Suite) -> None:
    """--cluster-max-jobs 1 submits the second phase after the first has ended."""
    suite.cluster(phases=dict.fromkeys(["one_a", "one_b"]))
    suite.phase("one_a")
    suite.phase("one_b")
    suite.run("--cluster-max-jobs", "1").assert_outcomes(passed=4)
    ways = ("intent", "submitted", "ended")
    journal = [event for event in suite.journal() if event["event"] in ways]
    assert [(event["event"], event["phase"]) for event in journal] == [
        (event, phase) for phase in ("one_a", "one_b") for event in ways
    ]


def test_phase_named_twice_runs_once(suite: Suite) -> None:
    """Naming the same node id twice submits its job once."""
    path = suite.phase()
    suite.run(f"{path}::TestSmall::test_all_done", f"{path}::TestSmall").assert_outcomes(passed=2)
    assert [event["event"] for event in suite.journal()].count("submitted") == 1


def test_one_criterion_runs_by_its_node_id(suite: Suite) -> None:
    """A single criterion chosen by node id runs on the phase's job."""
    path = suite.phase()
    result = suite.run(f"{path}::TestSmall::test_all_done")
    assert result.ret == 0 and result.outlines[-1].startswith("FIT")


def test_criteria_may_be_parametrised_and_use_other_fixtures(suite: Suite) -> None:
    """They need not use only the fixture `phase`."""
    suite.phase(
        body="""
        @pytest.mark.parametrize("name", ["steps_per_s", "samples_per_s"])
        def test_measured(self, phase, name, tmp_path):
            assert phase.metric(name).value > 0
    """
    )
    suite.run().assert_outcomes(passed=3)


def test_directories_of_runs_are_not_collected(suite: Suite) -> None:
    """pytest follows links, and those of a job array lead back into their own directory: without
    this, one pytest over the directory above took two minutes."""
    suite.phase()
    for parent in (suite.shared, suite.reports):
        root = parent / "20261101-020000-abcdef"
        array = root / "phases" / "a" / "array"
        array.mkdir(parents=True)
        (root / "run.json").write_text("{}")
        for number in range(4):
            (array / str(number)).symlink_to("..")
        (root / "phases" / "a" / "test_copied.py").write_text("def test_never(): pass\n")
    other = suite.path / "20261101-notes"
    other.mkdir()
    (other / "test_other.py").write_text("def test_other(): pass\n")
    collected = suite.run("--collect-only", "-q", cluster="").stdout.str()
    assert "test_other" in collected and "test_copied" not in collected


@pytest.mark.parametrize("cluster", ["", "one"])
def test_mark_of_a_class_need_not_be_in_a_list(suite: Suite, cluster: str) -> None:
    """`pytestmark` may be one mark, of a class without a phase as well; and a base class may have
    the marker, where its subclass has another mark."""
    path = suite.phase("small")
    text = path.read_text().replace("class TestSmall:", "class Small:")
    text += """
@pytest.mark.skipif(False, reason="another mark")
class TestSmall(Small):
    pass

class TestPlain:
    pytestmark = pytest.mark.filterwarnings("ignore")

    def test_x(self):
        pass
"""
    path.write_text(text)
    outcome = suite.run("--collect-only", "-q", cluster=cluster)
    assert outcome.ret == 0, outcome.output
    assert "TestPlain::test_x" in outcome.output and "TestSmall::job" in outcome.output
