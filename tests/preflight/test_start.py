"""The start of a run: usage errors together, a silent scheduler, findings before submission."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_clustersmoke import preflight
from pytest_clustersmoke.config.phase import Phase
from pytest_clustersmoke.evidence.finding import Evidence, Finding
from pytest_clustersmoke.evidence.run_directory import RunDir, read_json
from pytest_clustersmoke.evidence.telemetry import read_events
from pytest_clustersmoke.preflight import slurm_check
from pytest_clustersmoke.preflight.slurm_check import CheckResult
from pytest_clustersmoke.session.job_session import JobSession, Progress
from tests.fakes.backend import FakeBackend
from tests.support.evidence import make_phase, make_profile
from tests.support.harness import Suite, lines_with
from tests.support.waiting import PATIENCE_S


def test_launcher_and_wrong_marker_are_reported_together(suite: Suite) -> None:
    """One refusal reports both, also in a dry run."""
    suite.path.joinpath("train.py").write_text("import os\nos.system('mpirun python x.py')\n")
    suite.phase(script="train.py", gpus_per_node=2)
    suite.phase("bad", nodes=0)
    for words in ((), ("--cluster-dry-run",)):
        lines = suite.refused(*words)
        assert len(lines) == 2
        assert "test_bad.py:3: nodes=0" in lines[0]
        assert "train.py:2: the script of phase `small` starts the launcher `mpirun`" in lines[1]


def test_too_little_space_is_a_usage_error(suite: Suite) -> None:
    """A phase whose `writes_gib` does not fit is not submitted."""
    suite.cluster(phases={"small": {"writes_gib": 1e9}})
    suite.phase()
    (line,) = suite.refused()
    assert "small 1e+09 GiB (`writes_gib`)" in line and line.startswith("cluster.yaml:5: ")


@pytest.fixture
def silent(tmp_path: Path) -> dict[str, str]:
    """An environment in which Slurm's commands never answer."""
    bin = tmp_path / "bin"
    bin.mkdir()
    for name in ("sbatch", "scontrol", "squeue", "scancel", "sacctmgr"):
        (bin / name).write_text(f"#!/bin/sh\nexec sleep {PATIENCE_S}\n")
        (bin / name).chmod(0o755)
    return {**os.environ, "PATH": f"{bin}{os.pathsep}{os.environ['PATH']}"}


def test_silent_scheduler_does_not_hang_the_start(
    tmp_path: Path, silent: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question has a time limit. Unanswered ones are reported, there is no finding, and no
    further phase is tested once sbatch has been silent."""
    monkeypatch.setattr(slurm_check, "ANSWER_S", 0.4)
    phases = {name: {"slurm": {"time": minutes}} for minutes, name in enumerate("abc", 5)}
    profile = make_profile(tmp_path, backend="slurm", phases=phases)
    start = preflight.prepare_run(profile, "20260101-000000-abcdef", silent)
    assert start.check is not None
    begun = time.monotonic()
    checked = start.check([make_phase(profile, name) for name in "abc"], start.run)
    assert time.monotonic() - begun < PATIENCE_S
    assert not checked.findings and not checked.starts
    assert all(line.startswith("not checked: ") for line in checked.lines)
    text = "\n".join(checked.lines)
    for words in (
        "show partition` did not answer within 0.4 s",
        "a: `sbatch --test-only` did not",
        "of b: Slurm was",
    ):
        assert words in text


@pytest.fixture
def refusing(tmp_path: Path) -> dict[str, str]:
    """An environment in which Slurm has one partition, `main`, and sbatch refuses every job."""
    bin = tmp_path / "bin"
    bin.mkdir()
    answers = {
        "sbatch": "echo 'allocation failure: Invalid partition name specified' >&2; exit 1",
        "scontrol": '[ "$4" = partition ] && echo PartitionName=main State=UP MaxNodes=2',
        "squeue": "",
        "scancel": "",
    }
    for name, script in answers.items():
        (bin / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {tmp_path}/calls\n{script}\n')
        (bin / name).chmod(0o755)
    return {"PATH": f"{bin}{os.pathsep}{os.environ['PATH']}"}


def test_phases_that_ask_for_the_same_are_tested_once(
    tmp_path: Path, refusing: dict[str, str]
) -> None:
    """Names, arguments, environment and points of a sweep change nothing of Slurm's answer, which
    holds for all of them; other options of sbatch do."""
    phases = {"a": None, "b": {"env": {"set": {"X": "1"}}}, "c": {"slurm": {"time": 6}}, "d": None}
    profile = make_profile(tmp_path, backend="slurm", phases=phases)
    start = preflight.prepare_run(profile, "20260101-000000-abcdef", refusing)
    assert start.check is not None
    made = [make_phase(profile, name, args={"steps": len(name)}) for name in phases]
    checked = start.check([*made[:3], replace(made[3], base="e")], start.run)
    calls = (tmp_path / "calls").read_text().splitlines()
    asked = [call.split("/")[-2] for call in calls if call.startswith("sbatch --test-only")]
    assert asked == ["a", "c"]
    for name in phases:
        (finding,) = checked.findings[name]
        assert f"phase {name}" in finding.cause
        assert start.run.phase(name).batch_script.exists()


def misplaced(suite: Suite, **slurm: str) -> None:
    """A Slurm cluster with a phase whose script lies under `node_local`."""
    (suite.path / "mine").mkdir()
    script = suite.path / "mine" / "train.py"
    script.touch()
    suite.cluster(
        backend="slurm", node_local=[str(script.parent)], slurm=slurm, setup=[], python="python3"
    )
    suite.phase(script=str(script))


def test_slurm_is_asked_despite_usage_errors(
    suite: Suite, tmp_path: Path, refusing: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script in the wrong place and an unknown partition: one run reports both."""
    monkeypatch.setenv("PATH", refusing["PATH"])
    misplaced(suite, partition="mian")
    place, partition = suite.refused()
    assert "mine/train.py" in place and "which nodes do not share" in place
    assert partition.startswith("cluster.yaml:") and "no partition `mian`" in partition
    assert partition.endswith("did you mean `main`?")
    calls = (tmp_path / "calls").read_text().splitlines()
    assert all("--test-only" in call for call in calls if call.startswith("sbatch"))


def test_dry_run_does_not_ask_slurm(
    suite: Suite, tmp_path: Path, refusing: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dry run prints its plan on every machine, with the reasons for which a run is refused."""
    monkeypatch.setenv("PATH", refusing["PATH"])
    misplaced(suite, partition="mian")
    result = suite.run("--cluster-dry-run")
    assert result.ret == 0
    (remark,) = lines_with(result, "a run would be refused")
    assert "mine/train.py" in remark and "which nodes do not share" in remark
    assert lines_with(result, "=== small")
    assert not (tmp_path / "calls").exists()


def test_failing_question_hides_no_usage_error(
    suite: Suite, refusing: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure will appear again when the phases are submitted."""
    monkeypatch.setenv("PATH", refusing["PATH"])

    def broken(*arguments: object) -> object:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(slurm_check.SlurmCheck, "__call__", broken)
    misplaced(suite, partition="mian")
    assert len(suite.refused()) == 1


def test_local_backend_asks_no_scheduler(tmp_path: Path) -> None:
    """Virtual nodes have no scheduler."""
    profile = make_profile(tmp_path)
    start = preflight.prepare_run(profile, "20260101-000000-abcdef", os.environ)
    assert start.check is None
    assert preflight.find_slurm_problems(profile, [make_phase(profile)], os.environ) == []


@pytest.mark.parametrize(
    ("identity", "outcome"),
    [("nodes-unavailable", "cluster_failed"), ("too-many-nodes", "never_ran")],
)
def test_phases_that_cannot_run_are_not_submitted(
    tmp_path: Path, identity: str, outcome: str
) -> None:
    """Their results hold the findings before other phases are submitted; nodes that take no jobs
    give the outcome cluster_failed."""
    backend = FakeBackend()
    profile = make_profile(tmp_path, phases={"a": None, "b": None}, limits={"poll_s": 0.05})
    evidence = (Evidence("cluster.yaml", 7, "nodes: 9"),)
    finding = Finding(identity, "too few", "fewer", evidence=evidence, hosts=("n1",))

    def ask(phases: Iterable[Phase], run: RunDir) -> CheckResult:
        assert [phase.name for phase in phases] == ["a", "b"] and not backend.calls
        return CheckResult({"a": [finding]}, {"b": 7.0}, ("look at n1",))

    run = RunDir(tmp_path / "run1")
    run.root.mkdir()
    phases = [make_phase(profile, name) for name in "ab"]
    session = JobSession(run, profile, phases, backend, ask)
    progress: list[Progress] = []
    session.start()
    session.wait("a", progress.append)
    result = read_json(run.phase("a").result) or {}
    assert (result["outcome"], result["reason"]) == (outcome, "too few")
    assert result["findings"][0]["id"] == identity and result["findings"][0]["hosts"] == ["n1"]
    session.close()
    assert [name for (name,) in backend.named("submit")] in ([], ["b"])
    assert ("preflight", "look at n1") in [(change.phase, change.text) for change in progress]
    events = [record["event"] for record in read_events(run.journal).records]
    assert events[:2] == ["refused", "ended"]
    assert (read_json(run.phase("b").result) or {})["estimated_start"] == 7.0
