"""reports/<run_id>/: its files, permissions and pruning; hostile text in the terminal."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from pytest_clustersmoke.evidence.run_directory import PhaseDir, RunDir
from pytest_clustersmoke.evidence.telemetry import EventWriter
from pytest_clustersmoke.report.publication import publish
from pytest_clustersmoke.report.run_archive import (
    _is_evidence,
    list_protected,
    list_reported_elsewhere,
    prune_runs,
)
from pytest_clustersmoke.report.terminal import write_summary
from pytest_clustersmoke.text import sanitize_lines
from tests.support import records
from tests.support.harness import Suite, properties


def test_report_is_complete(suite: Suite) -> None:
    """Record, JUnit, journal, batch script and evidence are in reports/<run_id>/."""
    suite.phase(args={"steps": 3})
    suite.run()
    record = suite.record()
    assert record["schema"] == 1 and record["cluster"] == "one" and record["verdict"] == "FIT"
    (phase,) = record["phases"]
    assert phase["phase"] == "small" and phase["outcome"] == "passed" and phase["world_size"] == 1
    assert phase["metrics"]["steps_per_s"]["unit"] == "steps/s"
    assert phase["nodes"][0]["node"] == "local0" and phase["queue_s"] is not None
    passed = {"result": "passed", "text": ""}
    assert phase["criteria"] == {"job": passed, "test_all_done": passed}
    kept = {
        str(path.relative_to(suite.report.resolve())) for path in suite.report.resolve().rglob("*")
    }
    assert {
        "report.json",
        "junit.xml",
        "journal.jsonl",
        "phases/small/batch.sh",
        "phases/small/spec.json",
        "phases/small/result.json",
        "phases/small/ranks/00000.jsonl",
        "phases/small/nodes/0000/launcher.log",
    } <= kept
    assert not [name for name in kept if name.endswith(".pkl") or "output" in name]


def test_environment_of_ranks_is_not_copied(tmp_path: Path) -> None:
    """It may hold tokens; a node that was killed has left it."""
    assert _is_evidence(Path("nodes/0000/events.jsonl"))
    assert not _is_evidence(PhaseDir(Path()).node_environment(0))


def test_checkpoints_of_passed_phases_are_deleted(suite: Suite) -> None:
    """The output of a passed phase is deleted; that of a failed phase is kept for inspection."""
    suite.cluster(phases=dict.fromkeys(["good", "bad"]))
    suite.phase("good")
    suite.phase("bad", args={"leave": True})
    suite.run()
    (run,) = suite.runs()
    assert not (run / "phases" / "good" / "output").exists()
    assert (run / "phases" / "bad" / "output").exists()


def test_checkpoint_is_deleted_before_a_later_phase_needs_its_space(suite: Suite) -> None:
    """Not only at the end of the run: the space that preflight asks for is that of phases which can
    run at the same time."""
    suite.cluster(phases={"first": None, "second": {"after": "first"}})
    suite.phase("first")
    body = f"""
        def test_space_is_free(self, phase):
            from pathlib import Path
            run = next(Path({str(suite.shared)!r}).glob("*/phases"))
            assert (run / "first" / "result.json").exists()
            assert phase.ranks_done and not (run / "first" / "output").exists()
    """
    suite.phase("second", body=body)
    outcome = suite.run()
    outcome.assert_outcomes(passed=4)


@pytest.mark.parametrize(
    ("metric", "shown"),
    [
        ("samples_per_s", "0.5200 samples/s"),
        ("tokens_per_s_per_rank", "0.5200 tokens/s"),
        ("busbw_gb_per_s", "0.5200 GB/s bus"),
    ],
)
def test_table_shows_the_rate_of_the_phase(metric: str, shown: str) -> None:
    """The rate is in samples, tokens or bus bandwidth, with its unit."""
    lines: list[str] = []

    class Reporter:
        def section(self, *_: object, **__: object) -> None: ...

        def write_line(self, line: str, **_: object) -> None:
            lines.append(line)

    record = records.run(records.phase(metrics={metric: records.metric(0.52)}))
    write_summary(Reporter(), records.parsed(record), ["report: here"])
    assert shown in lines[1] and lines[-2:] == ["report: here", "FIT: 1 of 1 phases passed"]


def test_verdict_is_printed_without_a_report(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug of ours that prevents the report is an internal error; the verdict is still printed."""

    def broken(run: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("pytest_clustersmoke.report.record_builder.make_record", broken)
    suite.phase()
    result = suite.run()
    assert result.ret == pytest.ExitCode.INTERNAL_ERROR
    assert result.outlines[-1] == "no report could be created: FIT: 1 of 1 phases passed"
    assert "ZeroDivisionError" in result.stderr.str() and not suite.report.exists()


def test_report_is_written_if_another_plugin_fails(suite: Suite) -> None:
    """If junit.xml cannot be written, that is an internal error, with verdict and report."""
    suite.phase()
    (suite.path / "afile").touch()
    result = suite.run(f"--junitxml={suite.path}/afile/x.xml")
    assert result.ret == pytest.ExitCode.INTERNAL_ERROR
    assert result.outlines[-1] == "FIT: 1 of 1 phases passed" and suite.record()["verdict"] == "FIT"
    assert any("pytest failed to end the session: " in line for line in result.outlines)


def test_phases_run_despite_a_collection_error(suite: Suite) -> None:
    """With --continue-on-collection-errors: the phase is judged, and the run is not FIT."""
    suite.phase()
    (suite.path / "test_broken.py").write_text("import nothing_of_that_name\n")
    result = suite.run("--continue-on-collection-errors")
    assert suite.record()["verdict"] == "UNFIT" and result.ret == 1
    assert suite.record()["phases"][0]["outcome"] == "passed"


def test_others_may_read_the_report_but_not_the_run(suite: Suite) -> None:
    """Others can read everything below reports/; the run's directory is 0700."""
    old = os.umask(0o022)
    try:
        suite.phase()
        suite.run()
    finally:
        os.umask(old)
    for path in [suite.report.resolve(), *suite.report.resolve().rglob("*")]:
        wanted = 0o005 if path.is_dir() else 0o004
        assert path.stat().st_mode & wanted == wanted, path
    (run,) = suite.runs()
    assert run.stat().st_mode & 0o077 == 0


def test_latest_is_updated_and_old_runs_are_pruned(suite: Suite) -> None:
    """The newest `limits.keep_runs` runs are kept; foreign files in the directory stay."""
    suite.cluster(limits={"poll_s": 0.2, "keep_runs": 2})
    suite.phase()
    suite.reports.mkdir()
    (suite.reports / "README.md").write_text("mine")
    (suite.reports / "mine").mkdir()
    ids = []
    for _ in range(3):
        suite.run()
        ids.append(suite.record()["run_id"])
        assert suite.report.is_symlink() and suite.report.readlink() == Path(ids[-1])
    names = {path.name for path in suite.reports.iterdir()}
    files = {"README.md", "mine", "latest", "history.db", "metrics-one.prom", "index.html"}
    assert names == files | set(ids[1:])
    assert {path.name for path in suite.runs()} == set(ids[1:])


def test_report_dir_option_moves_the_report(suite: Suite) -> None:
    """--cluster-report-dir is the directory of the whole report, with junit.xml."""
    suite.phase()
    suite.run("--cluster-report-dir", "elsewhere")
    assert (suite.path / "elsewhere" / "latest" / "junit.xml").is_file()
    assert not suite.reports.exists()


@pytest.mark.parametrize("rate", ["inf", "nan"])
def test_rate_that_is_not_finite_is_reported(suite: Suite, rate: str) -> None:
    """An infinite or NaN metric breaks no report and fails its criterion."""
    suite.phase(
        args={"rate": rate},
        body=("def test_rate(self, phase): phase.metric('steps_per_s').check()"),
    )
    result = suite.run()
    result.assert_outcomes(passed=1, failed=1)
    assert result.ret == 1 and "INTERNALERROR" not in result.stdout.str()
    json.loads(
        (suite.report / "report.json").read_text(), parse_constant=lambda name: pytest.fail(name)
    )
    assert properties(suite.report / "junit.xml")


def test_hostile_text_does_not_reach_the_terminal(suite: Suite) -> None:
    """Control characters in a rank's messages are replaced."""
    program = suite.path / "train_hostile.py"
    program.write_text(HOSTILE)
    suite.phase(script="train_hostile.py")
    result = suite.run()
    text = result.stdout.str() + result.stderr.str()
    assert "staged" in text and "\x1b" not in text and "\x07" not in text
    assert result.ret == 1


HOSTILE = r"""
import os, time
from pathlib import Path
import psutil
from pytest_clustersmoke.evidence.process_start import start_s
from pytest_clustersmoke.evidence.run_directory import PhaseDir, job_name, read_json
from pytest_clustersmoke.evidence.telemetry import EventWriter
place = PhaseDir(Path(os.environ["CLUSTERSMOKE_PHASE_DIR"]))
events = EventWriter(place.rank_events(0))
me = psutil.Process()
bad = "\x1b]0;owned\x07\x1b[2Jstaged\r\x9b31m\u202e"
events.write("start", schema=1, job=job_name(read_json(place.spec)), rank=0, local_rank=0,
             nonce=os.environ["CLUSTERSMOKE_NONCE"],
             node_rank=0, pid=me.pid, pid_started=start_s(me.pid), node=bad, host=bad)
events.write("group", backend=bad, world_size=1)
events.write("error", type=bad, message=bad, traceback=bad)
raise SystemExit(bad)
"""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\n\tü", "plain\n\tü"),
        ("\x1b[31mred", "\ufffd[31mred"),
        ("a\rb", "a\ufffdb"),
        ("\x00\x07\x9b", "\ufffd" * 3),
        ("\u202eevil", "\ufffdevil"),
    ],
)
def test_control_characters_are_replaced(text: str, shown: str) -> None:
    """Control and direction characters become the replacement character."""
    assert sanitize_lines(text) == shown


def test_unwritable_report_directory_is_a_usage_error(suite: Suite) -> None:
    """It is found before anything is submitted."""
    suite.path.joinpath("file").write_text("")
    suite.phase()
    assert suite.refused("--cluster-report-dir", "file/reports") == [
        "--cluster-report-dir: the reports would go to file/reports, but file is not a directory; "
        "expected a directory that this user can write"
    ]


def test_text_of_a_job_in_junit_is_valid_xml(suite: Suite) -> None:
    """Control characters of a failed job do not break junit.xml."""
    Path(suite.path / "train_hostile.py").write_text(HOSTILE)
    suite.phase(script="train_hostile.py")
    suite.run()
    cases = properties(suite.report / "junit.xml")
    assert cases["test_small.TestSmall::job"]["result"] == "failure"


def test_pruning_leaves_foreign_and_open_runs(suite: Suite) -> None:
    """Directories with other names, and runs that are not over, stay, however old they are."""
    suite.cluster(limits={"poll_s": 0.2, "keep_runs": 1})
    reports = suite.report.parent
    foreign, open_run = reports / "mine", reports / "20200101-000000-abcdef"
    for folder in (foreign, open_run):
        folder.mkdir(parents=True)
        (folder / "report.json").write_text("{}")
        (folder / "journal.jsonl").write_text('{"event": "intent", "time": 1, "mono": 1}\n')
    suite.phase()
    suite.run()
    suite.run()
    assert foreign.exists() and open_run.exists()
    assert len([path for path in reports.iterdir() if path.is_dir()]) == 4  # with `latest`


def test_unwritable_report_is_not_fit(suite: Suite) -> None:
    """The verdict is still printed, but the exit status is not that of FIT."""
    suite.path.joinpath("conftest.py").write_text(
        "import pathlib\ndef pytest_runtest_logfinish():\n"
        "    (run,) = pathlib.Path('reports').glob('2*')\n"
        "    (run / 'report.json/in_the_way').mkdir(parents=True, exist_ok=True)\n"
    )
    suite.phase()
    result = suite.run()
    assert result.ret == 3
    result.stdout.fnmatch_lines(["the report cannot be written to *", "FIT: 1 of 1 phases passed"])
    assert "Traceback" not in result.stdout.str() + result.stderr.str()


def test_selection_is_named_in_the_verdict(suite: Suite) -> None:
    """The verdict of a run with a path names the selected phase."""
    suite.cluster(phases=dict.fromkeys(["one_a", "one_b"]))
    path = suite.phase("one_a")
    suite.phase("one_b")
    assert (
        "FIT: 1 of 1 phases passed; selected: one_a (1 of 2 phases)" in suite.run(path).stdout.str()
    )


def test_undefined_phase_is_not_fit(suite: Suite) -> None:
    """A phase without a test may be a misspelt name or a file that pytest does not collect: the run
    is not FIT, unless the user selected a part of the suite."""
    suite.cluster(phases=dict.fromkeys(["one_a", "one_b"]))
    path = suite.phase("one_a")
    result = suite.run()
    assert result.ret == 6
    output = result.stdout.str()
    assert "one_b: listed in cluster.yaml, but no collected test defines it" in output
    early = "one lists the phase one_b, but no collected test defines it"
    assert 0 < output.index(early) < output.index("submitted as job")
    assert suite.run(str(suite.path)).ret == 6
    assert suite.run(path).ret == suite.run("-k", "one_a or OneA").ret == 0


@pytest.mark.parametrize("paths", ["suites/*", "suites/real gone"])
def test_undefined_phase_is_not_fit_wherever_pytest_looks_for_tests(
    suite: Suite, paths: str
) -> None:
    """Its `testpaths` may be globs, and name what is not there."""
    suite.cluster(phases=dict.fromkeys(["one_a", "one_b"]))
    folder = suite.path / "suites" / "real"
    folder.mkdir(parents=True)
    suite.phase("one_a").rename(folder / "test_one_a.py")
    (suite.path / "pytest.ini").write_text(f"[pytest]\ntestpaths = {paths}\n")
    outcome = suite.run_apart()
    assert outcome.ret == 6, outcome.output
    assert "one lists the phase one_b, but no collected test defines it" in outcome.output


def test_whole_run_without_a_phase_is_the_newest_of_its_cluster(suite: Suite) -> None:
    """Nobody left the phase out: metrics and the page over runs say INCONCLUSIVE, not FIT."""
    suite.cluster(phases=dict.fromkeys(["one_a", "one_b"]))
    suite.phase("one_a")
    lost = suite.phase("one_b")
    assert suite.run().ret == 0
    lost.unlink()
    assert suite.run().ret == 6
    assert suite.record()["selection"] == ""
    metrics = (suite.reports / "metrics-one.prom").read_text()
    assert re.search(r'^clustersmoke_run_fit\{cluster="one"\} 0', metrics, re.M), metrics
    assert 'data-field="verdict">INCONCLUSIVE' in (suite.reports / "index.html").read_text()


def test_misspelt_phase_of_a_profile_is_named_with_a_near_match(suite: Suite) -> None:
    """By the dry run, which submits nothing, and by the run."""
    suite.phase("mlp_1gpu")
    suite.phase("other")
    suite.cluster(phases=dict.fromkeys(["mlp_1gp", "other"]))
    words = (
        "one lists the phase mlp_1gp, but no collected test defines it; did you mean `mlp_1gpu`?"
    )
    plan = suite.run("--cluster-dry-run")
    assert plan.ret == 0 and words in plan.stdout.str() and suite.runs() == []
    result = suite.run()
    output = result.stdout.str()
    assert result.ret == 6 and words in output
    head, _, end = output.partition("cluster one, run ")
    lines = [line for line in end.splitlines() if "mlp_1gp" in line.replace("mlp_1gpu", "")]
    assert words in head and [line.partition(":")[0] for line in lines] == ["next", "INCONCLUSIVE"]
    assert "no collected test defines it; did you mean `mlp_1gpu`?" in lines[1]


@pytest.mark.parametrize("words", [["-k", "other"], ["-m", "singlegpu"]])
def test_misspelt_phase_is_named_beside_a_selection(suite: Suite, words: list[str]) -> None:
    """-k and -m leave tests out, not files; a path does, which may define the phase. It was not
    selected, so the verdict does not change."""
    suite.phase("mlp_1gpu")
    path = suite.phase("other")
    suite.cluster(phases=dict.fromkeys(["mlp_1gp", "other"]))
    named = "one lists the phase mlp_1gp, but no collected test defines it"
    assert named in suite.run("--cluster-dry-run", *words).stdout.str()
    result = suite.run(*words)
    assert result.ret == 0 and named in result.stdout.str()
    assert named not in suite.run("--cluster-dry-run", path).stdout.str()


def test_run_that_was_attached_again_is_not_pruned(tmp_path: Path) -> None:
    """It had been closed once, and its jobs run."""
    ends = (["closed", "attached", "submitted"], ["closed"], ["closed"])
    runs = [RunDir(tmp_path / f"20261101-02000{number}-abcdef") for number in range(3)]
    for run, events in zip(runs, ends, strict=True):
        journal = EventWriter(run.journal)
        for event in ("intent", *events):
            journal.write(event)
        journal.close()
    prune_runs(tmp_path, 1)
    assert {path.name for path in tmp_path.iterdir()} == {runs[0].run_id, runs[2].run_id}


def make_over(report_dir: Path, record: records.Record) -> None:
    """The report of a run that is over, and its row in the history."""
    records.store_run(record, report_dir)
    journal = EventWriter(RunDir(report_dir / record["run_id"]).journal)
    for event in ("intent", "closed"):
        journal.write(event)
    journal.close()


def test_pruning_keeps_the_last_fit_and_unfit_run_and_runs_marked_to_keep(tmp_path: Path) -> None:
    """Of each cluster, however old they are; a file `keep` protects any other run."""
    made = [
        ("one", "UNFIT"),
        ("one", "FIT"),
        ("two", "FIT"),
        ("one", "UNFIT"),
        ("one", "INCONCLUSIVE"),
        ("two", "FIT"),
        *[("one", "FIT")] * 4,
    ]
    ids = []
    for number, (cluster, verdict) in enumerate(made):
        record = records.run(cluster=cluster, verdict=verdict, begun=records.BEGUN + number)
        record["run_id"] = f"20261101-0200{number:02}-abcdef"
        ids.append(record["run_id"])
        make_over(tmp_path, record)
    (tmp_path / ids[4] / "keep").touch()
    protected = list_protected(tmp_path)
    assert protected == {ids[3], ids[4], ids[5], ids[9]}
    prune_runs(tmp_path, 2, protected)
    kept = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert kept == {*protected, *ids[-2:]}


def test_pruning_leaves_the_runs_of_other_clusters(tmp_path: Path) -> None:
    """Their profiles may keep more."""
    for number, cluster in enumerate(["one", "one", "two", "two", "two"]):
        record = records.run(cluster=cluster, begun=records.BEGUN + number)
        record["run_id"] = f"20261101-0200{number:02}-abcdef"
        make_over(tmp_path, record)
        run = RunDir(tmp_path / record["run_id"])
        run.run.write_text(json.dumps({"cluster": cluster}))
    prune_runs(tmp_path, 1, cluster="two")
    kept = {path.name[13:15] for path in tmp_path.iterdir() if path.is_dir()}
    assert kept == {"00", "01", "04"}


def test_pruning_leaves_reports_of_names_only_of_other_clusters(tmp_path: Path) -> None:
    """They have no run.json; their record says the cluster, unless its name is also the user's."""
    for number, cluster in enumerate(["two", "one", "<user>", "one", "two", "two"]):
        record = records.run(cluster=cluster, begun=records.BEGUN + number)
        record["run_id"] = f"20261101-0200{number:02}-abcdef"
        make_over(tmp_path, record)
        (tmp_path / record["run_id"] / "report.json").write_text(json.dumps(record))
    prune_runs(tmp_path, 2, cluster="two")
    kept = {path.name[13:15] for path in tmp_path.iterdir() if path.is_dir()}
    assert kept == {"01", "03", "04", "05"}


def test_pruning_counts_screens_apart(tmp_path: Path) -> None:
    """Those of each hour take no night, and old screens go all the same."""
    for number in range(8):
        record = records.run(begun=records.BEGUN + number)
        record["run_id"] = f"20261101-0200{number:02}-abcdef"
        make_over(tmp_path, record)
        if number not in (0, 3, 4):
            (tmp_path / record["run_id"] / "screen").mkdir()
    prune_runs(tmp_path, 2)
    kept = {path.name[13:15] for path in tmp_path.iterdir() if path.is_dir()}
    assert kept == {"03", "04", "06", "07"}


def test_parts_and_screens_do_not_unprotect_the_last_whole_runs(tmp_path: Path) -> None:
    """Neither do runs of which not all is known. The newest of any kind stays, too."""
    made: list[dict[str, object]] = [{}, {"selection": "-k small"}, {"phases": []}]
    made += [{"partial": "its controller was killed"}]
    for number, changes in enumerate(made):
        record = records.run(begun=records.BEGUN + number)
        record["run_id"] = f"20261101-0200{number:02}-abcdef"
        make_over(tmp_path, {**record, **changes})
    assert list_protected(tmp_path) == {"20261101-020000-abcdef", "20261101-020003-abcdef"}


def test_run_that_ends_late_is_not_pruned_as_it_is_published(tmp_path: Path) -> None:
    """It began before the others, and is INCONCLUSIVE."""
    for number in (1, 2):
        run_id = f"20261101-02000{number}-abcdef"
        make_over(tmp_path, records.run(run_id=run_id, begun=records.BEGUN + number))
    record = records.parsed(records.run(verdict="INCONCLUSIVE"))
    record.run_id = "20261101-020000-abcdef"
    run = RunDir(tmp_path / "runs" / record.run_id)
    run.root.mkdir(parents=True)
    run.journal.write_text('{"event": "closed", "time": 1, "mono": 1}\n')
    assert publish(record, run, tmp_path, {}, keep_runs=1) == []
    assert (tmp_path / record.run_id / "report.json").exists() and run.root.exists()


def test_run_whose_report_is_in_another_report_directory_is_not_pruned(tmp_path: Path) -> None:
    """That directory's own pruning takes it, with its report; once the report is gone, any does. A
    file `keep` in the report protects the run as well."""
    here, other, runs = (tmp_path / name for name in ("reports", "other", "runs"))
    reports = [other / "20261101-020000-abcdef", other / "20261101-020001-abcdef"]
    reports += [here / "20261101-020002-abcdef", here / "20261101-020003-abcdef"]
    for number, report in enumerate(reports):
        run = RunDir(runs / report.name)
        run.root.mkdir(parents=True)
        run.journal.write_text(f'{{"event": "closed", "time": {number}, "mono": 1}}\n')
        run.run.write_text(json.dumps({"report": str(report)}))
    for report in (reports[0], reports[2], reports[3]):
        report.mkdir(parents=True)
    (reports[2] / "keep").touch()
    record = records.parsed(records.run())
    record.run_id = "20261101-020009-abcdef"
    run = RunDir(runs / record.run_id)
    run.root.mkdir()
    run.journal.write_text('{"event": "closed", "time": 9, "mono": 1}\n')
    assert publish(record, run, here, {}, keep_runs=1) == []
    kept = {path.name for path in runs.iterdir()}
    assert kept == {reports[0].name, reports[2].name, record.run_id}


def test_run_json_of_another_user_or_with_garbage_does_not_stop_pruning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a shared directory that several users have, each finds the others' runs. Nothing of those
    is read or taken."""
    here, runs, lstat = tmp_path / "reports", tmp_path / "runs", Path.lstat
    here.mkdir()
    for number in range(4):
        run = RunDir(runs / f"20261101-02000{number}-abcdef")
        run.root.mkdir(parents=True, mode=0o700)
        run.journal.write_text(f'{{"event": "closed", "time": {number}, "mono": 1}}\n')
        run.run.write_text(json.dumps({"report": "re\0port"}))
    others = runs / "20261101-020000-abcdef"

    def lstat_of_others(path: Path) -> os.stat_result:
        info = list(lstat(path))
        return os.stat_result([*info[:4], info[4] + (path == others), *info[5:]])

    monkeypatch.setattr(Path, "lstat", lstat_of_others)
    RunDir(others).run.write_text(json.dumps({"report": str(tmp_path / "trap")}))
    (tmp_path / "trap").mkdir()
    assert list_reported_elsewhere(runs, here) == set()
    prune_runs(runs, 1)
    assert {path.name[14] for path in runs.iterdir()} == {"0", "3"}


def test_nothing_is_pruned_without_the_history(tmp_path: Path) -> None:
    """It says which runs must stay; a remark says what is wrong with it."""
    (tmp_path / "history.db").write_text("not a database")
    for number in range(3):
        record = records.parsed(records.run())
        record.run_id = f"20261101-02000{number}-abcdef"
        run = RunDir(tmp_path / "runs" / record.run_id)
        run.root.mkdir(parents=True)
        run.journal.write_text('{"event": "closed", "time": 1, "mono": 1}\n')
        remarks = publish(record, run, tmp_path, {}, keep_runs=1)
        assert any("is damaged, or not a database" in remark for remark in remarks)
    assert len(list(tmp_path.glob("2*"))) == len(list((tmp_path / "runs").iterdir())) == 3
