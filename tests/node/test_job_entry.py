"""A job loads nothing from a directory that another user could have put in the run's place."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from submitit.core.utils import DelayedSubmission

from pytest_clustersmoke.evidence.run_directory import PhaseDir, create_phase, write_json
from pytest_clustersmoke.jobs import batch_script
from pytest_clustersmoke.jobs.backend import Submission, make_spec
from pytest_clustersmoke.node.job_entry import MISSING, REFUSAL, NotOurs, open_run
from tests.support.evidence import make_phase, make_profile


@pytest.fixture
def job(tmp_path: Path) -> Submission:
    """A job whose call writes a file `ran` into the run's directory."""
    profile = make_profile(tmp_path)
    phase = make_phase(profile)
    (tmp_path / "run1").mkdir(mode=0o700)
    directory = PhaseDir(tmp_path / "run1" / "phases" / "small")
    create_phase(directory, 1)
    write_json(directory.spec, make_spec(phase, profile, directory, "t1"))
    made = Submission(phase, directory, "t1")
    batch_script.write_call(made)
    DelayedSubmission((directory.run.root / "ran").touch).dump(directory.call("t1"))
    directory.batch_script.write_text(batch_script.make_script(made, profile, []))
    return made


def run(job: Submission, command: list[str]) -> subprocess.CompletedProcess[str]:
    variables = batch_script.node_variables(job.phase, 0, "n0")
    environ = {**os.environ, **variables}
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


def by_entry(job: Submission) -> list[str]:
    return ["bash", "-c", batch_script.start_command(sys.executable, job)]


# Only root can give a directory to another user.
HOWS = ["link", "own link", "open", *(["foreign"] if os.getuid() == 0 else [])]
WAYS = pytest.mark.parametrize("command", [by_entry, batch_script.guarded_command])


@WAYS
@pytest.mark.parametrize("mode", [0o700, 0o2700])
def test_call_of_the_submission_runs(
    job: Submission, command: Callable[..., list[str]], mode: int
) -> None:
    """Also below a directory that hands its group down."""
    job.directory.run.root.chmod(mode)
    done = run(job, command(job))
    assert done.returncode == 0, done.stderr
    assert (job.directory.run.root / "ran").exists()


@WAYS
@pytest.mark.parametrize("how", HOWS)
def test_directory_in_the_place_of_the_runs_is_not_loaded(
    job: Submission, command: Callable[..., list[str]], how: str
) -> None:
    """Its files are the same, and nothing of them runs."""
    root = job.directory.run.root
    moved = root.rename(root.with_name("moved"))
    if how.endswith("link"):  # to one that is open to others, or only has another name
        moved.chmod(0o755 if how == "link" else 0o700)
        root.symlink_to(moved)
    else:
        moved.rename(root)
        root.chmod(0o777 if how == "open" else 0o700)
    if how == "foreign":
        os.chown(root, 65534, 65534)
    done = run(job, command(job))
    assert done.returncode == 1
    assert done.stderr.startswith(REFUSAL)
    assert MISSING not in done.stderr
    assert not (root / "ran").exists()


@WAYS
def test_directory_that_is_missing_is_told_from_one_that_was_replaced(
    job: Submission, command: Callable[..., list[str]]
) -> None:
    root = job.directory.run.root
    root.rename(root.with_name("moved"))
    done = run(job, command(job))
    assert (done.returncode, done.stderr) == (1, f"{REFUSAL}{root} {MISSING}\n")


def list_loaded(file: Path) -> None:
    loaded = "numpy" in sys.modules
    import numpy

    file.write_text(f"{loaded} {numpy.int64(1)}")


@WAYS
def test_numpy_is_loaded_by_none_but_the_call(
    job: Submission, command: Callable[..., list[str]], tmp_path: Path
) -> None:
    """A node starts sooner without it; a call that wants it finds it."""
    DelayedSubmission(list_loaded, tmp_path / "loaded").dump(job.directory.call("t1"))
    done = run(job, command(job))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "loaded").read_text() == "False 1"


def end_badly(folder: str) -> None:
    """What a node's call may be when it ends: an exit of the interpreter would run the hook."""
    atexit.register(Path(folder, "took its modules down").touch)
    print("the last words, which no line end flushes", end="")
    raise RuntimeError("this node failed")


@WAYS
def test_failed_call_shows_its_words_and_why_and_ends_at_once(
    job: Submission, command: Callable[..., list[str]], tmp_path: Path
) -> None:
    """The interpreter's own end would cost more than that of the ranks."""
    DelayedSubmission(end_badly, str(tmp_path)).dump(job.directory.call("t1"))
    done = run(job, command(job))
    assert done.returncode == 1
    assert "the last words, which no line end flushes" in done.stdout
    assert done.stderr.endswith("RuntimeError: this node failed\n")
    assert not (tmp_path / "took its modules down").exists()


def test_call_of_the_own_token_wins_over_that_of_an_earlier_job_of_the_same_id(
    job: Submission,
) -> None:
    """Slurm gives ids again after it has lost its state."""
    folder = job.directory.submitit
    DelayedSubmission((job.directory.run.root / "stale").touch).dump(folder / "t0.pkl")
    (folder / "small.0_submitted.pkl").symlink_to("t0.pkl")
    for _ in range(2):  # the second finds the link of the first
        done = run(job, by_entry(job))
        assert done.returncode == 0, done.stderr
    assert (job.directory.run.root / "ran").exists()
    assert not (job.directory.run.root / "stale").exists()


def test_directory_that_was_opened_stays_the_same(tmp_path: Path) -> None:
    """Whatever its name points to later."""
    root = tmp_path / "run1"
    root.mkdir(mode=0o700)
    (root / "own").touch()
    opened = open_run(root)
    root.rename(tmp_path / "moved")
    root.mkdir()
    (root / "foreign").touch()
    assert [path.name for path in opened.iterdir()] == ["own"]


def test_refusal_says_what_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "run1"
    with pytest.raises(NotOurs, match="run1 is not visible on this node"):
        open_run(root)
    root.symlink_to(tmp_path)
    with pytest.raises(NotOurs, match=r"run1 cannot be opened as a directory \(Not a directory"):
        open_run(root)
    root.unlink()
    root.mkdir(mode=0o750)
    with pytest.raises(NotOurs, match=r"run1 is open to other users \(mode 750, expected 700\)"):
        open_run(root)
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    with pytest.raises(NotOurs, match=f"run1 belongs to user {uid}, and this job to {uid + 1}"):
        open_run(root)


def test_task_of_an_array_finds_its_phase_by_a_link(job: Submission) -> None:
    """The link lies in the directory of the array's first phase, and is relative to it."""
    array = job.directory.array
    array.mkdir()
    (array / "3").symlink_to(Path("..") / ".." / "small")
    command = by_entry(replace(job, index=0))
    done = run(job, ["env", "SLURM_ARRAY_TASK_ID=3", *command])
    assert done.returncode == 0, done.stderr
    assert (job.directory.run.root / "ran").exists()
