"""pytest's view of phases: options, marks, collection, the fixture, exit statuses."""

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


def test_phases_skip_without_a_cluster_and_say_how_to_choose(suite: Suite) -> None:
    """Without --cluster each criterion and job is skipped with the way to choose; nothing runs."""
    suite.phase()
    result = suite.run("-rs", cluster="")
    result.assert_outcomes(skipped=2)
    assert lines_with(result, "no cluster chosen: run with --cluster NAME")
    assert not suite.shared.exists() and not suite.reports.exists()


def test_the_ini_option_chooses_a_cluster(suite: Suite) -> None:
    """`cluster = one` in the ini file does what --cluster one does; the option wins over it."""
    suite.phase()
    suite.path.joinpath("pytest.ini").write_text("[pytest]\ncluster = one\n")
    assert lines_with(suite.run("--collect-only", cluster=""), "cluster: one (local;")
    assert "no profile `two`" in suite.run(cluster="two").stderr.str()


@pytest.mark.parametrize(
    ("mark", "phase"), [("singlegpu", "alone"), ("multigpu", "pair"), ("multinode", "wide")]
)
@pytest.mark.parametrize("cluster", ["", "one"])
def test_size_marks_are_derived(sizes: Suite, mark: str, phase: str, cluster: str) -> None:
    """-m chooses by the phase's resources, with a cluster and without one."""
    result = sizes.run("--collect-only", "-q", "-m", mark, cluster=cluster)
    collected = lines_with(result, "::")
    assert collected and all(f"Test{phase.capitalize()}::" in line for line in collected)


def test_the_size_mark_follows_the_clusters_resources(sizes: Suite) -> None:
    """A phase that the profile puts on two nodes is multinode there."""
    sizes.cluster(phases={**dict.fromkeys(THREE_SIZES), "alone": {"nodes": 2}})
    result = sizes.run("--collect-only", "-q", "-m", "multinode")
    assert {line.split("::")[1] for line in lines_with(result, "::")} == {"TestAlone", "TestWide"}


def test_markers_are_documented(suite: Suite) -> None:
    """`pytest --markers` tells what each marker of ours is."""
    text = suite.run("--markers", cluster="").stdout.str()
    for name in ("phase(", "singlegpu", "multigpu", "multinode", "ddp", "deepspeed", "lora"):
        assert f"@pytest.mark.{name}" in text


def test_marks_of_ours_pass_strict_markers(suite: Suite) -> None:
    """--strict-markers accepts every marker of ours, the derived ones included."""
    suite.phase()
    assert suite.run("--strict-markers", "--collect-only").ret == 0


def test_a_phase_that_is_not_on_the_cluster_is_deselected_with_the_reason(suite: Suite) -> None:
    """Its tests do not run, and one line says why; the listed phase runs."""
    suite.phase()
    suite.phase("huge", gpus_per_node=8)
    suite.phase("other")
    suite.cluster(phases={"small": None})
    result = suite.run("--collect-only")
    assert lines_with(result, "huge is not on one: needs 8 GPUs a node, it has 2")
    assert lines_with(result, "other is not on one: not listed under its phases")
    result.stdout.fnmatch_lines(["*2/6 tests collected (4 deselected)*"])


def test_other_tests_run_beside_phases(suite: Suite) -> None:
    """A test that is no phase's runs with a cluster; its failure makes the run UNFIT."""
    suite.phase()
    suite.path.joinpath("test_other.py").write_text("def test_other():\n    assert False\n")
    result = suite.run()
    result.assert_outcomes(passed=2, failed=1)
    assert result.ret == 1
    assert result.outlines[-1] == "UNFIT: 1 of 1 phases (tests that are no phase's)"


def test_a_choice_by_keyword_keeps_the_job(suite: Suite) -> None:
    """-k test_x runs the job's item too, since a failing criterion points to it."""
    suite.phase(body="def test_x(self, phase): pass\ndef test_y(self, phase): pass")
    result = suite.run("-k", "test_x", "-v")
    result.assert_outcomes(passed=2, deselected=1)
    assert lines_with(result, "TestSmall::job PASSED")
    assert "FIT for test_x: 1 of 1 phases" in result.outlines[-1]


def test_a_failing_job_is_told_once(suite: Suite) -> None:
    """The job's item carries the findings; each criterion ends in one line that points there."""
    suite.phase(
        args={"fail": True},
        body=(
            "def test_a(self, phase): assert phase.ranks_done\n"
            "def test_b(self, phase): assert phase.ranks_done"
        ),
    )
    result = suite.run("-rf")
    result.assert_outcomes(failed=3)
    assert result.ret == 1
    text = result.stdout.str()
    assert text.count("finding rank-error: rank 0 (local0) failed: ValueError: staged") == 1
    assert text.count("  next: read the traceback") == 1
    points = "phase small: failed; see test_small.py::TestSmall::job"
    assert [line for line in result.outlines if line == points] == [points] * 2
    assert "def test_a" not in text and "JobFailed" not in text
    assert result.outlines[-1] == "UNFIT: 1 of 1 phases (small: failed)"


def test_a_failing_criterion_leaves_the_job_green(suite: Suite) -> None:
    """A job that passed stays passed beside a criterion that failed; the verdict names it."""
    suite.phase(args={"loss": "rises", "steps": 3}, base="Trained", body="pass")
    result = suite.run("-v")
    assert lines_with(result, "TestSmall::job PASSED")
    assert lines_with(result, "test_loss_over_all_ranks_falls FAILED")
    result.assert_outcomes(passed=12, failed=1, skipped=5)
    assert result.ret == 1
    assert result.outlines[-1] == "UNFIT: 1 of 1 phases (small: test_loss_over_all_ranks_falls)"


def test_a_program_that_leaves_early_with_status_0_fails(suite: Suite) -> None:
    """A rank that ends with status 0 and never said it was done fails its phase."""
    suite.phase(args={"leave": True})
    result = suite.run()
    assert result.ret == 1
    assert suite.record()["phases"][0]["outcome"] == "failed"
    assert lines_with(result, "rank 0 (local0)") or lines_with(result, "rank 0 ")


def test_the_fixture_belongs_to_phases(suite: Suite) -> None:
    """`phase` in a test of no phase is a usage error of that test, in words."""
    suite.path.joinpath("test_other.py").write_text("def test_other(phase):\n    pass\n")
    result = suite.run()
    result.assert_outcomes(errors=1)
    assert "belongs to the tests of a class marked @pytest.mark.phase(...)" in result.stdout.str()


def test_a_run_of_two_nodes_and_its_report(suite: Suite) -> None:
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
    for found in cases.values():
        assert found["phase"] == "small" and found["outcome"] == "passed"
        assert found["nodes"] == "local0,local1" and found["job_id"].startswith("local-")
        assert float(found["queue_s"]) >= 0 and float(found["run_s"]) > 0
        assert found["steps_per_s"] == "10.0" and found["transport"] == "gloo"


def test_junitxml_goes_where_the_user_says(suite: Suite) -> None:
    """--junitxml PATH wins over the run's own junit.xml."""
    suite.phase()
    suite.run("--junitxml=mine.xml")
    assert suite.path.joinpath("mine.xml").is_file()
    assert not (suite.report / "junit.xml").exists()


def test_what_is_required_and_not_measured_is_inconclusive(suite: Suite) -> None:
    """Under gloo no NCCL transport can be judged: exit status 6 where the profile requires it."""
    suite.cluster(require=["transports"], expect={"small": {"intra_node": ["P2P/*"]}})
    suite.phase(gpus_per_node=2, base="TalkedInsideNodes", body="pass")
    result = suite.run("-rs")
    assert result.ret == 6
    result.assert_outcomes(passed=1, skipped=1)
    assert lines_with(result, "not measured (transports): the ranks talked over gloo")
    assert result.outlines[-1] == "INCONCLUSIVE: 1 of 1 phases (small: transports not measured)"


def test_what_is_not_required_and_not_measured_is_fit(suite: Suite) -> None:
    """The same skip is allowed where the profile does not require transports, and another
    criterion was judged."""
    suite.phase(gpus_per_node=2, base="TalkedInsideNodes")
    result = suite.run()
    assert result.ret == 0 and result.outlines[-1] == "FIT: 1 of 1 phases"
    suite.phase(gpus_per_node=2, base="TalkedInsideNodes", body="pass")
    told = suite.run().outlines[-1]
    assert told == "INCONCLUSIVE: 1 of 1 phases (small: no criterion was judged)"


def test_the_terminal_ends_with_table_and_verdict(suite: Suite) -> None:
    """The last lines are the table's head, a row a phase, the report's path and the verdict."""
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
        "outcome",
        "nodes",
        "queue",
        "s",
        "run",
        "s",
        "steps/s",
        "rate",
        "GiB",
        "transport",
        "reference",
    ]
    assert small.split()[:3] == ["small", "passed", "1"]
    assert small.endswith("met (steps_per_s)") and "80.00 samples/s" in small
    assert wide.split()[:3] == ["wide", "passed", "2"] and wide.endswith("no reference")
    assert report == f"report: {suite.report.resolve()}"
    assert verdict == "FIT: 2 of 2 phases"


def test_the_verdict_names_its_scope(sizes: Suite) -> None:
    """With -m the verdict names the choice, and how many of the cluster's phases were chosen."""
    result = sizes.run("-m", "singlegpu")
    assert result.outlines[-1] == "FIT for singlegpu: 1 of 3 phases"


def test_no_colour_in_pipes(suite: Suite) -> None:
    """No escape sequence is written where the output is no terminal."""
    suite.phase(args={"fail": True})
    assert "\x1b" not in suite.run().stdout.str()


def test_quiet_says_nothing_of_progress(suite: Suite) -> None:
    """-q leaves out the jobs' progress and the header; table and verdict stay."""
    suite.phase()
    result = suite.run("-q")
    assert not lines_with(result, "submitted as job") and not lines_with(result, "cluster: one")
    assert result.outlines[-1] == "FIT: 1 of 1 phases"


def test_a_run_with_nothing_to_do_reports_nothing(suite: Suite) -> None:
    """A choice that matches nothing is pytest's status 5, and leaves no run behind."""
    suite.phase()
    result = suite.run("-k", "nothing_is_named_so")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert suite.runs() == [] and suite.published() == []


def test_collecting_alone_submits_nothing(suite: Suite) -> None:
    """--collect-only with a cluster makes no run, no report and no directory."""
    suite.phase()
    assert suite.run("--collect-only").ret == 0
    assert not suite.shared.exists() and not suite.reports.exists()


def test_a_collection_error_submits_nothing(suite: Suite) -> None:
    """A test file that cannot be imported ends the run before any job is submitted."""
    suite.phase()
    suite.path.joinpath("test_broken.py").write_text("import a_module_that_is_not_there\n")
    result = suite.run()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert suite.runs() == [] and suite.published() == []


def test_max_jobs_caps_the_jobs_at_once(suite: Suite) -> None:
    """--cluster-max-jobs 1 submits the second phase after the first has ended."""
    suite.cluster(phases=dict.fromkeys(["one_a", "one_b"]))
    suite.phase("one_a")
    suite.phase("one_b")
    suite.run("--cluster-max-jobs", "1").assert_outcomes(passed=4)
    ways = ("intent", "submitted", "ended")
    journal = [one for one in suite.journal() if one["event"] in ways]
    assert [(one["event"], one["phase"]) for one in journal] == [
        (event, phase) for phase in ("one_a", "one_b") for event in ways
    ]


def test_a_phase_twice_on_the_command_line_runs_once(suite: Suite) -> None:
    """Naming the same node id twice submits its job once."""
    path = suite.phase()
    suite.run(f"{path}::TestSmall::test_all_done", f"{path}::TestSmall").assert_outcomes(passed=2)
    assert [one["event"] for one in suite.journal()].count("submitted") == 1


def test_one_criterion_by_its_node_id(suite: Suite) -> None:
    """A single criterion chosen by node id runs on the phase's job."""
    path = suite.phase()
    result = suite.run(f"{path}::TestSmall::test_all_done")
    assert result.ret == 0 and result.outlines[-1].startswith("FIT")


def test_a_parametrised_criterion_and_unittest_style_helpers_work(suite: Suite) -> None:
    """Criteria may be parametrised and use other fixtures beside `phase`."""
    suite.phase(
        body="""
        @pytest.mark.parametrize("name", ["steps_per_s", "samples_per_s"])
        def test_measured(self, phase, name, tmp_path):
            assert phase.metric(name).value > 0
    """
    )
    suite.run().assert_outcomes(passed=3)
